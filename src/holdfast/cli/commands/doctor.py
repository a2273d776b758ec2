"""`holdfast doctor`: probes a lease store and this host, and prints a grade with findings, reasons and fixes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import typer
from rich.table import Table

from holdfast.cli.exit_codes import Exit
from holdfast.cli.lease_stores import has_tables, reading, url_of
from holdfast.cli.options import Json, Url
from holdfast.cli.output.screen import cell, plain_table, put_json, put_table
from holdfast.cli.parse_time import duration_option
from holdfast.cli.plane_options import Config, Database
from holdfast.core.diagnosis import Severity, StoreFinding
from holdfast.core.lease import timing
from holdfast.ops.doctor import Diagnosis, examine
from holdfast.types import MS, NS, duration_ns

EPILOG: Final = "\n\n".join(
    (
        "[bold]Examples[/bold]",
        "[dim]$[/dim] holdfast doctor redis://localhost:6379/0",
        "[dim]$[/dim] holdfast doctor --config holdfast.toml --ttl 10s --json",
        "Exit code: 0 no warning, 3 a warning, 1 a critical finding, 69 the store does not answer. See docs/doctor.md",
    )
)
_EXITS: Final = {Severity.CRITICAL: Exit.NO, Severity.WARNING: Exit.ACT}


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    app.command("doctor", epilog=EPILOG)(doctor)


def doctor(
    context: typer.Context,
    target: Annotated[
        str | None, typer.Argument(metavar="URL", help="The lease store, as in --url.", show_default=False)
    ] = None,
    ttl: Annotated[float, duration_option(help="The shortest lease TTL that you use.")] = timing.DEFAULT_TTL,
    request_timeout: Annotated[float, duration_option("--request-timeout", help="As in connect().")] = 2.0,
    url: Url = None,
    config: Config = None,
    database: Database = None,
    json: Json = False,
) -> None:
    """Probe a lease store and this host; print a grade, and each finding with reason and fix.

    Takes one lease of 300 ms under a new name, but creates no tables for it; changes nothing else.
    """
    if target is not None and url_of(context, url) is not None:
        raise typer.BadParameter("the store is named twice: give URL or --url")
    ttl_ns = duration_ns("ttl", ttl, low_ns=timing.TTL_MIN_NS, high_ns=timing.TTL_MAX_NS)
    timeout_ns = duration_ns("request_timeout", request_timeout, low_ns=10 * MS, high_ns=60 * NS)
    named, timeout = target or url_of(context, url), timeout_ns / NS
    with reading(named, config, database, tables=False, request_timeout=timeout) as (locks, store):
        path = getattr(locks.engine, "path", None)
        found = examine(
            locks.engine.blocking,
            ttl_ns=ttl_ns,
            request_timeout_ns=timeout_ns,
            directory=Path(path).parent if isinstance(path, str) else None,
            lease=has_tables(store.url),
        )
    if json:
        put_json({**store.fields(), **found.as_dict()})
    else:
        store.print()
        print(_verdict(found))
        put_table(_table(found.findings))
    code = _EXITS.get(found.worst, Exit.OK)
    if code is not Exit.OK:
        raise typer.Exit(code)


def _verdict(found: Diagnosis) -> str:
    limited = f", limited by {', '.join(found.limits)}" if found.limits else ""
    return f"{found.engine}: {found.grade} (the engine can promise {found.best}{limited})"


def _table(findings: tuple[StoreFinding, ...]) -> Table:
    table = plain_table(*((heading, "left") for heading in ("CHECK", "RESULT", "FOUND", "REASON", "FIX")))
    for each in findings:
        table.add_row(*map(cell, (each.check, each.severity, each.found, each.reason, each.fix)))
    return table
