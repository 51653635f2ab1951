"""`log`: verify, read, prove, and look after a decision log. Verifying and reading need no store."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from effectsvc.cli.log_keys import HmacEnv, keys_app, secrets_of
from effectsvc.cli.log_steps import after_verifying, recovering
from effectsvc.cli.output import AsJson, DryRun, Exit, Reason, Yes, actor, confirm, emit, fail
from effectsvc.cli.steps import recorded, step, tell

if TYPE_CHECKING:
    from effectsvc.decisionlog.keys import Signer
    from effectsvc.decisionlog.record import Record

log_app = typer.Typer(help="Verify, read and look after the decision log.", no_args_is_help=True)
log_app.add_typer(keys_app, name="keys")

EXIT_USAGE, EXIT_IO = 2, 6
"""Of `log verify`, whose exit codes are its own."""

LogDir = Annotated[Path, typer.Argument(metavar="LOG", help="The log's directory.")]
OwnLog = Annotated[
    Path, typer.Argument(metavar="LOG", envvar="EFFECTSVC_LOG_DIR", help="The log's directory; else the setting's.")
]
"""Where the directory is all that is named: the setting may name it."""
Key = Annotated[str | None, typer.Option("--key", help="The log's public key, or a file that holds it.")]
KeyFile = Annotated[Path | None, typer.Option(help="The key that signs the log's checkpoints.")]
KeyEnv = Annotated[str | None, typer.Option(help="The environment variable that holds that key.")]


class Format(StrEnum):
    """Forms in which a log is exported."""

    airlock = "airlock"
    jsonl = "jsonl"


# ---- verify ----------------------------------------------------------------------------------------------------------


@log_app.command("verify")
def verify_command(
    log: OwnLog,
    key: Key = None,
    witness: Annotated[list[str] | None, typer.Option(help="A cosigner's public key, or its file; repeatable.")] = None,
    witnesses_needed: Annotated[int | None, typer.Option(min=0, help="So many of them must have cosigned.")] = None,
    hmac_env: HmacEnv = None,
    pin: Annotated[
        Path | None, typer.Option(help="What an earlier verification saw; moved forward on success.")
    ] = None,
    checkpoint: Annotated[list[Path] | None, typer.Option(help="A checkpoint from elsewhere; repeatable.")] = None,
    max_uncovered: Annotated[int | None, typer.Option(min=0, help="Records that no checkpoint may cover.")] = None,
    processes: Annotated[
        int | None,
        typer.Option(min=1, max=64, help="Read by so many processes; a long log by one for each processor."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Re-read all of it. Exits 0 verified, 1 tampered, 2 usage, 3 cut or put back, 4 incomplete, 5 effects, 6 I/O.

    Exit codes: 0, 1, 2, 3, 4, 5, 6.

    Example: effectsvc log verify log --key log.pub --pin seen.pin
    """
    from effectsvc.decisionlog import verify

    try:
        with _answerable():
            report = verify(
                log,
                key=_key_text(key),
                witnesses=[str(_key_text(each)) for each in witness or ()],
                witnesses_needed=witnesses_needed,
                secret=None if hmac_env is None else _secret_of(hmac_env),
                pin=pin,
                checkpoints=checkpoint or (),
                max_uncovered=max_uncovered,
                processes=processes,
                progress=_progress if sys.stderr.isatty() else None,
            )
    except OSError as error:
        fail(f"{error.filename or log} cannot be read or written: {error.strerror or error}.", EXIT_IO)
    steps = after_verifying(log, report)
    emit({**report.record(), "next": recorded(steps)}, as_json=as_json, text=str(report))
    tell(steps, as_json=as_json)
    raise typer.Exit(int(report.verdict))


@contextmanager
def _answerable() -> Iterator[None]:
    """Tells a key that is none, and a pin of another log, where a command verifies first."""
    from effectsvc.decisionlog import VerifierUsage

    try:
        yield
    except VerifierUsage as error:
        fail(f"{error.code}: {error}", EXIT_USAGE)


def _secret_of(variable: str) -> str:
    secret = os.environ.get(variable, "")
    if not secret:
        fail(f"the environment variable {variable} holds no secret.", EXIT_USAGE)
    return secret


def _progress(records: int) -> None:
    typer.echo(f"\r{records} records", err=True, nl=False)


