"""A simulated fleet for the tests of alert rules: healthy processes, unless a scenario changes them.

Every process runs all components of the plane and works: locks are granted and released, leases are renewed in time,
the first process leads every loop. A process may be started several times; its counters then restart from zero, as in
reality.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from holdfast.core.histogram import LADDER_NS
from holdfast.observe.metrics.table import TABLE
from holdfast.ops.alerts.plan import AlertPlan
from holdfast.ops.alerts.scenarios.series import Curve, beginning, first_of, flat, notation, rising, series_text
from holdfast.ops.alerts.thresholds import bound_above
from holdfast.plane.locks.registry import FAMILIES, Scope
from holdfast.types import NS

FOREVER = float("inf")
BUSY = 10.0  # grants per second of each kind of lock
JOB = "holdfast"

_LABELS = {each.bare: each.labels for each in TABLE}


@dataclass
class Fleet:
    """Processes `a`, `b`, … and their counters. Curves count from the start of a process, unless noted otherwise."""

    plan: AlertPlan
    lives: Mapping[str, Sequence[tuple[float, float]]] = field(
        default_factory=lambda: {"a": [(0.0, FOREVER)], "b": [(0.0, FOREVER)]}
    )
    _courses: dict[tuple[str, str, tuple[tuple[str, str], ...]], Curve] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for process, lives in self.lives.items():
            self._well(process)
            self.raw(process, "up", first_of(*(beginning(flat(1.0), *life) for life in lives), flat(0.0)))
        self.leads(next(iter(self.lives)), (0.0, FOREVER))

    def put(self, process: str, metric: str, curve: Curve, **labels: str) -> Self:
        """Set one metric of a process, counted from each of its starts."""
        lived = (beginning(curve, *life) for life in self.lives[process])
        return self.raw(process, self._named(metric, labels), first_of(*lived), **labels)

    def over(self, process: str, metric: str, curve: Curve, **labels: str) -> Self:
        """Set one metric of a process over the whole time, while the process lives."""
        lived = (_masked(curve, *life) for life in self.lives[process])
        return self.raw(process, self._named(metric, labels), first_of(*lived), **labels)

    def raw(self, process: str, name: str, curve: Curve, **labels: str) -> Self:
        """Add any series, unchanged."""
        self._courses[process, name, tuple(sorted(labels.items()))] = curve
        return self

    def everywhere(self, metric: str, curve: Curve, **labels: str) -> Self:
        """Set the same in every process."""
        for process in self.lives:
            self.put(process, metric, curve, **labels)
        return self

    def leads(self, process: str, *periods: tuple[float, float], loops: Sequence[str] = ()) -> Self:
        """Lead and tick in these periods of the whole time, the given loops or all."""
        for loop in loops or [each.name for each in self.plan.loops]:
            self.over(process, "loop_leader", _within(periods), loop=loop)
            self.over(process, "loop_last_tick_timestamp_seconds", _ticks(periods), loop=loop)
        return self

    def measured(self, process: str, metric: str, rates: Mapping[float, Curve], **labels: str) -> Self:
        """Add a histogram: observations per second up to each bucket bound."""
        bounds = [bound / NS for bound in LADDER_NS]
        for bound in (*bounds, FOREVER):
            le = "+Inf" if bound == FOREVER else f"{bound:g}"
            below = [curve for most, curve in rates.items() if most <= bound]
            self.put(process, f"{metric}_bucket", _sum(below), **labels, le=le)
        self.put(process, f"{metric}_count", _sum(list(rates.values())), **labels)
        return self.put(
            process, f"{metric}_sum", _sum([_times(most, curve) for most, curve in rates.items()]), **labels
        )

    def takes_over(self, process: str, part: str, within: Curve, late: Curve | None = None) -> Self:
        """Count takeovers of a crashed component's jobs: within the promised time, and late ones."""
        bound_s = next(each.bound_s for each in self.plan.takeovers if each.part == part)
        bound_ns = bound_above(bound_s) or LADDER_NS[-1]
        rates = {bound_ns / NS: within, FOREVER: late or flat(0.0)}
        return self.measured(process, "job_takeover_seconds", rates, part=part)

    def input_series(self, lasts_s: float) -> Iterator[dict[str, Any]]:
        """The series in the format of promtool."""
        for (process, name, labels), curve in self._courses.items():
            known = {"job": JOB, "instance": f"{process}:9420", **self.plan.match, **dict(labels)}
            values = notation(curve, lasts_s, self.plan.scrape_s)
            yield {"series": series_text(name, known), "values": values}

    def _named(self, metric: str, labels: Mapping[str, str]) -> str:
        return f"{self.plan.settings.names.metrics}_{_declared(metric, labels)}"

    def _well(self, process: str) -> None:
        self.put(process, "draining", flat(0.0))
        self.put(process, "store_breaker_open", flat(0.0))
        self.put(process, "keeper_heartbeat_age_seconds", flat(0.0))
        self.put(process, "event_loop_lag_seconds", flat(0.002))
        self.put(process, "policy_revision", flat(7.0))
        self.put(process, "lock_busy_fano", flat(1.0), bucket="50ms")
        for dependency in ("database", "bus", "leases"):
            self.put(process, "dependency_up", flat(1.0), dependency=dependency)
            self.put(process, "dependency_seconds", flat(0.002), dependency=dependency)
        for part in self.plan.parts:
            self.put(process, "part_running", flat(1.0), part=part)
        for loop in self.plan.loops:
            self.put(process, "loop_leader", flat(0.0), loop=loop.name)
        for name in ("plane_duplicate_ends", "policy_escalations", "audit_dropped"):
            self.put(process, f"{name}_total", flat(0.0))
        self.put(process, "job_lock_abandoned_total", flat(0.0), part="scheduler")
        self.put(process, "run_lock_abandoned_total", flat(0.0), part="engine")
        for kind in ("step", "publish", "end"):
            self.put(process, "duplicates_total", flat(0.0), kind=kind)
        for name, family in FAMILIES.items():
            for counted in ("not_owned", "store_errors", "unconfirmed", "abandoned", "busy"):
                self.put(process, f"lock_{counted}_total", flat(0.0), family=name)
            self.put(process, "lock_lost_total", flat(0.0), family=name, reason="expired")
            self.put(process, "lock_fallback_total", flat(0.0), family=name, risk="low")
            self.put(process, "locks_degraded", flat(0.0), family=name)
            if family.scope is Scope.ITEM:
                self.put(process, "lock_granted_total", rising(BUSY), family=name)
                self.put(process, "lock_released_total", rising(BUSY), family=name)
                self.put(process, "lock_hold_seconds_count", rising(BUSY), family=name, outcome="released")
        self.put(process, "guard_steps_total", rising(BUSY), outcome="accepted")
        self.put(process, "guard_steps_total", flat(0.0), outcome="refused")


def _declared(metric: str, labels: Mapping[str, str]) -> str:
    """The name of a metric without its prefix, if it is declared with these labels."""
    base = metric if metric in _LABELS else metric.removesuffix("_bucket").removesuffix("_count").removesuffix("_sum")
    declared = _LABELS[base] if base == metric else (*_LABELS[base], "le")
    if unknown := set(labels) - set(declared):
        raise ValueError(f"{metric} has no label {sorted(unknown)}")
    return metric


def _masked(curve: Curve, begin: float, end: float) -> Curve:
    return lambda at: curve(at) if begin <= at < end else None


def _within(periods: Sequence[tuple[float, float]]) -> Curve:
    return lambda at: float(any(begin <= at < end for begin, end in periods))


def _ticks(periods: Sequence[tuple[float, float]]) -> Curve:
    """When a leader last ticked: now while it leads, and the end of its lead afterwards. None before."""
    return lambda at: max((min(at, end) for begin, end in periods if begin <= at), default=None)


def _sum(curves: Sequence[Curve]) -> Curve:
    return lambda at: sum(each(at) or 0.0 for each in curves)


def _times(factor: float, curve: Curve) -> Curve:
    return lambda at: factor * (curve(at) or 0.0)
