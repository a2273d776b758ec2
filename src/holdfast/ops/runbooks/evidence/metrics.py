"""Metrics as evidence: from a Prometheus, or from two scrapes of `/metrics` of each process.

A `MetricQuery` is declared once. It is sent to a Prometheus, printed on the page, and computed here from two scrapes:
rates between them, and quantiles of the observations between them.

Promises: a process that does not answer is named, and the others count. A counter that decreased (its process was
restarted) counts from zero. A metric that no process exposes is missing, which is not the same as zero.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Final, NamedTuple, TypeAlias
from urllib.parse import quote, urlsplit

from holdfast.core.ports import Clock
from holdfast.errors import HoldfastError, Misconfigured, Unavailable
from holdfast.ops.http_client import ask, metrics_url
from holdfast.ops.runbooks.evidence.locks import number
from holdfast.runtime.gather import in_thread, pause, together
from holdfast.stores.registry import redacted
from holdfast.types import NS

WINDOW: Final = "5m"
WINDOW_S: Final = 300.0
TOKEN_VARIABLE: Final = "HOLDFAST_METRICS_TOKEN"  # noqa: S105 - the name of a variable, not a secret

Labels: TypeAlias = tuple[tuple[str, str], ...]
Samples: TypeAlias = dict[tuple[str, Labels], float]


class Aggregation(StrEnum):
    """How a metric is aggregated."""

    RATE = "a second"
    NOW = "now"
    P50 = "median"
    P95 = "p95"
    P99 = "p99"

    @property
    def share(self) -> float | None:
        """The share of a quantile."""
        return {Aggregation.P50: 0.5, Aggregation.P95: 0.95, Aggregation.P99: 0.99}.get(self)


@dataclass(frozen=True, slots=True)
class MetricQuery:
    """One query."""

    key: str  # for rules and people: "not owned"
    metric: str  # as in `observe.metrics.table`
    how: Aggregation = Aggregation.RATE
    by: tuple[str, ...] = ()
    where: tuple[tuple[str, str], ...] = ()
    worst: bool = False  # gauges of several processes: the maximum instead of the sum
    unit: str = ""

    @property
    def promql(self) -> str:
        """The query as PromQL."""
        chosen = ", ".join(f'{name}="{value}"' for name, value in self.where)
        chosen = f"{{{chosen}}}" if chosen else ""
        join = "max" if self.worst and self.how is Aggregation.NOW else "sum"
        if self.how.share is not None:
            by = ", ".join(("le", *self.by))
            rate = f"rate({self.metric}_bucket{chosen}[{WINDOW}])"
            return f"histogram_quantile({self.how.share:g}, sum by ({by}) ({rate}))"
        by = f" by ({', '.join(self.by)})" if self.by else ""
        asked = f"{self.metric}{chosen}" if self.how is Aggregation.NOW else f"rate({self.metric}{chosen}[{WINDOW}])"
        return f"{join}{by} ({asked})"

    def under(self, prefix: str) -> MetricQuery:
        """The same query for metrics with this prefix."""
        return replace(self, metric=f"{prefix}_{self.metric.partition('_')[2]}")

    def line(self, found: Mapping[str, float] | None) -> str:
        """The answer as text."""
        name = f"{self.key}, {self.how}"
        if found is None:
            return f"{name}: no process exposes it"
        shown = [
            f"{label} {value:.3g}{self.unit}" if label else f"{value:.3g}{self.unit}"
            for label, value in sorted(found.items(), key=lambda each: -each[1])
            if value
        ]
        return f"{name}: {', '.join(shown[:8]) or '0' + self.unit}"


@dataclass(frozen=True, slots=True)
class MetricsFact:
    """The answers to all queries."""

    queries: tuple[MetricQuery, ...]
    numbers: Mapping[str, Mapping[str, float]]  # by key of the query, then by the values of `by`, joined
    window_s: float
    processes: int  # that answered; 0: a Prometheus answered
    silent: tuple[str, ...] = ()

    def get(self, key: str, label: str = "") -> float | None:
        """One number; None: no process exposes it."""
        return self.numbers.get(key, {}).get(label)

    def total(self, key: str) -> float | None:
        """The sum over all labels; None: no process exposes it."""
        return sum(self.numbers[key].values()) if key in self.numbers else None

    def worst(self, key: str) -> tuple[str, float]:
        """The label with the largest number, and the number."""
        return max(self.numbers.get(key, {}).items(), key=lambda each: each[1], default=("", 0.0))

    @property
    def long(self) -> bool:
        """Whether it covers long enough to call a rate sustained."""
        return self.window_s >= WINDOW_S

    @property
    def over(self) -> str:
        """The window as text."""
        return f"over {self.window_s / 60:g} min" if self.window_s >= 60 else f"over {self.window_s:.2g} s"

    def lines(self) -> Sequence[str]:
        """The fact as text."""
        asked = (
            "from a Prometheus"
            if not self.processes
            else f"from two scrapes of {number(self.processes, 'process', 'processes')}"
        )
        return [
            f"rates {self.over}, {asked}",
            *(f"no answer from {each}" for each in self.silent),
            *(query.line(self.numbers.get(query.key)) for query in self.queries),
        ]

    def as_dict(self) -> dict[str, Any]:
        """The fact as JSON types."""
        return {
            "window_seconds": self.window_s,
            "processes": self.processes,
            "silent": list(self.silent),
            "numbers": {key: dict(found) for key, found in self.numbers.items()},
            "queries": {query.key: query.promql for query in self.queries},
        }


# Two scrapes of each process.


class Scrape(NamedTuple):
    """The metrics of a process, and the time of the scrape on the monotonic clock."""

    samples: Samples
    at_ns: int


class ScrapedProcess(NamedTuple):
    """One process, scraped twice."""

    instance: str
    first: Scrape
    last: Scrape

    @property
    def seconds(self) -> float:
        """Between the two scrapes."""
        return (self.last.at_ns - self.first.at_ns) / NS


async def scraped(
    urls: Sequence[str], queries: tuple[MetricQuery, ...], clock: Clock, *, spacing_s: float, limit_ns: int
) -> MetricsFact:
    """Scrape every process twice, and compute the answers from the differences."""
    first, silent = await _looks(urls, clock, limit_ns)
    if not first:
        raise Unavailable("; ".join(silent.values()) or "no process was named")
    await pause(round(spacing_s * NS))
    last, silent_later = await _looks(list(first), clock, limit_ns)
    if not last:
        raise Unavailable("; ".join(silent_later.values()))
    processes = [ScrapedProcess(_instance(url), first[url], last[url]) for url in last]
    window = max(each.seconds for each in processes)
    numbers = {query.key: found for query in queries if (found := answer(query, processes)) is not None}
    return MetricsFact(queries, numbers, window, len(processes), tuple({**silent, **silent_later}.values()))


async def _looks(urls: Sequence[str], clock: Clock, limit_ns: int) -> tuple[dict[str, Scrape], dict[str, str]]:
    def look(url: str) -> Scrape:
        return Scrape(samples_of(_text(metrics_url("--metrics", url), limit_ns)), clock.now().mono)

    calls = {url: lambda url=url: in_thread(lambda: look(url)) for url in urls}
    found: dict[str, Scrape] = {}
    silent: dict[str, str] = {}
    for url, said in (await together(calls, limit_ns)).items():
        if isinstance(said, Exception):
            silent[url] = str(said) if isinstance(said, HoldfastError) else f"{redacted(url)}: {said}"
        else:
            found[url] = said
    return found, silent


def _text(url: str, limit_ns: int) -> str:
    """The metrics page. A process that requires a token gets the one of the environment."""
    return ask(url, token=os.environ.get(TOKEN_VARIABLE), timeout=limit_ns / NS).decode("utf-8", "replace")


def _instance(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.hostname}:{parts.port}" if parts.port else str(parts.hostname)


def samples_of(text: str) -> Samples:
    """The samples of one page, or `Misconfigured`: it is not a metrics page of Holdfast."""
    try:
        from prometheus_client.parser import text_string_to_metric_families
    except ImportError as error:
        raise Misconfigured("metrics need prometheus-client: pip install 'holdfast[metrics]'") from error
    try:
        return {
            (sample.name, tuple(sorted(sample.labels.items()))): float(sample.value)
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }
    except (ValueError, IndexError, KeyError) as error:
        raise Misconfigured(f"the response is no page of metrics: {error}") from error


def answer(query: MetricQuery, processes: Sequence[ScrapedProcess]) -> dict[str, float] | None:
    """One query, computed from two scrapes. None: no process exposes it."""
    if query.how.share is not None:
        return _quantiles(query, processes)
    found: dict[str, float] = {}
    for process in processes:
        for labels, first, last in _members(query, query.metric, process):
            value = last
            if query.how is Aggregation.RATE:
                passed = process.seconds
                value = (last - first if last >= first else last) / passed if passed > 0 else 0.0
            label = _label(query, labels)
            found[label] = max(found.get(label, 0.0), value) if query.worst else found.get(label, 0.0) + value
    return found or None


def _members(
    query: MetricQuery, name: str, process: ScrapedProcess
) -> Iterator[tuple[Mapping[str, str], float, float]]:
    for (metric, pairs), last in process.last.samples.items():
        labels = {**dict(pairs), "instance": process.instance}
        if metric == name and all(labels.get(label) == value for label, value in query.where):
            yield labels, process.first.samples.get((metric, pairs), 0.0), last


def _label(query: MetricQuery, labels: Mapping[str, str]) -> str:
    return " ".join(labels.get(name, "") for name in query.by)


def _quantiles(query: MetricQuery, processes: Sequence[ScrapedProcess]) -> dict[str, float] | None:
    """Of the observations between the scrapes, or of all since the start if there were none."""
    between: dict[str, dict[float, float]] = {}
    ever: dict[str, dict[float, float]] = {}
    for process in processes:
        for labels, first, last in _members(query, f"{query.metric}_bucket", process):
            label, bound = _label(query, labels), float(labels["le"])
            for counts, count in ((between, last - first if last >= first else last), (ever, last)):
                buckets = counts.setdefault(label, {})
                buckets[bound] = buckets.get(bound, 0.0) + count
    found = {}
    for label, buckets in ever.items():
        value = quantile(between[label], query.how.share or 0.0)
        value = quantile(buckets, query.how.share or 0.0) if value is None else value
        if value is not None:
            found[label] = value
    return found if ever else None


def quantile(buckets: Mapping[float, float], share: float) -> float | None:
    """As `histogram_quantile` computes it, from cumulative counts. None: there was no observation."""
    bounds = sorted(buckets)
    total = buckets[bounds[-1]] if bounds else 0.0
    if total <= 0:
        return None
    wanted, below, before = share * total, 0.0, 0.0
    for bound in bounds:
        count = buckets[bound]
        if count >= wanted:
            if math.isinf(bound):
                return below
            return below + (bound - below) * (wanted - before) / (count - before) if count > before else bound
        below, before = bound, count
    return below


# A Prometheus.


async def queried(url: str, queries: tuple[MetricQuery, ...], *, limit_ns: int) -> MetricsFact:
    """Query a Prometheus."""

    def look(query: MetricQuery) -> dict[str, float] | None:
        return vector_of(_text(f"{url.rstrip('/')}/api/v1/query?query={quote(query.promql)}", limit_ns), query)

    calls = {query.key: lambda query=query: in_thread(lambda: look(query)) for query in queries}
    numbers: dict[str, Mapping[str, float]] = {}
    for key, said in (await together(calls, limit_ns)).items():
        if isinstance(said, Exception):
            raise said
        if said is not None:
            numbers[key] = said
    return MetricsFact(queries, numbers, WINDOW_S, 0)


def vector_of(text: str, query: MetricQuery) -> dict[str, float] | None:
    """The answer of a Prometheus by label; None: it has no such metric."""
    try:
        said = json.loads(text)
        rows = [(_label(query, row["metric"]), float(row["value"][1])) for row in said["data"]["result"]]
    except (ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise Misconfigured(f"the response is not an answer of a Prometheus: {type(error).__name__}") from error
    return {label: value for label, value in rows if not math.isnan(value)} if rows else None
