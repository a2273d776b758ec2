"""A made-up fleet for the tests of alert rules: processes that are well, until a scenario says otherwise.

Every process runs all parts that the plane has, and works: locks are granted and given back, leases are renewed in
time, the first process leads every loop. A process may be started several times; it then counts from zero, as a real
one does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from holdfast.core.histogram import LADDER_NS
from holdfast.observe.metrics.table import TABLE
from holdfast.ops.alerts.plan import Plan
from holdfast.ops.alerts.scenarios.series import Course, beginning, first_of, flat, notation, rising, series_text
from holdfast.ops.alerts.thresholds import bound_above
from holdfast.plane.locks.registry import FAMILIES, Scope
from holdfast.types import NS

FOREVER = float("inf")
BUSY = 10.0  # grants a second of each kind of lock
JOB = "holdfast"

_LABELS = {each.bare: each.labels for each in TABLE}


@dataclass
class Fleet:
    """Processes `a`, `b`, … and what they count. Courses count from the start of a process, unless said otherwise."""

    plan: Plan
    lives: Mapping[str, Sequence[tuple[float, float]]] = field(
        default_factory=lambda: {"a": [(0.0, FOREVER)], "b": [(0.0, FOREVER)]}
    )
    _courses: dict[tuple[str, str, tuple[tuple[str, str], ...]], Course] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for process, lives in self.lives.items():
            self._well(process)
            self.raw(process, "up", first_of(*(beginning(flat(1.0), *life) for life in lives), flat(0.0)))
        self.leads(next(iter(self.lives)), (0.0, FOREVER))

    def put(self, process: str, metric: str, course: Course, **labels: str) -> Self:
        """What a process says of one metric, counted from each of its starts."""
        lived = (beginning(course, *life) for life in self.lives[process])
        return self.raw(process, self._named(metric, labels), first_of(*lived), **labels)

    def over(self, process: str, metric: str, course: Course, **labels: str) -> Self:
        """What it says over the whole time, while it lives."""
        lived = (_masked(course, *life) for life in self.lives[process])
        return self.raw(process, self._named(metric, labels), first_of(*lived), **labels)

    def raw(self, process: str, name: str, course: Course, **labels: str) -> Self:
        """Any series, as it is."""
        self._courses[process, name, tuple(sorted(labels.items()))] = course
        return self

    def everywhere(self, metric: str, course: Course, **labels: str) -> Self:
        """The same in every process."""
        for process in self.lives:
            self.put(process, metric, course, **labels)
        return self

    def leads(self, process: str, *periods: tuple[float, float], loops: Sequence[str] = ()) -> Self:
        """When it leads, and ticks: in these periods of the whole time, of the loops that are named, or of all."""
        for loop in loops or [each.name for each in self.plan.loops]:
            self.over(process, "loop_leader", _within(periods), loop=loop)
            self.over(process, "loop_last_tick_timestamp_seconds", _ticks(periods), loop=loop)
        return self

    def measured(self, process: str, metric: str, rates: Mapping[float, Course], **labels: str) -> Self:
        """A histogram: how many a second were at most so many seconds long (a bound of the ladder), by that bound."""
        bounds = [bound / NS for bound in LADDER_NS]
        for bound in (*bounds, FOREVER):
            le = "+Inf" if bound == FOREVER else f"{bound:g}"
            below = [course for most, course in rates.items() if most <= bound]
            self.put(process, f"{metric}_bucket", _sum(below), **labels, le=le)
        self.put(process, f"{metric}_count", _sum(list(rates.values())), **labels)
        return self.put(
            process, f"{metric}_sum", _sum([_times(most, course) for most, course in rates.items()]), **labels
        )

    def takes_over(self, process: str, part: str, within: Course, late: Course | None = None) -> Self:
        """How many jobs it has had of those of a part that died: within the time that is promised, and later."""
        bound_s = next(each.bound_s for each in self.plan.takeovers if each.part == part)
        bound_ns = bound_above(bound_s) or LADDER_NS[-1]
        rates = {bound_ns / NS: within, FOREVER: late or flat(0.0)}
        return self.measured(process, "job_takeover_seconds", rates, part=part)

    def input_series(self, lasts_s: float) -> Iterator[dict[str, Any]]:
        """As promtool wants it."""
        for (process, name, labels), course in self._courses.items():
            known = {"job": JOB, "instance": f"{process}:9420", **self.plan.match, **dict(labels)}
            values = notation(course, lasts_s, self.plan.scrape_s)
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
    """The name of a metric, without its prefix, if there is one with these labels."""
    base = metric if metric in _LABELS else metric.removesuffix("_bucket").removesuffix("_count").removesuffix("_sum")
    declared = _LABELS[base] if base == metric else (*_LABELS[base], "le")
    if unknown := set(labels) - set(declared):
        raise ValueError(f"{metric} has no label {sorted(unknown)}")
    return metric


def _masked(course: Course, begin: float, end: float) -> Course:
    return lambda at: course(at) if begin <= at < end else None


def _within(periods: Sequence[tuple[float, float]]) -> Course:
    return lambda at: float(any(begin <= at < end for begin, end in periods))


def _ticks(periods: Sequence[tuple[float, float]]) -> Course:
    """When a leader last ticked: just now while it leads, and when it stopped leading after that. None before."""
    return lambda at: max((min(at, end) for begin, end in periods if begin <= at), default=None)


def _sum(courses: Sequence[Course]) -> Course:
    return lambda at: sum(each(at) or 0.0 for each in courses)


def _times(factor: float, course: Course) -> Course:
    return lambda at: factor * (course(at) or 0.0)
