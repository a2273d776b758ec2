"""Metrics for OpenTelemetry: the same numbers as for Prometheus, through the meter that an application already has.

    from holdfast.observe import otel

    otel.instrument(locks)  # the global meter provider; or meter_provider=…

Names are those of the table (`observe.metrics.table`) in OpenTelemetry's manner: `holdfast_lock_wait_seconds` is
`holdfast.lock.wait` with the unit `s`, `holdfast_lock_granted_total` is `holdfast.lock.granted`. A Prometheus that is
fed by OpenTelemetry turns them back, so alert rules and dashboards are the same for both. Attributes are the labels of
the table: families, outcomes, reasons; never a key, an owner or a token.

Counts and gauges are read when the meter's reader asks. OpenTelemetry has no histogram that can be read, so each
duration is recorded when it is known: from `instrument` on, and at the cost of the SDK's own `record`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, Final
from weakref import WeakKeyDictionary

from holdfast import __version__
from holdfast.core.histogram import LADDER_NS, Histogram, Measure, MeasuredOutcome
from holdfast.core.name_prefixes import DEFAULT, check_metric_prefix
from holdfast.errors import BadInput, Misconfigured
from holdfast.observe.metrics.collect import SOURCES, HasManager, LocksCollection, families_of, manager_of
from holdfast.observe.metrics.samples import MetricSample
from holdfast.observe.metrics.table import TABLE, Metric, MetricKind
from holdfast.runtime.lease_manager import LeaseManager
from holdfast.runtime.thread_runtime import Mutex
from holdfast.types import NS

try:
    from opentelemetry import metrics as api
except ImportError as error:
    raise Misconfigured("OpenTelemetry needs opentelemetry-api: pip install 'holdfast[otel]'") from error

BOUNDS: Final = [bound / NS for bound in LADDER_NS]
_MEASURES: Final = {
    "wait_ns": Measure.WAIT,
    "hold_ns": Measure.HOLD,
    "left_ns": Measure.LEFT,
    "renewals": Measure.RENEW,
}
_COUNTED: Final = frozenset(each.bare.removesuffix("_total") for each in TABLE)


def name_of(metric: Metric, prefix: str = DEFAULT) -> str:
    """What a metric of the table is called here. A time whose name would be a count's keeps its `_seconds`."""
    plain = metric.bare.removesuffix("_total")
    timeless = plain.removesuffix("_seconds")
    return f"{prefix}.{(plain if timeless in _COUNTED else timeless).replace('_', '.', 1)}"


def unit_of(metric: Metric) -> str:
    """Its unit: seconds, or none."""
    return "s" if metric.name.removesuffix("_total").endswith("_seconds") else ""


class Instrumentation:
    """Some locks behind a meter."""

    def __init__(self, instruments: _Instruments, manager: LeaseManager) -> None:
        self._instruments = instruments
        self._manager = manager

    def end(self) -> None:
        """Read and record them no more. What they have counted stays: counts do not fall. Idempotent."""
        self._instruments.remove(self._manager)


def instrument(
    locks: HasManager,
    *,
    families: Sequence[str] = (),
    meter_provider: api.MeterProvider | None = None,
    prefix: str = DEFAULT,
) -> Instrumentation:
    """Send the locks' metrics to a meter provider, the global one unless given.

    `families`: those that shall be there, at zero, before their first use. Several `Locks` are added up; the same one
    twice is there once. They are read until `end()` of what this returns, also when they are closed. `prefix` begins
    the names in place of `holdfast`; locks are added up with those under the same prefix.
    """
    manager, names = manager_of(locks), families_of(families)
    provider: object = api.get_meter_provider() if meter_provider is None else meter_provider
    if not isinstance(provider, api.MeterProvider):
        fix = "pass a MeterProvider of OpenTelemetry, or nothing for the global one"
        raise BadInput("meter_provider", f"{type(provider).__name__} is not a meter provider", fix)
    check_metric_prefix("prefix", prefix)
    with _mutex:
        of_provider = _INSTRUMENTS.setdefault(provider, {})
        instruments = of_provider.get(prefix)
        if instruments is None:
            instruments = of_provider[prefix] = _Instruments(provider, prefix)
        instruments.add(manager, names)
    return Instrumentation(instruments, manager)


class _Instruments:
    """Those of one meter provider, made once: a second set of the same names would be a conflict there."""

    def __init__(self, provider: api.MeterProvider, prefix: str) -> None:
        self._mutex = Mutex()
        self._gathering = LocksCollection()
        self._recorders: dict[LeaseManager, _Recorder] = {}
        self._histograms: dict[Measure, api.Histogram] = {}
        self._read: dict[Metric, list[MetricSample]] = {}
        self._told: set[Metric] = set()
        meter = provider.get_meter("holdfast", __version__)
        for metric in TABLE:
            if metric.source not in SOURCES:
                continue
            how: dict[str, Any] = {"unit": unit_of(metric), "description": metric.help}
            if metric.kind is MetricKind.HISTOGRAM:
                made = meter.create_histogram(
                    name_of(metric, prefix), **how, explicit_bucket_boundaries_advisory=BOUNDS
                )
                self._histograms[_MEASURES[metric.field]] = made
                continue
            how["callbacks"] = [partial(self._observations, metric)]
            if metric.kind is MetricKind.COUNTER:
                meter.create_observable_counter(name_of(metric, prefix), **how)
            elif metric.worst:
                meter.create_observable_gauge(name_of(metric, prefix), **how)
            else:
                meter.create_observable_up_down_counter(name_of(metric, prefix), **how)

    def add(self, manager: LeaseManager, families: Iterable[str]) -> None:
        if self._gathering.add(manager, families):
            recorder = self._recorders[manager] = _Recorder(manager, self._histograms)
            manager.recorder.gauge(recorder)

    def remove(self, manager: LeaseManager) -> None:
        if self._gathering.remove(manager):
            manager.recorder.gauge_no_more(self._recorders.pop(manager))

    def _observations(self, metric: Metric, _options: api.CallbackOptions) -> list[api.Observation]:
        """A reader asks each instrument separately. All answers come from one snapshot, until one is asked again."""
        with self._mutex:
            if not self._read or metric in self._told:
                self._told.clear()
                self._read = {}
                for each in self._gathering.samples():
                    self._read.setdefault(each.metric, []).append(each)
            self._told.add(metric)
            found = self._read.get(metric, ())
        return [
            api.Observation(each.value, dict(each.labels)) for each in found if not isinstance(each.value, Histogram)
        ]


class _Recorder:
    """Receives the durations of one `Locks`, on the thread where they ended."""

    def __init__(self, manager: LeaseManager, histograms: dict[Measure, api.Histogram]) -> None:
        self._label = manager.recorder.label
        self._histograms = histograms

    def measured(self, measure: Measure, family: str, outcome: MeasuredOutcome, ns: int) -> None:
        attributes = {} if measure is Measure.LEFT else {"outcome": str(outcome)}
        if family:
            attributes["family"] = self._label(family)
        self._histograms[measure].record(ns / NS, attributes)


_INSTRUMENTS: Final[WeakKeyDictionary[api.MeterProvider, dict[str, _Instruments]]] = WeakKeyDictionary()
_mutex: Final = Mutex()
