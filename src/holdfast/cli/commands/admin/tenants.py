"""`holdfast tenants`: jobs on workers by tenant, and their limits. Uses the database directly."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.cli.exit_codes import Exit
from holdfast.cli.help import print_help
from holdfast.cli.options import Json, Limit
from holdfast.cli.output.screen import cell, out, plain_table, put_json, put_page
from holdfast.cli.plane_options import Bus, Config, Database, Leases, on_plane, read_plane
from holdfast.errors import BadInput

if TYPE_CHECKING:
    from rich.table import Table

    from holdfast.plane.jobs.quotas import Tenant
    from holdfast.plane.process.components import Components
    from holdfast.plane.service.service import Caller


def add_to(app: typer.Typer) -> None:
    """Add the commands."""
    tenants = typer.Typer(help="List tenants and limit their jobs on workers.")
    tenants.callback(invoke_without_command=True)(print_help)
    tenants.command("list")(list_)
    tenants.command("limit")(limit)
    app.add_typer(tenants, name="tenants")


def list_(
    limit: Limit = 50,
    after: Annotated[str, typer.Option(metavar="TENANT", help="Start after this tenant.", show_default=False)] = "",
    database: Database = None,
    config: Config = None,
    json: Json = False,
) -> int:
    """List tenants that have had a job or a limit, by name: jobs on workers, and the limit."""

    async def work(components: Components, caller: Caller) -> Exit:
        page, following = await components.service.tenants(caller, after=after, limit=limit)
        put_page(page, following, _tenant_dict, _tenant_table, what="tenants", json=json)
        return Exit.OK

    return read_plane(work, config, database)


def limit(
    tenant: Annotated[str, typer.Argument(metavar="TENANT", help="The tenant.", show_default=False)],
    slots: Annotated[
        int | None,
        typer.Argument(metavar="SLOTS", help="Maximum number of its jobs on workers; 0: none.", show_default=False),
    ] = None,
    default: Annotated[bool, typer.Option("--default", help="Remove the limit; the default applies.")] = False,
    database: Database = None,
    bus: Bus = None,
    leases: Leases = None,
    config: Config = None,
    json: Json = False,
) -> int:
    """Limit how many jobs of a tenant are on workers at the same time. Running jobs continue."""
    if (slots is None) is not default:
        raise BadInput("SLOTS", "needs a number, or --default", "give one of them: holdfast tenants limit acme 4")

    async def work(components: Components, _caller: Caller) -> Exit:
        changed = await components.service.limit_tenant(tenant, slots)
        if json:
            put_json(_tenant_dict(changed))
        else:
            out().print(cell(f"{changed.name}: {_limit(changed)}; {changed.running} on workers now"))
        return Exit.OK

    return on_plane(work, config, database=database, bus=bus, leases=leases)


def _limit(tenant: Tenant) -> str:
    text = "unlimited" if tenant.slots is None else f"at most {tenant.slots}"
    return text if tenant.own else f"{text} (default)"


def _tenant_table(tenants: Sequence[Tenant]) -> Table:
    table = plain_table(("TENANT", "left"), ("ON WORKERS", "right"), ("LIMIT", "left"))
    for each in tenants:
        table.add_row(cell(each.name, "bold"), str(each.running), cell(_limit(each), "" if each.own else "dim"))
    return table


def _tenant_dict(tenant: Tenant) -> dict[str, Any]:
    return {"tenant": tenant.name, "running": tenant.running, "slots": tenant.slots, "own": tenant.own}
