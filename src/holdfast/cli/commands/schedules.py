"""`holdfast schedules`: list, show, create, pause, resume, run, delete. Uses the database directly."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from holdfast.cli.commands.jobs import labels_of, payload_of
from holdfast.cli.exit_codes import Exit
from holdfast.cli.help import print_help
from holdfast.cli.options import After, Json, Labels, Limit, OwnId, OwnTenant, Tenant
from holdfast.cli.output.screen import cell, out, print_note, put_json, put_page
from holdfast.cli.plane_options import Bus, Config, Database, Leases, on_plane, read_plane

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from holdfast.plane.process.components import Components
    from holdfast.plane.schedules.model import Schedule
    from holdfast.plane.service.service import Caller

Name = Annotated[str, typer.Argument(metavar="NAME", help="The name of the schedule.", show_default=False)]

EPILOG: Final = "\n\n".join(
    (
        "[bold]Examples[/bold]",
        "[dim]$[/dim] holdfast schedules create nightly report.build --cron '0 3 * * *' --tz Europe/Berlin",
        "[dim]$[/dim] holdfast schedules create sweep cache.sweep --every 10m --overlap queue",
        "[dim]$[/dim] holdfast schedules pause nightly --reason 'incident 7'",
        "Schedules that an app declares are changed in the app; they can be paused, resumed and run here.",
    )
)


def add_to(app: typer.Typer) -> None:
    """Add the commands."""
    group = typer.Typer(help="Submit jobs at due times.", epilog=EPILOG)
    group.callback(invoke_without_command=True)(print_help)
    for command in (list_, show, create, pause, resume, run, delete):
        group.command(command.__name__.rstrip("_"))(command)
    app.add_typer(group, name="schedules")


def list_(
    tenant: Tenant = None,
    limit: Limit = 50,
    after: After = None,
    database: Database = None,
    config: Config = None,
    json: Json = False,
) -> int:
    """List schedules, by tenant and name."""
    from holdfast.cli.output.schedules import schedule_dict, schedule_table
    from holdfast.plane.schedules.store import FIRST, ScheduleCursor

    async def work(components: Components, caller: Caller) -> Exit:
        place = FIRST if after is None else ScheduleCursor.parsed(after, "--after")
        page = await components.service.schedules.page(caller, tenant=tenant, after=place, limit=limit)
        following = None if page.after is None else page.after.text
        now_ns = await components.schedules.now_ns()
        table = partial(schedule_table, now_ns=now_ns)
        put_page(page.items, following, schedule_dict, table, what="schedules", json=json)
        return Exit.OK

    return read_plane(work, config, database)


def show(
    name: Name, tenant: OwnTenant = "default", database: Database = None, config: Config = None, json: Json = False
) -> int:
    """Show a schedule and its next due times. Exits 1 if it does not exist."""

    async def work(components: Components, caller: Caller) -> Exit:
        found = await components.service.schedules.get(caller, name, tenant=tenant)
        await _shown(components, found, json=json)
        return Exit.OK

    return read_plane(work, config, database)


def create(
    name: Name,
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="Topic of its jobs.", show_default=False)],
    cron: Annotated[
        str | None, typer.Option(metavar="EXPR", help="Due times: minute, hour, day of month, month, day of week.")
    ] = None,
    tz: Annotated[str, typer.Option(metavar="ZONE", help="Time zone of --cron, such as Europe/Berlin.")] = "UTC",
    every: Annotated[str | None, typer.Option(metavar="TIME", help="Or an interval, such as 10m.")] = None,
    offset: Annotated[str, typer.Option(metavar="TIME", help="Moves the due times of --every.")] = "0",
    jitter: Annotated[str, typer.Option(metavar="TIME", help="Submit up to so much later.")] = "0",
    overlap: Annotated[
        str, typer.Option(metavar="POLICY", help="While the last job has not finished: skip, queue (one), or allow.")
    ] = "skip",
    catch_up: Annotated[
        str, typer.Option(metavar="POLICY", help="For due times that passed in an outage: none, latest, or all.")
    ] = "latest",
    catch_up_max: Annotated[int, typer.Option(metavar="N", help="Limit of --catch-up all.")] = 100,
    payload: Annotated[
        str | None, typer.Option(metavar="JSON", help="Payload: JSON, @FILE, or - for standard input.")
    ] = None,
    tenant: OwnTenant = "default",
    priority: Annotated[int, typer.Option(metavar="N", help="Priority, -100 to 100; higher runs first.")] = 0,
    pool: Annotated[
        str | None,
        typer.Option(metavar="P", help="Run only in this pool. [dim](any with the topic)[/dim]"),
    ] = None,
    max_attempts: Annotated[int, typer.Option(metavar="N", help="Maximum number of attempts, 1 to 50.")] = 3,
    timeout: Annotated[str | None, typer.Option(metavar="TIME", help="Time limit of one attempt.")] = None,
    deadline: Annotated[str | None, typer.Option(metavar="TIME", help="Time limit for a whole job.")] = None,
    label: Labels = None,
    paused: Annotated[bool, typer.Option("--paused", help="Create it paused.")] = False,
    replace: Annotated[bool, typer.Option("--replace", help="Change it if it exists.")] = False,
    database: Database = None,
    bus: Bus = None,
    leases: Leases = None,
    config: Config = None,
    json: Json = False,
) -> int:
    """Create a schedule, with --cron or --every. Exits 1 if it exists with other options and --replace is not given."""
    from holdfast.plane.schedules.model import made_spec

    spec = made_spec(
        name,
        topic,
        tenant=tenant,
        cron=cron,
        tz=tz,
        every=every,
        offset=offset,
        jitter=jitter,
        overlap=overlap,
        catch_up=catch_up,
        catch_up_max=catch_up_max,
        payload=payload_of(payload),
        pool=pool,
        priority=priority,
        max_attempts=max_attempts,
        timeout=timeout,
        deadline=deadline,
        labels=labels_of(label or []),
    )

    async def work(components: Components, caller: Caller) -> Exit:
        stored, new = await components.service.schedules.put(caller, spec, paused=paused, replaces=replace)
        if not json:
            print_note("created" if new else "existed already; it has these options now")
        await _shown(components, stored, json=json)
        return Exit.OK

    return on_plane(work, config, makes=True, database=database, bus=bus, leases=leases)


def pause(
    name: Name,
    reason: Annotated[str, typer.Option(metavar="TEXT", help="Why; shown until it is resumed.")] = "",
    tenant: OwnTenant = "default",
    database: Database = None,
    config: Config = None,
    json: Json = False,
) -> int:
    """Pause a schedule until it is resumed. Due times that pass meanwhile are not submitted."""
    return _changed(
        lambda components, caller: components.service.schedules.pause(caller, name, reason=reason, tenant=tenant),
        "paused",
        *(database, config),
        json=json,
    )


def resume(
    name: Name, tenant: OwnTenant = "default", database: Database = None, config: Config = None, json: Json = False
) -> int:
    """Resume a schedule: it fires from the next due time on."""
    return _changed(
        lambda components, caller: components.service.schedules.resume(caller, name, tenant=tenant),
        "active",
        *(database, config),
        json=json,
    )


def run(
    name: Name,
    id: OwnId = None,
    tenant: OwnTenant = "default",
    database: Database = None,
    bus: Bus = None,
    leases: Leases = None,
    config: Config = None,
    json: Json = False,
) -> int:
    """Submit a job of a schedule now, besides its due times, also if it is paused."""
    from holdfast.cli.output.jobs import job_dict

    async def work(components: Components, caller: Caller) -> Exit:
        job, made = await components.service.schedules.run(caller, name, id=id, tenant=tenant)
        if json:
            put_json({"made": made, "job": job_dict(job)})
        else:
            print_note(f"{'submitted' if made else 'existed already'}: {job.topic} of {job.tenant}, {job.state}")
            out().print(cell(job.id, "bold"))  # alone on stdout, for scripts
        return Exit.OK

    return on_plane(work, config, database=database, bus=bus, leases=leases)


def delete(
    name: Name, tenant: OwnTenant = "default", database: Database = None, config: Config = None, json: Json = False
) -> int:
    """Delete a schedule. Its jobs stay. Exits 1 if it does not exist, or an app declares it."""

    async def work(components: Components, caller: Caller) -> Exit:
        deleted = await components.service.schedules.delete(caller, name, tenant=tenant)
        if json:
            put_json({"deleted": deleted.spec.name, "tenant": deleted.tenant})
        else:
            out().print(cell(f"deleted {deleted.spec.name}"))
        return Exit.OK

    return on_plane(work, config, database=database)


def _changed(
    change: Callable[[Components, Caller], Awaitable[tuple[Schedule, bool]]],
    state: str,
    database: str | None,
    config: str | None,
    *,
    json: bool,
) -> int:
    from holdfast.cli.output.schedules import schedule_dict

    async def work(components: Components, caller: Caller) -> Exit:
        schedule, changed = await change(components, caller)
        if json:
            put_json({"changed": changed, "schedule": schedule_dict(schedule)})
        else:
            out().print(cell(f"{schedule.spec.name} {'is' if changed else 'was already'} {state}"))
        return Exit.OK

    return on_plane(work, config, database=database)


async def _shown(components: Components, schedule: Schedule, *, json: bool) -> None:
    from holdfast.cli.output.schedules import schedule_dict, schedule_rows

    upcoming = await components.service.schedules.upcoming(schedule)
    if json:
        put_json(schedule_dict(schedule, upcoming))
        return
    rows: list[tuple[str, Any]] = schedule_rows(schedule, upcoming)
    for label, value in rows:
        out().print(cell(f"{label:<12} {value}"))
