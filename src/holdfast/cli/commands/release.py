"""`holdfast release` and `holdfast audit`: breaking a lock by force, and the record of it."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from holdfast.cli.actor import actor
from holdfast.cli.exit_codes import Exit
from holdfast.cli.lease_stores import reading, url_of
from holdfast.cli.options import Json, Name, Url
from holdfast.cli.output.screen import (
    cell,
    moment,
    out,
    plain_table,
    print_note,
    put_json,
    put_none,
    put_table,
    seconds,
    since,
)
from holdfast.cli.plane_options import Config, Database
from holdfast.errors import BadInput
from holdfast.leases.inspection import ForcedRelease, Inspection


def add_to(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("release")(release)
    app.command("audit")(audit)


def release(
    context: typer.Context,
    name: Name,
    reason: Annotated[str, typer.Option(metavar="TEXT", help="Reason; kept in the audit record.", show_default=False)],
    yes: Annotated[bool, typer.Option("--yes", help="Skip the confirmation.")] = False,
    url: Url = None,
    config: Config = None,
    database: Database = None,
    json: Json = False,
) -> int:
    """Break a lock by force.

    Its holder is fenced out: it notices that the lease is lost, and guards refuse its writes. Asks for confirmation
    unless --yes is given. The store keeps an audit record. Exits 1 if the lock was free.
    """
    if not reason.strip():
        raise BadInput("reason", "is empty", "give the reason for breaking the lock; it is kept in the audit record")
    with reading(url_of(context, url), config, database) as (leases, store):
        found = leases.inspect(name)
        if not json:
            store.print()
        if found.held and not yes:
            _ask(found)
        record = leases.force_release(name, reason=reason, actor=actor()) if found.held else None
    if record is None:
        if json:
            put_json({"key": name, "released": False, **store.fields()})
        else:
            print_note(f"{name} is free; nothing was done")
        return Exit.NO
    if json:
        put_json({"released": True, **record.as_dict(), **store.fields()})
    else:
        _print(record)
    return Exit.OK


def _ask(found: Inspection) -> None:
    if not sys.stdin.isatty():
        raise BadInput("--yes", "is missing, and there is no terminal for confirmation", "add --yes if you are sure")
    print_note(
        f"{found.key} is held by {found.owner} since {since(found)}, "
        f"{seconds(found.remaining)} left, {found.waiters} waiting"
    )
    typer.confirm("Fence its holder out?", abort=True, err=True)


def _print(record: ForcedRelease) -> None:
    console = out()
    console.print(cell(f"released {record.key}", "bold green"))
    before = "no fence (another library)" if record.previous_fence is None else f"fence {record.previous_fence}"
    rows = {
        "fenced out": f"{record.previous_owner}, {before}",
        "fence now": str(record.fence),
        "by": record.actor,
        "at": moment(record.at),
        "reason": record.reason,
    }
    for heading, value in rows.items():
        console.print(cell(f"  {heading:<11}"), cell(value))


def audit(
    context: typer.Context,
    limit: Annotated[int, typer.Option(metavar="N", help="Maximum number of records.", min=1)] = 100,
    url: Url = None,
    config: Config = None,
    database: Database = None,
    json: Json = False,
) -> None:
    """List locks that were broken by force, newest first: by whom, why, and the former holder."""
    with reading(url_of(context, url), config, database) as (leases, store):
        records = leases.audit(limit)
    if json:
        put_json({**record.as_dict(), **store.fields()} for record in records)
    if not json or not records:  # an empty list names no store
        store.print()
    if json:
        return
    if not records:
        put_none("forced releases")
        return
    table = plain_table(
        ("AT", "right"),
        ("KEY", "left"),
        ("BY", "left"),
        ("FENCED OUT", "left"),
        ("FENCES", "right"),
        ("REASON", "left"),
    )
    for record in records:
        table.add_row(
            moment(record.at),
            cell(record.key, "bold"),
            cell(record.actor),
            cell(record.previous_owner),
            f"{'none' if record.previous_fence is None else record.previous_fence} → {record.fence}",
            cell(record.reason),
        )
    put_table(table)