def _key_text(given: str | None) -> str | None:
    """A key as text; what the file holds where there is such a file."""
    if given is None:
        return None
    try:
        return Path(given).read_text(encoding="utf-8").strip()
    except (OSError, ValueError):
        if "+" in given:
            return given
        fail(f"{given!r} is neither a key nor a file that holds one.", Exit.USAGE)


# ---- reading ---------------------------------------------------------------------------------------------------------


@log_app.command("show", context_settings={"ignore_unknown_options": True})  # -5 is an index
def show(
    log: LogDir,
    first: Annotated[int, typer.Argument(help="The index of a record; negative ones count from the end.")] = -20,
    last: Annotated[int | None, typer.Argument(help="Up to this index. Default: to the end.")] = None,
    as_json: AsJson = False,
) -> None:
    """Print records. They are not verified: `log verify` does that.

    Exit codes: 0, 1, 2, 5, 6.

    Example: effectsvc log show log 1200 1210
    """
    from itertools import takewhile

    from effectsvc.decisionlog.layout import Layout, end_of
    from effectsvc.decisionlog.reading import records_from

    if first < 0:
        first = max(0, first + max((end_of(*last_one) for last_one in Layout(log).segments()[-1:]), default=0))
    if last is not None and last < first:
        fail(f"the last index, {last}, is before the first, {first}.", Exit.USAGE)
    with _readable(log):
        found = takewhile(lambda record: last is None or record.index <= last, records_from(log, first))
        if not _print(found, as_json=as_json):
            fail(f"there is no record {first} in {log}.", Exit.NOT_FOUND)


@log_app.command("find")
def find(
    log: LogDir,
    effect: Annotated[str | None, typer.Argument(help="An effect's id.")] = None,
    tool: Annotated[str | None, typer.Option(help="Of this tool.")] = None,
    kind: Annotated[str | None, typer.Option("--type", help="Of this type: decision, outcome, resolve, …")] = None,
    run: Annotated[str | None, typer.Option(help="Of this run.")] = None,
    tenant: Annotated[str | None, typer.Option(help="Of this tenant.")] = None,
    since: Annotated[str | None, typer.Option(help="Not older than this: 90s, 5m, 2h, 7d.")] = None,
    as_json: AsJson = False,
) -> None:
    """Print the records that match. Exits 6 when there are none.

    Exit codes: 0, 1, 2, 5, 6.

    Example: effectsvc log find log --tool charge --since 2h
    """
    import time

    from effectsvc.cli.output import parse_span
    from effectsvc.decisionlog.reading import Wanted, records_from

    since_ms = None if since is None else round(1000 * (time.time() - parse_span(since)))
    wanted = Wanted(effect=effect, tool=tool, type=kind, run=run, tenant=tenant, since_ms=since_ms)
    with _readable(log):
        if not _print(filter(wanted, records_from(log)), as_json=as_json):
            fail("no record matches.", Exit.NOT_FOUND)


