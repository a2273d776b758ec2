"""`holdfast drill`: deliberate failures, with a verdict. See docs/drills.md."""

from __future__ import annotations

import shlex
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from holdfast.cli.exit_codes import Exit
from holdfast.cli.help import print_help
from holdfast.cli.lease_stores import opened, reading, url_of
from holdfast.cli.options import Json, OwnUrl, TestUrl
from holdfast.cli.output.atomic_file import write_whole
from holdfast.cli.output.screen import cell, moment, out, plain_table, print_note, put_json, put_table
from holdfast.cli.parse_time import duration_option
from holdfast.cli.plane_options import settings
from holdfast.errors import BadInput

if TYPE_CHECKING:
    from holdfast.drills.catalog import Drill
    from holdfast.drills.env.deployment import Deployment
    from holdfast.drills.model import DrillPlan, DrillVerdict

EPILOG: Final = "\n\n".join(
    (
        "[bold]Examples[/bold]",
        "[dim]$[/dim] holdfast drill quick --report drill.html",
        "[dim]$[/dim] holdfast drill pause --store redis",
        "[dim]$[/dim] holdfast drill mark --url redis://staging:6379 --for 3600",
        "[dim]$[/dim] holdfast drill kill --url redis://staging:6379 --ttl 10 --slo 12",
        "[dim]$[/dim] holdfast drill rolling-restart --config staging.toml",
        "[bold]Where[/bold]",
        (
            "A drill uses its own store, unless --url or --config names one that is marked as a test deployment. "
            "kill and rolling-restart run their planes on the database, the bus and the leases of --config."
        ),
        "[bold]Exit codes[/bold]",
        "0 everything ended as expected; 1 it did not; 64 usage, or an unmarked store; 69, 78 no store.",
    )
)

Config = Annotated[
    str | None,
    typer.Option(
        "--config", metavar="FILE", help="Use the deployment, TTL and SLO of these settings.", show_default=False
    ),
]
MarkConfig = Annotated[
    str | None,
    typer.Option("--config", metavar="FILE", help="Database, bus and leases of these settings.", show_default=False),
]
Store = Annotated[
    str | None,
    typer.Option(
        "--store",
        metavar="KIND",
        help="Store to start without --url: sqlite, redis; for failover also sentinel, postgres, etcd, nats. "
        "[dim]\\[default: sqlite][/dim]",
    ),
]
Ttl = Annotated[
    float | None,
    duration_option("--ttl", help="TTL of the drill's locks. [dim]\\[default: 1, or from --config][/dim]"),
]
Slo = Annotated[
    float | None,
    duration_option("--slo", help="Maximum takeover time. [dim]\\[default: from --config, else TTL + 1][/dim]"),
]
Duration = Annotated[
    float | None,
    duration_option("--duration", help="Approximate duration. [dim]\\[default: depends on the drill][/dim]"),
]
ReportFile = Annotated[
    Path | None, typer.Option("--report", metavar="FILE.html", help="Write an HTML report to this file.")
]
Waiters = Annotated[
    int | None,
    typer.Option("--waiters", metavar="N", help="Number of waiters for one lock. [dim]\\[default: 10,000][/dim]"),
]
Keys = Annotated[
    int | None, typer.Option("--keys", metavar="N", help="Number of concurrent leases. [dim]\\[default: 100,000][/dim]")
]
Only = Annotated[
    str | None, typer.Option("--only", metavar="NAMES", help="Play only these incidents, such as flush,poison.")
]
Seed = Annotated[int, typer.Option("--seed", metavar="N", help="Seed of random choices.")]


def add_to(app: typer.Typer) -> None:
    """Add the commands: `list`, one for each drill, `demo` for the quick one, `mark` and `unmark`."""
    from holdfast.drills.catalog import NAMES

    group = typer.Typer(help="Break leases on purpose, and check that no update is lost.", epilog=EPILOG)
    group.callback(invoke_without_command=True)(print_help)
    group.command("list")(list_)
    for name, shows in NAMES.items():
        group.command(name, help=shows, epilog=EPILOG)(_command_of(name))
    group.command("mark")(mark)
    group.command("unmark")(unmark)
    app.command("demo", help="Short for `holdfast drill quick`.", epilog=EPILOG)(_command("quick"))
    app.add_typer(group, name="drill")


