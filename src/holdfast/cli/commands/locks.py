"""`holdfast locks` and `holdfast inspect`: held locks. `holdfast inventory`: every lock of the plane."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer
from rich.table import Table

from holdfast.cli.exit_codes import Exit
from holdfast.cli.lease_stores import reading, url_of
from holdfast.cli.options import Json, Name, Url
from holdfast.cli.output.screen import cell, fence, out, plain_table, put_json, put_none, put_table, seconds, since
from holdfast.cli.plane_options import Config, Database, settings
from holdfast.errors import BadInput
from holdfast.leases.inspection import Inspection

_INVENTORY = (
    *("FAMILY", "KEY", "SCOPE", "TTL", "RENEWED", "GIVES UP", "RELEASED"),
    *("WHEN BUSY", "WHEN THE STORE FAILS", "USED BY"),
)
_INVENTORY_RIGHT = {"TTL", "RENEWED"}


def add_to(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("locks")(locks)
    app.command("inspect")(inspect)
    app.command("inventory")(inventory)


def locks(
    context: typer.Context,
    prefix: Annotated[
        str, typer.Argument(metavar="PREFIX", help="Only keys with this prefix.", show_default=False)
    ] = "",
    limit: Annotated[int, typer.Option(metavar="N", help="Maximum number of locks.", min=1)] = 1000,
    url: Url = None,
    config: Config = None,
    database: Database = None,
    json: Json = False,
) -> None:
    """List held locks with holder, age and remaining time."""
    with reading(url_of(context, url), config, database) as (leases, store):
        found = leases.list(prefix, limit)
    if json:
        put_json({**each.as_dict(), **store.fields()} for each in found)
    if not json or not found:  # an empty list names no store
        store.print()
    if json:
        return
    if not found:
        put_none(f"locks with the prefix {prefix}" if prefix else "locks")
        return
    put_table(table(found))
    if len(found) == limit:
        out().print(f"(the first {limit}; --limit shows more)", style="dim")


def table(found: Sequence[Inspection]) -> Table:
    """The locks as a table."""
    result = plain_table(
        ("KEY", "left"),
        ("OWNER", "left"),
        ("SINCE", "right"),
        ("REMAINING", "right"),
        ("FENCE", "right"),
        ("FAMILY", "left"),
        ("WAITERS", "right"),
    )
    for lock in found:
        result.add_row(
            cell(lock.key, "bold"),
            cell(lock.owner or "?"),
            since(lock),
            seconds(lock.remaining),
            fence(lock),
            cell(lock.family or "?"),
            cell(str(lock.waiters), "yellow" if lock.waiters else "dim"),
        )
    return result


def inspect(
    context: typer.Context,
    name: Name,
    url: Url = None,
    config: Config = None,
    database: Database = None,
    json: Json = False,
) -> int:
    """Show the holder of a lock. Exits 0 if it is held and 1 if it is free."""
    with reading(url_of(context, url), config, database) as (leases, store):
        found = leases.inspect(name)
    if json:
        put_json({**found.as_dict(), **store.fields()})
        return Exit.OK if found.held else Exit.NO
    store.print()
    if not found.held:
        out().print(f"{name} is free")
    else:
        _print(found)
    return Exit.OK if found.held else Exit.NO


def _print(found: Inspection) -> None:
    console = out()
    rows = {
        "key": found.key,
        "owner": found.owner or "?",
        "since": since(found),
        "remaining": seconds(found.remaining),
        "fence": fence(found),
        "family": found.family or "?",
        "waiters": str(found.waiters),
        "fingerprint": found.fingerprint or "?",
    }
    for heading, value in rows.items():
        console.print(cell(f"{heading:<12}", "bold"), cell(value))
    if found.fence is None:
        console.print("held by another library, which keeps no fence; its holder cannot be fenced out", style="yellow")


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
        table = plain_table(*((heading, "right" if heading in _INVENTORY_RIGHT else "left") for heading in _INVENTORY))
        for line in lines:
            first, *rest = line.cells()
            table.add_row(cell(first, "bold"), *map(cell, rest))
        put_table(table)
