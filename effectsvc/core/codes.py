"""Every code that a result, a record or a refusal may carry, for those who look after them: what it means, what to do.

What a model is told of a refusal stands in `effectsvc.client.refusals`; what an exception means stands in its class.
deploy/errors.md is made from all of them, and a test reads the code of gates, scripts, workers and tools to see that
none is answered that does not stand here. A tool's own codes are its contract's (`expected_errors`) and its author's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple


class Code(NamedTuple):
    """What a code means, and what host or operator do; empty where there is nothing to do."""

    meaning: str
    do: str = ""


class Rule(NamedTuple):
    """What a refusal means. `layer` is the gate or script that judges it, as the record names it."""

    layer: str
    meaning: str
    do: str = ""


REFUSALS: Final[Mapping[str, Rule]] = {
    "unknown_tool": Rule(
        "0:tool",
        "No worker has published a tool of this name.",
        "Start a worker whose registry has it; `effectsvc tools list`.",
    ),
    "tool_version": Rule(
        "0:tool", "The call names another version of the tool than the one that is served.", "Read the tools again."
    ),
    "wrong_cell": Rule("0:tool", "The tenant is recorded in another cell.", "Set EFFECTSVC_CELL to that one."),
    "kill_switch": Rule(
        "0.5:kill_switch", "The fleet or the tenant is frozen.", "`effectsvc freezes`, then `effectsvc thaw`."
    ),
    "tool_frozen": Rule("0.5:kill_switch", "The tool is frozen.", "`effectsvc freezes`, then `effectsvc thaw`."),
    "agent_frozen": Rule("0.5:kill_switch", "The agent is frozen.", "`effectsvc freezes`, then `effectsvc thaw`."),
    "cell_frozen": Rule(
        "0.5:kill_switch",
        "The store may have lost its past, so the service froze the cell.",
        "`effectsvc cell status`.",
    ),
    "run_halted": Rule(
        "0.7:run_halted",
        "The run, or one above it, was halted: by an operator, or by the rule that its reason names.",
        "`effectsvc runs show`; go on in a new run.",
    ),
    "run_guard_outside_run": Rule(
        "0.7:run_halted", "There is no such run, or it is closed.", "Open the run before calling in it."
    ),
    "ghost_arguments": Rule(
        "1:ghost_arguments",
        "The policy refuses arguments that the schema does not name.",
        '`ghost_arguments = "strip"`, in the policy.',
    ),
    "invalid_arguments": Rule("1:ghost_arguments", "The arguments do not fit the tool's schema."),
    "unreadable_arguments": Rule("1:ghost_arguments", "The arguments are no JSON object, or have no canonical form."),
    "tenant_mismatch": Rule(
        "2:policy", "The caller's token, or the run, is another tenant's.", "Use the tenant of the token."
    ),
    "scope_required": Rule(
        "2:policy", "The caller lacks a scope; the result's `metadata` names it.", "Grant it, or leave the tool out."
    ),
    "role_required": Rule(
        "2:policy", "The caller lacks a role; the result's `metadata` names it.", "Grant it, or leave the tool out."
    ),
    "tool_denied": Rule("2:policy", "The policy's `deny` or `allow` leaves this agent out.", "Change the policy."),
    "state_not_allowed": Rule(
        "2:policy", "The policy does not allow the tool in the run's workflow state.", "`run.set_state`, or the policy."
    ),
    "outside_time_window": Rule(
        "2:policy", "The policy's windows are closed at this time.", "Wait, or change the policy."
    ),
    "policy_indeterminate": Rule(
        "2:policy",
        "A gate, the Authorizer or a check raised or answered nonsense, or the policy in force cannot be read here.",
        "See the worker's log; upgrade what cannot read the policy.",
    ),
    "loop_detected": Rule(
        "2.3:run_loop",
        "The run's last calls repeat one block; its second loop halts it.",
        "`loop_repeats` and `max_loop_period`, in the policy of runs.",
    ),
    "tool_call_id_required": Rule(
        "4:effect",
        "The host sent no tool call id for a tool that is not reversible.",
        "Pass the model's id, or set `require_tool_call_id = false`.",
    ),
    "tool_call_conflict": Rule(
        "4:effect", "The tool call id was used with another tool or other arguments.", "Use a new id for a new call."
    ),
    "same_intent_other_arguments": Rule(
        "4:effect",
        "An open or committed effect holds this intent with other arguments; the detail names it.",
        "`effectsvc effects show`; name the field that tells the two apart as an intent field.",
    ),
    "retired": Rule("4:effect", "The change was made long ago: its tombstone answers.", "Nothing; do not repeat it."),
    "not_compensable": Rule(
        "4:effect",
        "What is to be undone has not happened, is undone already, or names no compensation.",
        "`effectsvc effects show`.",
    ),
    "intent_mismatch": Rule(
        "4:effect",
        "Digest or intent key, made again from what is stored, are not those of the claims.",
        "Client and worker have other contracts under one version: raise the version.",
    ),
    "claim_lost": Rule(
        "4:effect", "Another effect holds the intent claim, so this one does not begin.", "`effectsvc effects show`."
    ),
    "provider_key_expired": Rule(
        "4:effect",
        "The provider has forgotten the key by now, so running again could do it twice.",
        "`effectsvc effects resolve`, with what the provider shows.",
    ),
    "effect_not_found": Rule("4:effect", "There is no effect of this id in the caller's tenant."),
    "not_the_proposer": Rule("4:effect", "Only who proposed an effect cancels it.", "`effectsvc effects cancel`."),
    "rate_limited": Rule(
        "5:rate",
        "A rate of the contract or the policy is used up; the detail is the wait in ms.",
        "Wait, or raise the rate.",
    ),
    "call_budget_exhausted": Rule(
        "6:budget", "The run has made as many calls as it may.", "`max_calls` and `max_calls_per_run`, in the policy."
    ),
    "cost_budget_exhausted": Rule(
        "6:budget",
        "The run or the tenant's day has cost as much as it may.",
        "`run_cost_budget_minor` and `tenant_cost_budget_minor`, in the policy of runs.",
    ),
    "target_missing": Rule("7:target", "An argument that names the target is missing or empty."),
    "target_busy": Rule("4:effect", "Another open effect changes the same target.", "Wait until that one is final."),
    "approval_required": Rule(
        "8:approval",
        "A person must agree; a read, and the replay of a stored answer, are not held.",
        "`effectsvc approvals list`.",
    ),
    "approval_rejected": Rule("8:approval", "An approver said no. The same call is not judged anew."),
    "approval_expired": Rule("8:approval", "Nobody decided in time.", "`approval_ttl_s`, in the policy."),
    "render_changed": Rule(
        "8:approval", "What would be sent is not what the approver saw.", "Propose it again, and have it approved."
    ),
    "render_failed": Rule("8:approval", "The tool's rendering raised.", "See the worker's log; mend the tool."),
    "deadline_passed": Rule("9:deadline", "The run's deadline has passed.", "Open a run with a later one."),
    "check_unavailable": Rule(
        "10:authorizer, 11:check",
        "The Authorizer or a check could not be asked for as long as the contract lets an effect take.",
        "See the worker's log; mend what it asks.",
    ),
    "not_authorized": Rule("10:authorizer", "The operator's Authorizer said no."),
    "precondition_failed": Rule("11:check", "A check of the tool says that what it needs does not hold."),
}
"""Rule ids: `error.code` and `metadata.rule_id` of a result, `rule` of a record and in the log, a metric's label."""

