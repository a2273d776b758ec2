"""`holdfast version`."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from holdfast import __version__
from holdfast.cli.output.screen import put_json


def version(json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """Print the version."""
    if json:
        put_json({"holdfast": __version__, "python": sys.version.split()[0]})
    else:
        print(f"holdfast {__version__}")


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(version)
