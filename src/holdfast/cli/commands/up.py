"""`holdfast up`: runs a plane, or some of its components, in this process until a signal comes."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated, Final

import typer

from holdfast.cli.exit_codes import Exit
from holdfast.cli.options import Json
from holdfast.cli.output.screen import print_note
from holdfast.cli.plane_options import (
    Audit,
    Bus,
    Config,
    Database,
    Leases,
    LogFormat,
    LogLevel,
    NoAudit,
    NoProbe,
    Otel,
    ProbeHost,
    ProbePort,
    audit_flags,
    database_settings,
    log_flags,
    note_former_file,
    otel_flags,
    probe_flags,
    settings,
)
from holdfast.errors import BadInput

if TYPE_CHECKING:
    from holdfast.plane.app import App
    from holdfast.plane.settings.settings import Settings

EPILOG: Final = "\n\n".join(
    (
        "[bold]Examples[/bold]",
        "[dim]$[/dim] holdfast up --sample",
        "[dim]$[/dim] holdfast up --app billing.jobs:app --workers 4",
        "[dim]$[/dim] holdfast up --only scheduler,replayer --database postgresql://… --bus nats://… --leases redis://…",
        "[dim]$[/dim] holdfast up --check",
        "[bold]Parts[/bold]",
        (
            "api, scheduler, engine, worker, reconciler, replayer, runs, delays, schedules, snapshot, cleanup. Each "
            "may run alone, and in any number of processes. The engine, runs and delays advance workflows."
        ),
        "[bold]Ending it[/bold]",
        "TERM or Ctrl-C drains: no new work starts, and running work has the grace period. A second one ends the wait.",
        "[bold]Exit codes[/bold]",
        (
            "0 all work finished; 1 some work was interrupted and released; 64 settings, a flag or a busy port; "
            "78 a permanent configuration error."
        ),
    )
)


Only = Annotated[
    str | None,
    typer.Option(metavar="PARTS", help="Run only these components, comma-separated. [dim]\\[default: all][/dim]"),
]
AppName = Annotated[
    str | None, typer.Option(metavar="MODULE:APP", help="The app that the workers run.", show_default=False)
]
Workers = Annotated[int | None, typer.Option(metavar="N", help="Number of workers. [dim]\\[default: 2][/dim]")]
Sample = Annotated[bool, typer.Option("--sample", help="Run a sample workload of agents.")]
Host = Annotated[str | None, typer.Option(metavar="H", help="Address to listen on. [dim]\\[default: 127.0.0.1][/dim]")]
Port = Annotated[int | None, typer.Option(metavar="N", help="Port; 0: any free one. [dim]\\[default: 8420][/dim]")]
Check = Annotated[
    bool,
    typer.Option("--check", help="Only check settings, components and app, and print the origin of each setting."),
]
Prepare = Annotated[bool, typer.Option("--prepare", help="Only create missing tables, and migrate the others.")]
SwitchBus = Annotated[
    bool,
    typer.Option("--switch-bus", help="Only record that the plane uses this bus from now on. Stop the plane first."),
]
SwitchKeys = Annotated[
    bool,
    typer.Option(
        "--switch-keys",
        help="Only record that lock keys use the prefix names.keys from now on. Stop the plane first.",
    ),
]


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    app.command("up", epilog=EPILOG)(up)


def up(
    only: Only = None,
    app: AppName = None,
    workers: Workers = None,
    sample: Sample = False,
    host: Host = None,
    port: Port = None,
    probe_host: ProbeHost = None,
    probe_port: ProbePort = None,
    no_probe: NoProbe = False,
    audit: Audit = None,
    no_audit: NoAudit = False,
    log_format: LogFormat = None,
    log_level: LogLevel = None,
    otel: Otel = False,
    database: Database = None,
    bus: Bus = None,
    leases: Leases = None,
    config: Config = None,
    check: Check = False,
    prepare: Prepare = False,
    switch_bus: SwitchBus = False,
    switch_keys: SwitchKeys = False,
    json: Json = False,
) -> int:
    """Start the plane: API, scheduler, loops and workers, by default on one SQLite file."""
    flags: dict[str, object] = {"worker__app": app, "worker__count": workers, "api__host": host, "api__port": port}
    flags |= probe_flags(probe_host, probe_port, off=no_probe) | audit_flags(audit, off=no_audit)
    flags |= log_flags(log_format, log_level) | otel_flags(on=otel)
    places = {"database": database, "bus": bus, "leases": leases}
    if check:
        return _check(config, {**flags, **places}, only, sample=sample, json=json)
    if prepare:
        return _prepare(config, database)
    if switch_bus:
        return _switch_bus(settings(config, **flags, **places))
    if switch_keys:
        return _switch_keys(settings(config, **flags, **places))
    return _serve(settings(config, **flags, **places), only, sample=sample, json=json)


def _serve(chosen: Settings, only: str | None, *, sample: bool, json: bool) -> int:
    """Run the plane until a signal comes. Returns the exit code."""
    # The plane is large, and other commands should not wait for its import.
    from holdfast.cli.server.lifecycle import collect_less_often
    from holdfast.cli.server.plane_process import PlaneProcess

    collect_less_often()
    parts = _parts(only)
    code = _code(chosen, parts, only, sample=sample)
    note_former_file(chosen)
    if sample:
        from holdfast.plane.process.sample import kept_briefly

        chosen = kept_briefly(chosen)
    if code is None:
        parts = tuple(each for each in parts if each != "worker")
    return PlaneProcess(chosen, parts, code, sample=sample, json=json).run()


def _check(config: str | None, flags: dict[str, object], only: str | None, *, sample: bool, json: bool) -> int:
    from holdfast.cli.server.up_screen import show_settings
    from holdfast.plane.settings.sources import BadSettings

    try:
        chosen = settings(config, **flags)
    except BadSettings as error:
        for problem in error.problems:
            print_note(str(problem))
        return Exit.USAGE
    _code(chosen, _parts(only), only, sample=sample)
    show_settings(chosen, json=json)
    return Exit.OK


def _prepare(config: str | None, database: str | None) -> int:
    from holdfast.plane.process.components import make_tables
    from holdfast.stores.registry import redacted

    chosen = database_settings(config, database)
    asyncio.run(make_tables(chosen))
    print_note(f"the tables of {redacted(chosen.database_url)} are up to date")
    note_former_file(chosen)
    return Exit.OK


def _switch_bus(chosen: Settings) -> int:
    from holdfast.plane.process.components import switch_plane_bus

    before, after = asyncio.run(switch_plane_bus(chosen))
    print_note(f"the plane uses {after}" + ("" if before in (None, after) else f"; until now {before}"))
    return Exit.OK


def _switch_keys(chosen: Settings) -> int:
    from holdfast.plane.process.components import switch_plane_keys

    before, after = asyncio.run(switch_plane_keys(chosen))
    until = "" if before in (None, after) else f"; until now {before}:"
    print_note(f"the keys of the plane have the prefix {after}:{until}")
    return Exit.OK


def _parts(only: str | None) -> tuple[str, ...]:
    from holdfast.plane.process.plane import PARTS, check_parts

    if only is None:
        return PARTS
    named = [each.strip() for each in only.split(",")]
    try:
        return check_parts(named)
    except BadInput as error:
        raise BadInput("--only", error.problem, error.fix) from None


def _code(chosen: Settings, parts: tuple[str, ...], only: str | None, *, sample: bool) -> App | None:
    """The app of the workers; None: there are none, because no app was given."""
    if sample:
        from holdfast.plane.process import sample as sampled

        if chosen.worker.app is not None:
            raise BadInput("--sample", f"cannot be combined with the app {chosen.worker.app}", "use one of them")
        return sampled.app
    if "worker" not in parts:
        return None
    if chosen.worker.app is None:
        if only is not None:
            fix = "give the app of the workers with --app module:name or worker.app, or try --sample"
            raise BadInput("--app", "is missing, and workers need it", fix)
        return None
    from holdfast.plane.app import load_app

    return load_app(chosen.worker.app)
