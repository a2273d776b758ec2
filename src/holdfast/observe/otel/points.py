"""What a process of the plane counts, as OpenTelemetry's data: every metric of the table, its labels as attributes.

The SDK's own instruments cannot say what a histogram has counted so far, and a process of the plane has its histograms
already. So the data points are made here, from the same samples as the text of `/metrics`, and the two never differ.
Everything is cumulative since the start of the process, with the buckets of the table.

Times are wall-clock nanoseconds, as OpenTelemetry has them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from opentelemetry.sdk.metrics import export as sdk
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from holdfast import __version__
from holdfast.core.histogram import Histogram
from holdfast.core.name_prefixes import DEFAULT
from holdfast.observe.metrics.collect import SOURCES
from holdfast.observe.metrics.samples import MetricSample
from holdfast.observe.metrics.table import Metric, MetricKind
from holdfast.observe.otel import BOUNDS, name_of, unit_of
from holdfast.types import NS

_SCOPE: Final = InstrumentationScope("holdfast", __version__)
_CUMULATIVE: Final = sdk.AggregationTemporality.CUMULATIVE


def data_of(
    found: Iterable[MetricSample], resource: Resource, since_ns: int, now_ns: int, prefix: str = DEFAULT
) -> sdk.MetricsData:
    """The samples of one moment, counted since `since_ns`. Each metric and its labels may be there once."""
    members: dict[Metric, list[MetricSample]] = {}
    for sample in found:
        members.setdefault(sample.metric, []).append(sample)
    metrics = [
        sdk.Metric(name_of(metric, prefix), metric.help, unit_of(metric), _data(metric, own, since_ns, now_ns))
        for metric, own in members.items()
    ]
    return sdk.MetricsData([sdk.ResourceMetrics(resource, [sdk.ScopeMetrics(_SCOPE, metrics, "")], "")])


def _data(metric: Metric, found: Sequence[MetricSample], since_ns: int, now_ns: int) -> sdk.DataT:
    if metric.kind is MetricKind.HISTOGRAM:
        spread = [_spread(each, each.value, since_ns, now_ns) for each in found if isinstance(each.value, Histogram)]
        return sdk.Histogram(spread, _CUMULATIVE)
    points = [
        sdk.NumberDataPoint(dict(each.labels), since_ns, now_ns, +each.value)  # + makes a number of a truth
        for each in found
        if not isinstance(each.value, Histogram)
    ]
    if metric.kind is MetricKind.COUNTER:
        return sdk.Sum(points, _CUMULATIVE, is_monotonic=True)
    return sdk.Sum(points, _CUMULATIVE, is_monotonic=False) if _adds_up(metric) else sdk.Gauge(points)


def _adds_up(metric: Metric) -> bool:
    """Whether a gauge is sent as a sum: those of locks are, as by the instruments of a program without a plane.

    The plane's others are plain gauges: a revision, or the time of the last tick, means nothing when it is added up.
    """
    return metric.source in SOURCES and not metric.worst


def _spread(sample: MetricSample, value: Histogram, since_ns: int, now_ns: int) -> sdk.HistogramDataPoint:
    unknown: float = None  # type: ignore[assignment]  # the least and the largest are optional in the protocol
    return sdk.HistogramDataPoint(
        attributes=dict(sample.labels),
        start_time_unix_nano=since_ns,
        time_unix_nano=now_ns,
        count=value.number,
        sum=value.total_ns / NS,
        bucket_counts=list(value.counts),
        explicit_bounds=BOUNDS,
        min=unknown,
        max=unknown,
    )
