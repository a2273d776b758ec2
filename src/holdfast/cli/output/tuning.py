"""Terminal output of `holdfast tune`: a table of families, the arithmetic in sentences, and the sources."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from holdfast.cli.output.screen import cell, out, plain_table, put_table
from holdfast.core.tuning.drift import Disagreement
from holdfast.core.tuning.explain import chance
from holdfast.core.tuning.percentiles import shown
from holdfast.core.tuning.ttl import Binding

if TYPE_CHECKING:
    from rich.text import Text

    from holdfast.core.lease.timing import Timing
    from holdfast.core.tuning.percentiles import Spread
    from holdfast.ops.tuning.apply import SettingsEdit
    from holdfast.ops.tuning.evidence import TuningData
    from holdfast.ops.tuning.report import FamilyReport, RetryReport

_LEFT = ("FAMILY", "CLASS")
_SEEN = ("HOLDS", "P50", "P95", "P99")
_SET = ("TTL NOW", "TTL", "RENEW", "FAILURES", "DEADLINE")
_HELD = ("TAKEOVER", "SLO", "LOST/H")


def put(gathered: TuningData, reports: Sequence[FamilyReport], retries: Sequence[RetryReport]) -> None:
    """Everything."""
    line(f"data: {gathered.source}", "dim")
    for remark in gathered.remarks:
        line(remark, "yellow")
    spoken = [each for each in reports if each.seen or each.disagreements]
    silent = [each.subject.family for each in reports if each not in spoken]
    if spoken:
        put_families(spoken)
        put_sentences([each for each in spoken if _remarkable(each)])
    if silent:
        print()
        line(f"no data about: {', '.join(silent)}", "dim")
    for each in retries:
        put_retry(each)


def put_families(reports: Sequence[FamilyReport]) -> None:
    """Print the table."""
    headings = [(name, "left") for name in _LEFT] + [(name, "right") for name in (*_SEEN, *_SET)]
    table = plain_table(*headings, ("BINDS", "left"), *((name, "right") for name in _HELD))
    for report in reports:
        found, demand, made = report.found, report.subject.demand, report.found.timing
        classes = dict(report.classes)
        total = classes.pop("", None)
        late = not found.possible
        table.add_row(
            cell(report.subject.family, "bold"),
            "",
            *_spread(total),
            "" if demand.present is None else shown(demand.present.ns),
            *_times(made, demand.timing, renewed=found.renewed),
            "" if found.deadline_ns is None else shown(found.deadline_ns),
            cell(
                "" if found.binding is None else str(found.binding), "dim" if found.binding is Binding.NEITHER else ""
            ),
            "" if found.takeover_ns is None else cell(shown(found.takeover_ns), "bold red" if late else ""),
            "" if found.slo is None else shown(found.slo.ns),
            "" if found.false_loss is None else chance(found.false_loss.per_hour_apart),
        )
        for name, spread in classes.items():
            table.add_row("", cell(name), *_spread(spread), *[""] * (len(_SET) + 1 + len(_HELD)))
    put_table(table)


def put_sentences(reports: Sequence[FamilyReport]) -> None:
    """Print the reasons, family by family."""
    advised: dict[tuple[str, ...], str] = {}
    for report in reports:
        print()
        line(report.subject.family, "bold")
        advice = tuple(each for each in report.sentences if each.startswith("instead: "))
        first = advised.setdefault(advice, report.subject.family)
        for sentence in report.sentences:
            if first == report.subject.family or sentence not in advice:
                line(f"  {sentence}")
        if advice and first != report.subject.family:
            line(f"  instead: as for {first}")
        for term in report.found.terms:
            line(f"    {term.name} {shown(term.ns)}: {term.source}", "dim")
        if report.found.timing is not None:
            line(f"    detection {shown(report.found.detection_ns)}: {report.subject.demand.detection.source}", "dim")
        if report.lost:
            were = "1 lease was" if report.lost == 1 else f"{report.lost:,} leases were"
            line(f"  {were} lost in that time: expired, or not confirmed", "yellow")


def put_retry(report: RetryReport) -> None:
    """Print the delays side by side."""
    print()
    line(f"retry delays of {report.family}, replayed with {report.arrivals:,} recorded arrivals", "bold")
    right = ("P50 WAIT", "P95 WAIT", "P99 WAIT", "BUSY", "FANO", "PEAK/MEAN")
    table = plain_table(("DELAY", "left"), *((name, "right") for name in right))
    for run, _ in report.replayed:
        table.add_row(
            cell(run.name),
            *(shown(ns) for ns in (run.waits.p50_ns, run.waits.p95_ns, run.waits.p99_ns)),
            f"{run.busy:,}",
            f"{run.burst.fano:.2f}",
            f"{run.burst.peak_to_mean:.1f}",
        )
    put_table(table)
    for sentence in report.sentences:
        line(f"  {sentence}")
    for run, against in report.replayed:
        for each in against:
            line(f"  {run.name}: {each}", "yellow")
        if run.unfinished:
            line(f"  {run.name}: {run.unfinished:,} never got the lock", "yellow")


def put_plan(planned: SettingsEdit, *, applied: bool) -> None:
    """Print the changes, written or planned."""
    print()
    for each in planned.left:
        line(each, "yellow")
    if not planned.changes:
        line(f"nothing to change in {planned.path}")
        return
    if not applied:
        print(planned.difference, end="")
        return
    for name, (old, new) in planned.changes.items():
        line(f"{name}: {old:g} -> {new:g}", "green")
    line(f"written to {planned.path}; restart the processes to apply it")


def put_verdict(reports: Sequence[FamilyReport]) -> None:
    """Print whether the settings agree with the data."""
    print()
    for each in disagreements(reports):
        line(f"{each.setting} ({each.family}), {each.against}: {each.text}", "bold red")
    if not judged(reports):
        line("no judgement: there is not enough data", "bold red")
    elif agrees(reports):
        line(f"the settings agree with the data ({len(judged(reports))} families)", "green")


def disagreements(reports: Sequence[FamilyReport]) -> list[Disagreement]:
    """All of them."""
    return [each for report in reports for each in report.disagreements]


def judged(reports: Sequence[FamilyReport]) -> list[FamilyReport]:
    """Those with enough data for a recommendation."""
    return [each for each in reports if each.found.timing is not None]


def agrees(reports: Sequence[FamilyReport]) -> bool:
    """Whether there was enough data, and no disagreement."""
    return bool(judged(reports)) and not disagreements(reports)


def line(text: str, style: str = "") -> None:
    """One line, however long."""
    out().print(cell(text, style), soft_wrap=True)


def _remarkable(report: FamilyReport) -> bool:
    """Whether the table does not show everything."""
    return bool(report.classes or report.disagreements) or not report.stays


def _times(made: Timing | None, now: Timing | None, *, renewed: bool) -> tuple[Text, Text, Text]:
    """TTL, renewal interval and failure budget; differences from the settings are highlighted."""
    if made is None:
        return cell("?", "yellow"), cell(""), cell("")
    new = "bold green"
    ttl = cell(shown(made.ttl_ns), "" if now is not None and now.ttl_ns == made.ttl_ns else new)
    every = shown(made.renew_every_ns)
    if not renewed:
        return ttl, cell(f"({every})"), cell("")  # in parentheses: the value if it were renewed
    same = now is not None and now.renew_every_ns == made.renew_every_ns
    budget = now is not None and now.failures_max == made.failures_max
    return ttl, cell(every, "" if same else new), cell(str(made.failures_max), "" if budget else new)


def _spread(found: Spread | None) -> tuple[str, ...]:
    if found is None:
        return ("",) * len(_SEEN)
    quantiles = (found.p50_ns, found.p95_ns, found.p99_ns)
    return f"{found.number:,}", *(shown(ns) if found.enough else "too few" for ns in quantiles)
