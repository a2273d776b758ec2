"""Batches updates of jobs under their locks: a request acquires the locks, a transaction updates, a request releases.

Promises: each job is updated under its own lock with its own fence, and gets its own result. A caller that comes alone
starts immediately; callers that come during a batch share the next one. A busy lock does not delay the other jobs of
the batch: its caller waits for it alone (`job_lock`). What prevents an update raises the same `RetryLater` as there.
When the leases of a batch are lost, its callers stop waiting. With a store that acquires one lock per request, each
update goes alone.

Clock: that of the locks. Waiting and holding are measured on the monotonic one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Any, Final, NamedTuple, TypeAlias

from holdfast.aio import batch as many
from holdfast.aio.client import Locks
from holdfast.aio.lease import Lease
from holdfast.aio.lock import Lock
from holdfast.core.ports import LocksInTransaction, TransactionLocks
from holdfast.core.retry_delays import AnyDelays
from holdfast.errors import AcquireTimeout, BackendError, Closed, FencedOut, LeaseLost, NotEntered, Unavailable
from holdfast.guards.bearer import carried
from holdfast.plane.db.batcher import Batcher, Failed, answered
from holdfast.plane.jobs.insert import New
from holdfast.plane.jobs.store import Changed, JobStore
from holdfast.plane.jobs.updates import Decide, UpdateRequest, UpdateResult
from holdfast.plane.locks.item_lock import given_up, in_trouble
from holdfast.plane.locks.job_lock import NOUN, JobLockStatistics, job_lock
from holdfast.plane.locks.registry import LockFamily
from holdfast.plane.model.records import check_id
from holdfast.types import NS, Busy

Deciding: TypeAlias = Decide

_STOPPED: Final = Unavailable("the change was stopped")


class _Item(NamedTuple):
    job: str
    deciding: Deciding
    new: New | None = None


class LockedChanges:
    """Makes changes for the handlers of one scheduler."""

    def __init__(
        self, store: JobStore, locks: Locks, family: LockFamily, delays: AnyDelays, statistics: JobLockStatistics
    ) -> None:
        self.delays = delays
        self._store = store
        self._locks = locks
        self._family = family
        self._counts = statistics
        self._model: Lock[Lease] | None = None
        self._inside: TransactionLocks | None = None
        self._looked = False  # whether there is one
        self._making = False  # a transaction of its own is under way
        self._draw = locks.manager.entropy.below
        self._clock = locks.manager.clock
        # Three batchers, so that messages, queued jobs and new jobs do not wait for each other's requests.
        self._changes: Batcher[_Item, Changed | Busy] = Batcher(self._together, apart=lambda each: each.job)
        self._tries: Batcher[_Item, Changed | Busy] = Batcher(
            partial(self._together, counted=True), apart=lambda each: each.job
        )
        self._makes: Batcher[_Item, Changed | Busy] = Batcher(self._together, apart=lambda each: each.job)

    async def change(self, job_id: str, deciding: Deciding, *, timeout: float | None = None) -> Changed:
        """Lock a job, decide, write and unlock it. `timeout`, how long to wait for the lock, is the family's."""
        check_id("job", job_id)
        if many.takes_many(self._locks):
            found = await self._changes.ask(_Item(job_id, deciding))
            if isinstance(found, Changed):
                return found
            if timeout is not None and timeout <= 0:
                raise self._busy(found)
        counts, family = self._counts, self._family
        async with job_lock(
            self._locks, job_id, self.delays, statistics=counts, timeout=timeout, family=family
        ) as lease:
            return await self._store.change(lease, job_id, deciding(carried(lease)))

    async def try_all(self, wanted: Sequence[tuple[str, Deciding]], *, coming: bool) -> list[Changed | Failed]:
        """The same for jobs that differ, without waiting for locks. The outcome of each.

        `coming`: they are to come to workers.
        """
        if many.takes_many(self._locks):
            batcher = self._tries if coming else self._changes
            found = await batcher.ask_all([_Item(check_id("job", job), deciding) for job, deciding in wanted])
            return [Failed(self._busy(each)) if isinstance(each, Busy) else each for each in found]
        ends = await asyncio.gather(
            *(self.change(job, deciding, timeout=0.0) for job, deciding in wanted), return_exceptions=True
        )
        return [_answer(each) for each in ends]

    async def make(self, wanted: Sequence[tuple[New, Deciding]]) -> list[Changed | Failed]:
        """Insert jobs, each under its own lock; see `insert_assigned`. One answer each.

        Only where the store takes many locks in one request (`many.takes_many`).
        """
        items = [_Item(new.identity, deciding, new) for new, deciding in wanted]
        found: Sequence[Changed | Busy | Failed]
        if self._making or not self._looked or self._inside is None:
            found = await self._makes.ask_all(items)
        else:  # a caller that is alone needs no batch, and can be stopped at any point: it is one transaction
            self._making = True
            try:
                found = await answered(partial(self._within, self._inside), items)
            finally:
                self._making = False
        return [Failed(self._busy(each)) if isinstance(each, Busy) else each for each in found]

    def _busy(self, found: Busy) -> Exception:
        self._counts.busy += 1
        holder = found.owner or "another process"
        left = None if found.remaining_ns is None else found.remaining_ns / NS
        text = f"{NOUN} busy: {found.key} is held by {holder}"
        busy = AcquireTimeout(text, key=found.key, holder=holder, retry_after=left or 0.0, remaining=left)
        later = self.delays.later(busy, self._draw, text=f"{NOUN} busy")
        later.__cause__ = busy
        return later

    async def _together(self, items: Sequence[_Item], *, counted: bool = False) -> Sequence[Changed | Busy | Failed]:
        try:
            moment = await self._moment()
        except (BackendError, Closed) as error:
            return [Failed(self._meaning(error)) for _ in items]
        if moment is not None:
            return await self._within(moment, items)
        asked = self._clock.now().mono
        model = self._model = self._model or self._family.lock(self._locks, job="model")
        wanted = [many.named(model, self._family.key(job=item.job)) for item in items]
        try:
            found = await many.try_acquire(self._locks, wanted)
        except (BackendError, Closed) as error:
            self._counts.waited_in_vain.observe(self._clock.now().mono - asked)
            return [Failed(self._meaning(error)) for _ in items]
        taken = self._clock.now().mono
        mine = [(item, lease) for item, lease in zip(items, found, strict=True) if isinstance(lease, Lease)]
        ends = iter(await self._changed(mine, counted=counted) if mine else ())
        held_ns = self._clock.now().mono - taken
        answers: list[Changed | Busy | Failed] = []
        for lease in found:
            if isinstance(lease, Busy):
                answers.append(lease)
            else:
                self._counts.waited.observe(taken - asked)
                self._counts.held.observe(held_ns)
                answers.append(next(ends))
        return answers

    async def _moment(self) -> TransactionLocks | None:
        """Acquires locks within the transaction of the update, where leases and jobs are in one file."""
        if not self._looked:
            store, path = self._locks.ports.store, self._store.database.file
            if isinstance(store, LocksInTransaction) and path is not None:
                self._inside = store.within(path)
            if self._inside is not None:
                await store.ping(self._locks.ports.request_timeout_ns)  # the tables are there from now on
            self._looked = True
        return self._inside

    async def _within(self, moment: TransactionLocks, items: Sequence[_Item]) -> Sequence[Changed | Busy | Failed]:
        """Lock, change and unlock by one transaction."""
        began = self._clock.now()
        model = self._model = self._model or self._family.lock(self._locks, job="model")
        wanted = [UpdateRequest(item.job, item.deciding, new=item.new) for item in items]
        answers: list[Changed | Busy | Failed] = []
        noted: list[tuple[str, int | Busy]] = []
        for each, end in zip(wanted, await self._store.update(wanted, within=moment), strict=True):
            if isinstance(end, Failed):
                answers.append(Failed(self._meaning(end.error)))
                continue
            fence, changed = end
            noted.append((self._family.key(job=each.job), fence))
            answers.append(fence if isinstance(fence, Busy) else changed)
        took_ns = self._clock.now().mono - began.mono
        for _, fence in noted:
            if not isinstance(fence, Busy):
                self._counts.waited.observe(took_ns)
                self._counts.held.observe(took_ns)
        many.momentary(self._locks, model, noted, began)
        return answers

    async def _changed(self, mine: Sequence[tuple[_Item, Lease]], *, counted: bool) -> list[Changed | Failed]:
        """Update the jobs whose locks were acquired, and release the locks in any case."""
        leases = [lease for _, lease in mine]
        wanted = [UpdateRequest(item.job, item.deciding, lease, item.new) for item, lease in mine]
        work = asyncio.ensure_future(self._store.update(wanted, counted=counted))
        many.on_loss(leases, partial(_stop, work, leases))
        try:
            await asyncio.wait((work,))
        finally:
            work.cancel()  # if it is not done, this process is ending
            losses = await many.release(self._locks, leases)
        ends = [Failed(_STOPPED) for _ in leases] if work.cancelled() else work.result()
        return [self._judged(end, loss) for end, loss in zip(ends, losses, strict=True)]

    def _judged(self, end: UpdateResult | Failed, loss: LeaseLost | None) -> Changed | Failed:
        if isinstance(end, Failed) and (loss is None or end.error is not _STOPPED):
            return Failed(self._meaning(end.error))
        if loss is not None:
            return Failed(self._meaning(loss))
        return end if isinstance(end, Failed) else end.changed

    def _meaning(self, error: Exception) -> Exception:
        """The error that the caller gets."""
        if isinstance(error, BackendError | Closed):
            meaning: Exception = in_trouble(error, self.delays, self._draw, self._counts)
        elif isinstance(error, LeaseLost | FencedOut | NotEntered):
            meaning = given_up(error, self.delays, self._draw, self._counts, NOUN)
        else:
            return error
        meaning.__cause__ = error
        return meaning


def _answer(end: Changed | BaseException) -> Changed | Failed:
    if isinstance(end, Exception):
        return Failed(end)
    if isinstance(end, BaseException):
        raise end
    return end


def _stop(work: asyncio.Future[Any], leases: Sequence[Lease]) -> None:
    """Stop waiting for the updates once all leases are lost. Acquired together, they are mostly lost together."""
    if not any(lease.held for lease in leases):
        work.cancel()
