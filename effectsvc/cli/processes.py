"""The commands that run a process of the service, and `version`."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from effectsvc.cli import completion
from effectsvc.cli.output import AsJson, Exit, emit

if TYPE_CHECKING:
    from effectsvc.settings import Settings


def _log_to_stderr(settings: Settings) -> None:
    from effectsvc.logs import to_stderr

    to_stderr(log_format=settings.log_format, level=settings.log_level)


def version(as_json: AsJson = False) -> None:
    """Print the version.

    Exit codes: 0, 2.

    Example: effectsvc version --json
    """
    from effectsvc.version import __version__

    emit({"version": __version__}, as_json=as_json, text=__version__)


def worker(
    lanes: Annotated[
        str | None, typer.Option(help="Lanes to serve, comma-separated.", autocompletion=completion.lanes)
    ] = None,
    processes: Annotated[int, typer.Option(min=1, help="Worker processes under one supervisor.")] = 1,
    concurrency: Annotated[int | None, typer.Option(min=1, help="Effects in flight per process.")] = None,
    burst: Annotated[bool, typer.Option(help="Leave when the lanes are empty.")] = False,
) -> None:
    """Run tools: RQ workers that take effects from the lanes.

    Exit codes: 0, 1, 2, 7.

    Example: effectsvc worker --lanes default,mail --processes 2
    """
    from effectsvc_workers.supervisor import Supervisor
    from effectsvc_workers.worker import run_worker

    from effectsvc.settings import load_settings

    given = {"lanes": lanes, "concurrency": concurrency}
    settings = load_settings(**given)
    _log_to_stderr(settings)
    if processes == 1:
        raise typer.Exit(run_worker(settings, burst=burst))
    os.environ.update({f"EFFECTSVC_{k.upper()}": str(v) for k, v in given.items() if v is not None})
    command = [sys.executable, "-m", "effectsvc_workers.worker", *(["--burst"] if burst else [])]
    raise typer.Exit(Supervisor(command, processes, settings=settings).run())


def relay() -> None:
    """Ask for sessions where effects are ready, and sweep. Any number may run; they wait for a store that is away.

    Exit codes: 0, 1, 2.

    Example: effectsvc relay
    """
    from effectsvc_workers.relay import Relay

    from effectsvc.settings import load_settings

    settings = load_settings()
    _log_to_stderr(settings)
    raise typer.Exit(Relay(settings).run())


def export(
    log: Annotated[Path | None, typer.Option("--log", help="The log's directory; else EFFECTSVC_LOG_DIR.")] = None,
    key_file: Annotated[Path | None, typer.Option(help="The key that signs checkpoints.")] = None,
    key_env: Annotated[str | None, typer.Option(help="The variable that holds that key.")] = None,
    hmac_env: Annotated[str | None, typer.Option(help="The variable that holds the secret of an HMAC line.")] = None,
    once: Annotated[bool, typer.Option(help="Export what there is, sign, and leave.")] = False,
) -> None:
    """Write the cell's decision log to files and sign it. One exports; others stand by.

    It waits for a store that is away, unless it is to export --once.

    Exit codes: 0, 1, 2, 5, 7.

    Example: effectsvc export --log /var/lib/effectsvc/log --key-file log.key
    """
    from effectsvc_workers.export import Export, signers_of

    from effectsvc.settings import load_settings

    settings = load_settings(log_dir=log, log_key_file=key_file)
    _log_to_stderr(settings)
    signers = signers_of(settings, key_variable=key_env, secret_variable=hmac_env)
    raise typer.Exit(Export(settings, signers).run(once=once))


def up(
    tools: Annotated[str, typer.Option(envvar="EFFECTSVC_TOOLS", help="Your registry, package.module:tools.")],
    directory: Annotated[Path, typer.Option("--dir", help="Where data, state and logs are kept.")] = Path(".effectsvc"),
    workers: Annotated[int, typer.Option(min=1, help="Worker processes.")] = 1,
    port: Annotated[int, typer.Option(help="Port of the embedded server; 0 takes a free one.")] = 0,
) -> None:
    """Development: an embedded server, workers, a relay and an exporter, until Ctrl-C.

    Exit codes: 0, 1, 2.

    Example: effectsvc up --tools shop:tools --workers 2
    """
    import time

    from effectsvc.settings import load_settings
    from effectsvc.stack import Stack

    _log_to_stderr(load_settings())
    with Stack(directory.absolute(), tools=tools, workers=workers, port=port) as stack:
        typer.echo("effectsvc is up. In another terminal:", err=True)
        for name in ("EFFECTSVC_REDIS_URL", "EFFECTSVC_CELL"):
            typer.echo(f"export {name}='{stack.environment[name]}'")
        try:
            while not (ended := {name: status for name, status in stack.ended().items() if status}):
                time.sleep(0.2)  # one that ended with 0 was told to: a drained worker
            name, status = next(iter(ended.items()))
            typer.echo(f"effectsvc: {name} ended with status {status}; see {directory / 'logs'}", err=True)
            raise typer.Exit(Exit.ERROR)
        except KeyboardInterrupt:
            typer.echo("stopping", err=True)
