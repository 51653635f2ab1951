"""The rules of runs: what a run bounds, what halts it, loops, settings."""

from __future__ import annotations

from typing import Final

from tests.tidy.rule import Rule, rule, runs

DIFFERS: Final = "guards-belong-to-the-effect-and-not-to-the-call"
OUTSIDE: Final = "taint-reauthentication-and-sandboxes-stay-outside"

PER_CALL: Final[tuple[Rule, ...]] = (
    rule(
        "argument validation and the gates on values",
        "policy/arguments_gate.py, policy/target_gate.py",
        "unit/policy/test_gates::test_arguments_that_cannot_be_used_are_refused_by_their_own_code "
        "unit/policy/test_gates::test_ghosts_are_stripped_and_let_pass_or_refused_where_the_policy_says_so",
    ),
    rule(
        "policy: allow, deny, escalate, roles, time windows",
        "policy/policy_gate.py, policy/approval_gate.py",
        "unit/policy/test_gates::test_deny_globs_beat_allow_globs "
        "unit/policy/test_gates::test_scopes_and_roles_of_the_policy_are_asked_for_besides "
        "unit/policy/test_gates::test_a_window_is_open_from_its_start_until_before_its_end "
        "unit/policy/test_gates::test_a_condition_compares_one_argument",
    ),
    rule(
        "rate limits, per tool or per agent",
        "policy/rate_gate.py, store/lua/includes/rates.lua",
        "unit/test_run_bounds::test_a_rate_tells_when_to_come_again "
        "contract/test_run_bounds::test_a_rate_admits_so_many_calls_in_any_window_of_the_servers_clock "
        "contract/test_run_bounds::test_the_strictest_of_several_rates_counts_and_a_join_counts_too",
    ),
    rule(
        "the budget of costs, per model tier",
        "policy/budget_gate.py",
        "contract/test_run_bounds::test_costs_are_bounded_for_the_run_and_for_the_tenants_day",
        adr=DIFFERS,
        differs="Per call as the contract prices it, summed up for run and tenant: which model called is unknown here.",
    ),
    rule(
        "sandboxing and closing off the network",
        "",
        "",
        adr=OUTSIDE,
        differs="Outside. `isolation` keeps a tool's death and time away from the worker, not its network.",
    ),
)

PER_RUN: Final[tuple[Rule, ...]] = (
    rule(
        "the halt latch",
        "policy/run_halted_gate.py, store/lua/includes/stops.lua",
        "contract/test_cell_operations::test_halt_run_stops_every_later_call_and_keeps_its_first_reason",
    ),
    rule(
        "loop detection",
        "policy/loop_gate.py, store/lua/includes/calls.lua",
        "contract/test_run_bounds::test_two_processes_of_one_run_are_seen_as_one",
    ),
    rule("counts of re-authentication on untrusted calls", "", "", adr=OUTSIDE, differs="Outside."),
    rule(
        "the budget of calls, by session",
        "policy/budget_gate.py, store/lua/includes/calls.lua",
        "contract/test_run_bounds::test_the_call_past_the_tools_or_the_runs_budget_is_refused "
        "unit/test_run_bounds::test_a_budget_lets_two_calls_in_and_refuses_the_third",
        adr=DIFFERS,
        differs="By run: `max_calls` of all its calls, `max_calls_per_run` of each tool's.",
    ),
    rule("taint from sources to sinks", "", "", adr=OUTSIDE, differs="Outside. Tool output is tagged as untrusted."),
    rule(
        "A call that belongs to no run is refused as `run_guard_outside_run`.",
        "policy/run_halted_gate.py, client/run.py",
        "unit/test_run_halts::test_a_call_in_a_run_that_is_over_belongs_to_none "
        "unit/policy/test_gates::test_a_halted_run_and_a_call_outside_of_any_are_refused_before_the_arguments_are_looked_at",
    ),
    rule(
        "A bare thread is outside the run; `asyncio.to_thread` and a wrapper of the run carry it.",
        "client/run.py",
        "unit/test_run_halts::test_a_bare_thread_is_outside_the_run_and_asyncio_to_thread_is_inside",
    ),
)

