"""What a guarded inbox does, color-free: read the fence off a message, register it, refuse the stale one."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from threading import RLock as Mutex  # a signal handler may enter it again
from typing import Literal, TypeAlias

from holdfast.core.failpoints import reach
from holdfast.core.lease.fencing import Accepted, Outcome, Rule, Stale
from holdfast.core.ports import Observer
from holdfast.errors import BadInput, FencedOut
from holdfast.guards.admission import Admission, GuardStatistics
from holdfast.guards.bearer import CarriedFence
from holdfast.guards.http.headers import FENCE_HEADER, KEY_HEADER
from holdfast.guards.messaging.headers import Headers, carried_in
from holdfast.guards.records import FenceRecord

OnStale: TypeAlias = Literal["raise", "drop"]


@dataclass(frozen=True, slots=True)
class InboxStatistics(GuardStatistics):
    """What one inbox has decided since it was made. `refused` counts the stale ones, dropped or not."""

    malformed: int = 0  # no fence, or nonsense for one
    dropped: int = 0  # stale ones that were passed over in silence


class InboxFlow:
    """The steps of one inbox. Blocking and awaited facades drive the same one."""

    def __init__(self, record: FenceRecord, place: str, on_stale: str, observer: Observer | None) -> None:
        if on_stale not in ("raise", "drop"):
            raise BadInput("on_stale", f"{on_stale!r} is not known", "say 'raise' or 'drop'")
        self._record = record
        self._place = place
        self._on_stale = on_stale
        self._admission = Admission(place, observer=observer)
        self._mutex = Mutex()
        self._counts: Counter[str] = Counter()

    async def admit(self, headers: Headers | None) -> CarriedFence | None:
        """Register the fence of a message. None: it is stale, and such are dropped here."""
        carried = self._carried(headers)
        presented = await self._admission.admit(carried, f"message of {carried.key}", Rule.AT_LEAST, _nothing)
        highest = await self._record.note(self._place, carried.key, carried.fence)
        outcome: Outcome[CarriedFence] = Stale(highest) if highest > carried.fence else Accepted(carried)
        try:
            admitted = self._admission.entered(presented, outcome)
        except FencedOut:
            if self._on_stale == "raise":
                raise
            self._count("dropped")
            return None
        reach("guard.noted")
        return admitted

    async def seen(self, key: str) -> int | None:
        """The highest fence that a message of this lock has brought."""
        return await self._record.seen(self._place, key)

    def statistics(self) -> InboxStatistics:
        """The counts so far."""
        with self._mutex:
            return InboxStatistics(**asdict(self._admission.statistics()), **self._counts)

    def _count(self, name: str) -> None:
        with self._mutex:
            self._counts[name] += 1

    def _carried(self, headers: Headers | None) -> CarriedFence:
        try:
            carried = carried_in(headers)
            if carried is None:
                raise BadInput(
                    KEY_HEADER, "is missing", f"send {KEY_HEADER} and {FENCE_HEADER}: holdfast.guards.messages.stamped"
                )
        except BadInput:
            self._count("malformed")
            raise
        return carried


async def _nothing() -> int | None:
    """A carried fence has no lease that could be lost here, so there is no check."""
    return None
