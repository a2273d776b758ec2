"""`holdfast why` and `holdfast runbook`: gather evidence from the live system, print findings and the next commands."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Final

import typer

from holdfast.cli.exit_codes import Exit
from holdfast.cli.lease_stores import url_of
from holdfast.cli.options import Json, Url
from holdfast.cli.output.screen import cell, out, plain_table, print_note, printable, put_json, put_table
from holdfast.cli.parse_time import WHEN, duration_option, seconds_ago
from holdfast.cli.plane_options import Config, Database, settings
from holdfast.errors import BadInput

if TYPE_CHECKING:
    from holdfast.core.name_prefixes import NamePrefixes
    from holdfast.ops.runbooks.model import FindingSeverity, Runbook, RunbookReport
    from holdfast.ops.runbooks.sources import RunbookOptions
    from holdfast.plane.settings.settings import Settings

_STYLES: Final = {
    "head": "bold",
    "faint": "dim",
    "bad": "red",
    "command": "cyan",
    "fine": "bold green",
    "watch": "bold yellow",
    "unknown": "bold magenta",
    "act": "bold red",
}

EPILOG: Final = "\n\n".join(
    (
        "[bold]In an incident[/bold]",
        "[dim]$[/dim] holdfast why --config holdfast.toml",
        "[dim]$[/dim] holdfast runbook duplicate-dispatch --ledger audit/",
        "[dim]$[/dim] holdfast runbook retry-waves --metrics http://10.0.0.7:9100 --metrics http://10.0.0.8:9100",
        "Exits 0 if no action is needed, 3 if action is needed, 1 if the evidence is insufficient.",
    )
)


WHY_EPILOG: Final = "\n\n".join(
    (
        "[bold]In an incident[/bold]",
        "[dim]$[/dim] holdfast why",
        "[dim]$[/dim] holdfast why --config /etc/holdfast.toml --json",
        "Exits 0 if no action is needed, 3 if action is needed, 1 if the evidence is insufficient.",
    )
)
WHY: Final = "why"


def add_to(app: typer.Typer) -> None:
    """Add the commands."""
    app.command(WHY, epilog=WHY_EPILOG)(why)
    app.command("runbook", epilog=EPILOG)(runbook)


def why(
    context: typer.Context,
    url: Url = None,
    database: Database = None,
    config: Config = None,
    since: Annotated[str, typer.Option("--since", metavar=WHEN, help="Evidence after it: 90s, 15m, 14:03.")] = "15m",
    timeout: Annotated[float, duration_option("--timeout", help="Time limit of each step.")] = 5.0,
    json: Json = False,
) -> int:
    """Inspect everything, and print the causes of what is wrong with the next commands, the most urgent first.

    Read-only. It asks all servers concurrently and ends within seconds even if they hang. What it could not see is
    part of the report.
    """
    return runbook(context, WHY, None, url, database, config, None, None, None, since, 3.0, timeout, json=json)


def runbook(
    context: typer.Context,
    name: Annotated[
        str | None,
        typer.Argument(metavar="NAME", help="The runbook; without it, everything is inspected.", show_default=False),
    ] = None,
    subject: Annotated[
        str | None,
        typer.Argument(
            metavar="ID",
            help="The job or run; without it, the runbook searches for suspects.",
            show_default=False,
        ),
    ] = None,
    url: Url = None,
    database: Database = None,
    config: Config = None,
    metrics: Annotated[
        list[str] | None, typer.Option("--metrics", metavar="URL", help="A process to scrape; repeatable.")
    ] = None,
    prometheus: Annotated[
        str | None, typer.Option("--prometheus", metavar="URL", help="A Prometheus to query instead.")
    ] = None,
    ledger: Annotated[
        str | None,
        typer.Option("--ledger", metavar="DIR", envvar="HOLDFAST_LEDGER", help="The audit ledger.", show_default=False),
    ] = None,
    since: Annotated[str, typer.Option("--since", metavar=WHEN, help="Evidence after it: 90s, 15m, 14:03.")] = "15m",
    interval: Annotated[float, duration_option("--interval", help="Time between two scrapes of a process.")] = 3.0,
    timeout: Annotated[float, duration_option("--timeout", help="Time limit of each step.")] = 5.0,
    yes: Annotated[bool, typer.Option("--yes", help="Skip the confirmation of a runbook that writes.")] = False,
    listed: Annotated[bool, typer.Option("--list", help="List the runbooks.")] = False,
    json: Json = False,
) -> int:
    """Gather the evidence for an incident, print a finding and the next commands. Without NAME: as `holdfast why`.

    Read-only, except before-ttl-change, which asks before it writes a key of its own. An unreachable source is
    evidence too: no step hangs.
    """
    from holdfast.ops.runbooks import runbook as named
    from holdfast.ops.runbooks.sources import RunbookOptions

    if listed:
        if name is not None:
            raise BadInput("--list", "cannot be combined with a runbook", "omit one of them")
        return _list(settings(config).names.words, as_json=json)
    chosen = named(WHY if name is None else name)
    arguments = _arguments(chosen, subject)
    given = RunbookOptions(
        url=url_of(context, url),
        metrics=tuple(metrics or ()),
        prometheus=prometheus,
        ledger=ledger,
        config=config,
        database=database,
        spacing=interval,
        patience=timeout,
        window=seconds_ago("--since", since),
    ).check()
    where = _settings(config, database, given.url)
    if chosen.writes and not yes:
        _ask(chosen, where, given)
    with _progress(_steps(chosen, arguments), shown=not json and sys.stderr.isatty()) as ended:
        report = asyncio.run(_gathered(chosen, where, given, arguments, ended))
    if json:
        put_json({**report.as_dict(), "exit": int(_exit(report.severity))})
    else:
        _print(report)
    return _exit(report.severity)


def _settings(config: str | None, database: str | None, url: str | None) -> Settings:
    """The settings; a given store counts as the plane's, even if settings cannot name it."""
    nameable = url is not None and "+" not in url.partition("://")[0]
    return settings(config, database=database, leases=url if nameable else None)


