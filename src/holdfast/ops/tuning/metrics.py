"""Tuning data from the metrics of processes, scraped directly: `/metrics` of one, or of several together.

The table (`observe.metrics.table`) defines the metric names, so a renamed metric is found. A scrape covers the time
since the start of a process. Responses are not trusted: a page without our metrics is refused; impossible numbers are
skipped and reported.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from holdfast.core.histogram import LADDER_NS, NOTHING, Histogram, MeasuredOutcome
from holdfast.core.name_prefixes import DEFAULT
from holdfast.core.tuning.percentiles import SourcedDuration, of_counts
from holdfast.errors import Misconfigured
from holdfast.observe.metrics.table import TABLE
from holdfast.ops.http_client import ask
from holdfast.ops.tuning.evidence import TuningData, spreads
from holdfast.plane.locks import registry as families
from holdfast.types import NS, LossReason

NAMES: Final[Mapping[tuple[str, str], str]] = {(each.source, each.field): each.name for each in TABLE}
HOLD: Final = NAMES["lock", "hold_ns"]
LEFT: Final = NAMES["lock", "left_ns"]
LOST: Final = NAMES["lock", "lost"]
RENEWALS: Final = NAMES["leases", "renewals"]
TAIL: Final = NAMES["leases", "renew_tail_ns"]
TICK: Final = NAMES["loop", "longest_ns"]
PAUSES: Final[Mapping[str, str]] = {
    NAMES["leases", field]: what
    for field, what in (("keeper_lag_ns", "the renewer was late"), ("loop_lag_ns", "an event loop was late"))
    if ("leases", field) in NAMES
}
# Job classes: which metric has the holds of a family by class, and by which label.
CLASSES: Final[Mapping[str, tuple[str, str]]] = {
    name: (family.name, label)
    for source, field, family, label in (
        ("worker", "held_ns", families.WORKER_JOB, "topic"),
        ("job_lock", "hold_ns", families.SCHEDULER_JOB, "part"),
        ("run_lock", "hold_ns", families.WORKFLOW_RUN, "part"),
    )
    if (name := NAMES.get((source, field))) is not None
}
FALSE_REASONS: Final = frozenset({LossReason.EXPIRED, LossReason.UNCONFIRMED})
COUNT_MAX: Final = 10**15


def declared(name: str, prefix: str) -> str:
    """A metric name with the plane's prefix, as the table declares it."""
    return f"{DEFAULT}_{name.removeprefix(f'{prefix}_')}"


class Sample(NamedTuple):
    """One sample of a page."""

    name: str  # as the table declares it, without the plane's prefix
    labels: Mapping[str, str]
    value: float


def scrape(urls: Sequence[str], token: str | None = None, prefix: str = DEFAULT) -> TuningData:
    """The data of these processes since they started."""
    found: list[Sample] = []
    for url in urls:
        found += parse(ask(url, token=token, headers={"Accept": "text/plain"}), url, prefix)
    where = urls[0] if len(urls) == 1 else f"{len(urls)} processes"
    return gather(found, f"{where}, since it started" if len(urls) == 1 else f"{where}, since they started")


def parse(page: bytes, where: str, prefix: str = DEFAULT) -> list[Sample]:
    """Our samples on a page."""
    try:
        from prometheus_client.parser import text_string_to_metric_families
    except ImportError as error:
        raise Misconfigured("metrics need prometheus-client: pip install 'holdfast[metrics]'") from error
    found: list[Sample] = []
    try:
        for metric in text_string_to_metric_families(page.decode()):
            if metric.name.startswith(f"{prefix}_"):
                found += [Sample(declared(each.name, prefix), each.labels, each.value) for each in metric.samples]
    except (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError):  # the parser may raise any
        begins = page[:40].decode(errors="replace").strip()
        raise Misconfigured(f"{where} answered with something that is no page of metrics: {begins!r} …") from None
    if not found:
        raise Misconfigured(
            f"{where} has no metrics of Holdfast; check the address, the path /metrics, and whether its metrics "
            f"begin with {prefix}_ (names.metrics)"
        )
    return found