def list_(json: Json = False) -> None:
    """List the drills: how long each takes, what it needs and what it shows."""
    from holdfast.drills.catalog import DRILLS

    if json:
        put_json(
            {
                "drill": each.name,
                "shows": each.shows,
                "needs": str(each.need),
                "seconds": each.seconds,
                "requirements": list(each.proves),
            }
            for each in DRILLS
        )
        return
    table = plain_table(("DRILL", "left"), ("ABOUT", "right"), ("NEEDS", "left"), ("SHOWS", "left"))
    for each in DRILLS:
        table.add_row(cell(each.name, "bold"), f"{each.seconds:.0f} s", cell(str(each.need)), cell(each.shows))
    put_table(table)


def _command_of(name: str) -> Callable[..., int]:
    """The command of a drill, with the options that it has."""
    from holdfast.drills.catalog import INCIDENTS_DRILL
    from holdfast.drills.incidents.incident_run import NAMED

    if name == "storm":
        return _storm
    if name == INCIDENTS_DRILL:
        return _incidents
    return _incident(name) if name in NAMED else _command(name)


def _incident(name: str) -> Callable[..., int]:
    def command(report: ReportFile = None, json: Json = False) -> int:
        return play(name, None, None, {"store": None}, report, as_json=json)

    return command


def _incidents(only: Only = None, report: ReportFile = None, json: Json = False) -> int:
    names = [each.strip() for each in (only or "").split(",") if each.strip()]
    if only is not None and not names:
        raise BadInput("--only", "names no incident", "use names such as flush,poison")
    return play("incidents", None, None, {"store": None, "incidents": names}, report, as_json=json)


def _command(name: str) -> Callable[..., int]:
    def command(
        context: typer.Context,
        url: OwnUrl = None,
        config: Config = None,
        store: Store = None,
        ttl: Ttl = None,
        slo: Slo = None,
        duration: Duration = None,
        seed: Seed = 0,
        report: ReportFile = None,
        json: Json = False,
    ) -> int:
        given = {"ttl": ttl, "slo": slo, "duration": duration, "store": store, "seed": seed}
        return play(name, url_of(context, url), config, given, report, as_json=json)

    return command


def _storm(
    context: typer.Context,
    url: OwnUrl = None,
    config: Config = None,
    store: Store = None,
    ttl: Ttl = None,
    duration: Duration = None,
    waiters: Waiters = None,
    keys: Keys = None,
    report: ReportFile = None,
    json: Json = False,
) -> int:
    given = {"ttl": ttl, "slo": None, "duration": duration, "store": store, "waiters": waiters, "keys": keys}
    return play("storm", url_of(context, url), config, given, report, as_json=json)


def play(
    name: str, url: str | None, config: str | None, given: dict[str, Any], report: Path | None, *, as_json: bool
) -> int:
    """Run one drill and print its verdict."""
    from holdfast.cli.output.drills import DrillProgress, put_verdict
    from holdfast.drills.catalog import drill
    from holdfast.drills.planner import planned
    from holdfast.drills.report.json import as_dict
    from holdfast.drills.runner import run

    chosen = drill(name)
    plan = planned(chosen, **_filled(chosen, url, config, given))
    if report is not None and not report.resolve().parent.is_dir():
        raise BadInput("--report", f"{report.parent} is not a directory", "use an existing directory")
    with _ends_in_order(), DrillProgress(as_json=as_json) as progress:
        progress.begin(chosen, plan)
        verdict = run(chosen, plan, progress, _replay(name, plan))
    if report is not None:
        _write(report, verdict)
    if as_json:
        put_json({"event": "verdict", **as_dict(verdict), "report": None if report is None else str(report)})
    else:
        put_verdict(verdict, None if report is None else str(report))
    return Exit.OK if verdict.passed else Exit.NO


def _filled(chosen: Drill, url: str | None, config: str | None, given: dict[str, Any]) -> dict[str, Any]:
    """The options, completed from the settings of --config. Other settings are not read."""
    from holdfast.drills.env.deployment import Deployment
    from holdfast.drills.env.workspace import lease_times
    from holdfast.drills.model import OWN_ONLY

    if config is None:
        return {**given, "url": url}
    whole = chosen.plane and given["store"] is None
    times = lease_times(given["ttl"]) if whole and given["ttl"] is not None else {}
    flags: dict[str, object] = {key.replace(".", "__"): value for key, value in times.items()}
    named = settings(config, **flags, leases=url if whole else None)
    ttl = named.scheduler.job_ttl if given["ttl"] is None else given["ttl"]
    slo = named.takeover if given["slo"] is None else given["slo"]
    place = None if chosen.need in OWN_ONLY or given["store"] is not None else named.lease_url
    deployment = Deployment(named) if whole else None
    return {**given, "ttl": ttl, "slo": slo, "url": place if url is None else url, "deployment": deployment}


