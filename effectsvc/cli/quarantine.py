"""`effectsvc quarantine list|release`: tools that killed their process, each with the arguments on which they did.

After one death such a pair runs in child processes only; after three deaths of its own it is held until it is released.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from effectsvc.cli.output import (
    AsJson,
    DryRun,
    Exit,
    Reason,
    Yes,
    actor,
    check_actor_may_decide,
    confirm,
    emit,
    fail,
    print_table,
    say,
)
from effectsvc.cli.steps import Step, recorded, step, tell_first

if TYPE_CHECKING:
    from effectsvc.cli.operator import Loaded, Operator

quarantine_app = typer.Typer(help="Tools that kill their process, with the arguments on which they do.")

RULE: Final = "quarantined"
MAX_LOOKED_AT: Final = 10_000
"""Held and unknown effects looked through for those of a quarantine: a second or two of reading."""


@quarantine_app.command("list")
def list_all(as_json: AsJson = False) -> None:
    """List what is in quarantine, and what is suspected (it runs in child processes only).

    Exit codes: 0, 1, 2, 7.

    Example: effectsvc quarantine list
    """
    from effectsvc.cli.operator import Operator

    with Operator() as operator:
        records = _records(operator)
    records = [{**record, "next": recorded(_steps(record))} for record in records]
    if as_json:
        for record in records:
            emit(record, as_json=True, text="")
        return
    if records:
        columns = ("subject", "standing", "deaths", "held", "unknown")
        print_table(columns, [tuple(str(_counted(record[column])) for column in columns) for record in records])
    else:
        say("nothing is in quarantine, and nothing is suspected.")
    tell_first(records)


def _steps(record: dict[str, Any]) -> list[Step]:
    """What ends a quarantine, once the tool's next version is there."""
    if record["standing"] != RULE:
        return []
    mended = "the tool's next version, in which the cause is mended, is deployed"
    return [step("quarantine", "release", record["subject"], "--reason", "WHY", when=mended, changes=True)]


def _counted(value: Any) -> Any:
    return len(value) if isinstance(value, list) else value


def _records(operator: Operator) -> list[dict[str, Any]]:
    """Quarantines first; each with its deaths and the effects that it keeps."""
    standings = _standings(operator)
    deaths = operator.send(operator.commands.hash_fields(operator.keys.deaths))
    kept = _kept(operator) if RULE in standings.values() else {}
    records = []
    for subject, standing in sorted(standings.items(), key=lambda each: (each[1], each[0])):
        tool, _, args_digest = subject.rpartition(":")
        effects = kept.get(subject, [])
        records.append(
            {
                "subject": subject,
                "tool": tool,
                "args_digest": args_digest,
                "standing": standing,
                "deaths": int(deaths.get(subject, "0")),
                "held": [each.effect_id for each in effects if each.state == "held"],
                "unknown": [each.effect_id for each in effects if each.state == "unknown"],
            }
        )
    return records


def _standings(operator: Operator) -> dict[str, str]:
    """`quarantined` or `suspected`, by subject; what has ended is left out."""
    from effectsvc.store.commands import Read, text_map

    scores = operator.send(Read(("ZRANGE", operator.keys.suspects, 0, -1, "WITHSCORES"), text_map))
    now_ms = operator.now_ms()
    standings = {}
    for subject, score in scores.items():
        if float(score) > now_ms:
            standings[subject] = RULE if score == "inf" else "suspected"
    return standings


def _kept(operator: Operator) -> dict[str, list[Loaded]]:
    """Held and unknown effects that stand still because of a quarantine, by subject."""
    from effectsvc.store.commands import Read, text_tuple
    from effectsvc.store.keys import subject_of

    found = defaultdict(list)
    for key, field in ((operator.keys.held, "rule"), (operator.keys.unknown, "reason")):
        ids = operator.send(Read(("ZRANGE", key, 0, MAX_LOOKED_AT - 1), text_tuple))
        if len(ids) == MAX_LOOKED_AT:
            say(f"only the first {MAX_LOOKED_AT:,} held and unknown effects are looked at.")
        for loaded in operator.load(ids):
            if loaded.fields.get(field) == RULE:
                found[subject_of(loaded.fields["tool"], loaded.fields["args"])].append(loaded)
    return found


