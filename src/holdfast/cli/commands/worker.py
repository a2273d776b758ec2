"""`holdfast worker`: runs the jobs of an app until a signal comes."""

from __future__ import annotations

from typing import Annotated

import typer

from holdfast.cli.exit_codes import exit_for
from holdfast.cli.lease_stores import url_of
from holdfast.cli.parse_time import duration_option
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
    log_flags,
    otel_flags,
    probe_flags,
    settings,
)
from holdfast.cli.supervise.reporter import Reporter
from holdfast.errors import BadInput, HoldfastError
from holdfast.types import duration_ns

EPILOG = "\n\n".join(
    (
        "[bold]Examples[/bold]",
        "[dim]$[/dim] holdfast worker billing.jobs:app",
        "[dim]$[/dim] holdfast worker billing.jobs:app --pool money --concurrency 4 --drain-timeout 60",
        "[bold]Ending it[/bold]",
        (
            "TERM or Ctrl-C: it accepts no new jobs and finishes running ones within the drain timeout; the rest is "
            "stopped and released. A second signal ends the wait."
        ),
        "[bold]Exit codes[/bold]",
        (
            "0 all started jobs finished; 1 some were released or did not stop; 64 usage; "
            "78 a permanent configuration error."
        ),
    )
)


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    app.command("worker", epilog=EPILOG)(worker)


def worker(
    context: typer.Context,
    app: Annotated[str, typer.Argument(metavar="MODULE:APP", help="The app with the jobs.", show_default=False)],
    config: Config = None,
    database: Database = None,
    bus: Bus = None,
    leases: Leases = None,
    url: Annotated[
        str | None,
        typer.Option("--url", metavar="URL", help="The same as --leases. [dim]($HOLDFAST_URL is not read)[/dim]"),
    ] = None,
    pool: Annotated[
        list[str] | None, typer.Option(metavar="P", help="A pool to serve; repeatable. [dim]\\[default: all][/dim]")
    ] = None,
    concurrency: Annotated[
        int | None, typer.Option(metavar="N", help="Concurrent attempts in each pool. [dim]\\[default: 8][/dim]")
    ] = None,
    drain_timeout: Annotated[
        float | None, duration_option(help="Time limit of running jobs at the end. [dim]\\[default: 30][/dim]")
    ] = None,
    lease_ttl: Annotated[
        float | None, duration_option(help="Takeover time after a crash of this worker. [dim]\\[default: 30][/dim]")
    ] = None,
    name: Annotated[
        str | None, typer.Option(metavar="W", help="A unique name of the worker. [dim]\\[default: random][/dim]")
    ] = None,
    probe_host: ProbeHost = None,
    probe_port: ProbePort = None,
    no_probe: NoProbe = False,
    audit: Audit = None,
    no_audit: NoAudit = False,
    log_format: LogFormat = None,
    log_level: LogLevel = None,
    otel: Otel = False,
    json: Annotated[bool, typer.Option("--json", help="Print events as JSON lines on stderr.")] = False,
) -> int:
    """Run the jobs of an app, each under its own lease."""
    # The plane is large, and other commands should not wait for its import.
    from holdfast.cli.server.lifecycle import collect_less_often
    from holdfast.cli.server.worker_process import WorkerProcess
    from holdfast.plane.app import load_app

    collect_less_often()
    report = Reporter(as_json=json)
    if drain_timeout is not None:
        duration_ns("--drain-timeout", drain_timeout)
    chosen = settings(
        config,
        database=database,
        bus=bus,
        leases=_leases(context, leases, url),
        worker__pools=pool or None,
        worker__concurrency=concurrency,
        worker__lease_ttl=lease_ttl,
        **probe_flags(probe_host, probe_port, off=no_probe),
        **audit_flags(audit, off=no_audit),
        **log_flags(log_format, log_level),
        **otel_flags(on=otel),
    )
    try:
        return WorkerProcess(load_app(app), chosen, name, report).run(drain_timeout, as_json=json)
    except HoldfastError as error:
        if not json:
            raise
        report("failed", str(error), code=int(exit_for(error)))
        return exit_for(error)


def _leases(context: typer.Context, leases: str | None, url: str | None) -> object:
    """The lease URL, and the option that it came from."""
    from holdfast.plane.settings.sources import FlagValue

    named = url_of(context, url)
    if leases is not None and named is not None and leases != named:
        raise BadInput("--url", "differs from --leases", "use one of them")
    return FlagValue("--url", named) if leases is None and named is not None else leases