def _replay(name: str, plan: DrillPlan) -> str:
    """The command that repeats the drill, without passwords."""
    from holdfast.stores.registry import redacted

    words = ["holdfast", "drill", name]
    said = None if plan.deployment is None else plan.deployment.said  # the rest is in the file
    if plan.deployment is not None:
        words += shlex.split(plan.deployment.option)
    if plan.url is not None and (said is None or "leases" in said):
        words += ["--url", redacted(plan.url)]
    elif plan.own != "sqlite":
        words += ["--store", plan.own]
    ttl = plan.ttl_s if said is None or "scheduler.job_ttl" in said else None
    for option, value in (("--ttl", ttl), ("--slo", plan.slo_s), ("--duration", plan.duration_s)):
        words += [] if value is None else [option, f"{value:g}"]
    for option, number in (("--waiters", plan.waiters), ("--keys", plan.keys)):
        words += [] if number is None else [option, str(number)]
    if plan.incidents:
        words += ["--only", ",".join(plan.incidents)]
    return shlex.join([*words, "--seed", str(plan.seed)] if plan.seed else words)


def _write(report: Path, verdict: DrillVerdict) -> None:
    from holdfast.drills.report.html import page

    when = f"{datetime.now().astimezone():%Y-%m-%d %H:%M %Z}"
    write_whole("--report", report, page(verdict, when).encode())


@contextmanager
def _ends_in_order() -> Iterator[None]:
    """Handle TERM like Ctrl-C: end all started processes, and release all locks."""

    def stop(_number: int, _frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    except KeyboardInterrupt:
        print(file=sys.stderr)
        print_note("ended early without a verdict; everything was cleaned up")
        raise
    finally:
        signal.signal(signal.SIGTERM, before)


def mark(
    context: typer.Context,
    url: TestUrl = None,
    config: MarkConfig = None,
    seconds: Annotated[
        float, duration_option("--for", help="Duration of the mark; at most a week. [dim]\\[default: a day][/dim]")
    ] = 86_400.0,
    json: Json = False,
) -> None:
    """Mark a store, or a whole deployment, for tests: drills may run on it for a while."""
    from holdfast.drills.permission import mark as set_mark

    if config is not None:
        _mark_deployment(_deployment(context, url, config), seconds, as_json=json)
        return
    if url_of(context, url) is None:
        raise BadInput("--url", "is not given", "give the store, or a deployment with --config")
    with opened(url_of(context, url), None, None, service="drill") as (locks, _store):
        look = set_mark(locks, seconds)
    if json:
        put_json(look.as_dict())
        return
    out().print(cell(f"drills may run there for {seconds:g} s (mark: {look.key})"), soft_wrap=True)
    if look.since is not None:
        out().print(
            cell(f"marked at {moment(look.since)}; holdfast drill unmark removes the mark", "dim"), soft_wrap=True
        )


def _mark_deployment(deployment: Deployment, seconds: float, *, as_json: bool) -> None:
    deployment.mark(seconds)
    if as_json:
        put_json({"marked": {place.key: place.shown for place in deployment.places}, "seconds": seconds})
        return
    out().print(cell(f"drills may run there for {seconds:g} s:"), soft_wrap=True)
    for place in deployment.places:
        out().print(cell(f"  {place.key} {place.shown}"), soft_wrap=True)
    out().print(cell(f"holdfast drill unmark {deployment.option} removes the marks", "dim"), soft_wrap=True)


def unmark(context: typer.Context, url: TestUrl = None, config: MarkConfig = None, json: Json = False) -> int:
    """Remove the mark: drills may no longer run there. Exits 1 if there was no mark."""
    from holdfast.drills.permission import unmark as take_mark

    swept: list[str] = []
    if config is not None:
        gone, swept = _deployment(context, url, config).unmark()
    elif url_of(context, url) is None:
        raise BadInput("--url", "is not given", "give the store, or a deployment with --config")
    else:
        with reading(url_of(context, url), None, None, service="drill") as (locks, _store):
            gone = take_mark(locks)
    if json:
        put_json({"unmarked": gone} if config is None else {"unmarked": gone, "cleared": swept})
    else:
        out().print(cell("drills may no longer run there" if gone else "it was not marked"))
        for each in swept:
            out().print(cell(f"cleared the rest of a killed drill: {each}"), soft_wrap=True)
    return Exit.OK if gone else Exit.NO


def _deployment(context: typer.Context, url: str | None, config: str) -> Deployment:
    from holdfast.drills.env.deployment import Deployment

    if url_of(context, url) is not None:
        raise BadInput("--url", "cannot be combined with --config, which has leases too", "use one of them")
    return Deployment(settings(config))
