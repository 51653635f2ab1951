"""The rules of tool gateways: the registry, identity, untrusted output, what to build, and what to prove."""

from __future__ import annotations

from typing import Final

from tests.tidy.rule import Rule, rule

CLEANED: Final = "tool-output-is-cleaned-before-it-is-stored"

REGISTRY: Final[tuple[Rule, ...]] = (
    rule(
        "There is one central registry of tools and of what each may do.",
        "policy/policy_file.py",
        "unit/policy/test_policy_file::test_runs_tiers_and_tools_are_read "
        "unit/policy/test_tool_policy::test_a_tool_has_one_entry",
    ),
    rule(
        "risk tier, 0 to 3",
        "policy/tool_policy.py",
        "unit/policy/test_policy_file::test_an_entry_that_names_no_tier_is_in_the_strictest_and_asks_a_person",
    ),
    rule(
        "allowed states",
        "policy/policy_gate.py",
        "unit/policy/test_gates::test_a_tool_is_for_the_workflow_states_that_its_entry_names "
        "unit/test_governance::test_the_workflow_state_is_the_runs_own_at_begin",
    ),
    rule(
        "required scopes",
        "policy/policy_gate.py",
        "unit/policy/test_gates::test_scopes_and_roles_of_the_policy_are_asked_for_besides",
    ),
    rule(
        "approval: never, conditional, always",
        "policy/approval_gate.py",
        "unit/policy/test_gates::test_a_person_is_asked_always_or_for_what_cannot_be_undone "
        "unit/policy/test_gates::test_a_condition_compares_one_argument",
    ),
    rule(
        "retry class: read_safe, idempotent_write, reconcile, never",
        "tools/strictness.py",
        "unit/test_governance::test_a_tool_whose_policy_is_stricter_about_reruns_is_not_run_again "
        "unit/policy/test_tool_policy::test_the_stricter_of_policy_and_contract_holds",
    ),
    rule(
        "calls per run",
        "policy/budget_gate.py",
        "unit/test_run_bounds::test_a_budget_lets_two_calls_in_and_refuses_the_third",
    ),
    rule(
        "data classification",
        "policy/tool_policy.py",
        "unit/policy/test_tool_policy::test_the_stricter_of_policy_and_contract_holds",
    ),
    rule(
        "An agent gets only the tools that are allowed for this state and this caller.",
        "client/visible.py",
        "unit/test_governance::test_a_run_sees_the_tools_that_caller_and_state_allow",
    ),
)

IDENTITY: Final[tuple[Rule, ...]] = (
    rule(
        "A tool acts as the service, for the user, as the workflow, or through a tenant's integration; which, is "
        "recorded.",
        "judging.py, tools/credentials.py",
        "unit/test_tool_promises::test_the_decision_names_as_whom_a_tool_acts "
        "acceptance/test_identity::test_a_verified_caller_acts_through_a_credential_that_is_found_nowhere_else",
    ),
    rule(
        "No token stands where a model sees it.",
        "tools/credentials.py",
        "acceptance/test_identity::test_a_verified_caller_acts_through_a_credential_that_is_found_nowhere_else "
        "unit/test_tokens::test_a_token_that_does_not_hold_is_refused_by_its_fault_and_never_quoted",
    ),
    rule(
        "The gateway resolves credentials, and enforces audience, tenant and scope.",
        "tokens.py, tools/context.py",
        "unit/tools/test_context::test_credentials_are_resolved_when_asked_for "
        "acceptance/test_identity::test_a_token_of_another_tenant_and_one_that_does_not_hold_open_no_run "
        "unit/policy/test_gates::test_another_tenants_run_or_caller_is_refused_in_every_mode",
    ),
)

