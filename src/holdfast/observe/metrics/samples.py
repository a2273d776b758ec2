"""From the readings of a process (`core.metric_reading`) to samples of metrics, and the table of metrics as a page.

All metrics are declared in `observe.metrics.table`; nothing here is specific to one metric.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from holdfast.core.histogram import Histogram
from holdfast.core.metric_reading import Number, Reading
from holdfast.observe.metrics.table import TABLE, Metric


class MetricSample(NamedTuple):
    """One number of a metric."""

    metric: Metric
    labels: Mapping[str, str]
    value: float | Histogram  # a histogram is in nanoseconds


def samples(readings: Iterable[Reading]) -> Iterator[MetricSample]:
    """The numbers of all metrics that the readings have. What a source does not know has no sample."""
    for reading in readings:
        for metric in _OF.get(reading.source, ()):
            value = reading.values.get(metric.field)
            if isinstance(value, Mapping):
                yield from _by_kind(metric, reading.labels, value)
            elif value is not None:
                yield MetricSample(metric, reading.labels, _scaled(metric, value))


def together(found: Iterable[MetricSample]) -> list[MetricSample]:
    """One sample for each metric and its labels, of what several sources say: the sum, or the worst of them."""
    sums: dict[tuple[Metric, tuple[str, ...]], MetricSample] = {}
    for each in found:
        key = each.metric, tuple(each.labels[label] for label in each.metric.labels)
        before = sums.get(key)
        sums[key] = each if before is None else before._replace(value=_both(each.metric, before.value, each.value))
    return list(sums.values())


def markdown() -> str:
    """The table for a page."""
    rows = [("metric", "kind", "labels", "what it says"), ("---",) * 4]
    for each in TABLE:
        labels = ", ".join(f"`{label}`" for label in each.labels)
        rows.append((f"`{each.name}`", str(each.kind), labels, each.help))
    return "\n".join(f"| {' | '.join(row)} |" for row in rows) + "\n"


def _by_kind(
    metric: Metric, labels: Mapping[str, str], counts: Mapping[Any, Number | Histogram]
) -> Iterator[MetricSample]:
    own = tuple(label for label in metric.labels if label not in labels)
    for kind, value in counts.items():
        names = kind if isinstance(kind, tuple) else (kind,)
        given = {label: str(name) for label, name in zip(own, names, strict=True)}
        yield MetricSample(metric, {**labels, **given}, _scaled(metric, value))


def _both(metric: Metric, one: float | Histogram, other: float | Histogram) -> float | Histogram:
    if isinstance(one, Histogram) and isinstance(other, Histogram):
        return one.plus(other)
    if isinstance(one, Histogram) or isinstance(other, Histogram):
        raise TypeError(f"{metric.name} is a histogram, and is not")
    return max(one, other) if metric.worst else one + other


def _scaled(metric: Metric, value: Number | Histogram) -> float | Histogram:
    return value if isinstance(value, Histogram) else value / metric.scale


_OF: Final[dict[str, list[Metric]]] = {}
for _each in TABLE:
    _OF.setdefault(_each.source, []).append(_each)
