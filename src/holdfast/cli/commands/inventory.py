"""`holdfast inventory`: every lock of the plane."""

from __future__ import annotations

from typing import Annotated

import typer

from holdfast.cli.options import Json
from holdfast.cli.output.screen import cell, plain_table, put_json, put_table
from holdfast.cli.plane_options import Config, settings
from holdfast.errors import BadInput

_SHOWN = (
    *("FAMILY", "KEY", "SCOPE", "TTL", "RENEWED", "GIVES UP", "RELEASED"),
    *("WHEN BUSY", "WHEN THE STORE FAILS", "USED BY"),
)
_RIGHT = {"TTL", "RENEWED"}


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    app.command("inventory")(inventory)


def inventory(
    config: Config = None,
    json: Json = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print a Markdown table.")] = False,
) -> None:
    """List every lock of the plane: key, scope (item or loop), TTL, renewal, release, and users.

    GIVES UP: after so many failed renewals in a row, unless its deadline comes first. The times follow from your
    settings. For the current holders: holdfast locks holdfast:
    """
    from holdfast.plane.settings.inventory import inventory as take_stock
    from holdfast.plane.settings.inventory import markdown as as_markdown

    if json and markdown:
        raise BadInput("--markdown", "cannot be combined with --json", "use one of them")
    lines = take_stock(settings(config))
    if json:
        put_json(line.as_dict() for line in lines)
    elif markdown:
        print(as_markdown(lines), end="")
    else:
        table = plain_table(*((heading, "right" if heading in _RIGHT else "left") for heading in _SHOWN))
        for line in lines:
            first, *rest = line.cells()
            table.add_row(cell(first, "bold"), *map(cell, rest))
        put_table(table)