OUTPUT: Final[tuple[Rule, ...]] = (
    rule(
        "prompt injection",
        "tools/hygiene/screen.py",
        "unit/tools/hygiene/test_clean::test_words_that_want_to_be_instructions_are_tagged_and_kept "
        "fault/test_uncertainty::test_injection_text_in_the_output",
    ),
    rule(
        "HTML or script",
        "tools/hygiene/screen.py",
        "acceptance/test_untrusted_output::"
        "test_five_megabytes_with_instructions_and_secrets_are_stored_small_redacted_and_tagged",
    ),
    rule(
        "secrets",
        "tools/hygiene/redact.py",
        "unit/tools/hygiene/test_redact::test_a_secret_does_not_survive_in_any_surroundings "
        "unit/tools/hygiene/test_redact::test_values_under_the_names_of_secrets_are_redacted_whole",
    ),
    rule(
        "oversized content",
        "tools/hygiene/limit.py",
        "unit/tools/hygiene/test_clean::test_an_answer_is_never_above_the_limit_and_hides_nothing",
    ),
    rule(
        "malformed encoding",
        "tools/hygiene/decode.py",
        "unit/tools/hygiene/test_clean::test_malformed_bytes_are_replaced_and_counted",
    ),
    rule(
        "stale data",
        "tools/results.py",
        "unit/tools/test_results::test_past_its_age_an_answer_is_stale_whenever_it_is_shown",
    ),
    rule(
        "contradictory claims",
        "tools/results.py",
        "unit/tools/test_results::test_sources_that_contradict_each_other_are_both_kept_and_tagged",
    ),
    rule(
        "Output is normalized, limited, tagged and keeps its provenance before it reaches a model's context.",
        "tools/hygiene/clean.py, tools/results.py",
        "unit/tools/test_results::test_a_result_shows_the_model_data_in_a_wrapper_with_its_tags_and_no_facts "
        "unit/tools/test_results::test_the_digest_of_the_raw_answer_is_kept_beside_the_redacted_one",
        adr=CLEANED,
        differs="Before it is stored, too; and it is tagged, never blocked.",
    ),
    rule(
        "A call that timed out with a part done says which parts are done and pending, and the workflow resumes from "
        "there instead of doing it all again.",
        "judging.py, store/lua/progress.lua",
        "unit/test_workbench_doubt::test_partial_says_which_parts_are_done_and_the_next_attempt_does_the_rest "
        "acceptance/test_demo_tools::test_a_lost_answer_is_looked_up_and_resumed_without_a_second_record",
    ),
)

GATEWAY: Final[tuple[Rule, ...]] = (
    rule(
        "three read tools and one with a side effect",
        "demo/tools.py",
        "unit/test_tool_promises::"
        "test_the_demos_gateway_has_three_reads_and_effects_whose_contracts_bound_what_they_may_do",
    ),
    rule(
        "Pydantic input and output",
        "tools/signature.py",
        "unit/tools/test_arguments::test_valid_arguments_become_the_model_with_its_defaults "
        "unit/tools/test_registry::test_the_output_is_what_is_left_without_not_found_and_partial",
    ),
    rule(
        "risk registry",
        "policy/policy_file.py",
        "unit/policy/test_policy_file::test_runs_tiers_and_tools_are_read "
        "unit/test_governance::test_a_tool_that_the_policy_does_not_list_waits_for_a_person",
    ),
    rule(
        "per-tool timeout",
        "isolation.py",
        "unit/test_isolation::test_a_task_is_cancelled_at_its_timeout_and_is_over_once_it_has_cleaned_up "
        "unit/test_isolation::test_a_thread_that_outlives_its_timeout_is_handed_over_and_its_real_end_comes_later",
    ),
    rule(
        "typed errors",
        "core/outcome.py, errors.py",
        "unit/core/test_outcome::test_every_raised_outcome_is_a_tool_raised_with_its_own_code "
        "unit/core/test_outcome::"
        "test_a_refusal_shows_the_model_code_message_hints_and_whether_to_call_again",
    ),
    rule(
        "stable idempotency key",
        "core/identity.py",
        "unit/core/test_identity::test_a_provider_key_grows_from_intent_occurrence_and_part "
        "unit/chaos/test_checker::test_the_checker_makes_the_same_provider_keys_as_the_product",
    ),
    rule(
        "effect record",
        "core/effect.py, core/outcome.py",
        "acceptance/test_operator::test_the_story_of_an_unknown_effect_names_the_key_to_ask_about_and_what_to_type",
    ),
    rule(
        "authorization hook",
        "hooks.py",
        "unit/test_governance::test_an_authorizer_is_asked_about_the_call_and_permits_it "
        "acceptance/test_policy::test_a_worker_asks_the_operators_authorizer_right_before_begin",
    ),
    rule(
        "audit event",
        "core/decision.py",
        "unit/test_governance::test_a_client_refuses_early_and_the_refusal_is_recorded_and_halts_nothing "
        "contract/test_matrix::test_it_answers_moves_and_logs_as_the_table_says",
    ),
    rule(
        "result-size limit",
        "tools/hygiene/limit.py",
        "unit/tools/hygiene/test_clean::test_an_answer_of_many_items_keeps_the_first_ones",
    ),
    rule(
        "redaction hook",
        "tools/hygiene/redact.py",
        "unit/tools/hygiene/test_redact::test_a_project_adds_its_own_rule "
        "unit/tools/hygiene/test_redact::test_a_rule_that_fails_withholds_the_data",
    ),
    rule(
        "call budget",
        "policy/budget_gate.py",
        "contract/test_run_bounds::test_the_call_past_the_tools_or_the_runs_budget_is_refused "
        "contract/test_run_bounds::test_a_charge_comes_back_once_when_nothing_has_happened",
    ),
    rule(
        "contract tests without a model",
        "testing/check_tool.py",
        "unit/test_check_tool::test_a_good_tool_holds_in_every_case_that_is_checked",
    ),
)