@quarantine_app.command()
def release(
    subject: Annotated[str, typer.Argument(help="As `quarantine list` names it, or an effect that it keeps.")],
    reason: Reason,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Let a tool run on these arguments again: its deaths count from zero, and what was held goes on.

    Effects in doubt stay unknown: `effects reconcile` or `effects resolve` says what became of them.

    Exit codes: 0, 1, 2, 4, 6, 7.

    Example: effectsvc quarantine release 01M7Q5CQG0287RKGM49KP3NJ7G --reason "the library is fixed"
    """
    from effectsvc.cli.operator import Operator
    from effectsvc.store import replies as r

    with Operator() as operator:
        check_actor_may_decide(required=operator.settings.require_verified_actor)
        subject = _named(operator, subject)
        standing = _standings(operator).get(subject)
        kept = _kept(operator).get(subject, [])
        held = [each for each in kept if each.state == "held"]
        unknown = [each.effect_id for each in kept if each.state == "unknown"]
        record: dict[str, Any] = {"subject": subject, "standing": standing, "unknown": unknown}
        if standing is None and not held:
            emit({**record, "answer": "already_released"}, as_json=as_json, text="already_released")
            return
        if dry_run:
            ids = [each.effect_id for each in held]
            text = f"would release {subject}, and {len(ids)} held effects"
            emit({**record, "answer": "would_release", "held": ids}, as_json=as_json, text=text)
            return
        confirm(f"Release {subject}, which is {standing or 'released'}; {len(held)} held effects go on.", yes=yes)
        # The digest stays out of the log, where digests are keyed by tenant: the tool, and the effects' own entries.
        tool = subject.rpartition(":")[0]
        entry = operator.note("quarantine", tool=tool, effects=[each.effect_id for each in held], reason=reason)
        answer = operator.send(operator.commands.lift(subject=subject, by="operator", entry=entry))
        words = Counter(_let_go(operator, each, reason) for each in held)
    word = "released" if isinstance(answer, r.Lifted) else "already_released"
    emit({**record, "answer": word, "let_go": dict(words)}, as_json=as_json, text=word)
    if words:
        say("held effects: " + ", ".join(f"{count} {each}" for each, count in sorted(words.items())) + ".")
    for effect_id in unknown:
        say(f"{effect_id} is still unknown: `effectsvc effects show {effect_id}` says what can be done.")


def _named(operator: Operator, text: str) -> str:
    """The subject; of an effect, if one is named. Ends the command when it is neither."""
    from effectsvc.core.identity import is_effect_id
    from effectsvc.store.keys import DIGEST_CHARS, subject_of

    if is_effect_id(text):
        fields = operator.find(text).fields
        return subject_of(fields["tool"], fields["args"])
    tool, _, args_digest = text.rpartition(":")
    if not tool or len(args_digest) != DIGEST_CHARS:
        fail("that is neither an effect nor a subject; `effectsvc quarantine list` names them.", Exit.NOT_FOUND)
    return text


def _let_go(operator: Operator, loaded: Loaded, reason: str) -> str:
    """One held effect back into its lane. The word that the store answers."""
    fields = loaded.fields
    approve = operator.commands.approve(
        loaded.at,
        args=fields["args"],
        render=fields.get("render", ""),
        policy=operator.meta.get("policy", ""),
        approver=actor()["actor"],
        requester="",
        needed=1,
        entry=operator.note("approval", effect=loaded.effect_id, reason=reason),
    )
    word: str = operator.send(approve).word
    return "proposed" if word == "approved" else word