ASKED: Final[Mapping[str, Code]] = {
    "approval_always": Code("The policy wants a person for each call of this tool, or has no entry for it."),
    "irreversible": Code("The policy wants a person for what cannot be undone."),
    "argument_NAME": Code("A condition of the policy on the argument NAME holds."),
    "approved_otherwise": Code("The arguments, the rendering or the policy changed since it was approved."),
    "approval_used": Code("The approval was used by an attempt that may have happened."),
    "approval_expired": Code("The approval is older than it may be."),
    "quarantined": Code(
        "The tool ended its process on these arguments three times.", "Mend it, then `effectsvc quarantine release`."
    ),
}
"""Why an effect is held: `why_held` and `rule`. Decide with `effectsvc approvals`."""

RESULTS: Final[Mapping[str, Code]] = {
    "approval_required": Code("It is held for a person.", "`effectsvc approvals show`."),
    "quarantined": Code("It is held: the tool ended its process on these arguments.", "`effectsvc quarantine list`."),
    "effect_status_unknown": Code(
        "Nobody knows whether it happened. It is not run again without proof, a named rule or a person's word.",
        "`effectsvc effects show`, which says what to ask the provider.",
    ),
    "effect_forgotten": Code(
        "It was accepted, and the store has no record of it: the store lost its past.", "`effectsvc cell status`."
    ),
    "committed_by_another_caller": Code(
        "It happened for another caller or subject, whose answer is not shown.", "`result_scope`, in the contract."
    ),
    "cancelled": Code("It was withdrawn before it began, or overtaken by a halt, a deadline or its age."),
    "failed": Code("It did not happen and is not tried again; its record has no code of its own."),
}
"""`error.code` of results that are no refusals."""

