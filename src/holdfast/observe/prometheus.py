"""Metrics for Prometheus: as text for an endpoint of one's own, or in a registry that an application already has.

    from holdfast.observe import prometheus

    prometheus.register(locks)  # beside the application's own metrics, in the default registry

The hot path pays nothing for it: numbers are read when Prometheus scrapes. Reading asks no store. Any
number of `Locks` may be registered: their counts are added up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Any, Final
from weakref import WeakKeyDictionary

from holdfast.core.histogram import LADDER_NS, Histogram
from holdfast.core.metric_reading import Reading
from holdfast.core.name_prefixes import DEFAULT, check_metric_prefix
from holdfast.errors import Misconfigured
from holdfast.observe.metrics.collect import HasManager, LocksCollection, families_of, manager_of
from holdfast.observe.metrics.samples import MetricSample, samples
from holdfast.observe.metrics.table import Metric, MetricKind
from holdfast.runtime.lease_manager import LeaseManager
from holdfast.runtime.thread_runtime import Mutex
from holdfast.types import NS

try:
    from prometheus_client import REGISTRY, CollectorRegistry
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
    from prometheus_client.exposition import choose_encoder
    from prometheus_client.registry import Collector
except ImportError as error:
    raise Misconfigured("metrics need prometheus-client: pip install 'holdfast[metrics]'") from error

_GATHERINGS: Final[WeakKeyDictionary[CollectorRegistry, dict[str, LocksCollection]]] = WeakKeyDictionary()
_mutex: Final = Mutex()
_BOUNDS: Final = (*(f"{bound / NS:g}" for bound in LADDER_NS), "+Inf")


class PrometheusCollector(Collector):
    """What is read at each scrape, as a collector of prometheus-client."""

    def __init__(self, read: Callable[[], Iterable[MetricSample]], prefix: str = DEFAULT) -> None:
        self._read = read
        self._prefix = prefix

    def collect(self) -> Iterator[Any]:
        """The families of metrics that there are samples of."""
        members: dict[Metric, list[MetricSample]] = {}
        for sample in self._read():
            members.setdefault(sample.metric, []).append(sample)
        for metric, found in members.items():
            yield _family(metric, found, self._prefix)

    def describe(self) -> Iterator[Any]:
        """Nothing: what there is, is known when it is read."""
        return iter(())


class Registration:
    """Some locks in a registry."""

    def __init__(self, gathering: LocksCollection, manager: LeaseManager) -> None:
        self._gathering = gathering
        self._manager = manager

    def end(self) -> None:
        """Take them out. What they have counted stays: a count that falls would seem a restart. Idempotent."""
        self._gathering.remove(self._manager)


def register(
    locks: HasManager, *, families: Sequence[str] = (), registry: CollectorRegistry = REGISTRY, prefix: str = DEFAULT
) -> Registration:
    """Put the locks' metrics into a registry. `families`: those that shall be there, at zero, before their first use.

    `prefix` begins the names of the metrics: with `prefix="acme"`, `acme_lock_wait_seconds`. Locks are added up
    with those under the same prefix.

    Several `Locks` in one registry are added up; the same one twice is there once. They are read until `end()` of what
    this returns, also when they are closed.
    """
    manager, names = manager_of(locks), families_of(families)
    check_metric_prefix("prefix", prefix)
    with _mutex:
        gatherings = _GATHERINGS.setdefault(registry, {})
        gathering = gatherings.get(prefix)
        if gathering is None:
            gathering = LocksCollection()
            registry.register(PrometheusCollector(gathering.samples, prefix))
            gatherings[prefix] = gathering
    gathering.add(manager, names)
    return Registration(gathering, manager)


def rendered(readings: Iterable[Reading], accept: str = "", prefix: str = DEFAULT) -> tuple[bytes, str]:
    """The text for a scrape, and its content type: OpenMetrics for who accepts it, else the plain format."""
    encode, content_type = choose_encoder(accept)
    found = list(readings)
    registry = CollectorRegistry(auto_describe=False)
    registry.register(PrometheusCollector(lambda: samples(found), prefix))
    return encode(registry), content_type


def _family(metric: Metric, found: Iterable[MetricSample], prefix: str) -> Any:
    name = metric.under(prefix)
    made: Any
    if metric.kind is MetricKind.HISTOGRAM:
        made = HistogramMetricFamily(name, metric.help, labels=metric.labels)
        for each in found:
            if isinstance(each.value, Histogram):
                made.add_metric(_values(metric, each), _buckets(each.value), sum_value=each.value.total_ns / NS)
        return made
    kind: Any = CounterMetricFamily if metric.kind is MetricKind.COUNTER else GaugeMetricFamily
    made = kind(name, metric.help, labels=metric.labels)
    for each in found:
        made.add_metric(_values(metric, each), each.value)
    return made


def _values(metric: Metric, sample: MetricSample) -> list[str]:
    return [sample.labels[label] for label in metric.labels]


def _buckets(value: Histogram) -> list[tuple[str, int]]:
    return list(zip(_BOUNDS, accumulate(value.counts), strict=True))
