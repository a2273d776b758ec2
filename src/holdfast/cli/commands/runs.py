"""`holdfast runs`: define workflows, start runs, and see what becomes of them. On the database itself."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from holdfast.cli.commands.jobs import labels_of, payload_of
from holdfast.cli.exit_codes import Exit
from holdfast.cli.options import After, Follow, FollowTimeout, Json, Labels, Limit, OwnId, OwnTenant, Tenant
from holdfast.cli.output.screen import cell, out, put_json, put_page, put_table, say
from holdfast.cli.parse_time import duration_option
from holdfast.cli.plane_options import Bus, Config, Database, Leases, look, on_plane
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
        "Exit codes of follow: 0 it succeeded, 1 it ended otherwise, 124 it was not over in time.",
    )
)


def add_to(app: typer.Typer) -> None:
    """Add the commands."""
    runs = typer.Typer(no_args_is_help=True, help="Start workflows, and see what becomes of them.", epilog=EPILOG)
    for command in (define, workflows, start, list_, show, follow, timeline, cancel, rerun):
        runs.command(command.__name__.rstrip("_"))(command)
    app.add_typer(runs, name="runs", rich_help_panel=None)


def define(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="YAML or JSON.", show_default=False)],
    tenant: Annotated[
        str | None, typer.Option(metavar="T", help="For this tenant. [dim](default: for everybody)[/dim]")
    ] = None,
    check: Annotated[bool, typer.Option("--check", help="Only say whether it makes sense; keep nothing.")] = False,
    database: Database = None,
    bus: Bus = None,
    leases: Leases = None,
    config: Config = None,
    json: Json = False,
) -> int:
    """Keep a workflow. The same text again is the same version; a changed one is the next."""
    from holdfast.cli.output.runs import definition_dict
    from holdfast.plane.workflows.core.definition_codec import as_document
    from holdfast.plane.workflows.files import load_workflow

    workflow = load_workflow(file)
    if check:
        if json:
            put_json({"definition": as_document(workflow)})
        else:
            say(f"{workflow.name} makes sense: {len(workflow.steps)} steps, risk class {workflow.risk}")
        return Exit.OK

    async def work(components: Components, caller: Caller) -> Exit:
        kept, new = await components.flows.define(caller, workflow, tenant=tenant)
        if json:
            put_json({"new": new, **definition_dict(kept)})
        else:
            say(f"{workflow.name} {'is now' if new else 'was already'} version {kept.workflow.version}")
        return Exit.OK

    return on_plane(work, config, makes=True, database=database, bus=bus, leases=leases)


def workflows(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="Everything about this one.", show_default=False)
    ] = None,
    version: Annotated[
        int | None, typer.Option(metavar="N", help="Which version of it. [dim](default: the newest)[/dim]")
    ] = None,
    tenant: Annotated[
        str | None, typer.Option(metavar="T", help="What this tenant sees. [dim](default: all)[/dim]")
    ] = None,
    database: Database = None,
    config: Config = None,
    json: Json = False,
) -> int:
    """List the workflows that are kept, in their newest versions. With a name, that one and its definition."""
    from holdfast.cli.output.runs import definition_dict, definition_lines, workflow_line, workflow_table
    from holdfast.plane.model.caller import PAGE_MAX

    if name is None and version is not None:
        raise BadInput("--version", "is of one workflow", "name it: holdfast runs workflows NAME --version N")

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
        while following is not None:  # they are few, and small in outline
            more, following = await components.flows.definitions(caller, tenant=tenant, after=following, limit=PAGE_MAX)
            found += more
        if json:
            put_json({"items": [workflow_line(each) for each in found]})
        elif not found:
            out().print("there are no workflows; keep one: holdfast runs define FILE")
        else:
            put_table(workflow_table(found))
        return Exit.OK

    return look(work, config, database)


def start(
    workflow: Annotated[
        str, typer.Argument(metavar="WORKFLOW", help="Its name, or a file that defines it.", show_default=False)
    ],
    input: Annotated[
        str | None, typer.Option(metavar="JSON", help="What it is given: JSON, @FILE, or - for standard input.")
    ] = None,
    version: Annotated[
        int | None, typer.Option(metavar="N", help="Which version. [dim](default: the newest)[/dim]")
    ] = None,
    tenant: OwnTenant = "default",
    idempotency_key: Annotated[
        str | None, typer.Option(metavar="KEY", help="The same key of the same tenant is the same run.")
    ] = None,
    id: OwnId = None,
    deadline: Annotated[float | None, duration_option(help="After so long it is ended.")] = None,
    label: Labels = None,
    follow: Follow = False,
    database: Database = None,
    bus: Bus = None,
    leases: Leases = None,
    config: Config = None,
    json: Json = False,
) -> int:
    """Start a run. It is stored when this returns; the same idempotency key gives the same run again."""
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
            say(f"{'started' if made else 'was there already'}: {told}")
            out().print(cell(run.id, "bold"))  # alone on stdout, so that a script can keep it
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
        empty = "there are no such runs" if tenant or status or workflow or after else "there are no runs"
        put_page(page.items, following, run_line, table, empty=empty, json=json)
        return Exit.OK

    return look(work, config, database)


def show(run: RunId, database: Database = None, config: Config = None, json: Json = False) -> int:
    """Show a run and its steps as a tree. Exits 1 when there is none."""
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

    return look(work, config, database)


def follow(
    run: RunId,
    timeout: FollowTimeout = None,
    database: Database = None,
    config: Config = None,
    json: Json = False,
) -> int:
    """Watch a run until it is over. Exits 0 if it succeeded, 1 if it ended otherwise, 124 if it is not over in time."""
    from holdfast.cli.output.follow_run import follow as watch

    if timeout is not None:
        duration_ns("timeout", timeout)

    async def work(components: Components, caller: Caller) -> Exit:
        return await watch(components, caller, run, timeout=timeout, json=json)

    return look(work, config, database)


def timeline(run: RunId, database: Database = None, config: Config = None, json: Json = False) -> int:
    """Show everything that happened to a run, oldest first, with the fence under which it was written."""
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

    return look(work, config, database)


def cancel(
    run: RunId,
    reason: Annotated[str, typer.Option(metavar="TEXT", help="Why; kept with the run.")] = "cancelled on request",
    database: Database = None,
    bus: Bus = None,
    leases: Leases = None,
    config: Config = None,
    json: Json = False,
) -> int:
    """Ask for a run to be ended, with all that it has started. Exits 1 if it is over already."""
    from holdfast.cli.output.runs import run_dict

    async def work(components: Components, caller: Caller) -> Exit:
        stored, asked = await components.flows.cancel(caller, run, reason=reason)
        if json:
            put_json({"asked": asked, "run": run_dict(stored)})
        elif asked:
            out().print(cell(f"asked for the end of {run}, which is {stored.run.status}"))
        else:
            out().print(cell(f"{run} is over already: {stored.run.status}"))
        return Exit.OK if asked else Exit.NO

    return on_plane(work, config, database=database, bus=bus, leases=leases)


def rerun(
    run: RunId,
    keep: Annotated[
        bool,
        typer.Option("--keep", help="Keep the outputs of the steps that succeeded. Approvals are asked for again."),
    ] = False,
    idempotency_key: Annotated[
        str | None, typer.Option(metavar="KEY", help="The same key of the same tenant is the same run.")
    ] = None,
    follow: Follow = False,
    database: Database = None,
    bus: Bus = None,
    leases: Leases = None,
    config: Config = None,
    json: Json = False,
) -> int:
    """Run a run that is over again, as a new one with the same definition and input. Exits 1 if it is not over."""
    from holdfast.cli.output.follow_run import follow as watch
    from holdfast.cli.output.runs import run_dict
    from holdfast.plane.service.workflows import RunNotFinished

    async def work(components: Components, caller: Caller) -> Exit:
        try:
            stored, made = await components.flows.rerun(caller, run, keep=keep, idempotency_key=idempotency_key)
        except RunNotFinished as refused:
            say(str(refused))
            return Exit.NO
        if json and not follow:
            put_json({"made": made, "run": run_dict(stored)})
        elif not json:
            say(f"{'a new run' if made else 'was run again before'} of {run}: {stored.run.status}")
            out().print(cell(stored.run.id, "bold"))
        return await watch(components, caller, stored.run.id, timeout=None, json=json) if follow else Exit.OK

    return on_plane(work, config, database=database, bus=bus, leases=leases)
