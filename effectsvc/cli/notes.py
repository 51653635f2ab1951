"""`effects note`: what a person says of an effect, beside everything that is known of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Annotated, Any, Final

import typer

from effectsvc.cli.output import AsJson, DryRun, Exit, Reason, Yes, confirm, emit, fail
from effectsvc.cli.steps import recorded, step, tell

MAX_NOTE_CHARS: Final = 1_000
"""A paragraph: what is longer belongs into a ticket that the note names."""


def note(
    effect_id: Annotated[str, typer.Argument(metavar="E", help="The effect's id.")],
    text: Annotated[
        str,
        typer.Option(
            "--note", metavar="TEXT", help="Your own words, as you type them: no arguments, results or credentials."
        ),
    ],
    reason: Reason,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Write a note about an effect into the decision log. It moves nothing, and cannot be taken back.

    At most 1000 characters, recorded with your name as one paragraph, without characters that nobody sees. What looks
    like a credential is refused. `effects show`, `timeline` and `watch` tell it. An effect takes 50 notes.

    Exit codes: 0, 1, 2, 4, 6, 7.

    Example: effectsvc effects note 01M7Q5CQG0287RKGM49KP3NJ7G --note "the provider looks into it, ticket 4711"
    --reason "so that nobody asks again" --yes
    """
    import secrets

    from effectsvc.cli.operator import Operator
    from effectsvc.store import replies as r

    said = checked_note(text)
    with Operator() as operator:
        loaded = operator.find(effect_id)
        about = f"{loaded.fields['tool']} effect {effect_id} ({loaded.state})"
        if dry_run:
            _end({"effect_id": effect_id, "answer": "would_note", "note": said}, text=said, as_json=as_json)
            return
        confirm(f"Note about {about}, in the log for good: {said}", yes=yes)
        entry = operator.note("note", effect=effect_id, note=said, reason=reason)
        reply = operator.send(operator.commands.note(effect_id, note_id=secrets.token_hex(8), entry=entry))
        if isinstance(reply, r.AlreadyTaken):  # the first send's answer was lost
            loaded = operator.find(effect_id)
    match reply:
        case r.NotesFull(count):
            fail(f"the effect has {count} notes, and takes no more.", Exit.REFUSED)
        case r.Gone():
            fail("the effect is gone.", Exit.NOT_FOUND)
        case r.NoteTaken(count, n):
            notes = count
        case r.AlreadyTaken(n):
            notes = int(loaded.fields["notes"])
    record = {"effect_id": effect_id, "answer": "noted", "note": said, "n": n, "notes": notes}
    _end(record, text=f"noted, as entry {n} of the log.", as_json=as_json)


def _end(record: Mapping[str, Any], *, text: str, as_json: bool) -> None:
    """A note settles nothing: what follows stands in the effect's story."""
    steps = [step("effects", "show", record["effect_id"])]
    emit({**record, "next": recorded(steps)}, as_json=as_json, text=text)
    tell(steps, as_json=as_json)


def checked_note(text: str) -> str:
    """The note as it is recorded. Raises BadParameter for one that may not be."""
    from effectsvc.tools.hygiene import holds_secret

    try:
        text.encode()
    except UnicodeEncodeError:
        raise typer.BadParameter("the note is no UTF-8 text.", param_hint="--note") from None
    said = plain_note(text)
    if not 0 < len(said) <= MAX_NOTE_CHARS:
        raise typer.BadParameter(f"1 to {MAX_NOTE_CHARS} characters, please.", param_hint="--note")
    if holds_secret(said):
        message = "it holds what looks like a credential, and the log keeps it for good: say it without."
        raise typer.BadParameter(message, param_hint="--note")
    return said


def plain_note(said: object) -> str:
    """A note as people may see it: one paragraph of visible characters. Of the log too: others can write to it."""
    from effectsvc.tools.hygiene.strip import strip

    return " ".join(strip(said, Counter()).split()) if isinstance(said, str) else ""