@log_app.command("follow")
def follow_command(
    log: LogDir,
    first: Annotated[
        int | None, typer.Option("--from", help="From this index. Default: what comes from now on.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Print records as they are exported, until Ctrl-C.

    Exit codes: 0, 1, 2, 5, 6.

    Example: effectsvc log follow log --from 1200
    """
    from effectsvc.decisionlog.layout import Layout, end_of
    from effectsvc.decisionlog.reading import follow

    if first is None:
        first = max((end_of(*last_one) for last_one in Layout(log).segments()[-1:]), default=0)
    with _readable(log):
        try:
            _print(follow(log, first), as_json=as_json)
        except KeyboardInterrupt:
            return


def _print(records: Iterable[Record], *, as_json: bool) -> int:
    from effectsvc.decisionlog.reading import line_of, shown

    printed = 0
    for record in records:
        printed += 1
        if as_json:
            emit(shown(record), as_json=True, text="")
        else:
            typer.echo(line_of(record))
        if not sys.stdout.isatty():
            sys.stdout.flush()
    return printed


@contextmanager
def _readable(log: Path) -> Iterator[None]:
    """Tells a line that is none, and a directory without records."""
    from effectsvc.decisionlog.record import RecordFault

    check_has_records(log)
    try:
        yield
    except RecordFault as fault:
        fail(f"a line of the log is no record ({fault}); see `effectsvc log verify`.", Exit.UNVERIFIED)


def check_is_log(log: Path) -> None:
    """Ends the command with 6 where there is none, not even what is left of one."""
    from effectsvc.decisionlog.layout import Layout

    layout = Layout(log)
    if not (layout.segments() or layout.notes() or layout.anchors()):
        fail(
            f"there is no decision log in {log}: no segment in {layout.segments_dir}. Name the directory that "
            "`effectsvc export --log` writes.",
            Exit.NOT_FOUND,
        )


def check_has_records(log: Path) -> None:
    """Ends the command with 6 where there is no log, with 5 where there are checkpoints of one and no segments."""
    from effectsvc.decisionlog.layout import Layout

    check_is_log(log)
    layout = Layout(log)
    if not layout.segments():
        fail(
            f"the records of the log in {log} are gone: there are checkpoints, and no segment in "
            f"{layout.segments_dir}. Bring the files back from a copy, and see `effectsvc log verify {log}`.",
            Exit.UNVERIFIED,
        )


def _fail_without_record(log: Path) -> NoReturn:
    fail(f"there is no record in {log} yet: the exporter writes the first when it starts.", Exit.NOT_FOUND)


@log_app.command("export")
def export_command(
    log: LogDir,
    form: Annotated[Format, typer.Option("--format", help="airlock: a JSON-lines chain; jsonl: the records.")],
    out: Annotated[Path | None, typer.Option(help="A new file. Default: standard output.")] = None,
) -> None:
    """Write the log's facts in another form. The evidence stays the log itself.

    Exit codes: 0, 1, 2, 4, 5, 6.

    Example: effectsvc log export log --format jsonl --out records.jsonl
    """
    from itertools import chain

    from effectsvc.decisionlog.airlock import airlock_lines
    from effectsvc.decisionlog.reading import records_from

    with _readable(log):
        records = records_from(log)
        first = next(records, None)
        if first is None:
            _fail_without_record(log)
        records = chain([first], records)
        lines = airlock_lines(records) if form is Format.airlock else (record.line for record in records)
        if out is None:
            for line in lines:
                sys.stdout.buffer.write(line + b"\n")
            return
        try:
            with out.open("xb") as file:
                file.writelines(line + b"\n" for line in lines)
        except FileExistsError:
            fail(f"{out} is there already; write to another file.", Exit.REFUSED)


# ---- proofs ----------------------------------------------------------------------------------------------------------


@log_app.command("prove")
def prove(
    log: LogDir,
    index: Annotated[int | None, typer.Argument(min=0, help="The record to prove.")] = None,
    consistent_with: Annotated[
        int | None, typer.Option(min=1, help="Prove that the log begins with this size.")
    ] = None,
    tlog: Annotated[bool, typer.Option(help="In the C2SP tlog-proof format.")] = False,
    out: Annotated[Path | None, typer.Option(help="A file. Default: standard output.")] = None,
) -> None:
    """Prove that one record is in the signed log, or that the log only grew.

    Exit codes: 0, 1, 2, 5, 6.

    Example: effectsvc log prove log 1207 --out proof.json
    """
    from effectsvc.decisionlog import proofs

    if (index is None) == (consistent_with is None):
        fail("give a record's index, or --consistent-with SIZE.", Exit.USAGE)
    with _readable(log):
        if consistent_with is not None:
            _write(proofs.consistency(log, old=consistent_with), out)
        elif index is not None and tlog:
            _write_text(proofs.tlog_proof(log, index), out)
        elif index is not None:
            _write(proofs.bundle(log, [index]), out)


@log_app.command("bundle")
def bundle_command(
    log: LogDir,
    effect: Annotated[str, typer.Argument(help="An effect's id.")],
    out: Annotated[Path | None, typer.Option(help="A file. Default: standard output.")] = None,
) -> None:
    """Everything that the log says of one effect, with proofs and the signed checkpoint, in one file.

    Exit codes: 0, 1, 2, 5, 6.

    Example: effectsvc log bundle log 01M7Q5CQG0287RKGM49KP3NJ7G --out bundle.json
    """
    from effectsvc.decisionlog import proofs
    from effectsvc.decisionlog.reading import Wanted, records_from

    with _readable(log):
        found = [record.index for record in filter(Wanted(effect=effect), records_from(log))]
    if not found:
        fail("the log says nothing of this effect.", Exit.NOT_FOUND)
    _write(proofs.bundle(log, found), out)


@log_app.command("check-proof")
def check_proof(
    proof: Annotated[Path, typer.Argument(help="What `log prove` or `log bundle` wrote.")],
    key: Annotated[str, typer.Option("--key", help="The log's public key, or a file that holds it.")],
) -> None:
    """Check a proof or a bundle, with the log's public key alone. Exits 5 when it does not hold.

    Exit codes: 0, 1, 2, 5, 6.

    Example: effectsvc log check-proof bundle.json --key log.pub
    """
    from effectsvc.decisionlog import proofs
    from effectsvc.decisionlog.keys import KeyFault

    try:
        typer.echo(proofs.check(proof.read_bytes(), key=str(_key_text(key))))
    except KeyFault as fault:
        fail(f"--key: {fault}", Exit.USAGE)
    except OSError as error:
        fail(f"{proof} cannot be read: {error.strerror}.", Exit.NOT_FOUND)


def _write(value: dict[str, Any], out: Path | None) -> None:
    import orjson

    _write_text(orjson.dumps(value, option=orjson.OPT_INDENT_2).decode() + "\n", out)


def _write_text(text: str, out: Path | None) -> None:
    if out is None:
        typer.echo(text, nl=False)
    else:
        out.write_text(text, encoding="utf-8")


# ---- looking after it ------------------------------------------------------------------------------------------------


@log_app.command("checkpoint")
def checkpoint(
    log: LogDir,
    size: Annotated[int | None, typer.Option(min=1, help="Of this size. Default: the newest.")] = None,
    sign: Annotated[bool, typer.Option(help="Sign what is there now; needs the key, and no running exporter.")] = False,
    key_file: KeyFile = None,
    key_env: KeyEnv = None,
    hmac_env: HmacEnv = None,
) -> None:
    """Print a signed checkpoint with its cosignatures: what to keep elsewhere.

    Exit codes: 0, 1, 2, 5, 6.

    Example: effectsvc log checkpoint log
    """
    from effectsvc.decisionlog.proofs import newest_note
    from effectsvc.decisionlog.writer import LogWriter

    check_is_log(log)
    if sign:
        with _readable(log):
            signers = [_signer(key_file, key_env), *secrets_of(hmac_env)]
            with LogWriter(log, origin=origin_of(log), signers=signers) as writer:
                writer.checkpoint()
    typer.echo(newest_note(log, size), nl=False)


@log_app.command("cosign")
def cosign_command(
    log: LogDir,
    pin: Annotated[Path, typer.Option(help="Where this cosigner keeps what it saw.")],
    key_file: KeyFile = None,
    key_env: KeyEnv = None,
    key: Key = None,
    as_json: AsJson = False,
) -> None:
    """Say as a second host that this log was seen: verify it, and sign its newest checkpoint with the time.

    Exit codes: 0, 1, 2, 5, 6.

    Example: effectsvc log cosign log --pin seen.pin --key-file witness.key --key log.pub
    """
    import time

    from effectsvc.decisionlog.cosign import cosign

    check_has_records(log)
    signer = _signer(key_file, key_env)
    with _answerable():
        seen, line = cosign(log, signer=signer, pin=pin, key=_key_text(key), time_s=int(time.time()))
    record = {"origin": seen.origin, "size": seen.size, "root": seen.root.hex(), "cosignature": line.rstrip("\n")}
    emit(record, as_json=as_json, text=f"cosigned {seen.origin} at size {seen.size} as {signer.name}")


@log_app.command("prune")
def prune_command(
    log: LogDir,
    reason: Reason,
    before: Annotated[int | None, typer.Option(min=1, help="Remove whole segments before this index.")] = None,
    through_head: Annotated[bool, typer.Option(help="Remove everything that is there.")] = False,
    forget: Annotated[
        bool,
        typer.Option(help="Keep nothing of the attempts that ended: a later repeat of one is not found any more."),
    ] = False,
    key_file: KeyFile = None,
    key_env: KeyEnv = None,
    hmac_env: HmacEnv = None,
    key: Key = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Remove whole segments below a signed checkpoint; an anchor stays, so that the rest verifies.

    Of each attempt that ended, 65 bytes of digests stay beside the anchor, so that a repeat of what happened is found.

    Exit codes: 0, 1, 2, 5, 6.

    Example: effectsvc log prune log --before 500000 --key-file log.key --reason "kept for a year" --dry-run
    """
    from effectsvc.decisionlog.errors import DecisionLogError
    from effectsvc.decisionlog.layout import Layout
    from effectsvc.decisionlog.prune import Pruned, prune

    if (before is None) != through_head:
        fail("give --before INDEX, or --through-head.", Exit.USAGE)
    check_has_records(log)
    signers, who = [_signer(key_file, key_env), *secrets_of(hmac_env)], actor()["actor"]

    def run(*, dry: bool) -> Pruned:
        try:
            with _answerable():
                return prune(
                    log, signers=signers, before=before, by=who, reason=reason, key=_key_text(key), dry_run=dry,
                    forget=forget,
                )  # fmt: skip
        except DecisionLogError as error:
            start = min((first for first, _ in Layout(log).segments()), default=0)
            if error.code != "nothing_to_prune" or not start:
                raise
            emit({"start": start, "answer": "already_pruned"}, as_json=as_json, text="already_pruned")
            raise typer.Exit from None

    if dry_run or not yes:
        would = run(dry=True)
        question = (
            f"{would.segments} segments, records {would.start} to {would.size - 1}, {would.bytes} bytes, go; "
            f"{would.kept} ended attempts are kept in {would.kept_bytes} bytes."
        )
        if dry_run:
            emit({**asdict(would), "answer": "would_prune"}, as_json=as_json, text=f"would remove: {question}")
            return
        confirm(question, yes=yes)
    done = run(dry=False)
    text = (
        f"removed {done.segments} segments, records {done.start} to {done.size - 1}; kept {done.open_decisions} open "
        f"decisions, and {done.kept} ended attempts in {done.kept_bytes} bytes"
    )
    emit({**asdict(done), "answer": "pruned"}, as_json=as_json, text=text)


@log_app.command("recover")
def recover_command(
    log: OwnLog,
    reason: Reason,
    key_file: KeyFile = None,
    key_env: KeyEnv = None,
    hmac_env: HmacEnv = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Mend a damaged end: sealed in quarantine, exported again from the stream, else told as missing.

    Exit codes: 0, 1, 2, 5, 6, 7.

    Example: effectsvc log recover log --key-file log.key --reason "a torn write" --dry-run
    """
    from effectsvc.cli.operator import Operator
    from effectsvc.decisionlog.mend import damage_of, mend
    from effectsvc.store.sync_store import SyncStore

    with Operator() as operator, SyncStore(operator.settings.redis_url) as store:
        check_is_log(log)
        seen = damage_of(log, store, operator.commands)
        if seen is None:
            whole: dict[str, Any] = {"answer": "already_whole", "next": []}
            emit(whole, as_json=as_json, text="already_whole: every record is there.")
            tell([], as_json=as_json)
            return
        how = (
            "from the stream, byte for byte"
            if seen.can_export_again
            else "as a discontinuity: the stream has it no more"
        )
        sealed = ", ".join(seen.sealed) or "nothing"
        text = f"{seen.good} records are whole; then: {seen.reason} Sealed: {sealed}. Back {how}."
        if dry_run:
            steps = [recovering(log)]
            emit({**asdict(seen), "answer": "would_mend", "next": recorded(steps)}, as_json=as_json, text=text)
            tell(steps, as_json=as_json)
            return
        confirm(text, yes=yes)
        signers = [_signer(key_file, key_env), *secrets_of(hmac_env)]
        mend(log, store, operator.commands, signers=signers, by=actor()["actor"], reason=reason)
    steps = [step("log", "verify", str(log), when="the exporter is started again")]
    record: dict[str, Any] = {**asdict(seen), "answer": "mended", "next": recorded(steps)}
    emit(record, as_json=as_json, text=f"mended. {text}")
    tell(steps, as_json=as_json)


def _signer(path: Path | None, variable: str | None) -> Signer:
    from effectsvc.decisionlog.keys import load_signer

    if variable is None and path is None:
        configured = os.environ.get("EFFECTSVC_LOG_KEY_FILE")
        if not configured:
            fail("which key? Give --key-file, --key-env, or set EFFECTSVC_LOG_KEY_FILE.", Exit.USAGE)
        path = Path(configured)
    return load_signer(path, variable=variable)


def origin_of(log: Path) -> str:
    """The log's own name, from its first record or its anchor."""
    from effectsvc.decisionlog.layout import Layout
    from effectsvc.decisionlog.reading import records_from
    from effectsvc.decisionlog.state import start_of

    state, _ = start_of(Layout(log))
    if state.origin:
        return state.origin
    with _readable(log):
        genesis = next(iter(records_from(log)), None)
    if genesis is None:
        _fail_without_record(log)
    return str(genesis.entry["origin"])
