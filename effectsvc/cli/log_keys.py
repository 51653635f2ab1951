"""`log keys`: make the keys that sign a log, show their public side, and change a log's key."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from effectsvc.cli.output import AsJson, DryRun, Exit, Reason, Yes, actor, confirm, emit, fail

if TYPE_CHECKING:
    from effectsvc.decisionlog.keys import Signer

keys_app = typer.Typer(help="Make, show and change the keys of a log.", no_args_is_help=True)


HmacEnv = Annotated[str | None, typer.Option(help="The variable that holds the secret of HMAC lines.")]

_NO_PUBLIC_SIDE = "none: whoever verifies needs the file itself"
"""Of a secret."""


def secrets_of(variable: str | None) -> list[Signer]:
    """The secret of HMAC lines, where a variable is named that holds it. Raises KeyFault where it holds none."""
    from effectsvc.decisionlog.keys import check_secrets, load_signer

    secrets = [] if variable is None else [load_signer(variable=variable)]
    check_secrets(secrets)
    return secrets


@keys_app.command("gen")
def gen(
    path: Annotated[Path, typer.Argument(metavar="FILE", help="A new file; it is made with mode 0600.")],
    name: Annotated[str, typer.Option(help="The key's name in checkpoints: a host's name and a path.")],
    cosigner: Annotated[bool, typer.Option(help="A key for `log cosign`.")] = False,
    secret: Annotated[bool, typer.Option(help="A secret for HMAC lines: whoever has it can also forge.")] = False,
    as_json: AsJson = False,
) -> None:
    """Make a key. The public side is printed: give that to whoever verifies.

    Exit codes: 0, 1, 2, 4.

    Example: effectsvc log keys gen log.key --name log.example/payments
    """
    from effectsvc.decisionlog.keys import COSIGNATURE, ED25519, HMAC, new_signer, save_signer

    if cosigner and secret:
        fail("a cosigner's key is no secret of HMAC lines: choose one.", Exit.USAGE)
    if path.exists():
        fail(f"{path} is there already, and a key is never overwritten; choose another name.", Exit.REFUSED)
    signer = new_signer(name, kind=COSIGNATURE if cosigner else HMAC if secret else ED25519)
    save_signer(signer, path)
    shown = _NO_PUBLIC_SIDE if secret else str(signer.vkey)
    emit({"file": str(path), "key": shown}, as_json=as_json, text=shown)


@keys_app.command("show")
def show(path: Annotated[Path, typer.Argument(metavar="FILE", help="A key's file.")], as_json: AsJson = False) -> None:
    """Print the public side of a key.

    Exit codes: 0, 1, 2.

    Example: effectsvc log keys show log.key
    """
    from effectsvc.decisionlog.keys import HMAC, load_signer

    signer = load_signer(path)
    shown = _NO_PUBLIC_SIDE if signer.kind == HMAC else str(signer.vkey)
    emit({"key": shown}, as_json=as_json, text=shown)


@keys_app.command("roll")
def roll_command(
    log: Annotated[Path, typer.Argument(metavar="LOG", help="The log's directory.")],
    old: Annotated[Path, typer.Option("--old", help="The file of the log's key.")],
    new: Annotated[Path, typer.Option("--new", help="The file of the key that signs from now on.")],
    reason: Reason,
    hmac_env: HmacEnv = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Change a log's key: the old one signs for the new one, and can then be destroyed. Stop the exporter first.

    Exit codes: 0, 1, 2, 5, 6.

    Example: effectsvc log keys roll log --old log.key --new next.key --reason "once a year"
    """
    from effectsvc.cli.logs import check_has_records, origin_of
    from effectsvc.decisionlog.keys import load_signer
    from effectsvc.decisionlog.roll import Standing, roll, standing

    check_has_records(log)
    signers, secrets, origin = (load_signer(old), load_signer(new)), secrets_of(hmac_env), origin_of(log)
    record = {"key": str(signers[1].vkey)}
    if standing(log, origin=origin, old=signers[0], new=signers[1]) is Standing.ROLLED:
        emit({**record, "answer": "already_rolled"}, as_json=as_json, text="already_rolled")
        return
    what = f"From now on {signers[1].name} signs {log}."
    if dry_run:
        emit({**record, "answer": "would_roll"}, as_json=as_json, text=what)
        return
    confirm(what, yes=yes)
    seen = roll(log, origin=origin, old=signers[0], new=signers[1], by=actor()["actor"], reason=reason, secrets=secrets)
    text = f"rolled at size {seen.size}; give the exporter {new}, and destroy {old}."
    emit({**record, "size": seen.size, "answer": "rolled"}, as_json=as_json, text=text)
