"""The audit ledger as evidence: recently lost leases, and the known cause of each loss.

A burst of `lock not owned` has three usual causes, with different remedies: paused processes, a network or store slower
than the lease allows, and handlers that outlived a lease without renewal. The autopsy of each loss distinguishes them;
`cause_of` defines how. A cause that the autopsy does not show is not claimed.

Promises: reading ends at its deadline, even if few records match. It starts with the newest files and reports if it is
incomplete. A damaged line costs only itself. Clock: the wall clocks of the writing processes; the monotonic one for the
deadline.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from holdfast.core.history.events import EventKind, Record
from holdfast.core.history.invariants import check
from holdfast.core.lease.loss_diagnosis import NOISE_NS, cause
from holdfast.core.ports import Clock
from holdfast.observe.ledger.reader import Findings, read
from holdfast.observe.ledger.writer import SUFFIX
from holdfast.ops.runbooks.evidence.locks import span
from holdfast.ops.runbooks.model import NotGiven
from holdfast.types import NS, LossReason

RECORDS_MAX: Final = 500_000
SKEW_NS: Final = NS
"""How far the clocks of hosts may differ before a correct history looks broken."""

_LOOK_EVERY: Final = 512
_KINDS: Final = frozenset(
    {
        *(
            EventKind.GRANTED,
            EventKind.RELEASED,
            EventKind.RELEASE_REFUSED,
            EventKind.LOST,
            EventKind.FORCED,
            EventKind.FELL_BACK,
        ),
        *(EventKind.PROMOTED, EventKind.DENIED, EventKind.DUPLICATE, EventKind.WRITE),
    }
)


class Cause(StrEnum):
    """Why a lease was lost, as an operator needs to know it."""

    PAUSE = "pause"  # the process was paused: garbage collection, a stopped container, a suspended host
    NETWORK = "network"  # the store did not confirm a renewal in the time that the TTL allows
    OUTLIVED = "outlived"  # the work outlived the lease, which was not renewed
    TAKEN = "taken"  # the store reports another owner: broken by force, lost, or failed over
    CLOCK = "clock"  # the wall clock was set
    OTHER = "other"  # the process closed its locks, forked, or recorded nothing


CAUSES: Final[Mapping[Cause, str]] = {
    Cause.PAUSE: "paused processes (garbage collection, a stopped container, a suspended or starved host)",
    Cause.NETWORK: "a network or store slower than the TTL allows: renewals were sent and not confirmed in time",
    Cause.OUTLIVED: "handlers that outlived their lease, which was not renewed",
    Cause.TAKEN: "a store that reports another owner: the lock was broken by force, lost in a restart or an eviction, "
    "or granted again after a failover",
    Cause.CLOCK: "wall clocks that were set forward",
    Cause.OTHER: "ended processes, and losses without a record",
}


def cause_of(reason: str | None, known: Mapping[str, Any]) -> Cause:
    """The cause of a loss. Pure."""

    def amount(name: str) -> int:
        value = known.get(name, 0)
        return value if isinstance(value, int) else 0

    if reason in {LossReason.MAX_HOLD, LossReason.STALLED}:
        return Cause.OUTLIVED
    if reason in {LossReason.REVOKED, LossReason.FORKED} or not amount("unrenewed_ns"):
        return Cause.TAKEN if reason == LossReason.STOLEN else Cause.OTHER
    unrenewed, late = amount("unrenewed_ns"), amount("unrenewed_ns") - amount("allowed_ns")
    if "renew_every_ns" not in known:
        return Cause.OUTLIVED
    if amount("suspended_ns") > NOISE_NS:
        return Cause.PAUSE
    if amount("stepped_ns") > max(NOISE_NS, unrenewed // 2):
        return Cause.CLOCK
    if late > NOISE_NS or amount("keeper_lag_ns") > NOISE_NS:
        return Cause.PAUSE  # the process did not run when the time was over, and the renewer waits for no store
    if reason == LossReason.STOLEN:
        return Cause.TAKEN
    sent = known.get("renewals")
    tried = [each for each in sent if isinstance(each, Mapping)] if isinstance(sent, list) else []
    since = [each for each in tried if isinstance(ago := each.get("ago_ns"), int) and ago < unrenewed]
    return Cause.NETWORK if since else Cause.PAUSE


@dataclass(frozen=True, slots=True)
class Loss:
    """One lease that was lost, or whose release the store refused."""

    key: str
    family: str
    owner: str
    fence: int | None
    at_ns: int
    cause: Cause
    why: str

    def line(self) -> str:
        """One line of text."""
        return f"{self.key} of {self.owner} (fence {self.fence}): {self.cause}: {self.why}"


@dataclass(frozen=True, slots=True)
class LedgerFact:
    """Recent events of a ledger."""

    window_s: float
    records: int
    counts: Mapping[str, int]  # by kind
    losses: tuple[Loss, ...]  # the newest first
    violations: tuple[str, ...] = ()  # violated rules of the requested keys
    refused_writes: int = 0
    dropped: int = 0
    damaged: int = 0
    complete: bool = True

    @property
    def by_cause(self) -> Counter[Cause]:
        """The number of losses by cause."""
        return Counter(each.cause for each in self.losses)

    def count(self, kind: EventKind) -> int:
        """The number of records of a kind."""
        return self.counts.get(str(kind), 0)

    def lines(self) -> Sequence[str]:
        """The fact as text."""
        counted = (
            f"the last {span(self.window_s)}: {self.count(EventKind.GRANTED)} grants, "
            f"{len(self.losses)} lost or refused, {self.refused_writes} writes fenced out, "
            f"{self.count(EventKind.DUPLICATE)} second ends refused"
        )
        found = [counted]
        causes = ", ".join(f"{cause} {times}" for cause, times in self.by_cause.most_common())
        found += [f"causes: {causes}"] if causes else []
        found += [each.line() for each in self.losses[:5]]
        found += [f"BROKEN: {each}" for each in self.violations]
        if not self.complete:
            found.append("the time limit was too short to read all of it")
        if self.dropped or self.damaged:
            found.append(f"{self.dropped} records were never written, {self.damaged} lines cannot be read")
        return found

    def as_dict(self) -> dict[str, Any]:
        """The fact as JSON types."""
        return {**asdict(self), "by_cause": {str(cause): times for cause, times in self.by_cause.items()}}


def ledger_fact(
    path: str, clock: Clock, window_s: float, keys: frozenset[str] | None = None, *, limit_ns: int = 4 * NS
) -> LedgerFact:
    """Read recent records, of some keys or of all. With keys, the rules of histories are checked for them too."""
    if keys is not None:
        return ledger_facts(path, clock, window_s, {"": keys}, limit_ns=limit_ns)[""]
    look = recent(path, clock, lambda record: record.kind in _KINDS, window_s=window_s, limit_ns=limit_ns)
    return _fact(look.records, look, window_s, checked=False)


def ledger_facts(
    path: str, clock: Clock, window_s: float, groups: Mapping[str, frozenset[str]], *, limit_ns: int = 4 * NS
) -> dict[str, LedgerFact]:
    """The same for several groups of keys in one reading. The whole history of each key is read."""
    keys = frozenset[str]().union(*groups.values())
    look = recent(path, clock, lambda record: record.kind in _KINDS and record.key in keys, limit_ns=limit_ns)
    return {
        name: _fact([each for each in look.records if each.key in theirs], look, window_s, checked=True)
        for name, theirs in groups.items()
    }


@dataclass(frozen=True, slots=True)
class Recent:
    """Matching records of a ledger in the order of time."""

    records: Sequence[Record]
    findings: Findings
    complete: bool  # False: the time limit or the maximum number was reached


class _Enough(Exception):
    """The time limit of a reading is over."""


def recent(
    path: str, clock: Clock, wanted: Callable[[Record], bool], *, window_s: float | None = None, limit_ns: int = 4 * NS
) -> Recent:
    """Read the recent part of a ledger, or without a window all of it, until the time limit has ended."""
    since_ns = None if window_s is None else clock.now().wall - round(window_s * NS)
    deadline = clock.now().mono + limit_ns
    findings, records, seen, complete = Findings(), list[Record](), 0, True

    def fitting(record: Record) -> bool:
        nonlocal seen
        seen += 1
        if not seen % _LOOK_EVERY and clock.now().mono > deadline:
            raise _Enough
        return (since_ns is None or record.at_ns >= since_ns) and wanted(record)

    try:
        for record in _newest(path, since_ns, fitting, findings):
            records.append(record)
            if len(records) >= RECORDS_MAX:
                raise _Enough
    except _Enough:
        complete = False
    return Recent(sorted(records, key=lambda each: each.at_ns), findings, complete)


def _fact(records: Sequence[Record], look: Recent, window_s: float, *, checked: bool) -> LedgerFact:
    return LedgerFact(
        window_s=window_s,
        records=len(records),
        counts=dict(Counter(str(each.kind) for each in records)),
        losses=tuple(sorted(_losses(records), key=lambda each: -each.at_ns)),
        violations=tuple(str(each).partition("\n")[0] for each in check(records, SKEW_NS)) if checked else (),
        refused_writes=sum(each.kind is EventKind.WRITE and not each.ok for each in records),
        dropped=look.findings.dropped,
        damaged=look.findings.damaged,
        complete=look.complete,
    )


def _newest(path: str, since_ns: int | None, wanted: Callable[[Record], bool], findings: Findings) -> Iterator[Record]:
    """Records, file by file, of the files written since then; the newest first, because the time limit may end it."""
    place = Path(path)
    if not place.exists():
        raise NotGiven(f"there is no ledger at {place.name}")
    files = [place] if place.is_file() else list(place.glob(f"*{SUFFIX}"))
    if not files:
        raise NotGiven(f"{place.name} has no files of a ledger")
    stamped = sorted(((file.stat().st_mtime_ns, file) for file in files if file.exists()), reverse=True)
    for written_ns, file in stamped:
        if since_ns is None or written_ns >= since_ns:
            yield from read(file, wanted, findings)


def _losses(records: Sequence[Record]) -> Iterator[Loss]:
    lost = {(each.key, each.fence) for each in records if each.kind is EventKind.LOST}
    for each in records:
        if each.kind is EventKind.LOST:
            known = each.facts or {}
            yield Loss(
                *(each.key, each.family, each.owner, each.fence, each.at_ns),
                cause_of(each.reason, known),
                cause(each.reason, known),
            )
        elif each.kind is EventKind.RELEASE_REFUSED and (each.key, each.fence) not in lost:
            why = "the store answered at the release: lock not owned"
            yield Loss(each.key, each.family, each.owner, each.fence, each.at_ns, Cause.TAKEN, why)
