"""The rules of at-most-once dispatch: how a call is recorded, what a replay gets, keys, settings."""

from __future__ import annotations

from typing import Final

from tests.tidy.rule import Rule, contracts, rule, runs

DIFFERS: Final = "guards-belong-to-the-effect-and-not-to-the-call"
UNKNOWN: Final = "no-answer-is-unknown"
REPLAY: Final = "a-replay-is-judged-where-it-is-answered"

RECORDED: Final[tuple[Rule, ...]] = (
    rule(
        "A call whose answer is lost after the tool acted looks failed; its retry does not run the tool again.",
        "execution.py, store/lua/begin.lua",
        "fault/test_uncertainty::test_timeout_after_a_write acceptance/test_demo::"
        "test_the_whole_afternoon_acts_at_most_once_through_kills_and_lost_answers",
    ),
    rule(
        "A call is known by the tool call id that its host or adapter sets; an argument of that name is the model's, "
        "and is never read.",
        "client/proposing.py",
        "unit/test_replays::test_a_call_id_among_the_arguments_is_the_models_and_is_never_read "
        "unit/tools/test_contract::test_an_input_field_that_only_the_host_sets_is_refused_also_as_an_alias",
    ),
    rule(
        "Before the tool runs the call is recorded as pending, as the last step after every gate.",
        "judging.py, store/lua/begin.lua",
        "unit/test_replays::test_an_effect_is_pending_and_its_decision_is_written_before_its_tool_runs "
        "unit/test_governance::test_a_precondition_is_tested_right_before_begin",
    ),
    rule(
        "When the tool returns, the call is committed with the value that it returned.",
        "execution.py, store/lua/commit.lua",
        "unit/test_workbench::test_an_effect_is_proposed_run_and_committed "
        "unit/tools/test_verdicts::test_a_plain_return_happened",
    ),
    rule(
        "An error that leaves the effect in doubt makes it unknown.",
        "tools/verdicts.py",
        "unit/tools/test_verdicts::test_an_unlisted_error_proves_nothing fault/test_lost_answers::"
        "test_a_lost_answer_is_unknown_then_found_and_done_once",
    ),
    rule(
        "Any other error releases the record, so that the call may run again.",
        "tools/verdicts.py",
        "unit/tools/test_verdicts::test_an_unlisted_error_proves_nothing "
        "unit/tools/test_verdicts::test_a_listed_error_proves_that_it_did_not_happen "
        "unit/tools/test_verdicts::test_the_seed_behaviour_releases_only_where_the_contract_says_so",
        adr=UNKNOWN,
        differs='Only a listed error releases; `on_unlisted_error = "release"` gives the rule as it was, and never to '
        "an irreversible tool.",
    ),
    rule(
        "A tool can say that it cannot tell, by raising an error of its own.",
        "core/outcome.py",
        "unit/tools/test_verdicts::test_an_unlisted_error_proves_nothing "
        "unit/core/test_outcome::test_every_raised_outcome_is_a_tool_raised_with_its_own_code",
    ),
    rule(
        "A generator or another deferred result takes effect as it is consumed, so the call is unknown.",
        "tools/verdicts.py",
        "unit/tools/test_verdicts::test_a_deferred_result_is_unknown "
        "acceptance/test_isolation_process::test_a_deferred_answer_is_unknown",
    ),
)

