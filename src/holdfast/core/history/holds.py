"""Who held a key, from when until when, and how it ended: the records of one key as a list of holds.

Promises: what is not recorded is not made up. A hold whose end is missing (its process was killed, or writes no ledger)
has no end here; it is known to have been over when the next holder was granted the key. Times are those of the records,
so they are as good as the wall clocks of the processes.

Reads records in the order of time, once, and keeps the holds only.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise

from holdfast.core.history.events import EventKind, Record


class HoldEnd(StrEnum):
    """How a hold ended, as far as is known."""

    RELEASED = "released"
    REFUSED = "release refused"  # the store answered at the release that the key was not theirs any more
    UNANSWERED = "release unanswered"  # whether the store took it back is not known; the holder was done
    LOST = "lost"
    FORCED = "forced"  # an operator broke it
    PROMOTED = "promoted"  # a degraded hold became a full one
    UNKNOWN = "unknown"  # no end is recorded


class HeldAt(StrEnum):
    """Whether a hold covers a moment."""

    YES = "yes"
    PERHAPS = "perhaps"  # its end is not recorded, and it had expired by then unless it was renewed
    NO = "no"


@dataclass(slots=True)
class HoldInterval:
    """One holder's time with the key. `fence` is None for a degraded one, of which the store knew nothing."""

    key: str
    family: str
    owner: str
    fence: int | None
    since_ns: int
    good_until_ns: int | None  # if it was never renewed
    exercise: bool = False
    end: HoldEnd = HoldEnd.UNKNOWN
    until_ns: int | None = None
    ended: Record | None = None  # the record of the end
    forced: Record | None = None  # the record of the operator who broke it
    unconfirmed: int = 0  # renewals without an answer
    refused_writes: int = 0  # by storage that had met a newer fence
    next: HoldInterval | None = None  # who had the key afterwards

    @property
    def loss(self) -> Record | None:
        """The record of its loss, if it was lost: also if that was because an operator broke it."""
        return self.ended if self.ended is not None and self.ended.kind is EventKind.LOST else None

    @property
    def free_for_ns(self) -> int | None:
        """How long the key was free afterwards. Negative: clocks differ, or the next grant came too early."""
        return None if self.next is None or self.until_ns is None else self.next.since_ns - self.until_ns

    @property
    def over_by_ns(self) -> int | None:
        """When it was certainly over: at its end, or when the next holder had the key."""
        if self.until_ns is not None:
            return self.until_ns
        return None if self.next is None else self.next.since_ns

    def at(self, moment_ns: int) -> HeldAt:
        """Whether the key was held by this one at a moment."""
        if moment_ns < self.since_ns:
            return HeldAt.NO
        over = self.over_by_ns
        if over is not None and moment_ns >= over:
            return HeldAt.NO
        if self.until_ns is not None or (self.good_until_ns is not None and moment_ns < self.good_until_ns):
            return HeldAt.YES
        return HeldAt.PERHAPS


_ENDS = {
    EventKind.RELEASED: HoldEnd.RELEASED,
    EventKind.RELEASE_REFUSED: HoldEnd.REFUSED,
    EventKind.RELEASE_FAILED: HoldEnd.UNANSWERED,
    EventKind.LET_GO: HoldEnd.RELEASED,
    EventKind.LOST: HoldEnd.LOST,
}


def holds(records: Iterable[Record]) -> list[HoldInterval]:
    """The holds of one key, in the order in which they began."""
    found: list[HoldInterval] = []
    fenced: dict[int, HoldInterval] = {}
    degraded: dict[str, HoldInterval] = {}  # by owner
    for record in records:
        if record.kind in {EventKind.GRANTED, EventKind.PROMOTED, EventKind.FELL_BACK, EventKind.EXERCISED}:
            _begin(record, found, fenced, degraded)
            continue
        hold = degraded.get(record.owner) if record.fence is None else fenced.get(record.fence)
        if record.kind is EventKind.LET_GO:
            degraded.pop(record.owner, None)
        if record.kind is EventKind.FORCED:
            _broken(record, found)
        elif hold is None:
            continue
        elif record.kind in _ENDS:
            _end(hold, record)
        elif record.kind is EventKind.UNCONFIRMED:
            hold.unconfirmed += 1
        elif record.kind is EventKind.WRITE and not record.ok:
            hold.refused_writes += 1
    _link(found)
    return found


def lost(records: Iterable[Record]) -> list[HoldInterval]:
    """The holds that were lost, of all keys, in the order in which they began; each knows who had the key next."""
    every = sorted(records, key=lambda record: record.at_ns)
    keys: dict[str, list[Record]] = {record.key: [] for record in every if record.kind is EventKind.LOST}
    for record in every:
        if record.key in keys:
            keys[record.key].append(record)
    found = [hold for of_key in keys.values() for hold in holds(of_key)]
    return sorted((hold for hold in found if hold.loss is not None), key=lambda hold: hold.since_ns)


def held_at(found: Sequence[HoldInterval], moment_ns: int) -> list[tuple[HeldAt, HoldInterval]]:
    """Who held the key at a moment: those who did, and those who perhaps did."""
    judged = [(hold.at(moment_ns), hold) for hold in found]
    return [(held, hold) for held, hold in judged if held is not HeldAt.NO]


def _begin(
    record: Record, found: list[HoldInterval], fenced: dict[int, HoldInterval], degraded: dict[str, HoldInterval]
) -> None:
    hold = HoldInterval(record.key, record.family, record.owner, record.fence, record.at_ns, record.until_ns)
    found.append(hold)
    before = degraded.pop(record.owner, None)
    if record.kind is EventKind.PROMOTED and before is not None:
        before.end, before.until_ns, before.ended = HoldEnd.PROMOTED, max(before.since_ns, record.at_ns), record
    if record.fence is None:
        hold.exercise = record.kind is EventKind.EXERCISED
        degraded[record.owner] = hold
    else:
        fenced[record.fence] = hold


def _end(hold: HoldInterval, record: Record) -> None:
    if hold.end is HoldEnd.FORCED:
        hold.ended = record  # the holder noticed
        return
    if hold.end is not HoldEnd.UNKNOWN:
        return
    hold.end, hold.ended = _ENDS[record.kind], record
    at_ns = record.at_ns
    if record.kind is EventKind.LOST and record.until_ns is not None:
        at_ns = min(at_ns, record.until_ns)  # a paused holder notices late; its time was over at the deadline
    hold.until_ns = max(hold.since_ns, at_ns)


def _broken(record: Record, found: list[HoldInterval]) -> None:
    """The fence of the record is the new one, so the broken hold is the newest below it that is not over."""
    for hold in reversed(found):
        if hold.fence is not None and (record.fence is None or hold.fence < record.fence):
            if hold.end is HoldEnd.UNKNOWN:
                hold.end, hold.until_ns, hold.forced = HoldEnd.FORCED, max(hold.since_ns, record.at_ns), record
            return


def _link(found: list[HoldInterval]) -> None:
    fenced = sorted((hold for hold in found if hold.fence is not None), key=lambda hold: hold.fence or 0)
    for hold, following in pairwise(fenced):
        hold.next = following
