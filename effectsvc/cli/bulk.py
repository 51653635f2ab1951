"""One verb on many effects: chosen by the filters of `effects list`, one line for each, and none stops another.

Only sets of open effects are read to find them: no key of the cell is looked for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final, NoReturn

import typer

from effectsvc.cli.output import Exit, confirm, emit, parse_span, say
from effectsvc.cli.steps import recorded, step, tell_first
from effectsvc.core.states import State
from effectsvc.errors import EffectsvcError, StoreUnavailable

if TYPE_CHECKING:
    from effectsvc.cli.listing import Wanted
    from effectsvc.cli.operator import Loaded, Operator
    from effectsvc.cli.resolution import Answer

EffectOrNone = Annotated[str | None, typer.Argument(metavar="[E]", help="The effect's id; or filters, for many.")]
OfTool = Annotated[str | None, typer.Option("--tool", help="Without E: this tool's.")]
OfTenant = Annotated[str | None, typer.Option("--tenant", help="Without E: this tenant's.")]
OfRun = Annotated[str | None, typer.Option("--run", help="Without E: this run's; needs --tenant.")]
OfAgent = Annotated[str | None, typer.Option("--agent", help="Without E: this agent's.")]
OlderThan = Annotated[
    str | None,
    typer.Option("--older-than", metavar="SPAN", help="Without E: in their state for so long: 90s, 5m, 2h."),
]
NeedsReview = Annotated[bool, typer.Option("--needs-review", help="Without E: those that wait for a person.")]
Limit = Annotated[int, typer.Option("--limit", min=1, help="Without E: the most that are touched, the oldest first.")]
LIMITED: Final = 100
"""Touched at once unless more is said: what one person can still look at."""
AWAY_TWICE: Final = 2
"""So many effects in a row that the store did not answer about: it is away, and the others are left as they are."""


@dataclass(frozen=True, slots=True)
class Many:
    """The filters of one call; without any of them nothing is chosen."""

    tool: str | None = None
    tenant: str | None = None
    run: str | None = None
    agent: str | None = None
    older_than: str | None = None
    needs_review: bool = False
    state: State | None = None

    def check(self, effect_id: str | None) -> None:
        """Raises BadParameter unless the call names one effect, or filters."""
        given = [each for each in (self.tool, self.tenant, self.run, self.agent, self.older_than, self.state) if each]
        if (effect_id is None) == (not given and not self.needs_review):
            raise typer.BadParameter("name one effect E, or filters (--tool, --tenant, …) for many; not both.")
        if self.run is not None and self.tenant is None:
            raise typer.BadParameter("run ids are unique in a tenant: give --tenant too.")

    def wanted(self, limit: int) -> Wanted:
        from effectsvc.cli.listing import Wanted

        return Wanted(
            state=self.state,
            tool=self.tool,
            tenant=self.tenant,
            run_id=self.run,
            agent=self.agent,
            older_than_s=None if self.older_than is None else parse_span(self.older_than),
            needs_review=self.needs_review,
            limit=limit,
        )


def act_on_many(
    operator: Operator,
    many: Many,
    *,
    states: Collection[State],
    limit: int,
    verb: str,
    would: Callable[[Loaded], Answer],
    act: Callable[[Loaded], Answer],
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> NoReturn:
    """Does it to each, and ends the command: with 1 (or 7) if one failed, else 4 if one was refused, else 3 if one
    stays open.
    """
    found = choose(operator, many.wanted(limit), states)
    if not found:
        say("no such effects.")
        raise typer.Exit(Exit.DONE)
    if not dry_run:
        confirm(f"{verb} {len(found)} effects ({_by(each.fields['tool'] for each in found)}).", yes=yes)
    rows: list[dict[str, Any]] = []
    away = 0
    for loaded in found:
        if away >= AWAY_TWICE:
            answer = _failed("not_tried", "the store is away.", Exit.UNREACHABLE)
        else:
            answer = _tried(would if dry_run else act, loaded)
            away = away + 1 if answer.code == Exit.UNREACHABLE else 0
        if answer.code not in (Exit.DONE, Exit.OPEN):
            say(f"effect {loaded.effect_id}: {answer.text}")
        rows.append(_record(loaded, answer))
        text = f"{answer.word}: {loaded.fields['tool']} effect {loaded.effect_id} ({loaded.state})"
        emit(rows[-1], as_json=as_json, text=text)
    say(_by(each["answer"] for each in rows) + ".")
    if not as_json:
        tell_first(rows)
    codes = {each["exit_code"] for each in rows}
    raise typer.Exit(next((c for c in _GRAVEST if c in codes), Exit.DONE))


_GRAVEST: Final = (Exit.UNREACHABLE, Exit.ERROR, Exit.USAGE, Exit.REFUSED, Exit.NOT_FOUND, Exit.OPEN)
"""Which exit code stands for all of them."""


def choose(operator: Operator, wanted: Wanted, states: Collection[State]) -> list[Loaded]:
    """The effects in these states that are wanted, the oldest first; says so when the limit leaves some out."""
    from effectsvc.cli.open_effects import open_ids

    now_ms = operator.now_ms()
    loaded = operator.load(open_ids(operator, states))
    found = [each for each in loaded if each.state in states and wanted.lets_in(each, now_ms=now_ms)]
    found.sort(key=lambda each: int(each.fields.get("since", "0")))
    if len(found) > wanted.limit:
        say(f"{len(found) - wanted.limit} more match and are left as they are (--limit).")
    return found[: wanted.limit]


def _tried(do: Callable[[Loaded], Answer], loaded: Loaded) -> Answer:
    """What came of one; whatever failed about it is an answer, so that the others have their turn."""
    try:
        return do(loaded)
    except StoreUnavailable as error:
        return _failed("error", f"it may not be done: {error}", Exit.UNREACHABLE)
    except EffectsvcError as error:
        return _failed("error", str(error), Exit.ERROR)
    except typer.Exit as ended:  # what ends a command about one effect has said why
        refused = ended.exit_code == Exit.REFUSED
        return _failed("refused" if refused else "error", "see above.", Exit(ended.exit_code))


def _failed(word: str, text: str, code: Exit) -> Answer:
    from effectsvc.cli.resolution import Answer

    return Answer(word, text, code)


def _record(loaded: Loaded, answer: Answer) -> dict[str, Any]:
    """What came of one. Only one that is done, or that is not there, has no next step."""
    settled = answer.code in (Exit.DONE, Exit.NOT_FOUND) and not answer.word.startswith("would_")
    return {
        "effect_id": loaded.effect_id,
        "tool": loaded.fields["tool"],
        "tenant": loaded.fields["tenant"],
        "was": loaded.state,
        "answer": answer.word,
        "exit_code": int(answer.code),
        "next": recorded([] if settled else [step("effects", "show", loaded.effect_id)]),
    }


def _by(names: Any) -> str:
    """How many of each, the most first."""
    return ", ".join(f"{number} {name}" for name, number in Counter(names).most_common())
