"""A small document that one leader writes, such as the worker snapshot: one row, written under its fence.

Promises: a write of a stale leader is refused (`FencedOut`) and changes nothing. `put` replaces the whole document and
needs no earlier read. `enter` and `write` are for a document that is read, changed and written back: `write` is refused
unless the document still carries the very fence under which it was entered, and other work of the same transaction is
undone with it. `read` needs no lease.

Clock: the wall clock, for people.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from holdfast.core.lease.fencing import Accepted, Outcome, Rule, Stale, Unregistered, judge
from holdfast.core.ports import Clock, Observer
from holdfast.errors import HoldfastError
from holdfast.guards.admission import Admission, GuardStatistics
from holdfast.guards.bearer import Fenced
from holdfast.plane.db.ports import Database, Row, Tx
from holdfast.plane.db.statements import sql
from holdfast.plane.locks.registry import LockFamily
from holdfast.plane.model.records import ID_CHARS_MAX, check_text

_GET: Final = sql("loop_document_get")
_PUT: Final = sql("loop_document_put")
_ENTER: Final = sql("loop_document_enter")
_WRITE: Final = sql("loop_document_write")

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Edition:
    """A document as it was found."""

    name: str
    body: Mapping[str, Any]
    writer: str
    at_ns: int
    fence: int | None
    age_ns: int  # by the reader's clock


class _Refused(Exception):
    """Rolls the transaction back; the outcome says why."""

    def __init__(self, outcome: Stale | Unregistered) -> None:
        self.outcome = outcome


class Document:
    """One document, which belongs to the lock of one loop."""

    def __init__(
        self, database: Database, name: str, family: LockFamily, clock: Clock, observer: Observer | None = None
    ) -> None:
        self.name = check_text("name", name, ID_CHARS_MAX)
        self._database = database
        self._clock = clock
        self._admission = Admission("plane:documents", family.name, key=family.key(), observer=observer, clock=clock)

    def statistics(self) -> GuardStatistics:
        """What the guard in front of it has accepted and refused."""
        return self._admission.statistics()

    async def read(self) -> Edition | None:
        """The stored body; None: it was never written."""
        rows = await self._database.read(lambda tx: tx.query(_GET, {"name": self.name}))
        return self._edition(rows[0]) if rows else None

    async def put(self, lease: Fenced, body: Mapping[str, Any], *, writer: str) -> None:
        """Replace it. `FencedOut` if the lease is stale."""
        presented = await self._admission.admit(lease, self.name, Rule.AT_LEAST, self._seen)
        values = self._values(body, writer, presented.checked_fence)

        async def work(tx: Tx) -> Outcome[None]:
            if await tx.query(_PUT, values):
                return Accepted(None)
            return Stale((await tx.query(_GET, values))[0]["holdfast_fence"])

        self._admission.written(presented, await self._database.write(work))

    async def enter(self, lease: Fenced, *, writer: str) -> Edition:
        """Register the fence and read it, in one step; one that was never written is empty. `FencedOut` if stale."""
        presented = await self._admission.admit(lease, self.name, Rule.AT_LEAST, self._seen)
        values = self._values({}, writer, presented.checked_fence)

        async def work(tx: Tx) -> Outcome[Edition]:
            found = await tx.query(_ENTER, values)
            if found:
                return Accepted(self._edition(found[0]))
            return Stale((await tx.query(_GET, values))[0]["holdfast_fence"])

        entered = self._admission.entered(presented, await self._database.write(work))
        if entered is None:
            raise HoldfastError(f"{self.name} was entered and is not there")
        return entered

    async def write(
        self, lease: Fenced, work: Callable[[Tx], Awaitable[tuple[T, Mapping[str, Any]]]], *, writer: str
    ) -> T:
        """Do something under the fence under which it was entered, and write the body that follows, all or nothing.

        `work` returns its result and the body. `FencedOut` or `NotEntered`: nothing was done.
        """
        presented = await self._admission.admit(lease, self.name, Rule.EXACTLY, self._seen)
        fence = presented.checked_fence

        async def guarded(tx: Tx) -> T:
            result, body = await work(tx)
            values = self._values(body, writer, fence)
            if not await tx.query(_WRITE, values):
                there = await tx.query(_GET, values)
                seen = there[0]["holdfast_fence"] if there else None
                raise _Refused(judge(Rule.EXACTLY, seen, fence) or Unregistered(seen))
            return result

        outcome: Outcome[T]
        try:
            outcome = Accepted(await self._database.write(guarded))
        except _Refused as refused:
            outcome = refused.outcome
        return self._admission.written(presented, outcome)

    async def _seen(self) -> int | None:
        found = await self.read()
        return None if found is None else found.fence

    def _values(self, body: Mapping[str, Any], writer: str, fence: int) -> dict[str, Any]:
        text = json.dumps(body, separators=(",", ":"), ensure_ascii=False)
        return {
            "name": self.name,
            "body": text,
            "writer": check_text("writer", writer, ID_CHARS_MAX),
            "at_ns": self._clock.now().wall,
            "fence": fence,
        }

    def _edition(self, row: Row) -> Edition:
        age_ns = self._clock.now().wall - row["at_ns"]
        return Edition(row["name"], json.loads(row["body"]), row["writer"], row["at_ns"], row["holdfast_fence"], age_ns)
