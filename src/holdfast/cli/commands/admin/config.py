"""`holdfast config`: the settings in effect. Opens nothing, and needs neither app nor database."""

from __future__ import annotations

from typing import Annotated

import typer

from holdfast.cli.exit_codes import Exit
from holdfast.cli.help import print_help
from holdfast.cli.options import Json
from holdfast.cli.output.screen import print_note
from holdfast.cli.plane_options import Config, settings
from holdfast.errors import BadInput


def add_to(app: typer.Typer) -> None:
    """Add the commands."""
    config = typer.Typer(help="Show the settings.")
    config.callback(invoke_without_command=True)(print_help)
    config.command("show")(show)
    app.add_typer(config, name="config")


def show(
    key: Annotated[
        str | None, typer.Argument(metavar="KEY", help="Only this setting, or this section.", show_default=False)
    ] = None,
    config: Config = None,
    json: Json = False,
) -> int:
    """Show every setting in effect, and the source of its value. Secrets are masked. Exits 64 if any is wrong."""
    from holdfast.cli.server.up_screen import show_settings
    from holdfast.plane.settings.sources import BadSettings

    try:
        chosen = settings(config)
    except BadSettings as error:
        for problem in error.problems:
            print_note(str(problem))
        return Exit.USAGE
    shown = None
    if key is not None:
        known = chosen.shown()
        shown = {name: told for name, told in known.items() if name == key or name.startswith(f"{key}.")}
        if not shown:
            raise BadInput("KEY", f"{key!r:.60} is not a setting", "holdfast config show lists all of them")
    show_settings(chosen, shown=shown, json=json)
    return Exit.OK
