"""Diagnoses a live store and this host: what `holdfast doctor` prints.

Promises: takes one lease of its own for a fraction of a second under a new name, and otherwise only reads; never waits
longer than a few seconds for each measurement. Each finding names the reason and the fix. Does not promise that what
was found stays so: a server can be reconfigured while it runs.

What a server promises is for its store to say (`ports.Diagnosable`); what was measured is judged by
`core.diagnosis`. Clock: monotonic; the wall clock of this host is compared with that of the store.
"""

from __future__ import annotations

import os
import secrets
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from holdfast.core.diagnosis import HostFacts, Severity, StoreFinding, grade, host_findings, worst
from holdfast.core.ports import Diagnosable, HasServerTime, Store
from holdfast.errors import BackendError
from holdfast.runtime.run_sync import run_now
from holdfast.types import MS, NS, AcquireRequest, Grant, Guarantee

PINGS: Final = 50
PINGS_NS: Final = 3 * NS
TRIED_NS: Final = 300 * MS
EXPIRY_NS: Final = 10 * NS
NAPS: Final = 40
NAP_NS: Final = 5 * MS
SYNCS: Final = 20


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The findings about one store, and what it promises while they stand."""

    engine: str
    best: Guarantee
    findings: tuple[StoreFinding, ...]

    @property
    def grade(self) -> Guarantee:
        """The guarantee that is left."""
        return grade(self.best, self.findings)

    @property
    def worst(self) -> Severity:
        """The severity of the worst finding."""
        return worst(self.findings)

    @property
    def limits(self) -> tuple[str, ...]:
        """The checks that lower the guarantee."""
        return tuple(
            each.check for each in self.findings if each.limit is not None and not each.limit.covers(self.best)
        )

    def as_dict(self) -> dict[str, Any]:
        """The diagnosis for JSON."""
        return {
            "engine": self.engine,
            "grade": self.grade,
            "best": self.best,
            "limited_by": list(self.limits),
            "worst": self.worst,
            "findings": [each.as_dict() for each in self.findings],
        }


def examine(
    store: Store, *, ttl_ns: int, request_timeout_ns: int, directory: Path | None = None, lease: bool = True
) -> Diagnosis:
    """Diagnose a blocking store.

    `directory`: where it, or a plane, commits to a disk of this host. `lease`: whether to take a lease.
    """
    capabilities = store.capabilities
    # A store that is away is an error, and no finding; one that answers and grants nothing has told why.
    findings = run_now(store.diagnose(request_timeout_ns)) if isinstance(store, Diagnosable) else []
    try:
        run_now(store.ping(request_timeout_ns))
    except BackendError:
        if worst(findings) is not Severity.CRITICAL:
            raise
        return Diagnosis(capabilities.engine, capabilities.guarantee, tuple(findings))
    facts = _measure(store, request_timeout_ns, directory, lease=lease)
    findings = [*(each.for_ttl(ttl_ns) for each in findings), *host_findings(facts, ttl_ns, request_timeout_ns)]
    return Diagnosis(capabilities.engine, capabilities.guarantee, tuple(findings))


def _measure(store: Store, timeout_ns: int, directory: Path | None, *, lease: bool) -> HostFacts:
    trips = round_trips(store, timeout_ns)
    offset, error = clock_offset(store, timeout_ns)
    return HostFacts(
        round_trips_ns=trips,
        clock_offset_ns=offset,
        clock_error_ns=error,
        expired_after_ns=expired_after(store, timeout_ns) if lease else None,
        ttl_tried_ns=TRIED_NS,
        starved_ns=starved(),
        fsync_ns=() if directory is None else fsync_times(directory),
    )


def round_trips(store: Store, timeout_ns: int) -> list[int]:
    """How long some pings took."""
    took: list[int] = []
    limit = time.monotonic_ns() + PINGS_NS
    while len(took) < PINGS and (not took or time.monotonic_ns() < limit):
        began = time.monotonic_ns()
        run_now(store.ping(timeout_ns))
        took.append(time.monotonic_ns() - began)
    return took


def clock_offset(store: Store, timeout_ns: int) -> tuple[int | None, int]:
    """By how much the store's clock is ahead of this host's, and how wrong that may be."""
    if not isinstance(store, HasServerTime):
        return None, 0
    best: tuple[int, int] | None = None
    for _ in range(5):
        before = time.time_ns()
        there = run_now(store.time_ns(timeout_ns))
        after = time.time_ns()
        error = max(0, after - before) // 2
        if best is None or error < best[1]:
            best = (there - (before + after) // 2, error)
    return best or (None, 0)


def expired_after(store: Store, timeout_ns: int) -> int | None:
    """After how long a short lease was gone. None: not within the time for it, or the store could not say."""
    key = f"holdfast-doctor:{secrets.token_hex(8)}"
    ask = AcquireRequest(key, secrets.token_hex(16), "holdfast-doctor", "default", TRIED_NS)
    began = time.monotonic_ns()
    try:
        if not isinstance(run_now(store.acquire(ask, timeout_ns)), Grant):
            return None
        while (holding := run_now(store.inspect(key, timeout_ns))) is not None:
            if time.monotonic_ns() - began > EXPIRY_NS:
                run_now(store.release(key, ask.token, None, 0, timeout_ns))
                return time.monotonic_ns() - began
            left = holding.remaining_ns
            time.sleep((2 * MS if left is None else min(max(left // 2, MS), 50 * MS)) / NS)
    except BackendError:
        return None
    # From before the request, as the lease of a holder: what is asked is whether it was gone too soon.
    return time.monotonic_ns() - began


def starved() -> int:
    """By how much a thread of this process wakes up too late, at most."""
    late = 0
    for _ in range(NAPS):
        due = time.monotonic_ns() + NAP_NS
        time.sleep(NAP_NS / NS)
        late = max(late, time.monotonic_ns() - due)
    return late


def fsync_times(directory: Path) -> list[int]:
    """How long the disk of a directory takes to commit a small write. Nothing stays there."""
    took: list[int] = []
    try:
        with tempfile.TemporaryFile(dir=directory) as file:
            for _ in range(SYNCS):
                began = time.monotonic_ns()
                file.write(b"holdfast" * 64)
                file.flush()
                os.fsync(file.fileno())
                took.append(time.monotonic_ns() - began)
    except OSError:
        return []
    return took
