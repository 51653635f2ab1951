"""The rules of tool contracts: what one states, proposing, results, the acknowledgment gap."""

from __future__ import annotations

from typing import Final

from tests.tidy.rule import Rule, rule

DIFFERS: Final = "guards-belong-to-the-effect-and-not-to-the-call"

CONTRACT: Final[tuple[Rule, ...]] = (
    rule(
        "purpose",
        "tools/contract.py",
        "unit/tools/test_contract::test_an_empty_text_of_the_four_is_refused "
        "unit/tools/test_contract::test_the_description_holds_the_four_texts",
    ),
    rule(
        "typed inputs and outputs",
        "tools/registry.py, tools/arguments.py",
        "unit/tools/test_registry::test_name_kind_input_output_and_isolation_come_from_the_function "
        "unit/tools/test_arguments::test_validation_is_strict_and_tells_no_value_and_no_key_that_was_sent",
    ),
    rule("preconditions", "hooks.py", "unit/test_governance::test_a_precondition_is_tested_right_before_begin"),
    rule(
        "caller identity",
        "tokens.py",
        "unit/test_tokens::test_a_token_that_holds_becomes_a_verified_caller "
        "acceptance/test_identity::test_a_host_cannot_call_itself_verified",
    ),
    rule(
        "authorization scopes",
        "policy/policy_gate.py",
        "unit/policy/test_gates::test_a_scope_of_the_contract_is_asked_for_in_every_mode "
        "fault/test_uncertainty::test_caller_lacks_a_scope",
    ),
    rule(
        "data classification",
        "tools/strictness.py",
        "unit/policy/test_tool_policy::test_the_stricter_of_policy_and_contract_holds "
        "unit/policy/test_policy_file::test_an_entry_looser_than_its_contract_names_file_line_and_both_values",
    ),
    rule(
        "side effects",
        "cli/consent.py",
        "acceptance/test_approvals::test_what_waits_is_listed_without_arguments_and_shown_with_them",
    ),
    rule(
        "reversibility",
        "tools/contract.py",
        "unit/tools/test_contract::test_an_untagged_tool_is_irreversible_and_is_reconciled",
    ),
    rule(
        "timeout",
        "isolation.py",
        "unit/test_isolation::test_a_task_is_cancelled_at_its_timeout_and_is_over_once_it_has_cleaned_up "
        "acceptance/test_isolation_process::test_at_the_deadline_the_process_is_killed_whatever_it_does",
    ),
    rule(
        "retry class",
        "tools/contract.py",
        "unit/tools/test_contract::test_a_named_retry_class_wins_over_what_reversibility_allows "
        "unit/test_workbench_doubt::test_no_rerun_by_key_once_the_provider_may_have_forgotten_it",
    ),
    rule(
        "idempotency",
        "tools/intent.py",
        "unit/tools/test_contract::test_intent_takes_required_texts_integers_booleans_and_enums_by_the_name_as_sent",
    ),
    rule("rate limit", "policy/limits.py", "unit/test_run_bounds::test_a_rate_tells_when_to_come_again"),
    rule(
        "expected errors",
        "tools/error_rule.py",
        "unit/tools/test_error_rule::test_a_definite_answer_can_be_listed "
        "unit/tools/test_error_rule::test_a_status_that_may_follow_a_write_cannot_be_listed_as_proof",
    ),
    rule(
        "audit fields",
        "cli/story.py",
        "acceptance/test_operator::test_the_story_shows_the_arguments_that_the_contract_lists_redacted_and_no_other "
        "unit/tools/test_contract::test_a_list_of_arguments_names_only_fields_of_the_input",
    ),
    rule(
        "approval policy",
        "policy/approval_gate.py",
        "unit/policy/test_gates::test_a_person_is_asked_always_or_for_what_cannot_be_undone "
        "unit/test_governance::test_what_a_person_approved_runs_and_only_that",
    ),
)

PROPOSED: Final[tuple[Rule, ...]] = (
    rule(
        "Reading, proposing and executing are apart: a model proposes, the application executes.",
        "client/run.py, executor.py",
        "unit/test_workbench::test_an_effect_is_proposed_run_and_committed "
        "acceptance/test_readme::test_the_first_tool_and_the_first_proposal_run_as_printed",
    ),
    rule(
        "A proposal carries its justification.",
        "client/visible.py",
        "unit/test_governance::test_a_justification_is_kept_for_approvers_and_compared_by_nobody",
    ),
    rule(
        "The application verifies the case and the recipient.",
        "demo/tools.py, hooks.py",
        "acceptance/test_demo_tools::test_a_recipient_of_another_case_gets_no_message "
        "unit/test_governance::test_a_precondition_is_tested_right_before_begin",
    ),
    rule(
        "It checks policy.",
        "judging.py",
        "unit/test_governance::test_a_worker_refuses_what_a_client_did_not",
    ),
    rule(
        "It asks for an approval where one is needed.",
        "policy/approval_gate.py",
        "unit/test_governance::test_a_condition_on_an_argument_asks_for_the_large_ones_only "
        "acceptance/test_approvals::test_of_fifty_approvals_at_once_one_moves_the_effect",
    ),
    rule(
        "It renders the message deterministically.",
        "tools/rendering.py, judging.py",
        "unit/test_governance::test_a_rendered_effect_is_held_by_the_worker_and_refused_when_its_rendering_changes",
    ),
    rule(
        "It executes with a stable key.",
        "tools/context.py",
        "unit/test_replays::test_a_tool_sends_the_same_key_for_the_same_meaning_whatever_the_call_id",
    ),
    rule(
        "It records the provider's response.",
        "tools/results.py",
        "unit/tools/test_results::test_a_clean_answer_is_stored_as_it_came_with_when_it_was_retrieved "
        "unit/tools/test_results::test_a_providers_reference_keeps_its_own_form",
    ),
)