REPLAYED: Final[tuple[Rule, ...]] = (
    rule(
        "committed: the replay gets the stored value, nothing runs, and the record calls it a replay.",
        "client/handle.py, store/lua/propose.lua",
        "unit/test_replays::test_a_replay_gets_the_stored_value_and_the_log_calls_it_a_replay "
        "acceptance/test_client::test_a_replayed_read_is_answered_from_its_first_result",
    ),
    rule(
        "unknown, tool not reversible: the replay is told `effect_status_unknown`, not to retry, and by which key to "
        "ask the provider.",
        "client/handle.py",
        "unit/test_workbench::test_an_answer_that_is_lost_leaves_the_effect_unknown_and_is_not_repeated "
        "fault/test_evidence::test_a_re_plan_under_a_new_call_id_joins_the_open_effect_and_is_told_not_to_retry",
    ),
    rule(
        "pending, tool not reversible: the replay is refused as `effect_status_unknown`.",
        "store/lua/propose.lua",
        "unit/test_replays::test_the_replay_of_a_call_that_still_runs_waits_for_it_and_runs_nothing",
        adr=DIFFERS,
        differs="It joins the running effect and waits for its end; nothing runs.",
    ),
    rule(
        "pending or unknown, tool reversible: the replay runs it again.",
        "execution.py, store/lua/begin.lua",
        "unit/test_replays::test_a_reversible_call_that_is_unknown_runs_again_and_its_replay_gets_the_value "
        "unit/test_replays::test_the_replay_of_a_call_that_still_runs_waits_for_it_and_runs_nothing",
        adr=DIFFERS,
        differs="A worker runs it again by itself once the first attempt has ended; a replay never runs anything.",
    ),
    rule(
        "With other arguments, or another tool, the replay is refused.",
        "store/lua/propose.lua, store/lua/admit_read.lua",
        "unit/test_replays::test_a_known_call_id_with_other_arguments_or_another_tool_is_refused contract/"
        "test_cell_operations::test_admit_read_refuses_a_known_call_with_other_arguments",
    ),
    rule(
        "The policy is asked again on a replay: one that now denies refuses it.",
        "client/run.py",
        "unit/test_governance::test_a_committed_replay_is_refused_when_the_policy_now_denies "
        "acceptance/test_policy::test_running_workers_judge_by_a_pushed_policy_and_a_replay_is_refused",
        adr=REPLAY,
        differs="It is asked where the replay is answered, since no worker judges it.",
    ),
    rule(
        "A person is asked again on a replay too.",
        "client/run.py",
        "unit/test_governance::test_an_approved_answer_is_given_again_unless_the_policy_wants_each_one_approved",
        adr=DIFFERS,
        differs="A stored answer is given again without asking, since nothing new happens; "
        '`replay_approval = "again"` withholds it instead.',
    ),
    rule(
        "The approval of the first attempt is never used for another.",
        "policy/approval_gate.py, store/lua/approve.lua",
        "unit/test_governance::test_an_approval_is_used_by_an_attempt_that_may_have_happened "
        "unit/policy/test_gates::test_an_approval_of_something_else_asks_again",
    ),
)

TAGGED: Final[tuple[Rule, ...]] = (
    rule(
        "A tool is reversible, costly or irreversible, as unchanging data about the tool.",
        "tools/contract.py",
        "unit/tools/test_contract::test_of_two_tags_the_stricter_wins_and_costly_is_not_reversible "
        "unit/tools/test_contract::test_a_contract_does_not_change",
    ),
    rule(
        "The tag is found through wrappers, above or below the guard.",
        "tools/registry.py",
        "unit/tools/test_registry::test_a_plain_wrapper_around_an_async_function_is_refused "
        "unit/tools/test_registry::test_a_registry_answers_by_name_and_counts",
        adr=DIFFERS,
        differs="It stands in the contract, which is found by the tool's name: no wrapper can hide it.",
    ),
    rule(
        "Of several tags the strictest holds.",
        "tools/strictness.py",
        "unit/tools/test_contract::test_of_two_tags_the_stricter_wins_and_costly_is_not_reversible "
        "unit/policy/test_tool_policy::test_the_stricter_of_policy_and_contract_holds",
    ),
    rule(
        "A tool without a tag is irreversible.",
        "tools/contract.py",
        "unit/tools/test_contract::test_an_untagged_tool_is_irreversible_and_is_reconciled",
        setting=contracts("reversibility", "irreversible"),
    ),
    rule(
        "Reversibility and what a caller may do are apart: a refusal by either stands.",
        "policy/policy_gate.py, policy/target_gate.py",
        "unit/policy/test_gates::test_a_scope_of_the_contract_is_asked_for_in_every_mode "
        "unit/policy/test_chain_properties::test_the_chain_and_the_oracle_agree_on_every_call",
    ),
)

KEYED: Final[tuple[Rule, ...]] = (
    rule(
        "Each call has a key that its tool can read and send to its provider.",
        "tools/context.py",
        "unit/tools/test_context::test_the_keys_are_those_of_intent_occurrence_and_part "
        "acceptance/test_demo_tools::test_a_request_is_one_message_to_the_contact_under_the_effects_key",
    ),
    rule(
        "It is the SHA-256 of the tool's name and its canonical arguments.",
        "core/identity.py",
        "unit/core/test_identity::test_an_intent_key_is_the_sha256_of_a_canonical_list_that_names_itself "
        "unit/core/test_identity::test_a_provider_key_grows_from_intent_occurrence_and_part",
        adr=DIFFERS,
        differs="Of tenant, tool and the fields that say what is meant (all arguments, unless some are named), and of "
        "how often the provider has rejected it.",
    ),
    rule(
        "It is the same for the same business input, whatever the call id, so a provider can refuse a repeat that the "
        "guard never saw.",
        "tools/intent.py",
        "unit/test_replays::test_a_tool_sends_the_same_key_for_the_same_meaning_whatever_the_call_id "
        "fault/test_record_deleted::test_a_provider_that_honours_the_key_does_it_once",
    ),
)