OUTCOMES: Final[Mapping[str, Code]] = {
    "not_attempted": Code("The tool raised `NotAttempted`, or an error that its contract lists so: nothing was sent."),
    "rejected": Code("The tool raised `Rejected`, or an error that its contract lists so: the provider said no."),
    "never_connected": Code("The connection was never made, so nothing was sent."),
    "unlisted_error": Code(
        'The contract says `on_unlisted_error = "release"`, and the error is none of its ambiguous ones.'
    ),
    "outcome_unknown": Code("The tool raised `OutcomeUnknown`."),
    "tool_raised": Code("A tool raised the base of its exceptions, which states nothing."),
    "raised": Code("The tool raised an error that proves nothing."),
    "timeout": Code("The tool ran longer than `timeout_s`; it may have done it."),
    "partial": Code("The tool did some parts; the others are due."),
    "deferred_result": Code(
        "The tool returned a generator, a coroutine or a future, which nobody has waited for.", "Mend the tool."
    ),
    "process_died": Code("The process that ran the tool ended.", "See the worker's log; `effectsvc quarantine list`."),
    "worker_died": Code("The worker's process ended, and its lock file proves it."),
    "lease_ended": Code("The lease ended before the attempt did: the worker was frozen, or away from the store."),
    "begin_unanswered": Code("`begin` was not answered, so the tool was not run."),
    "stale_attempt": Code("The attempt is no longer the current one, so a part of it was not begun."),
    "probe_undetermined": Code("The lookup before a rerun did not answer, so nothing was sent."),
    "late_evidence": Code("A late attempt brought evidence that it happened."),
    "store_lost": Code("The store had forgotten the attempt, and took it back from a worker's or the log's record."),
    "no_thread": Code("No thread was free in time.", "EFFECTSVC_THREADS."),
    "no_child": Code("No child process was free in time.", "EFFECTSVC_CHILDREN."),
    "child_not_ready": Code("A child process could not be started.", "See the worker's log."),
    "no_registry": Code("Child processes know no registry.", "Set EFFECTSVC_TOOLS."),
    "other_contract": Code("The child process has another version of the tool.", "Restart the worker."),
    "worker_ends": Code("The worker was stopping."),
    "credentials_unavailable": Code("The credential resolver raised.", "Mend the resolver, or what it asks."),
    "connect_failed": Code("The provider could not be reached: nothing was sent."),
    "connect_refused": Code("The mail server takes no mail now: nothing was sent."),
    "key_given_twice": Code("The request already has an Idempotency-Key of its own.", "Leave it to `post_by_key`."),
    "bad_request": Code("The provider answered 400."),
    "not_authenticated": Code("The provider answered 401.", "Mend the tool's credentials."),
    "not_authorized": Code("The provider answered 403."),
    "no_such_resource": Code("The provider answered 404."),
    "method_not_allowed": Code("The provider answered 405."),
    "too_large": Code("The provider answered 413."),
    "unsupported_type": Code("The provider answered 415."),
    "rate_limited_by_provider": Code("The provider answered 429, and did nothing."),
    "message_id_given": Code("The message already has a Message-ID of its own.", "Leave it to `MailByMessageId`."),
    "no_addresses": Code("The message lacks a sender or a recipient."),
    "address_not_ascii": Code("An address is not ASCII, which not every mail server takes."),
    "no_secure_channel": Code("The mail server does not talk TLS with us."),
    "login_failed": Code("The mail server refused the login.", "Mend the tool's credentials."),
    "sender_refused": Code("The mail server refused the sender."),
    "recipient_refused": Code("The mail server refused the recipient."),
    "message_refused": Code("The mail server refused the message."),
    "broke_off": Code("The mail server broke off before the message was sent."),
    "answer_lost": Code("The answer to what was sent is lost."),
    "deferred": Code("The mail server asks to come back later."),
    "strange_reply": Code("The mail server answered something that no standard knows."),
}
"""How an attempt ended: `error.code` of a failed result, `code` and `reason` of a record, `reason` in the log."""

