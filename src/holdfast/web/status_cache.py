"""The status of a plane, read once for all of its observers.

Promises: the plane is read at most once each `interval`, however many clients observe it, and not at all without
observers. Clients of one tenant share the data of that tenant, and all clients share the rest. Counting every job takes
at most a fiftieth of the time, and no client waits for it. A store that does not answer is reported within
`TIMEOUT_S`, and the other data is shown. The first waiting client reads for the others; if it disconnects, the next
one does. So nothing has to be started or stopped, and a server that shuts down waits for one read at most.

Clock: the event loop's, for the interval; the plane's wall clock, for the data.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, Generic, TypeVar

from holdfast.errors import HoldfastError, RowMissing
from holdfast.flows.log import log_event
from holdfast.leases.inspection import Inspection
from holdfast.plane.jobs.summaries import LetterOutline
from holdfast.plane.locks.registry import Scope
from holdfast.plane.model.job_states import JobState
from holdfast.plane.service.service import CHECKED, DATABASE, Caller, Service, StoredDocument, WorkerStatus
from holdfast.plane.service.status import LETTERS, JobCounts, StatusEntry
from holdfast.web.schemas.jobs import ResponseBody, moment
from holdfast.web.schemas.status import (
    EndsShown,
    JobLine,
    LetterLine,
    Lines,
    LockLine,
    LoopShown,
    SnapshotLine,
    StatusShown,
    WorkerLine,
)

T = TypeVar("T")
L = TypeVar("L", bound=ResponseBody)

INTERVAL_S: Final = 1.0
TIMEOUT_S: Final = 2.0
COUNTING_SHARE: Final = 50
COUNTING_S: Final = 120.0
LOCKS: Final = 200
OK: Final = "ok"

_STEADY: Final = timedelta(milliseconds=300)
_log: Final = logging.getLogger("holdfast.web")


class _Shared(Generic[T]):
    """A value that one client reads for all, at most once each `rest` seconds."""

    def __init__(self, read: Callable[[], Awaitable[T]], rest: float) -> None:
        self._read, self._rest = read, rest
        self._lock = asyncio.Lock()
        self._values: list[T] = []
        self._again = 0.0

    async def get(self) -> T:
        async with self._lock:
            began = asyncio.get_running_loop().time()
            if not self._values or began >= self._again:
                self._values = [await self._read()]
                self._again = began + self._rest
            return self._values[0]


class _Count:
    """The last counts. New ones are read on demand, but only for a limited share of the time."""

    def __init__(self, read: Callable[[], Awaitable[JobCounts | None]], rest: float) -> None:
        self._read, self._rest = read, rest
        self._taking: asyncio.Task[None] | None = None
        self._again = float("-inf")
        self._last: JobCounts | None = None

    async def get(self) -> JobCounts | None:
        """The counts that are available without a long wait; None: no recent ones."""
        if self._taking is None and asyncio.get_running_loop().time() >= self._again:
            self._taking = asyncio.create_task(self._take(), name="count jobs")
        if self._taking is not None:
            await asyncio.wait((self._taking,), timeout=TIMEOUT_S if self._last is None else self._rest / 2)
        return self._last

    async def _take(self) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            self._last = await self._read()
        finally:
            self._again = began + max(self._rest, COUNTING_SHARE * (loop.time() - began))
            self._taking = None


@dataclass(frozen=True, slots=True)
class _Components:
    """Data without a tenant. None: it could not be read."""

    at_ns: int
    parts: dict[str, str]
    workers: Sequence[WorkerStatus] | None
    snapshot: StoredDocument | None
    locks: Sequence[Inspection] | None


@dataclass(frozen=True, slots=True)
class _Jobs:
    """Data of one tenant, or of all."""

    live: dict[JobState, int]
    briefs: Sequence[StatusEntry]
    letters: Sequence[LetterOutline]


class StatusCache:
    """The status of one plane for all observers."""

    def __init__(self, service: Service, *, interval: float | None = None) -> None:
        self.service = service
        self.interval = interval = interval or INTERVAL_S
        self.readings = 0  # number of reads
        # A little less than the interval, so that a client on time finds it due.
        self._components = _Shared(self._read_components, 0.9 * interval)
        self._tally = _Count(self._read_tally, 0.9 * interval)
        self._views: dict[str | None, _View] = {}
        families = service.parts.families.values()
        self._loops = [LoopShown(family=each.name, key=each.key()) for each in families if each.scope is Scope.LOOP]

    async def status(self, caller: Caller, after: str | None) -> bytes:
        """The status for this caller as JSON: immediately, or when it differs from the one with the given mark."""
        view = self._views.get(caller.tenant)
        if view is None:
            view = self._views[caller.tenant] = _View(self, Caller("status", caller.tenant))
        return await view.status(after)

    async def read(self, caller: Caller) -> StatusShown:
        """Read the status of one tenant, or of all."""
        components, tally, jobs = await asyncio.gather(
            self._components.get(), self._tally.get(), _tried(self._jobs(caller))
        )
        tenant = caller.tenant
        shown = StatusShown(
            mark="",
            whole=True,
            at=moment(components.at_ns),
            every=self.interval,
            tenant=tenant,
            parts=components.parts,
            loops=self._loops if tenant is None else None,
        )
        changes: dict[str, object] = {}
        if tally is not None:
            changes |= {"counted_at": moment(tally.at_ns), "dead": tally.letters(tenant)}
            changes["retried"] = tally.attempts_retried(tenant)
            changes["ended"] = EndsShown.of(tally.ended(tenant))
        if tally is not None or jobs is not None:
            changes["counts"] = (tally.counts(tenant) if tally else {}) | (jobs.live if jobs else {})
        if jobs is not None:
            changes["jobs"] = Lines[JobLine](items=[JobLine.of(each) for each in jobs.briefs], gone=[])
            changes["letters"] = Lines[LetterLine](items=[LetterLine.of(each) for each in jobs.letters], gone=[])
        if components.workers is not None:
            changes["workers"] = Lines[WorkerLine](items=[WorkerLine.of(each) for each in components.workers], gone=[])
        if components.snapshot is not None:
            changes["snapshot"] = SnapshotLine.of(components.snapshot)
        if components.locks is not None and tenant is None:
            locks = [LockLine.of(each, components.at_ns, self.service.parts.families) for each in components.locks]
            changes["locks"] = Lines[LockLine](items=locks, gone=[])
            changes["locks_left_out"] = len(components.locks) > LOCKS
        return shown.model_copy(update=changes)

    async def _jobs(self, caller: Caller) -> _Jobs:
        self.readings += 1
        service = self.service
        live, briefs, letters = await asyncio.gather(
            service.counts(caller, finished=False), service.briefs(caller), service.dead_letters(caller, limit=LETTERS)
        )
        return _Jobs(live, briefs, letters.items)

    async def _read_tally(self) -> JobCounts | None:
        self.readings += 1
        return await _tried(self.service.tally(), timeout=COUNTING_S)

    async def _read_components(self) -> _Components:
        self.readings += 1
        service = self.service
        asking = asyncio.gather(*(self._answer(part) for part in CHECKED))
        workers, snapshot, locks, answers = await asyncio.gather(
            _tried(service.workers()), _tried(service.snapshot()), _tried(self._locks()), asking
        )
        parts = dict(zip(CHECKED, answers, strict=True))
        return _Components(service.parts.store.clock.now().wall, parts, workers, snapshot, locks)

    async def _locks(self) -> Sequence[Inspection]:
        """Some of the held locks, including those of the loops."""
        found = {each.key: each for each in (await self.service.locks(limit=LOCKS + 1))[0]}
        if len(found) > LOCKS:
            for loop in self._loops:
                found |= {each.key: each for each in (await self.service.locks(prefix=loop.key, limit=1))[0]}
        return list(found.values())

    async def _answer(self, part: str) -> str:
        """`ok`, or the problem of a component."""
        try:
            async with asyncio.timeout(TIMEOUT_S):
                await self.service.check(part)
                if part == DATABASE and (refusal := await self.service.writability.refusal()) is not None:
                    return refusal.shown
        except TimeoutError:
            return "no answer in time"
        except (HoldfastError, OSError) as error:
            return type(error).__name__.lower()
        return OK


class _View:
    """The view of one tenant, or of all: the last status and its difference to the one before."""

    def __init__(self, board: StatusCache, caller: Caller) -> None:
        self._board = board
        self._caller = caller
        self._lock = asyncio.Lock()
        self._name = board.service.parts.store.entropy.token()[:12]
        self._number = 0
        self._due = float("-inf")
        self._shown: StatusShown | None = None
        self._whole = self._changes = b""

    async def status(self, after: str | None) -> bytes:
        seen = self._number
        loop = asyncio.get_running_loop()
        if after == self._mark(seen) or loop.time() >= self._due:
            async with self._lock:
                if self._number == seen:  # otherwise another client was faster
                    if after == self._mark(seen):
                        await asyncio.sleep(max(0.0, self._due - loop.time()))
                    self._due = loop.time() + self._board.interval
                    self._turn(await self._board.read(self._caller))
        return self._changes if self._changes and after == self._mark(self._number - 1) else self._whole

    def _mark(self, number: int) -> str:
        """Marks of other processes, or from before a restart, are unknown; then the status is complete."""
        return f"{self._name}.{number}"

    def _turn(self, read: StatusShown) -> None:
        before = self._shown
        self._number += 1
        locks = _steady(None if before is None else before.locks, read.locks)
        now = read.model_copy(update={"mark": self._mark(self._number), "locks": locks})
        self._whole = now.model_dump_json(exclude_none=True).encode()
        self._changes = b"" if before is None else _since(before, now).model_dump_json(exclude_none=True).encode()
        # A section that could not be read is compared with the last one that was shown, when it can be read again.
        kept = {} if before is None else {name: value for name, value in before if getattr(now, name) is None}
        self._shown = now.model_copy(update=kept)


def _since(before: StatusShown, now: StatusShown) -> StatusShown:
    """The changes."""
    changes: dict[str, object] = {"whole": False}
    for name in ("counts", "retried", "ended", "dead", "snapshot", "loops", "locks_left_out"):
        if getattr(now, name) == getattr(before, name):
            changes[name] = None
    changes["jobs"] = _changed(before.jobs, now.jobs, lambda line: line.id)
    changes["letters"] = _changed(before.letters, now.letters, lambda line: line.id)
    changes["workers"] = _changed(before.workers, now.workers, lambda line: line.worker)
    changes["locks"] = _changed(before.locks, now.locks, lambda line: line.key)
    return now.model_copy(update=changes)


def _changed(before: Lines[L] | None, now: Lines[L] | None, name: Callable[[L], str]) -> Lines[L] | None:
    if before is None or now is None:
        return now
    known = {name(line): line for line in before.items}
    items = [line for line in now.items if known.get(name(line)) != line]
    gone = sorted(known.keys() - {name(line) for line in now.items})
    return now.model_copy(update={"items": items, "gone": gone}) if items or gone else None


def _steady(before: Lines[LockLine] | None, now: Lines[LockLine] | None) -> Lines[LockLine] | None:
    """Expiry times are known to some milliseconds; an unchanged lease keeps the time that was shown before."""
    if before is None or now is None:
        return now
    known = {line.key: line for line in before.items}
    return now.model_copy(update={"items": [_same(known.get(line.key), line) for line in now.items]})


def _same(before: LockLine | None, now: LockLine) -> LockLine:
    if before is None or before.expires_at is None or now.expires_at is None:
        return now
    near = abs(before.expires_at - now.expires_at) < _STEADY
    return before if near and before == now.model_copy(update={"expires_at": before.expires_at}) else now


async def _tried(reading: Awaitable[T], *, timeout: float = TIMEOUT_S) -> T | None:
    """The result, or None: `parts` names the failing store, and missing sections are not shown."""
    try:
        async with asyncio.timeout(timeout):
            return await reading
    except RowMissing:
        return None
    except (HoldfastError, OSError, TimeoutError) as error:
        log_event(_log, logging.WARNING, "a part of the status cannot be read", error)
        return None