OPTIONS: Final[tuple[Rule, ...]] = (
    rule(
        "`store`: in memory by default, one process's; a shared one covers replicas.",
        "store/",
        "acceptance/test_races::test_two_processes_that_send_one_call_id_make_one_effect "
        "acceptance/test_one_begin::test_fifty_deliveries_to_eight_workers_begin_once",
        adr=DIFFERS,
        differs="Always shared, and durable before a tool may run; the one in memory is for tests.",
    ),
    rule(
        "`require_tool_call_id`: without an id, a call of a tool that is not reversible is refused.",
        "policy/effect_gate.py",
        "unit/policy/test_gates::test_a_call_without_an_id_is_refused_unless_it_can_be_undone_or_the_run_policy_waives_it",
        setting=runs("require_tool_call_id", True),
    ),
    rule(
        "`require_approval_for_irreversible`: a person agrees to each irreversible call, whatever else is said.",
        "policy/approval_gate.py",
        "unit/policy/test_gates::test_a_person_is_asked_always_or_for_what_cannot_be_undone",
        setting=runs("require_approval_for_irreversible", False),
    ),
    rule(
        "`target_args`: an irreversible call gives at least one of these a value.",
        "policy/target_gate.py",
        "unit/policy/test_gates::test_an_empty_target_is_missing "
        "unit/policy/test_gates::test_zero_and_false_are_targets "
        "unit/policy/test_gates::test_what_can_be_undone_needs_no_target",
        setting=contracts("target_args", ()),
    ),
    rule(
        "`ambiguous_errors`: the errors that leave a call unknown.",
        "tools/verdicts.py",
        "unit/tools/test_verdicts::test_the_seed_behaviour_releases_only_where_the_contract_says_so",
        adr=UNKNOWN,
        differs='The list counts where `on_unlisted_error = "release"`; else every unlisted error does.',
        setting=contracts(
            "ambiguous_errors",
            (
                "builtins.TimeoutError",
                "builtins.ConnectionResetError",
                "builtins.ConnectionAbortedError",
                "builtins.BrokenPipeError",
            ),
        ),
    ),
)

LIMITS: Final[tuple[Rule, ...]] = (
    rule(
        "Two processes do not see each other's calls, unless a store is shared, whose begin must be atomic.",
        "store/lua/begin.lua, store/lua/propose.lua",
        "acceptance/test_races::test_two_processes_that_send_one_call_id_make_one_effect "
        "acceptance/test_one_begin::test_of_fifty_begins_that_cross_one_is_granted",
        adr=DIFFERS,
        differs="They do, by scripts that are atomic.",
    ),
    rule(
        "A shared store serialises the stored results itself.",
        "tools/results.py",
        "unit/tools/test_results::test_a_clean_answer_is_stored_as_it_came_with_when_it_was_retrieved "
        "fault/test_hard_arguments::test_a_result_that_cannot_be_stored_has_still_happened",
    ),
    rule(
        "A lost response and a tool that crashed midway cannot be told apart: both are unknown, and only a reversible "
        "tool runs again.",
        "tools/verdicts.py, store/lua/begin.lua",
        "acceptance/test_worker_death::test_a_killed_worker_leaves_its_effect_unknown_and_others_go_on "
        "unit/tools/test_verdicts::test_an_overrun_and_a_death_are_unknown_and_say_whether_they_are_over "
        "fault/test_uncertainty::test_timeout_before_a_write",
        adr=UNKNOWN,
        differs="The provider can be asked; what it did not get, proved twice, runs again too.",
    ),
    rule(
        "No adapter sets the tool call id: the host does.",
        "client/proposing.py",
        "acceptance/test_client::test_tool_calls_of_two_model_apis_are_answered_in_their_order",
        adr=DIFFERS,
        differs="`run.call_many` takes the id from the model API's own tool calls.",
    ),
)