BOUNDS: Final[Mapping[str, Code]] = {
    "no_bound": Code("Nothing ended the tries."),
    "max_attempts": Code("It was tried as often as the contract allows.", "`max_attempts`."),
    "max_elapsed": Code("A further try would come later than the contract allows.", "`max_elapsed_s`."),
    "deadline": Code("A further try would come after the run's deadline."),
    "never": Code("The contract says that it is never tried again.", "`retry_class`."),
    "rejected": Code("The provider said no; the same request again is refused again."),
    "person": Code("A person said that it did not happen."),
    "run_halted": Code("Its run was halted while it was in doubt; then it was proved not to have happened."),
    "deadline_passed": Code(
        "Its run's deadline passed while it was in doubt; then it was proved not to have happened."
    ),
    "age": Code("It had waited longer than it may (the sweep's bound on what waits)."),
    "claim_lost": Code("Another effect held its intent while it was in doubt."),
}
"""What ended the tries: `bound` and `reason` of a record, `bound` in the log. A `cancel...` is named as it was sent."""

WAITS: Final[Mapping[str, Code]] = {
    "approval": Code("a person's approval", "`effectsvc approvals show`."),
    "quarantine": Code("a person, who releases it from quarantine", "`effectsvc quarantine release`."),
    "attempt": Code("its running attempt"),
    "worker": Code("a worker of its lane", "`effectsvc worker --lanes LANE`."),
    "lookup": Code("the next question to the provider", "`effectsvc effects reconcile` asks now."),
    "attempt_over": Code(
        "its attempts to be over", "`effectsvc effects resolve --attempt-over`, once you made sure of it."
    ),
    "person": Code("a person: nothing moves it by itself", "`effectsvc effects resolve`."),
    "unserved": Code("a worker that serves this version of the tool", "Start one."),
    "policy_unreadable": Code(
        "a worker that can read the policy in force and apply it to this tool", "Upgrade the workers."
    ),
    "check_unavailable": Code(
        "the Authorizer or a check of the tool, which could not be asked", "See the worker's log."
    ),
    "rate_limited": Code("its rate, which admits no more attempts now"),
    "no_child": Code("a child process, none of which was free"),
    "compensating": Code("the effect that undoes it, or may yet undo it"),
    "fleet_frozen": Code("the end of a freeze of the fleet", "`effectsvc thaw`."),
    "cell_frozen": Code("the end of the cell's freeze", "`effectsvc cell status`."),
    "tenant_frozen": Code("the end of a freeze of its tenant", "`effectsvc thaw`."),
    "tool_frozen": Code("the end of a freeze of its tool", "`effectsvc thaw`."),
    "agent_frozen": Code("the end of a freeze of its agent", "`effectsvc thaw`."),
}
"""What an effect waits for: `waiting` of `effects show`, `waiting_for` of `effects list`. A rerun is `rerun:RULE`."""
