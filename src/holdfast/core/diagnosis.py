"""Findings about a store and its host, and the guarantee that is left when they stand. Pure.

A store promises at most what its engine can (`Capabilities.guarantee`). Each finding may lower that: a Redis that
evicts keys grants a lock again while it is held. `holdfast doctor` prints the findings; a lock that
demands a guarantee is refused while a finding stands that lowers it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from holdfast.core.lease import timing
from holdfast.types import MS, NS, Guarantee


class Severity(StrEnum):
    """How bad a finding is, mildest first."""

    OK = "ok"
    NOTE = "note"  # good to know
    WARNING = "warning"  # a failure that is to be expected breaks a promise
    CRITICAL = "critical"  # a promise is broken without any failure


@dataclass(frozen=True, slots=True)
class StoreFinding:
    """One thing that was found, the reason why it matters, and how to fix it."""

    check: str
    severity: Severity
    found: str
    reason: str = ""
    fix: str = ""
    limit: Guarantee | None = None  # the store promises no more than this while it stands
    ttl_above_ns: int = 0  # it matters only to leases with a longer TTL

    def for_ttl(self, ttl_ns: int) -> StoreFinding:
        """The finding as it matters to leases of a TTL."""
        if ttl_ns > self.ttl_above_ns:
            return self
        return StoreFinding(self.check, Severity.OK, self.found, ttl_above_ns=self.ttl_above_ns)

    def as_dict(self) -> dict[str, Any]:
        """The finding for JSON."""
        return {name: value for name, value in asdict(self).items() if name != "ttl_above_ns"}


def grade(best: Guarantee, findings: Iterable[StoreFinding]) -> Guarantee:
    """The guarantee that is left of the best one."""
    order = list(Guarantee)
    return min((best, *(each.limit for each in findings if each.limit is not None)), key=order.index)


def worst(findings: Sequence[StoreFinding]) -> Severity:
    """The severity of the worst finding."""
    order = list(Severity)
    return max((each.severity for each in findings), key=order.index, default=Severity.OK)


def limiting(findings: Iterable[StoreFinding], demanded: Guarantee) -> StoreFinding | None:
    """The first finding that rules out a guarantee."""
    return next((each for each in findings if each.limit is not None and not each.limit.covers(demanded)), None)


@dataclass(slots=True)
class KnownFindings:
    """The findings about the store of one `Locks`, once they were needed. None: not known, or no longer."""

    findings: Sequence[StoreFinding] | None = None


@dataclass(frozen=True, slots=True)
class HostFacts:
    """What was measured between this host and any store. None: not measured."""

    round_trips_ns: Sequence[int]
    clock_offset_ns: int | None = None  # the store's clock is ahead by so much
    clock_error_ns: int = 0  # the half of the round trip in which it was read
    expired_after_ns: int | None = None  # a lease of `ttl_tried_ns` was gone after so long
    ttl_tried_ns: int = 0
    starved_ns: int = 0  # a thread of this process woke up too late by so much
    fsync_ns: Sequence[int] = ()


def percentile(values: Sequence[int], per_cent: int) -> int:
    """The nearest rank of some numbers; 0 without any."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, len(ordered) * per_cent // 100)] if ordered else 0


def host_findings(facts: HostFacts, ttl_ns: int, request_timeout_ns: int) -> list[StoreFinding]:
    """What the measurements mean for leases of a TTL."""
    found = [_round_trip(facts, ttl_ns), _request_timeout(ttl_ns, request_timeout_ns), _threads(facts, ttl_ns)]
    if facts.clock_offset_ns is not None:
        found.append(_clock(facts))
    if facts.expired_after_ns is not None:
        found.append(_resolution(facts, ttl_ns))
    if facts.fsync_ns:
        found.append(_fsync(facts, ttl_ns))
    return found