def _arguments(chosen: Runbook, subject: str | None) -> dict[str, str]:
    wanted = chosen.argument
    if wanted is None:
        if subject is not None:
            raise BadInput("ID", f"{subject[:60]!r} is not needed: {chosen.name} is about the whole plane", "omit it")
        return {}
    if subject is None:
        return {}  # it searches for suspects: alerts name no job
    from holdfast.plane.model.records import check_id

    return {wanted.name: check_id(wanted.name, subject)}


async def _gathered(
    chosen: Runbook, where: Settings, given: RunbookOptions, arguments: dict[str, str], ended: Callable[[str], None]
) -> RunbookReport:
    from holdfast.ops.runbooks.runner import run
    from holdfast.ops.runbooks.sources import scene

    # Drivers log errors to unconfigured loggers, which Python prints. Here errors are evidence, and reported once.
    logging.getLogger("psycopg").addHandler(logging.NullHandler())
    async with scene(where, given, arguments) as place:
        return await run(chosen, place, ended)


def _exit(severity: FindingSeverity) -> Exit:
    from holdfast.ops.runbooks.model import FindingSeverity

    return {FindingSeverity.ACT: Exit.ACT, FindingSeverity.UNKNOWN: Exit.NO}.get(severity, Exit.OK)


def _ask(chosen: Runbook, where: Settings, given: RunbookOptions) -> None:
    from holdfast.ops.runbooks.model import EvidenceSource
    from holdfast.ops.runbooks.sources import RunbookContext

    writes = where.names.words.spelled(chosen.writes)
    if not sys.stdin.isatty():
        raise BadInput(
            "--yes", "is missing, and there is no terminal for confirmation", f"it writes {writes}; add --yes"
        )
    store = RunbookContext(where, given).where(EvidenceSource.LEASES)
    print_note(f"{chosen.name} writes {writes} into {store}, and no other key")
    typer.confirm("Is that a test store?", abort=True, err=True)


def _steps(chosen: Runbook, arguments: dict[str, str]) -> list[str]:
    """The names of the steps."""
    searched = () if chosen.argument is None or arguments else chosen.argument.searches
    return [step.name for step in (*searched, *chosen.steps)]


@contextmanager
def _progress(steps: Sequence[str], *, shown: bool) -> Iterator[Callable[[str], None]]:
    """On a terminal: show the pending steps."""
    if not shown:
        yield lambda _step: None
        return
    from rich.console import Console

    left = list(steps)
    console = Console(stderr=True, highlight=False, markup=False, emoji=False)
    with console.status(f"gathering {', '.join(left)}") as status:

        def ended(step: str) -> None:
            if step in left:
                left.remove(step)
            status.update(f"gathering {', '.join(left)}" if left else "judging")

        yield ended


def _print(report: RunbookReport) -> None:
    from holdfast.ops.runbooks.text import report_lines

    console = out()
    for line in report_lines(report):
        console.print(cell(line.text, _STYLES.get(str(line.tone), "")), soft_wrap=True)


def _list(names: NamePrefixes, *, as_json: bool) -> int:
    from holdfast.ops.runbooks import RUNBOOKS

    if as_json:
        put_json(
            {
                "name": each.name,
                "title": each.title,
                "when": names.spelled(each.when),
                "needs": each.needs,
                "over": each.over,
                "argument": None if each.argument is None else each.argument.name,
                "searches": [] if each.argument is None else [step.name for step in each.argument.searches],
                "writes": names.spelled(each.writes),
                "steps": [step.name for step in each.steps],
                "rules": [
                    {"name": rule.name, "severity": str(rule.severity), "when": rule.when} for rule in each.rules
                ],
            }
            for each in RUNBOOKS.values()
        )
        return Exit.OK
    table = plain_table(("NAME", "left"), ("WHEN", "left"), ("NEEDS", "left"))
    for each in RUNBOOKS.values():
        called = each.name if each.argument is None else f"{each.name} [{each.argument.name}]"
        table.add_row(
            cell(called, "bold"), cell(names.spelled(each.when).replace("`", "")), cell(printable(each.needs))
        )
    put_table(table)
    return Exit.OK