HARD_STOPS: Final[tuple[Rule, ...]] = (
    rule(
        "A refusal halts the run when its rule is in `halt_on`: a freeze of the fleet, for one.",
        "policy/tool_rules.py, store/lua/propose.lua",
        "unit/test_run_halts::test_a_freeze_of_the_fleet_halts_the_runs_that_call_and_lets_accepted_effects_wait "
        "unit/policy/test_gates::test_a_refusal_halts_the_run_by_its_rule_or_by_its_tool "
        "unit/test_governance::test_a_worker_halts_the_run_by_a_refusal_that_the_policy_lists",
        adr=DIFFERS,
        differs="New calls are refused and halt their runs; what was accepted before waits for the thaw.",
    ),
    rule(
        "So does an answer that nobody could read as consent or refusal.",
        "hooks.py",
        "unit/test_governance::test_an_answer_that_nobody_can_read_is_indeterminate_and_halts_the_run",
    ),
    rule(
        "So does any refusal of a tool that `irreversible_tools` matches, whatever the reason.",
        "policy/tool_rules.py",
        "unit/test_governance::"
        "test_a_refusal_halts_the_run_where_the_policy_says_so_and_the_client_knows_the_policy "
        "unit/policy/test_gates::test_a_refusal_halts_the_run_by_its_rule_or_by_its_tool",
    ),
    rule(
        "From then on every call of the run is refused as `run_halted`, of every tool, whatever its own policy.",
        "store/lua/includes/stops.lua",
        "unit/test_governance::test_arguments_are_not_read_in_a_run_that_is_halted "
        "contract/test_cell_operations::test_admit_read_refuses_in_a_stopped_run_even_a_replay "
        "acceptance/test_client::test_a_halted_run_refuses_calls_and_cancels_what_waits",
    ),
    rule(
        "The latch is step 0.7, before any gate reads the arguments.",
        "policy/chain.py",
        "unit/policy/test_chain::test_the_order_is_this "
        "unit/test_governance::test_arguments_are_not_read_in_a_run_that_is_halted",
    ),
    rule(
        "It is looked at again at the end of the gates: what waited for a person, or in a queue, when the run halted "
        "is refused too.",
        "store/lua/begin.lua, store/lua/overtake.lua",
        "unit/test_run_halts::test_what_waited_for_a_person_when_the_run_halted_never_runs "
        "contract/test_waiting_operations::test_overtake_cancels_what_waits_in_a_halted_run "
        "contract/test_matrix::test_it_answers_moves_and_logs_as_the_table_says",
    ),
    rule(
        "A call that already runs finishes.",
        "execution.py",
        "unit/test_run_halts::test_a_call_that_already_runs_when_the_run_halts_finishes "
        "contract/test_waiting_operations::test_overtake_lets_a_running_attempt_finish",
    ),
    rule(
        "The refusal's metadata names the reason, and the run says `halted` and `halt_reason` to the host.",
        "client/run.py",
        "unit/test_run_halts::test_a_halted_run_says_why_to_its_host_and_each_refusal_and_the_log_name_the_step",
    ),
    rule(
        "`run.halt(reason)` halts a run from the host's code.",
        "client/run.py, store/lua/halt_run.lua",
        "contract/test_cell_operations::test_halt_run_stops_every_later_call_and_keeps_its_first_reason "
        "acceptance/test_client::test_a_halted_run_refuses_calls_and_cancels_what_waits",
    ),
    rule(
        "A person halts all runs of an agent or a tenant; one that is idle halts when it calls next.",
        "store/lua/halt_runs.lua, store/lua/includes/told_to_halt.lua",
        "contract/test_cell_operations::"
        "test_halt_runs_halts_an_idle_run_at_its_next_call_if_it_is_the_tenants_or_its_agent_opened_it_or_calls_in_it "
        "acceptance/test_operator_runs::"
        "test_an_agents_idle_runs_are_halted_when_they_call_next_and_those_that_it_opens_later_work",
    ),
    rule(
        "A halted run stays halted; a new run goes on.",
        "store/lua/open_run.lua",
        "unit/test_run_halts::"
        "test_a_halted_run_says_why_to_its_host_and_each_refusal_and_the_log_name_the_step "
        "unit/test_run_halts::test_a_freeze_of_the_fleet_halts_the_runs_that_call_and_lets_accepted_effects_wait",
    ),
)