def gather(samples: Iterable[Sample], source: str) -> TuningData:
    """Data from samples, summed over several processes."""
    found = TuningData(source)
    buckets: dict[str, dict[tuple[str, ...], dict[float, float]]] = defaultdict(lambda: defaultdict(dict))
    strange = 0
    for each in samples:
        if not math.isfinite(each.value) or not 0 <= each.value <= COUNT_MAX:
            strange += not math.isnan(each.value)  # NaN means that a process does not know the value
            continue
        if each.name.endswith("_bucket"):
            metric = each.name.removesuffix("_bucket")
            key = _key(metric, each.labels)
            if key is not None:
                bound = _bound(each.labels.get("le", ""))
                series = buckets[metric][key]
                series[bound] = series.get(bound, 0.0) + each.value
        else:
            _single(found, each, source)
    if strange:
        found.remarks.append(f"{strange:,} numbers of {source} were impossible and skipped")
    _fill(found, buckets, source)
    return found


def counts_of(cumulative: Mapping[float, float]) -> Histogram:
    """Counts in our buckets from cumulative ones. A foreign bound counts as the next higher one of ours.

    A Prometheus returns fractions. The cumulative number is rounded: rounding each bucket would lose most counts
    that are spread thinly over many of them.
    """
    counts, before = [0] * (len(LADDER_NS) + 1), 0
    bounds = [bound / NS for bound in LADDER_NS]
    total = 0.0
    for bound in sorted(cumulative):
        here = max(0, round(cumulative[bound]) - before)
        before += here
        place = next((at for at, top in enumerate(bounds) if bound <= top * (1 + 1e-9)), len(LADDER_NS))
        counts[place] += here
        total += here * min(bound, bounds[-1])
    return Histogram(tuple(counts), round(total * NS))


def _fill(
    found: TuningData, buckets: Mapping[str, Mapping[tuple[str, ...], Mapping[float, float]]], source: str
) -> None:
    holds: dict[tuple[str, str], Histogram] = {}
    for metric, series in buckets.items():
        for key, cumulative in series.items():
            counts = counts_of(cumulative)
            if metric == LEFT:
                found.left[key[0]] = found.left.get(key[0], NOTHING).plus(counts)
            elif metric == RENEWALS and key[0] == MeasuredOutcome.ANSWERED:
                found.requests = of_counts(counts, f"renewals ({source})")
            elif metric == RENEWALS:
                found.unanswered += counts.number
            else:
                place = (key[0], key[1])
                holds[place] = holds.get(place, NOTHING).plus(counts)
    found.holds.update(spreads(holds, "holds", source))


def _key(metric: str, labels: Mapping[str, str]) -> tuple[str, ...] | None:
    """The series that a sample belongs to; None: to none."""
    if metric == HOLD:
        return labels.get("family", ""), ""
    if metric == LEFT:
        return (labels.get("family", ""),)
    if metric == RENEWALS:
        return (labels.get("outcome", ""),)
    if metric in CLASSES:
        family, label = CLASSES[metric]
        return family, labels.get(label, "")
    return None


def _single(found: TuningData, each: Sample, source: str) -> None:
    labels: Mapping[str, Any] = each.labels
    if each.name == TAIL:
        told = SourcedDuration(round(each.value * NS), f"the slowest renewals lately ({source})")
        found.tail = told if found.tail is None or told.ns > found.tail.ns else found.tail
    elif each.name in PAUSES and each.value > 0:
        found.pauses.append(SourcedDuration(round(each.value * NS), f"{PAUSES[each.name]} ({source})"))
    elif each.name == TICK and each.value > 0:
        loop = labels.get("loop", "")
        before = found.ticks.get(loop)
        if before is None or before.ns < each.value * NS:
            found.ticks[loop] = SourcedDuration(
                round(each.value * NS), f"the longest tick of the {loop} loop ({source})"
            )
    elif each.name == LOST and labels.get("reason") in FALSE_REASONS:
        family = labels.get("family", "")
        found.lost[family] = found.lost.get(family, 0) + round(each.value)


def _bound(text: str) -> float:
    try:
        found = float(text)
    except ValueError:
        return math.inf
    return math.inf if math.isnan(found) else found