def _round_trip(facts: HostFacts, ttl_ns: int) -> StoreFinding:
    p50, p99 = (percentile(facts.round_trips_ns, each) for each in (50, 99))
    found = f"p50 {_ms(p50)}, p99 {_ms(p99)}"
    margin = timing.guard_ns(ttl_ns)
    if 2 * p99 <= margin:
        return StoreFinding("round_trip", Severity.OK, found)
    reason = f"twice the p99 is more than the safety margin ({_ms(margin)}) of a TTL of {_s(ttl_ns)}: leases end early"
    return StoreFinding("round_trip", Severity.WARNING, found, reason, "move the store nearer, or use a longer TTL")


def _request_timeout(ttl_ns: int, request_timeout_ns: int) -> StoreFinding:
    found = f"{_s(request_timeout_ns)} for a TTL of {_s(ttl_ns)}"
    if request_timeout_ns <= ttl_ns // 3:
        return StoreFinding("request_timeout", Severity.OK, found)
    reason = "one request that hangs takes longer than the time between two renewals"
    fix = f"connect(request_timeout={ttl_ns / 3 / NS:.3g}), or use a TTL of at least {_s(3 * request_timeout_ns)}"
    return StoreFinding("request_timeout", Severity.WARNING, found, reason, fix)


def _threads(facts: HostFacts, ttl_ns: int) -> StoreFinding:
    found = f"threads wake up {_ms(facts.starved_ns)} late at most"
    if facts.starved_ns <= timing.guard_ns(ttl_ns):
        return StoreFinding("threads", Severity.OK, found)
    reason = "the renewer and the alarm of a lease can be later than the safety margin"
    return StoreFinding("threads", Severity.WARNING, found, reason, "give the process more CPU, or use a longer TTL")


_CLOCK_MOST_NS = NS


def _clock(facts: HostFacts) -> StoreFinding:
    offset, error = facts.clock_offset_ns or 0, facts.clock_error_ns
    side = "ahead of" if offset >= 0 else "behind"
    found = f"the store's clock is {_ms(abs(offset))} {side} this host's (± {_ms(error)})"
    if abs(offset) - error <= _CLOCK_MOST_NS:
        return StoreFinding("clock", Severity.OK, found)
    reason = "leases do not depend on it, but `once` windows, fences after a failover and times in logs do"
    return StoreFinding("clock", Severity.WARNING, found, reason, "run NTP (chrony, systemd-timesyncd) on both hosts")


def _resolution(facts: HostFacts, ttl_ns: int) -> StoreFinding:
    late = (facts.expired_after_ns or 0) - facts.ttl_tried_ns
    found = f"a lease of {_ms(facts.ttl_tried_ns)} was gone after {_ms(facts.expired_after_ns or 0)}"
    if late < -timing.drift_ns(facts.ttl_tried_ns):
        reason = "the store gives a key away before its TTL is over, while its holder may still work"
        fix = "check the clock of the store; do not use it for leases until then"
        return StoreFinding("ttl_resolution", Severity.CRITICAL, found, reason, fix, Guarantee.EFFICIENCY_ONLY)
    if late > max(ttl_ns // 4, 100 * MS):
        reason = "after a crash, others wait that much longer than the TTL"
        return StoreFinding("ttl_resolution", Severity.WARNING, found, reason, "count with it in the TTL")
    return StoreFinding("ttl_resolution", Severity.OK, found)


_FSYNC_MOST_NS = 100 * MS


def _fsync(facts: HostFacts, ttl_ns: int) -> StoreFinding:
    p99 = percentile(facts.fsync_ns, 99)
    found = f"p50 {_ms(percentile(facts.fsync_ns, 50))}, p99 {_ms(p99)}"
    if p99 <= min(_FSYNC_MOST_NS, timing.guard_ns(ttl_ns)):
        return StoreFinding("fsync", Severity.OK, found)
    reason = "every commit of the store or the plane can wait that long"
    return StoreFinding("fsync", Severity.WARNING, found, reason, "use a faster disk for this directory")


def _ms(ns: int) -> str:
    return f"{ns / MS:.3g} ms" if ns < NS else _s(ns)


def _s(ns: int) -> str:
    return f"{ns / NS:.3g} s"