LOOPS: Final[tuple[Rule, ...]] = (
    rule(
        "Step 2.3 keeps the run's recent calls as tool and digest of the arguments, the digest that approvals name.",
        "store/lua/includes/calls.lua",
        "unit/policy/test_chain::test_the_order_is_this "
        "contract/test_run_bounds::test_two_processes_of_one_run_are_seen_as_one",
    ),
    rule(
        "When a block of 1 to `max_loop_period` calls has repeated `loop_repeats` times, the call that completes it is "
        "refused as `loop_detected`.",
        "store/lua/includes/calls.lua",
        "contract/test_run_bounds::test_the_call_that_completes_a_loop_is_refused_and_the_next_one_halts_the_run "
        "contract/test_run_bounds::test_a_loop_of_any_settings_trips_exactly_when_its_last_copy_is_whole",
    ),
    rule(
        "Its hints tell the model to change approach, since one more repeat ends the run.",
        "client/refusals.py",
        "unit/test_run_halts::test_a_loop_is_refused_with_the_advice_to_change_approach_and_the_log_names_the_step",
    ),
    rule(
        "The next call that completes a loop halts the run, and is refused as `run_halted`.",
        "store/lua/propose.lua, store/lua/admit_read.lua",
        "unit/test_run_bounds::test_the_same_call_made_five_times_is_a_loop_and_the_sixth_halts "
        "contract/test_run_bounds::test_the_call_that_completes_a_loop_is_refused_and_the_next_one_halts_the_run",
    ),
    rule(
        "One call made five times trips on the fifth, a sequence of three on its fifteenth.",
        "store/lua/includes/calls.lua",
        "contract/test_run_bounds::test_the_call_that_completes_a_loop_is_refused_and_the_next_one_halts_the_run",
    ),
    rule(
        "The same tool with other arguments never trips.",
        "store/lua/includes/calls.lua",
        "unit/test_run_bounds::test_a_redelivered_call_is_no_loop_and_other_arguments_are_none",
    ),
    rule(
        "Only calls that the policy admitted at step 2 count.",
        "store/lua/propose.lua",
        "contract/test_run_bounds::test_what_the_policy_refused_does_not_count_and_what_a_later_gate_refused_does",
    ),
    rule(
        "Only calls whose policy carries the guard count.",
        "policy/tool_policy.py",
        "unit/test_run_bounds::test_a_run_policy_may_look_for_no_loops contract/test_run_bounds::"
        "test_a_known_call_id_never_counts_and_a_refused_one_is_refused_again",
        adr=DIFFERS,
        differs="There is one policy of runs, for every tool; and each call id counts once, since agents' hosts send "
        "calls twice.",
    ),
)

SETTINGS: Final[tuple[Rule, ...]] = (
    rule(
        "`halt_on`: the rules whose refusal halts the run.",
        "policy/tool_policy.py",
        "unit/policy/test_tool_policy::test_a_run_has_the_defaults_of_the_guards "
        "unit/policy/test_gates::test_a_refusal_halts_the_run_by_its_rule_or_by_its_tool",
        setting=runs("halt_on", ("kill_switch", "policy_indeterminate")),
    ),
    rule(
        "`irreversible_tools`: globs of tools of which any refusal halts the run.",
        "policy/tool_policy.py",
        "unit/policy/test_gates::test_a_refusal_halts_the_run_by_its_rule_or_by_its_tool",
        setting=runs("irreversible_tools", ()),
    ),
    rule(
        "`detect_loops`: look for repeated blocks of calls.",
        "policy/tool_policy.py",
        "unit/test_run_bounds::test_a_run_policy_may_look_for_no_loops",
        setting=runs("detect_loops", True),
    ),
    rule(
        "`loop_repeats`: repeats that make a loop, 2 to 100.",
        "policy/tool_policy.py",
        "unit/policy/test_tool_policy::test_loop_limits_have_bounds",
        setting=runs("loop_repeats", 5),
    ),
    rule(
        "`max_loop_period`: the longest block looked for, 1 to 10.",
        "policy/tool_policy.py",
        "unit/policy/test_tool_policy::test_loop_limits_have_bounds",
        setting=runs("max_loop_period", 5),
    ),
    rule(
        "The policy's digest covers these settings, so that dropping them is noticed.",
        "policy/tool_policy.py",
        "unit/policy/test_tool_policy::test_the_digest_covers_every_field_of_every_entry_and_of_runs",
    ),
    rule(
        "The decision record names the steps: `0.7:run_halted`, and for a loop `2.3:run_loop`.",
        "policy/chain.py, store/lua/propose.lua",
        "unit/test_run_halts::"
        "test_a_halted_run_says_why_to_its_host_and_each_refusal_and_the_log_name_the_step "
        "unit/test_run_halts::"
        "test_a_loop_is_refused_with_the_advice_to_change_approach_and_the_log_names_the_step",
    ),
)
