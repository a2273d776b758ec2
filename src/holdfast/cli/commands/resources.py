"""`holdfast resources`: holders of resources, and releasing them by force. Uses the database directly."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from holdfast.cli.exit_codes import Exit
from holdfast.cli.help import print_help
from holdfast.cli.options import After, Json, Limit, OwnTenant, Tenant
from holdfast.cli.output.screen import cell, moment, out, plain_table, print_note, put_json, put_page, seconds
from holdfast.cli.plane_options import Config, Database, on_plane, read_plane
from holdfast.errors import BadInput
from holdfast.types import NS

if TYPE_CHECKING:
    from rich.table import Table

    from holdfast.plane.process.components import Components
    from holdfast.plane.resources.model import ResourceBreak, ResourceHolder
    from holdfast.plane.service.service import Caller


EPILOG: Final = "\n\n".join(
    (
        "[bold]Examples[/bold]",
        "[dim]$[/dim] holdfast resources list --tenant acme",
        '[dim]$[/dim] holdfast resources release db/main --tenant acme --reason "its host is gone"',
        "These are the resource locks of a plane. For leases, use holdfast locks and holdfast release.",
    )
)


def add_to(app: typer.Typer) -> None:
    """Add the commands."""
    group = typer.Typer(help="List and release resources of a plane.", epilog=EPILOG)
    group.callback(invoke_without_command=True)(print_help)
    for command in (list_, release, audit):
        group.command(command.__name__.rstrip("_"))(command)
    app.add_typer(group, name="resources")


def list_(
    tenant: Tenant = None,
    resource: Annotated[
        str | None, typer.Option(metavar="NAME", help="Only this resource.", show_default=False)
    ] = None,
    limit: Limit = 50,
    after: After = None,
    database: Database = None,
    config: Config = None,
    json: Json = False,
) -> int:
    """List the holders of resources, by tenant and name."""
    from holdfast.plane.resources.model import BEFORE_ALL, holder_cursor_of

    async def work(components: Components, caller: Caller) -> Exit:
        place = BEFORE_ALL if after is None else holder_cursor_of(after)
        found = await components.service.resources.page(
            caller.scope(tenant), resource=resource, after=place, limit=limit + 1
        )
        items = found[:limit]
        following = items[-1].place.text if len(found) > limit else None
        put_page(items, following, _holder_dict, _holder_table, what="held resources", json=json)
        return Exit.OK

    return read_plane(work, config, database)


def release(
    resource: Annotated[str, typer.Argument(metavar="NAME", help="The resource.", show_default=False)],
    reason: Annotated[str, typer.Option(metavar="TEXT", help="Reason; kept permanently.", show_default=False)],
    tenant: OwnTenant = "default",
    fence: Annotated[int | None, typer.Option(metavar="N", help="Release only the holder with this fence.")] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Skip the confirmation.")] = False,
    database: Database = None,
    config: Config = None,
    json: Json = False,
) -> int:
    """Release a resource by force.

    The next holder gets a higher fence. The current holder is not notified, and notices at its next renewal. Asks for
    confirmation unless --yes is given. A record is kept permanently. Exits 1 if the resource was free.
    """

    async def work(components: Components, caller: Caller) -> Exit:
        holders = await components.service.resources.holders(tenant, resource)
        if holders and not yes:
            _ask(holders)
        taken = await components.service.breaks.force_release(
            tenant, resource, actor=caller.name, reason=reason, fence=fence
        )
        if json:
            put_json({"broken": [_break_dict(each) for each in taken]})
        elif not taken:
            print_note(f"{resource} of {tenant} is free; nothing was done")
        for each in () if json else taken:
            out().print(cell(f"released {each.owner}, fence {each.fence}, {each.mode}"))
        return Exit.OK if taken else Exit.NO

    return on_plane(work, config, database=database)


def audit(
    tenant: Tenant = None,
    limit: Limit = 50,
    after: After = None,
    database: Database = None,
    config: Config = None,
    json: Json = False,
) -> int:
    """List forced releases, newest first: by whom, why, and the former holder."""
    from holdfast.plane.jobs.queries import place_of
    from holdfast.plane.model.paging import AFTER_ALL

    async def work(components: Components, caller: Caller) -> Exit:
        place = AFTER_ALL if after is None else place_of(after)
        found = await components.service.breaks.page(caller.scope(tenant), after=place, limit=limit + 1)
        items = found[:limit]
        following = items[-1].place.text if len(found) > limit else None
        put_page(items, following, _break_dict, _break_table, what="forced releases", json=json)
        return Exit.OK

    return read_plane(work, config, database)


def _ask(holders: Sequence[ResourceHolder]) -> None:
    if not sys.stdin.isatty():
        raise BadInput("--yes", "is missing, and there is no terminal for confirmation", "add --yes if you are sure")
    for each in holders:
        print_note(f"{each.resource} is held by {each.owner}, {each.mode}, {seconds(each.remaining_ns / NS)} left")
    typer.confirm("Release it?", abort=True, err=True)


def _holder_table(holders: Sequence[ResourceHolder]) -> Table:
    table = plain_table(
        *(("TENANT", "left"), ("RESOURCE", "left"), ("OWNER", "left"), ("MODE", "left")),
        *(("FENCE", "right"), ("SINCE", "right"), ("LEFT", "right")),
    )
    for each in holders:
        table.add_row(
            cell(each.tenant),
            cell(each.resource, "bold"),
            cell(each.owner),
            str(each.mode),
            str(each.fence),
            moment(_at(each.granted_ns)),
            seconds(each.remaining_ns / NS),
        )
    return table


def _break_table(breaks: Sequence[ResourceBreak]) -> Table:
    table = plain_table(
        *(("AT", "right"), ("TENANT", "left"), ("RESOURCE", "left"), ("BY", "left"), ("TAKEN FROM", "left")),
        *(("FENCE", "right"), ("REASON", "left")),
    )
    for each in breaks:
        table.add_row(
            moment(_at(each.at_ns)),
            cell(each.tenant),
            cell(each.resource, "bold"),
            cell(each.actor),
            cell(each.owner),
            str(each.fence),
            cell(each.reason),
        )
    return table


def _holder_dict(holder: ResourceHolder) -> dict[str, Any]:
    return {
        "tenant": holder.tenant,
        "resource": holder.resource,
        "mode": str(holder.mode),
        "owner": holder.owner,
        "fence": holder.fence,
        "granted_at": _at(holder.granted_ns).isoformat(),
        "remaining": holder.remaining_ns / NS,
    }


def _break_dict(record: ResourceBreak) -> dict[str, Any]:
    return {
        "at": _at(record.at_ns).isoformat(),
        "tenant": record.tenant,
        "resource": record.resource,
        "mode": str(record.mode),
        "owner": record.owner,
        "fence": record.fence,
        "actor": record.actor,
        "reason": record.reason,
    }


def _at(ns: int) -> datetime:
    return datetime.fromtimestamp(ns / NS, UTC)
