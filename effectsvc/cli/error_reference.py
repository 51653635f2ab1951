"""The page of every error code, rule id and finding: `python -m effectsvc.cli.error_reference` prints it.

It is made from what the code itself uses: the tree of exceptions, the registries of `effectsvc.core.codes`, what models
are told, the server's words, the headers of the scripts, the verifier's verdicts. It stands in deploy/errors.md; a test
keeps the two the same, and reads the source for codes that are nowhere here.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import Final

import effectsvc
from effectsvc.cli.output import UNVERIFIED_CODES, Exit
from effectsvc.client.refusals import TOLD
from effectsvc.core.codes import ASKED, BOUNDS, OUTCOMES, REFUSALS, RESULTS, WAITS, Code
from effectsvc.decisionlog.verifier.report import VERDICTS
from effectsvc.diagnosis import FINDINGS
from effectsvc.errors import EffectsvcError, StoreUnavailable
from effectsvc.store.scripts import COMMON_REPLIES, all_scripts
from effectsvc.store.server_errors import SERVER_WORDS

UNREAD: Final = ("effectsvc.testing", "effectsvc.cli.__main__")
"""Nothing that a deployment meets is raised there."""

FAULTS: Final[Mapping[str, str]] = {
    "LINE_TOO_LONG": "A line is longer than a record may be.",
    "LINE_UNPARSABLE": "A line is no JSON object.",
    "NOT_CANONICAL": "A line is not the canonical form of what it says.",
    "PROFILE": "A value is outside the log's profile of JSON.",
    "LINE_FIELDS": "A line has other fields than a record.",
    "GENESIS": "The first record is no genesis, or another one is.",
    "INDEX": "A record stands where another one must.",
    "CHAIN": "A record does not link to the one before it: one of the two was changed.",
    "SEGMENT_TORN": "A line has no end, inside the log.",
    "SOURCE_ORDER": "The source's entries are not in their order.",
    "ROOT_MISMATCH": "The records are not those that a checkpoint signed.",
    "CKPT_MALFORMED": "A checkpoint is none.",
    "CKPT_BAD_SIGNATURE": "A checkpoint is not what its key signed.",
    "CKPT_OTHER_ORIGIN": "A checkpoint is another log's.",
    "CKPT_WRONG_KEY": "A checkpoint is signed by a key that was not valid at its size.",
    "PRUNE_ANCHOR_MISMATCH": "An anchor is not the one that was written.",
    "PRUNE_ENDED_MISMATCH": "What a prune kept of the attempts that ended is not what was written.",
    "OWN_ENTRY": "An entry of the exporter's own is not what it must be.",
    "TRUNCATED": "The log is shorter than what was signed or seen.",
    "SPLIT_VIEW": "There are two histories; keep both as evidence.",
    "ORPHAN_OUTCOME": "An outcome has no decision that allowed it.",
    "SECOND_OUTCOME": "A decision was closed twice.",
    "OUTCOME_OF_REFUSED": "What was refused has an outcome.",
    "DOUBLE_EFFECT": "One intent happened twice.",
    "OPEN_PAST_DEADLINE": "A decision was allowed, and nothing says what became of it.",
    "NO_KEY": "No public key was given.",
    "UNSIGNED": "No checkpoint is signed by the key.",
    "CKPT_UNTRUSTED": "A checkpoint is signed by keys that nobody vouches for.",
    "SEGMENT_MISSING": "The first segment is missing, and no anchor says that it was pruned.",
    "SEGMENT_GAP": "A segment is missing.",
    "SOURCE_GAP": "Entries of the source are not in the log.",
    "UNKNOWN_VERSION": "A record is of a newer version.",
    "UNCOVERED": "More records than allowed are covered by no checkpoint.",
    "ANCHOR_UNSIGNED": "No checkpoint has the anchor's size.",
    "ANCHOR_UNCONFIRMED": "No prune entry names the anchor.",
    "PRUNE_ENDED_MISSING": "What a prune kept of the attempts that ended is gone: put the file back.",
    "PIN_PRUNED": "What the pin saw is pruned, and nothing signed compares.",
    "NOT_WITNESSED": "Fewer cosigners than asked for have seen it.",
    "NO_LOG": "There is no log.",
}
USAGE_FAULTS: Final[Mapping[str, str]] = {
    "KEY_MALFORMED": "That is no key of a kind that is known.",
    "KEY_WEAK": "The key is a point of small order: anybody can sign for it.",
    "NOTE_MALFORMED": "What was given as a checkpoint is none.",
    "PIN_OTHER_LOG": "The pin is another log's.",
}

_HEAD: Final = """\
# Errors, refusals and findings