SHOWN: Final[tuple[Rule, ...]] = (
    rule(
        "A description says when to use the tool, when not, and what its result means.",
        "tools/contract.py",
        "unit/tools/test_contract::test_the_description_holds_the_four_texts "
        "unit/test_governance::test_tools_are_rendered_for_each_model_api",
    ),
    rule(
        "A search takes typed, bounded arguments rather than one text.",
        "demo/tools.py",
        "acceptance/test_demo_tools::test_a_search_gives_articles_newest_first "
        "unit/test_fixture::test_searches_hold_text_that_addresses_the_model_and_obey_their_bounds",
    ),
    rule(
        "A result is ok, not_found, partial, retryable_error or denied; data, sources, effect and error stand apart.",
        "core/outcome.py",
        "unit/core/test_outcome::test_status_by_state "
        "unit/core/test_outcome::test_the_model_sees_plain_json_with_the_five_facts_and_no_metadata",
        adr=DIFFERS,
        differs="And pending, unknown or failed: an effect has an answer before, or without, an end.",
    ),
    rule(
        "Failures are codes, not prose for the model to interpret.",
        "client/refusals.py",
        "unit/core/test_outcome::"
        "test_a_refusal_shows_the_model_code_message_hints_and_whether_to_call_again "
        "acceptance/test_untrusted_output::test_what_a_failing_tool_says_is_told_to_nobody",
    ),
)

GAP: Final[tuple[Rule, ...]] = (
    rule(
        "The provider acted, its acknowledgment was lost, and the workflow retries: there is no duplicate.",
        "execution.py, reconcile.py",
        "fault/test_uncertainty::test_timeout_after_a_write "
        "fault/test_lost_answers::test_a_lost_answer_is_unknown_then_found_and_done_once",
    ),
    rule(
        "The key is made from what the business means, not from the attempt: tenant, case, action, version, recipient.",
        "core/identity.py",
        "unit/core/test_identity::test_every_difference_in_what_was_meant_is_another_intent "
        "unit/test_replays::test_a_tool_sends_the_same_key_for_the_same_meaning_whatever_the_call_id",
    ),
    rule(
        "The downstream service stores key, status and response, and a retry with the key returns the effect.",
        "store/lua/propose.lua",
        "unit/test_replays::test_a_replay_gets_the_stored_value_and_the_log_calls_it_a_replay "
        "acceptance/test_races::test_two_call_ids_with_one_intent_make_one_effect",
    ),
    rule(
        "Where a provider has no idempotency, a durable effect service stands before it, with outbox and worker.",
        "outbox.py, session.py",
        "acceptance/test_server_death::test_a_killed_server_under_load_loses_and_doubles_nothing "
        "acceptance/test_demo::"
        "test_the_whole_afternoon_acts_at_most_once_through_kills_and_lost_answers",
    ),
    rule(
        "It reconciles by querying the provider.",
        "reconcile.py, store/lua/probe.lua",
        "unit/test_workbench::test_a_lost_answer_is_looked_up_and_committed_once "
        "unit/test_workbench::test_absence_found_twice_a_settle_time_apart_lets_it_run_again",
    ),
    rule(
        "What stays uncertain goes to a person.",
        "store/lua/probe.lua, store/lua/resolve.lua",
        "contract/test_doubt_operations::test_probe_asks_a_person_when_its_lookups_are_used_up "
        "acceptance/test_operator::test_a_person_says_that_it_happened_and_brings_the_result",
    ),
    rule(
        "Exactly once is made of at-least-once delivery, deduplication and idempotent effects.",
        "store/lua/begin.lua",
        "fault/test_uncertainty::test_duplicate_delivery "
        "acceptance/test_one_begin::test_fifty_deliveries_to_eight_workers_begin_once",
    ),
    rule(
        "Not every error is retried.",
        "tools/verdicts.py",
        "unit/tools/test_verdicts::test_an_unlisted_error_proves_nothing "
        "unit/test_workbench::test_a_rejection_ends_it_and_frees_its_claims",
    ),
    rule(
        "Retries are bounded by the number of attempts and by elapsed time.",
        "execution.py",
        "unit/test_tool_promises::test_attempts_end_by_their_number_or_by_the_time_since_the_first "
        "unit/test_retries::test_elapsed_time_counts_on_the_clock_that_says_more",
    ),
    rule(
        "Retries are bounded by the workflow's deadline.",
        "store/lua/includes/stops.lua",
        "acceptance/test_client::test_what_is_due_after_the_runs_deadline_never_begins "
        "unit/test_retries::test_the_runs_deadline_counts_on_the_clock_that_says_more "
        "contract/test_waiting_operations::test_overtake_for_a_deadline_waits_for_the_deadline",
    ),
)
