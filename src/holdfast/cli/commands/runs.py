"""`holdfast runs`: define workflows, and start and manage runs. Uses the database directly."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from holdfast.cli.commands.jobs import labels_of, payload_of
from holdfast.cli.exit_codes import Exit
from holdfast.cli.help import print_help
from holdfast.cli.options import After, Follow, FollowTimeout, Json, Labels, Limit, OwnId, OwnTenant, Tenant
from holdfast.cli.output.screen import cell, out, print_note, put_json, put_none, put_page, put_table
from holdfast.cli.parse_time import duration_option
from holdfast.cli.plane_options import Bus, Config, Database, Leases, on_plane, read_plane
from holdfast.errors import BadInput
from holdfast.types import duration_ns

if TYPE_CHECKING:
    from holdfast.plane.process.components import Components
    from holdfast.plane.service.service import Caller

RunId = Annotated[str, typer.Argument(metavar="ID", help="The id of the run.", show_default=False)]
Shown = Annotated[str | None, typer.Option("--workflow", metavar="NAME", help="Only of this workflow.")]

_FILES: Final = (".yaml", ".yml", ".json")

EPILOG: Final = "\n\n".join(
    (
        "[bold]Examples[/bold]",
        "[dim]$[/dim] holdfast runs start refund.yaml --input '{\"order\": 42}' --follow",
        "[dim]$[/dim] holdfast runs start refund --input @order.json",
        "[dim]$[/dim] holdfast runs list --status waiting",
        "[dim]$[/dim] holdfast runs rerun 019c2a… --keep --follow",
        "Exit codes of follow: 0 it succeeded, 1 it failed or was cancelled, 124 it did not finish in time.",
    )
)


def add_to(app: typer.Typer) -> None:
    """Add the commands."""
    runs = typer.Typer(help="Define workflows and manage their runs.", epilog=EPILOG)
    runs.callback(invoke_without_command=True)(print_help)
    for command in (define, workflows, start, list_, show, follow, timeline, cancel, rerun):
        runs.command(command.__name__.rstrip("_"))(command)
    app.add_typer(runs, name="runs")


def define(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="YAML or JSON.", show_default=False)],
    tenant: Annotated[
        str | None, typer.Option(metavar="T", help="For this tenant. [dim]\\[default: for all tenants][/dim]")
    ] = None,
    check: Annotated[bool, typer.Option("--check", help="Only validate the file; store nothing.")] = False,
    database: Database = None,
    bus: Bus = None,
    leases: Leases = None,
    config: Config = None,
    json: Json = False,
) -> int:
    """Store a workflow. The same text keeps its version; a changed one is the next version."""
    from holdfast.cli.output.runs import definition_dict
    from holdfast.plane.workflows.core.definition_codec import as_document
    from holdfast.plane.workflows.files import load_workflow

    workflow = load_workflow(file)
    if check:
        if json:
            put_json({"definition": as_document(workflow)})
        else:
            print_note(f"{workflow.name} is valid: {len(workflow.steps)} steps, risk class {workflow.risk}")
        return Exit.OK

    async def work(components: Components, caller: Caller) -> Exit:
        kept, new = await components.flows.define(caller, workflow, tenant=tenant)
        if json:
            put_json({"new": new, **definition_dict(kept)})
        else:
            print_note(f"{workflow.name} {'is now' if new else 'was already'} version {kept.workflow.version}")
        return Exit.OK

    return on_plane(work, config, makes=True, database=database, bus=bus, leases=leases)


def workflows(
    name: Annotated[
        str | None,
        typer.Argument(metavar="NAME", help="Show only this one, with its definition.", show_default=False),
    ] = None,
    version: Annotated[
        int | None, typer.Option(metavar="N", help="The version. [dim]\\[default: the newest][/dim]")
    ] = None,
    tenant: Annotated[
        str | None, typer.Option(metavar="T", help="Only workflows visible to this tenant. [dim]\\[default: all][/dim]")
    ] = None,
    database: Database = None,
    config: Config = None,
    json: Json = False,
) -> int:
    """List stored workflows in their newest versions. With a name: that one and its definition."""
    from holdfast.cli.output.runs import definition_dict, definition_lines, workflow_line, workflow_table
    from holdfast.plane.model.caller import PAGE_MAX

    if name is None and version is not None:
        raise BadInput("--version", "needs the name of a workflow", "use holdfast runs workflows NAME --version N")

    async def work(components: Components, caller: Caller) -> Exit:
        if name is not None:
            kept = await components.flows.definition(caller, name, version, tenant=tenant)
            if json:
                put_json(definition_dict(kept))
            else:
                for line in definition_lines(kept):
                    out().print(line, soft_wrap=True)
            return Exit.OK
        found, following = await components.flows.definitions(caller, tenant=tenant, limit=PAGE_MAX)
        while following is not None:  # they are few, and their outlines small
            more, following = await components.flows.definitions(caller, tenant=tenant, after=following, limit=PAGE_MAX)
            found += more
        if json:
            put_json({"items": [workflow_line(each) for each in found]})
        elif not found:
            put_none("workflows")
            print_note("store one: holdfast runs define FILE")
        else:
            put_table(workflow_table(found))
        return Exit.OK

    return read_plane(work, config, database)


def start(
    workflow: Annotated[
        str, typer.Argument(metavar="WORKFLOW", help="Its name, or a file that defines it.", show_default=False)
    ],
    input: Annotated[
        str | None, typer.Option(metavar="JSON", help="The input: JSON, @FILE, or - for standard input.")
    ] = None,
    version: Annotated[
        int | None, typer.Option(metavar="N", help="The version. [dim]\\[default: the newest][/dim]")
    ] = None,
    tenant: OwnTenant = "default",
    idempotency_key: Annotated[
        str | None, typer.Option(metavar="KEY", help="Return the existing run with this key of the tenant, if any.")
    ] = None,
    id: OwnId = None,
    deadline: Annotated[float | None, duration_option(help="Time limit for the whole run.")] = None,
    label: Labels = None,
    follow: Follow = False,
    database: Database = None,
    bus: Bus = None,
    leases: Leases = None,
    config: Config = None,
    json: Json = False,
) -> int:
    """Start a run. It is stored when this returns; the same idempotency key returns the same run."""
    from holdfast.cli.output.follow_run import follow as watch
    from holdfast.cli.output.runs import run_dict
    from holdfast.plane.workflows.files import load_workflow

    value = payload_of(input, "input")
    labels = labels_of(label or [])
    defined = load_workflow(Path(workflow)) if workflow.endswith(_FILES) else None

    async def work(components: Components, caller: Caller) -> Exit:
        name, wanted = workflow, version
        if defined is not None:
            kept, _ = await components.flows.define(caller, defined, tenant=tenant)
            name, wanted = defined.name, kept.workflow.version
        stored, made = await components.flows.start(
            caller,
            name,
            value,
            version=wanted,
            tenant=tenant,
            run_id=id,
            idempotency_key=idempotency_key,
            deadline_ns=None if deadline is None else components.clock.now().wall + duration_ns("deadline", deadline),
            labels=labels,
        )
        run = stored.run
        if json and not follow:
            put_json({"made": made, "run": run_dict(stored)})
        elif not json:
            told = f"{run.workflow.name} version {run.workflow.version} of {run.tenant}, {run.status}"
            print_note(f"{'started' if made else 'existed already'}: {told}")
            out().print(cell(run.id, "bold"))  # alone on stdout, for scripts
        return await watch(components, caller, run.id, timeout=None, json=json) if follow else Exit.OK

    return on_plane(work, config, makes=True, database=database, bus=bus, leases=leases)


def list_(
    tenant: Tenant = None,
    status: Annotated[str | None, typer.Option(metavar="STATUS", help="Only with this status.")] = None,
    workflow: Shown = None,
    limit: Limit = 50,
    after: After = None,
    database: Database = None,
    config: Config = None,
    json: Json = False,
) -> int:
    """List runs, newest first."""
    from holdfast.cli.output.runs import run_line, run_table
    from holdfast.plane.jobs.queries import place_of
    from holdfast.plane.model.paging import AFTER_ALL

    async def work(components: Components, caller: Caller) -> Exit:
        place = AFTER_ALL if after is None else place_of(after)
        page = await components.flows.runs(
            caller, tenant=tenant, status=status, workflow=workflow, after=place, limit=limit
        )
        following = None if page.after is None else page.after.text
        table = partial(run_table, now_ns=components.clock.now().wall)
        put_page(page.items, following, run_line, table, what="runs", json=json)
        return Exit.OK

    return read_plane(work, config, database)


def show(run: RunId, database: Database = None, config: Config = None, json: Json = False) -> int:
    """Show a run and its steps as a tree. Exits 1 if it does not exist."""
    from holdfast.cli.output.jobs import as_json, short
    from holdfast.cli.output.runs import run_dict, run_tree

    async def work(components: Components, caller: Caller) -> Exit:
        stored = await components.flows.run(caller, run)
        if json:
            put_json({"run": run_dict(stored)})
            return Exit.OK
        console = out()
        console.print(run_tree(stored, components.clock.now().wall))
        for heading, value in (("input", stored.run.input), ("output", stored.run.output)):
            if value is not None:
                console.print(cell(f"{heading:<7}", "bold"), cell(short(as_json(value))), soft_wrap=True)
        return Exit.OK

    return read_plane(work, config, database)


def follow(
    run: RunId,
    timeout: FollowTimeout = None,
    database: Database = None,
    config: Config = None,
    json: Json = False,
) -> int:
    """Follow a run until it finishes. Exits 0 if it succeeded, 1 if not, 124 if it did not finish in time."""
    from holdfast.cli.output.follow_run import follow as watch

    if timeout is not None:
        duration_ns("timeout", timeout)

    async def work(components: Components, caller: Caller) -> Exit:
        return await watch(components, caller, run, timeout=timeout, json=json)

    return read_plane(work, config, database)


def timeline(run: RunId, database: Database = None, config: Config = None, json: Json = False) -> int:
    """Show all events of a run, oldest first, with the fence of each write."""
    from holdfast.cli.output.runs import event_dict, timeline_line

    async def work(components: Components, caller: Caller) -> Exit:
        seen, console = (0, -1), out()
        while page := await components.flows.timeline(caller, run, after=seen):
            for event in page:
                if json:
                    put_json(event_dict(event))
                else:
                    console.print(timeline_line(event), soft_wrap=True)
            seen = (page[-1].version, page[-1].line)
        return Exit.OK

    return read_plane(work, config, database)


def cancel(
    run: RunId,
    reason: Annotated[str, typer.Option(metavar="TEXT", help="Reason; stored with the run.")] = "cancelled on request",
    database: Database = None,
    bus: Bus = None,
    leases: Leases = None,
    config: Config = None,
    json: Json = False,
) -> int:
    """Request the cancellation of a run and of all that it has started. Exits 1 if it has finished."""
    from holdfast.cli.output.runs import run_dict

    async def work(components: Components, caller: Caller) -> Exit:
        stored, asked = await components.flows.cancel(caller, run, reason=reason)
        if json:
            put_json({"asked": asked, "run": run_dict(stored)})
        elif asked:
            out().print(cell(f"cancellation requested for {run} ({stored.run.status})"))
        else:
            out().print(cell(f"{run} has already finished: {stored.run.status}"))
        return Exit.OK if asked else Exit.NO

    return on_plane(work, config, database=database, bus=bus, leases=leases)


def rerun(
    run: RunId,
    keep: Annotated[
        bool,
        typer.Option("--keep", help="Keep the outputs of succeeded steps. Approvals are requested again."),
    ] = False,
    idempotency_key: Annotated[
        str | None, typer.Option(metavar="KEY", help="Return the existing run with this key of the tenant, if any.")
    ] = None,
    follow: Follow = False,
    database: Database = None,
    bus: Bus = None,
    leases: Leases = None,
    config: Config = None,
    json: Json = False,
) -> int:
    """Run a finished run again, as a new one with the same definition and input. Exits 1 if it has not finished."""
    from holdfast.cli.output.follow_run import follow as watch
    from holdfast.cli.output.runs import run_dict
    from holdfast.plane.service.workflows import RunNotFinished

    async def work(components: Components, caller: Caller) -> Exit:
        try:
            stored, made = await components.flows.rerun(caller, run, keep=keep, idempotency_key=idempotency_key)
        except RunNotFinished as refused:
            print_note(str(refused))
            return Exit.NO
        if json and not follow:
            put_json({"made": made, "run": run_dict(stored)})
        elif not json:
            print_note(f"{'a new run' if made else 'an earlier rerun'} of {run}: {stored.run.status}")
            out().print(cell(stored.run.id, "bold"))
        return await watch(components, caller, stored.run.id, timeout=None, json=json) if follow else Exit.OK

    return on_plane(work, config, database=database, bus=bus, leases=leases)
