"""`config show` and `config page`: the settings in force, and the page of all of them."""

from __future__ import annotations

from typing import Annotated

import typer

from effectsvc.cli import completion
from effectsvc.cli.output import AsJson, Exit, emit, fail, print_table, say

config_app = typer.Typer(help="Look at the settings (environment variables).", no_args_is_help=True)


@config_app.command("show")
def show(
    setting: Annotated[
        str | None,
        typer.Argument(metavar="[SETTING]", autocompletion=completion.settings, help="Only this one: EFFECTSVC_…"),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Print every setting, its value and where it comes from. Passwords and tokens are masked.

    Exit codes: 0, 1, 2, 6.

    Example: EFFECTSVC_LEASE_S=40 effectsvc config show
    """
    from effectsvc.settings import load_settings
    from effectsvc.settings_shown import shown_settings, unknown_variables

    found = [each for each in shown_settings(load_settings()) if setting in (None, each.name)]
    if not found:
        fail(f"there is no setting {setting!r}; `effectsvc config show` prints them all.", Exit.NOT_FOUND)
    if as_json:
        for each in found:
            record = {"name": each.name, "value": each.value, "source": each.source, "meaning": each.meaning}
            emit(record, as_json=True, text="")
    else:
        rows = [(each.name, each.value, "environment" if each.source == each.name else each.source) for each in found]
        print_table(("setting", "value", "from"), rows)
    for name in unknown_variables():
        say(f"{name} is set, and nothing reads it: is it misspelt?")


@config_app.command("page")
def page() -> None:
    """Print the page of all settings, with defaults and meanings, in Markdown.

    Exit codes: 0, 2.

    Example: effectsvc config page > deploy/settings.md
    """
    from effectsvc.settings_shown import settings_page

    typer.echo(settings_page(), nl=False)