Made by `python -m effectsvc.cli.error_reference`. Codes are stable, lower case, and the same words in Python, in the
store, in the log, in metrics (`effectsvc_refusals_total{rule_id}`) and at the command line. A tool has codes of its
own beside these: those of its contract's `expected_errors`, and those that its author raises.
"""


def page() -> str:
    """The page, in Markdown."""
    return "\n".join(_sections()).rstrip() + "\n"


def _sections() -> Iterator[str]:
    yield _HEAD
    yield from _section(
        "Exceptions",
        "Only misuse and lost infrastructure raise: `error.code` is the code, `error.next_step` what to do. The "
        f"command line prints a message on stderr and exits {Exit.UNREACHABLE.value} where the store did not take the "
        f"command, {Exit.UNVERIFIED.value} for {', '.join(f'`{code}`' for code in sorted(UNVERIFIED_CODES))}, else "
        f"{Exit.ERROR.value}.",
        ("Code", "Exception", "Meaning", "What to do"),
        _exceptions(),
    )
    yield from _section(
        "What the server says",
        "As `StoreUnavailable`, wherever the word stands in the server's reply.",
        ("Word", "Code", "Meaning", "What to do"),
        ((f"`{word}`", f"`{each.code}`", each.message, each.next_step) for word, each in SERVER_WORDS.items()),
    )
    yield from _section(
        "Refusals",
        "A refusal is a result (`status` `denied`, or `retryable_error` where it ends by itself), and a stored record. "
        "Host and operator find the code in `error.code` and `metadata`, in `effects show` and in the log, beside its "
        "layer; the model gets the message and the hints.",
        ("Rule id", "Layer", "Meaning", "What to do", "What the model is told", "Retry"),
        _refusals(),
    )
    yield from _codes("Why an effect is held", "`why_held` of `approvals show`, `rule` of `effects show`.", ASKED)
    yield from _codes("Results that are no refusals", "`error.code` of a result.", RESULTS)
    yield from _codes(
        "How an attempt ended",
        "`error.code` of a failed result; `why` of `effects show`; `reason` in the log. A read's failure has the same.",
        OUTCOMES,
    )
    yield from _codes(
        "What ended the tries", "`bound` of a record; as `reason` where it stopped an effect in doubt.", BOUNDS
    )
    yield from _codes("What an effect waits for", "`effects show`, `effects list`. A rerun is `rerun:RULE`.", WAITS)
    yield from _section(
        "What `effectsvc doctor` finds",
        "Each finding says what it endangers and what mends it. A finding of level `danger` makes it exit 1.",
        ("Code", "Meaning"),
        ((f"`{code}`", meaning) for code, meaning in FINDINGS.items()),
    )
    yield from _section(
        "What `effectsvc log verify` finds",
        "The exit code is that of the worst. What the verifier cannot be asked exits 2.",
        ("Code", "Exit code", "Meaning"),
        [(f"`{code}`", str(VERDICTS[code].value), meaning) for code, meaning in FAULTS.items()]
        + [(f"`{code}`", "2", meaning) for code, meaning in USAGE_FAULTS.items()],
    )
    common = ", ".join(f"`{word}`" for word in COMMON_REPLIES)
    yield from _section(
        "What the store's scripts answer",
        f"From their own headers. {common} may come from each, and become exceptions.",
        ("Operation", "Does", "Answers"),
        (
            (f"`{name}`", script.meaning, ", ".join(f"`{word}`" for word in script.replies))
            for name, script in all_scripts().items()
        ),
    )


def _section(title: str, said: str, columns: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> Iterator[str]:
    yield f"## {title}\n\n{textwrap.fill(said, 120, break_on_hyphens=False)}\n"
    yield f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}"
    for row in rows:
        yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |"
    yield ""


def _codes(title: str, said: str, codes: Mapping[str, Code]) -> Iterator[str]:
    rows = ((f"`{code}`", each.meaning, each.do) for code, each in codes.items())
    return _section(title, said, ("Code", "Meaning", "What to do"), rows)


# ---- exceptions ------------------------------------------------------------------------------------------------------


@cache
def every_exception() -> tuple[type[EffectsvcError], ...]:
    """The whole tree, a class before those below it. Imports the package's modules to find it."""
    for module in pkgutil.walk_packages(effectsvc.__path__, "effectsvc."):
        if not module.name.startswith(UNREAD):
            importlib.import_module(module.name)
    return tuple(_below(EffectsvcError))


def _below(kind: type[EffectsvcError]) -> Iterator[type[EffectsvcError]]:
    yield kind
    for each in sorted(kind.__subclasses__(), key=lambda each: each.__name__):
        yield from _below(each)


def _exceptions() -> Iterator[tuple[str, ...]]:
    for kind in every_exception():
        meaning = inspect.cleandoc(kind.__doc__ or "").split("\n\n")[0].replace("\n", " ")
        code = kind.code if "code" in vars(kind) else ""
        shown = f"`{kind.__name__}`" + (", exits 7" if issubclass(kind, StoreUnavailable) else "")
        do = kind.default_next_step or "The message says it."
        if kind is not EffectsvcError and code:
            yield f"`{code}`", shown, meaning, do
        for more, means in vars(kind).get("codes", {}).items():
            yield f"`{more}`", shown, means, do


def _refusals() -> Iterator[tuple[str, ...]]:
    for rule, about in REFUSALS.items():
        told = TOLD[rule]
        words = " ".join((told.message, *told.hints))
        yield f"`{rule}`", f"`{about.layer}`", about.meaning, about.do, words, f"`{told.retry}`"


if __name__ == "__main__":
    print(page(), end="")  # the page is this module's output
