"""`holdfast tune`: recommends TTLs, renewal intervals and retry delays from data, and checks the settings."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from holdfast.cli.commands.audit import say_findings
from holdfast.cli.exit_codes import Exit
from holdfast.cli.options import Json
from holdfast.cli.output import tuning
from holdfast.cli.output.screen import print_note, put_json
from holdfast.cli.parse_time import WHEN, moment_ns
from holdfast.cli.plane_options import Config, settings
from holdfast.core.duration_text import parse_duration_ns
from holdfast.core.tuning.percentiles import SourcedDuration
from holdfast.core.tuning.ttl import Detection, FamilyDemand, FamilyEvidence, recommend
from holdfast.errors import BadInput
from holdfast.types import MS, NS

if TYPE_CHECKING:
    from holdfast.ops.tuning.apply import SettingsEdit
    from holdfast.ops.tuning.evidence import TuningData
    from holdfast.ops.tuning.report import FamilyReport, RetryReport
    from holdfast.plane.settings.settings import Settings

TOKEN: Final = "HOLDFAST_METRICS_TOKEN"  # noqa: S105 - the name of a variable
_ANY_S: Final = 86_400.0  # an SLO that is always met
_GIVEN: Final = "given"
_SOURCES: Final = "Data sources"
_BY_HAND: Final = "Manual calculation, without data"
_DO: Final = "Actions"


def _length(help: str) -> Any:
    return typer.Option(metavar="TIME", help=help, rich_help_panel=_BY_HAND)


Metrics = Annotated[
    list[str] | None,
    typer.Option("--metrics", metavar="URL", help="A process, or its /metrics; repeatable.", rich_help_panel=_SOURCES),
]
PrometheusUrl = Annotated[
    str | None, typer.Option(metavar="URL", help="A Prometheus that scrapes them.", rich_help_panel=_SOURCES)
]
Window = Annotated[
    str, typer.Option(metavar="W", help="With --prometheus: length of the window.", rich_help_panel=_SOURCES)
]
Match = Annotated[
    list[str] | None,
    typer.Option(
        "--match",
        metavar="LABEL=VALUE",
        help="With --prometheus: only series of this plane; repeatable.",
        rich_help_panel=_SOURCES,
    ),
]
History = Annotated[
    Path | None,
    typer.Option(metavar="PATH", help="An audit ledger, or one of its files.", rich_help_panel=_SOURCES),
]
Since = Annotated[
    str | None,
    typer.Option(metavar=WHEN, help="With --history: only records after it: 7d.", rich_help_panel=_SOURCES),
]
HoldP99 = Annotated[str | None, _length("Duration of the work: p99 of the hold.")]
Jitter = Annotated[str | None, _length("Possible delay by network, store and pauses.")]
Margin = Annotated[str | None, _length("The safety margin. [dim]\\[default: as the library computes it][/dim]")]
DetectionTime = Annotated[
    str | None, _length("Time until a waiter notices. [dim]\\[default: its retry, 1 s at most][/dim]")
]
Ttl = Annotated[str | None, _length("The current TTL, to check an SLO with it.")]
Renewed = Annotated[
    bool, typer.Option("--renewed", help="Manual calculation: the lease is renewed.", rich_help_panel=_BY_HAND)
]
Family = Annotated[str | None, typer.Option(metavar="F", help="Only this family.")]
Unrenewed = Annotated[
    list[str] | None, typer.Option(metavar="F", help="One of your families that is not renewed; repeatable.")
]
Slo = Annotated[
    str | None,
    typer.Option(metavar="TIME", help="The takeover SLO: 30s. [dim]\\[default: takeover in the settings][/dim]"),
]
RetryDelay = Annotated[
    str | None, typer.Option(metavar="TIME", help="The delay to compare. [dim]\\[default: scheduler.busy_delay][/dim]")
]
RetryJitter = Annotated[str, typer.Option(metavar="TIME", help="The jitter to compare it with.")]
Plot = Annotated[Path | None, typer.Option(metavar="FILE", help="Write a plot.", rich_help_panel=_DO)]
Apply = Annotated[bool, typer.Option("--apply", help="Write the values into the settings.", rich_help_panel=_DO)]
Diff = Annotated[bool, typer.Option("--diff", help="Print the changes of --apply.", rich_help_panel=_DO)]
Check = Annotated[
    bool, typer.Option("--check", help="Exit 1 if the settings contradict the data.", rich_help_panel=_DO)
]


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    app.command("tune")(tune)


def tune(
    metrics: Metrics = None,
    prometheus: PrometheusUrl = None,
    window: Window = "7d",
    match: Match = None,
    history: History = None,
    since: Since = None,
    hold_p99: HoldP99 = None,
    jitter: Jitter = None,
    guard: Margin = None,
    detection: DetectionTime = None,
    ttl: Ttl = None,
    renewed: Renewed = False,
    family: Family = None,
    unrenewed: Unrenewed = None,
    slo: Slo = None,
    retry_delay: RetryDelay = None,
    retry_jitter: RetryJitter = "200ms",
    config: Config = None,
    plot: Plot = None,
    apply: Apply = False,
    diff: Diff = False,
    check: Check = False,
    json: Json = False,
) -> int:
    """Recommend TTL, renewal interval and failure budget of each lock family, with the resulting takeover time.

    Data sources: --metrics, --prometheus or --history; by default the audit ledger of the settings. Or calculate
    manually: holdfast tune --hold-p99 18s --jitter 4s --guard 2s --slo 30s
    """
    given = {"hold-p99": hold_p99, "jitter": jitter, "guard": guard, "detection": detection, "ttl": ttl}
    promised = None if slo is None else SourcedDuration(parse_duration_ns("slo", slo, low_ns=MS), "--slo")
    if renewed or any(each is not None for each in given.values()):
        if any((metrics, prometheus, history, since, plot, family, unrenewed, apply, diff, check)):
            option = next((f"--{name}" for name, text in given.items() if text), "--renewed")
            raise BadInput(option, "belongs to a manual calculation, and another option needs data", "omit one of them")
        return _by_hand(_lengths(given), promised, renewed=renewed, as_json=json)
    if sum(map(bool, (metrics, prometheus, history))) > 1:
        raise BadInput("--history", "cannot be combined with another source", "use one source; --metrics is repeatable")
    chosen, promised = _settings(config, promised)
    gathered = _gathered(chosen, metrics, prometheus, window, match or (), history, since)
    reports = _reports(chosen, gathered, promised, family, unrenewed or ())
    retries = _retries(chosen, gathered, reports, retry_delay, retry_jitter)
    if plot is not None:
        from holdfast.ops.tuning.plot import draw

        draw(reports, plot, gathered.source)
    planned = _planned(chosen, reports, write=apply) if apply or diff else None
    if json:
        put_json(_as_dict(gathered, reports, retries, planned, applied=apply, checked=check))
    else:
        tuning.put(gathered, reports, retries)
        if planned is not None:
            tuning.put_plan(planned, applied=apply)
        if check:
            tuning.put_verdict(reports)
    return Exit.OK if not check or tuning.agrees(reports) else Exit.NO


def _lengths(given: Mapping[str, str | None]) -> dict[str, SourcedDuration]:
    """The durations that were given for a manual calculation, by option."""
    return {
        name: SourcedDuration(parse_duration_ns(name, text), _GIVEN) for name, text in given.items() if text is not None
    }


def _by_hand(given: Mapping[str, SourcedDuration], slo: SourcedDuration | None, *, renewed: bool, as_json: bool) -> int:
    from holdfast.ops.tuning.report import FamilyReport
    from holdfast.ops.tuning.subjects import TuningSubject

    hold, jitter, present, retry = (given.get(name) for name in ("hold-p99", "jitter", "ttl", "detection"))
    if present is None and hold is None and not renewed:
        raise BadInput("--hold-p99", "is missing", "give the duration of the work, or --renewed if it does not matter")
    if present is None and jitter is None:
        raise BadInput("--jitter", "is missing", "give the possible delay by network, store and pauses: --jitter 4s")
    found = Detection() if retry is None else Detection(retry.ns, None, _GIVEN)
    demand = FamilyDemand(slo=slo, detection=found, guard=given.get("guard"), jitter=jitter, present=present)
    missing = "neither hold nor jitter is given"
    known = FamilyEvidence("by hand", renewed or hold is None, hold=hold, no_hold=missing, no_tail=missing)
    report = FamilyReport(TuningSubject("by hand", demand, known.renewed), known, {}, recommend(known, demand), ())
    if as_json:
        put_json(report.as_dict())
    else:
        tuning.put_families([report])
        tuning.put_sentences([report])
    late = present is not None and slo is not None and present.ns + found.of(present.ns) > slo.ns
    settled = report.found.possible and (report.found.refused is None or present is not None)
    return Exit.OK if settled and not late else Exit.NO


def _settings(config: str | None, slo: SourcedDuration | None) -> tuple[Settings, SourcedDuration | None]:
    """The settings, even those that are refused because they miss their own takeover SLO: those need tuning."""
    from holdfast.plane.settings.sources import BadSettings

    try:
        return settings(config), slo
    except BadSettings as error:
        if not all(each.field.startswith("takeover") for each in error.problems):
            raise
        chosen = settings(config, takeover=_ANY_S)
        promise = os.environ.get("HOLDFAST_TAKEOVER") or _in_file(chosen)
        return chosen, slo or SourcedDuration(parse_duration_ns("takeover", str(promise)), "takeover in the settings")


def _in_file(chosen: Settings) -> object:
    with Path(chosen.file or "").open("rb") as file:
        return tomllib.load(file)["takeover"]


def _gathered(
    chosen: Settings,
    metrics: Sequence[str] | None,
    prometheus: str | None,
    window: str,
    match: Sequence[str],
    history: Path | None,
    since: str | None,
) -> TuningData:
    token = os.environ.get(TOKEN) or None
    if metrics:
        from holdfast.ops.http_client import metrics_url
        from holdfast.ops.tuning.metrics import scrape

        return scrape([metrics_url("--metrics", url) for url in metrics], token, chosen.names.metrics)
    if prometheus:
        from holdfast.ops.tuning.prometheus import ask_prometheus

        labels = {name: value for name, _, value in (each.partition("=") for each in match)}
        return ask_prometheus(prometheus, window, match=labels, token=token, prefix=chosen.names.metrics)
    path = history or _own_ledger(chosen)
    from holdfast.ops.tuning.history import read_history

    found, findings = read_history(path, since_ns=None if since is None else moment_ns("--since", since))
    say_findings(findings)
    return found


def _own_ledger(chosen: Settings) -> Path:
    path = chosen.audit_path
    if path is None or not Path(path).is_dir():
        raise BadInput(
            "evidence",
            "is not given: no source is named, and the settings have no audit ledger yet",
            "give --metrics URL, --prometheus URL or --history PATH, or calculate manually with --hold-p99",
        )
    return Path(path)


def _reports(
    chosen: Settings, gathered: TuningData, slo: SourcedDuration | None, family: str | None, unrenewed: Sequence[str]
) -> list[FamilyReport]:
    from holdfast.ops.tuning.report import family_report
    from holdfast.ops.tuning.subjects import subjects

    found = subjects(chosen, slo, gathered.families, unrenewed=unrenewed)
    if family is not None:
        found = [each for each in found if each.family == family]
        if not found:
            raise BadInput("--family", f"{family!r} is neither in the data nor in the plane", "see holdfast inventory")
    return [family_report(subject, gathered) for subject in found]


def _retries(
    chosen: Settings, gathered: TuningData, reports: Sequence[FamilyReport], delay: str | None, jitter: str
) -> list[RetryReport]:
    from holdfast.ops.tuning.report import delays, retry_report

    base = chosen.scheduler.busy_delay if delay is None else parse_duration_ns("retry-delay", delay, low_ns=MS) / NS
    compared = delays(base, parse_duration_ns("retry-jitter", jitter) / NS)
    contention = gathered.contention
    wanted = delay is not None
    found = [
        retry_report(report.subject, contention[report.subject.family], compared)
        for report in reports
        if report.subject.family in contention and contention[report.subject.family].recorded
    ]
    if wanted and not found:
        print_note("no busy attempt is recorded, so delays cannot be compared; audit.records = everything records them")
    return found


def _planned(chosen: Settings, reports: Sequence[FamilyReport], *, write: bool) -> SettingsEdit:
    from holdfast.ops.tuning import apply as tuning_apply

    planned = tuning_apply.plan(chosen, reports)
    if write and planned.changes:
        tuning_apply.apply(planned)
    return planned


def _as_dict(
    gathered: TuningData,
    reports: Sequence[FamilyReport],
    retries: Sequence[RetryReport],
    planned: SettingsEdit | None,
    *,
    applied: bool,
    checked: bool,
) -> dict[str, object]:
    return {
        "source": gathered.source,
        "remarks": gathered.remarks,
        "families": [each.as_dict() for each in reports],
        "retries": [each.as_dict() for each in retries],
        "plan": None if planned is None else {**planned.as_dict(), "applied": applied and bool(planned.changes)},
        "agrees": tuning.agrees(reports) if checked else None,
    }
