"""Options that the commands of the plane share, and the resulting settings."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from holdfast.cli.actor import actor
from holdfast.cli.output.screen import named_in_errors, print_note

if TYPE_CHECKING:
    from holdfast.plane.process.components import Components
    from holdfast.plane.service.service import Caller
    from holdfast.plane.settings.settings import Settings

T = TypeVar("T")

Config = Annotated[
    str | None,
    typer.Option(
        "--config",
        metavar="FILE",
        help="The settings file. [dim]\\[default: $HOLDFAST_CONFIG, else holdfast.toml here if it exists][/dim]",
        show_default=False,
    ),
]
Database = Annotated[
    str | None,
    typer.Option(
        "--database",
        metavar="URL",
        help="The database: sqlite:///plane.db or postgresql://… [dim]\\[default: from the settings][/dim]",
        show_default=False,
    ),
]
Bus = Annotated[
    str | None,
    typer.Option("--bus", metavar="URL", help="The message bus: nats://… [dim]\\[default: the database][/dim]"),
]
Leases = Annotated[
    str | None,
    typer.Option(
        "--leases",
        metavar="URL",
        help="The lease store: redis://… [dim]\\[default: the database][/dim]",
    ),
]
ProbeHost = Annotated[
    str | None,
    typer.Option("--probe-host", metavar="H", help="Address of health and metrics. [dim]\\[default: 127.0.0.1][/dim]"),
]
ProbePort = Annotated[
    int | None,
    typer.Option(
        "--probe-port", metavar="N", help="Port of health and metrics; 0: any free one. [dim]\\[default: 0][/dim]"
    ),
]
NoProbe = Annotated[bool, typer.Option("--no-probe", help="Do not serve health and metrics (an API always does).")]

Audit = Annotated[
    str | None,
    typer.Option(
        "--audit",
        metavar="DIR",
        help="The audit ledger. [dim]\\[default: NAME.audit beside a SQLite database, else none][/dim]",
        show_default=False,
    ),
]
NoAudit = Annotated[bool, typer.Option("--no-audit", help="Write no audit ledger.")]

LogFormat = Annotated[
    str | None,
    typer.Option("--log-format", metavar="F", help="Format of log lines: text or json. [dim]\\[default: text][/dim]"),
]
LogLevel = Annotated[
    str | None,
    typer.Option("--log-level", metavar="L", help="debug, info, warning or error. [dim]\\[default: warning][/dim]"),
]

Otel = Annotated[
    bool, typer.Option("--otel", help="Export metrics with OpenTelemetry, configured by OTEL_* variables.")
]


def otel_flags(*, on: bool) -> dict[str, object]:
    """The flag of OpenTelemetry, for `settings`."""
    return {"otel__enabled": True if on else None}


def log_flags(form: str | None, level: str | None) -> dict[str, object]:
    """The flags of the log, for `settings`."""
    return {"log__format": form, "log__level": level}


def audit_flags(path: str | None, *, off: bool) -> dict[str, object]:
    """The flags of the audit ledger, for `settings`."""
    return {"audit__path": path, "audit__enabled": False if off else None}


def probe_flags(host: str | None, port: int | None, *, off: bool) -> dict[str, object]:
    """The flags of the probe, for `settings`."""
    return {"probe__host": host, "probe__port": port, "probe__enabled": False if off else None}


def settings(config: str | None, **flags: object) -> Settings:
    """The settings in effect. Flags are named like their keys, with two underscores in place of the dot."""
    from holdfast.plane.settings.sources import load  # the plane is large, and other commands should not wait for it

    return load(config, flags={name.replace("__", "."): value for name, value in flags.items()})


def database_settings(config: str | None, database: str | None) -> Settings:
    """The settings for a command that only uses the database: nothing else is required."""
    from holdfast.plane.settings.sources import load

    return load(config, flags={"database": database}, only_database=True)


@contextmanager
def database_named(chosen: Settings) -> Iterator[None]:
    """Name the database and its origin: in errors, and on stderr after the result."""
    from holdfast.stores.registry import redacted

    place = f"database: {redacted(chosen.database_url)} (from {chosen.origin('database')})"
    with named_in_errors(place):
        yield
    print_note(place)
    note_former_file(chosen)


def note_former_file(chosen: Settings) -> None:
    """Print where the plane of an older version is, if it is used because no setting names another."""
    from holdfast.stores.registry import former_file_note, former_plane_file

    if chosen.database is None and (former := former_plane_file()) is not None:
        print_note(former_file_note(former))


def on_plane(
    work: Callable[[Components, Caller], Awaitable[T]],
    config: str | None,
    *,
    who: str | None = None,
    makes: bool = False,
    **flags: object,
) -> T:
    """Run `work` on the plane of the settings, as the user at the shell, or as `who`.

    `makes`: it may create a database. Otherwise the database must exist.
    """
    from holdfast.plane.db.open import check_there
    from holdfast.plane.process.components import open_components

    chosen = settings(config, **flags)
    if not makes:
        check_there(chosen.database_url)
    return _run(chosen, lambda: open_components(chosen), work, who)


def read_plane(work: Callable[[Components, Caller], Awaitable[T]], config: str | None, database: str | None) -> T:
    """Read the plane of the settings. Needs only its database, creates none, and changes nothing."""
    from holdfast.plane.process.components import open_components

    chosen = database_settings(config, database)
    with preparing_named(config, database):
        return _run(chosen, lambda: open_components(chosen, read_only=True), work, None)


@contextmanager
def preparing_named(config: str | None, database: str | None) -> Iterator[None]:
    """Add the given flags to the command that an error recommends for preparing the tables."""
    from holdfast.plane.db.read_only import SchemaMissing
    from holdfast.stores.registry import redacted

    try:
        yield
    except SchemaMissing as found:
        given = {"--config": config, "--database": None if database is None else redacted(database)}
        flags = "".join(f" {flag} {shlex.quote(value)}" for flag, value in given.items() if value is not None)
        raise SchemaMissing(found.problem, flags) from None


def _run(
    chosen: Settings,
    opening: Callable[[], AbstractAsyncContextManager[Components]],
    work: Callable[[Components, Caller], Awaitable[T]],
    who: str | None,
) -> T:
    from holdfast.plane.service.service import Caller

    async def run() -> T:
        async with opening() as components:
            return await work(components, Caller(who or actor()))

    with database_named(chosen):
        return asyncio.run(run())