UNCERTAIN: Final[tuple[Rule, ...]] = (
    rule("timeout before a write", "reconcile.py", "fault/test_uncertainty::test_timeout_before_a_write"),
    rule("timeout after a write", "reconcile.py", "fault/test_uncertainty::test_timeout_after_a_write"),
    rule("duplicate delivery", "store/lua/begin.lua", "fault/test_uncertainty::test_duplicate_delivery"),
    rule("provider returns 429", "tools/error_rule.py", "fault/test_uncertainty::test_provider_answers_429"),
    rule("user lacks scope", "policy/policy_gate.py", "fault/test_uncertainty::test_caller_lacks_a_scope"),
    rule(
        "tool output contains injection text",
        "tools/results.py",
        "fault/test_uncertainty::test_injection_text_in_the_output",
    ),
    rule(
        "effect exists but local state is stale",
        "tools/intent.py, reconcile.py",
        "fault/test_uncertainty::test_the_effect_exists_while_the_local_record_is_stale_or_missing",
    ),
    rule(
        "In each of them there is no duplicate external effect.",
        "execution.py",
        "fault/test_uncertainty::test_each_case_goes_red_without_its_guard",
    ),
)

RESCHEDULING: Final[tuple[Rule, ...]] = (
    rule(
        "identity",
        "tokens.py",
        "acceptance/test_identity::test_a_verified_caller_acts_through_a_credential_that_is_found_nowhere_else",
    ),
    rule(
        "concurrent changes",
        "store/lua/propose.lua",
        "unit/test_run_bounds::test_another_change_of_an_exclusive_target_waits "
        "unit/test_governance::test_a_precondition_is_tested_right_before_begin",
    ),
    rule(
        "idempotency",
        "tools/intent.py",
        "unit/test_replays::test_a_tool_sends_the_same_key_for_the_same_meaning_whatever_the_call_id",
    ),
    rule(
        "effect status",
        "client/visible.py",
        "unit/test_governance::"
        "test_the_status_of_an_effect_can_be_asked_for_also_in_a_halted_run_and_never_by_another_tenant",
    ),
    rule(
        "approval",
        "store/lua/approve.lua",
        "contract/test_approval_operations::test_approve_names_what_was_shown_and_is_not_by_the_requester",
    ),
    rule(
        "compensation",
        "client/run.py, store/lua/propose.lua",
        "unit/test_compensation::test_a_compensation_undoes_what_happened_and_closes_its_occurrence "
        "contract/test_compensation::test_once_undone_the_intent_is_free_for_its_next_occurrence",
    ),
    rule(
        "retries",
        "execution.py",
        "unit/test_tool_promises::test_attempts_end_by_their_number_or_by_the_time_since_the_first",
    ),
    rule(
        "audit",
        "core/decision.py",
        "contract/test_matrix::test_it_answers_moves_and_logs_as_the_table_says",
    ),
)
