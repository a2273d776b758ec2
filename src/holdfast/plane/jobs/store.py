"""Jobs in the database: inserted and updated under a fence, with their events and messages, in one transaction each.

Promises:

- A write is refused, and changes nothing, when a newer fence has written the job (`FencedOut`), or when the table of
  states does not allow it (`InvalidTransition`). A job ends once. Where leases are in the same Postgres database, it is
  also refused when its lease has expired or was stolen (`LeaseLost`), by the transaction itself.
- A tenant never has more jobs with workers than its limit, nor a pool more than its capacity.
- The messages about a change are staged in the transaction of the change.

`update` reads, decides and writes in one transaction, so that nothing can come in between; decisions must be pure.
`change` is one such update, batched with concurrent ones. Submissions and reads are batched too. Each is decided on its
own (`updates`).

Clock: the wall clock, for people and for time limits.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final, NamedTuple

from holdfast.core.failpoints import ARMED, areach
from holdfast.core.lease.fencing import Absent, Outcome, Rule
from holdfast.core.ports import Clock, Entropy, Observer, Store, TransactionLocks
from holdfast.errors import BadInput, FencedOut, RowExists
from holdfast.guards.admission import Admission, GuardStatistics, Presented
from holdfast.guards.bearer import Fenced, carried, granted
from holdfast.plane.db.batcher import Batcher, Failed, answered
from holdfast.plane.db.ports import Bus, Database, Tx
from holdfast.plane.db.statements import script, sql
from holdfast.plane.jobs.insert import CheckedSubmission, New, new_job, submit_many, submit_one
from holdfast.plane.jobs.lease_check import LeaseCheck, Owned
from holdfast.plane.jobs.quotas import PoolFull, Slots, TenantFull
from holdfast.plane.jobs.rows import event_of, job_of
from holdfast.plane.jobs.updates import (
    Changed,
    FencedUpdate,
    UpdateOutcome,
    UpdateRequest,
    UpdateResult,
    Writing,
    insert_assigned,
    update_many,
)
from holdfast.plane.locks.registry import SCHEDULER_JOB, LockFamily
from holdfast.plane.model.job_states import WITH_WORKERS, InvalidTransition, JobState, duplicate_end
from holdfast.plane.model.records import Job, JobEvent, Message, Submission, check_id
from holdfast.types import Busy

__all__ = ["WITH_WORKERS", "Changed", "JobStore", "PoolFull", "TenantFull", "Writing", "job_of", "sql"]

_EVENTS: Final = sql("event_list")
_POSTPONED: Final = sql("job_postponed")


class _Within(NamedTuple):
    """The outcome of one update. `Busy`: another holder has its lock."""

    fence: int | Busy
    outcome: UpdateOutcome


class JobStore:
    """The jobs of one plane."""

    def __init__(
        self,
        database: Database,
        bus: Bus,
        clock: Clock,
        entropy: Entropy,
        *,
        slots: int | None = None,
        observer: Observer | None = None,
        family: LockFamily = SCHEDULER_JOB,
        leases: Store | None = None,
    ) -> None:
        """`slots`: how many jobs of a tenant may be with workers at the same time, if its row sets no other limit.

        `observer` is told of refused writes and of second ends of jobs. `family`: of the locks
        under which jobs are written. `leases`: the store of these
        locks; where it is in the same database, a write checks its lease in its transaction (`lease_check`).
        """
        self.database = database
        self.clock = clock
        self.entropy = entropy
        self.slots = Slots(slots)
        self._check = None if leases is None else LeaseCheck.of(database, leases)
        self._bus = bus
        self._family = family
        self._admission = Admission(
            *("plane:jobs", family.name),
            names=("job",),
            key=family.pattern,
            observer=observer,
            clock=clock,
        )
        self.duplicate_ends = 0
        self._updates: Batcher[FencedUpdate, Outcome[tuple[Changed, bool]]] = Batcher(
            self._change, apart=lambda each: each.job
        )
        self._submissions: Batcher[New, tuple[Job, bool]] = Batcher(self._submit)
        self._reads: Batcher[str, Job | None] = Batcher(self._read)

    @property
    def bus(self) -> Bus:
        """Where the messages of the jobs go."""
        return self._bus

    def statistics(self) -> GuardStatistics:
        """What the guard in front of the jobs has accepted and refused."""
        return self._admission.statistics()

    # Inserting and reading.

    def new(self, entry: CheckedSubmission) -> New:
        """A job that is to be made."""
        return self._new(entry, JobState.PENDING)

    async def submit_all(self, news: Sequence[New]) -> list[tuple[Job, bool] | Failed]:
        """Insert checked jobs with their messages, in one transaction if all of them are new. One answer each.

        Concurrent calls share the transaction. Each answer is the job and whether it was made: the same idempotency
        key of a tenant gives the first job again. An id of another tenant's job is `InvalidTransition`.
        """
        return await self._submissions.ask_all(news)

    def submission(
        self,
        wanted: Submission,
        pool: str,
        messages: Sequence[Message] = (),
        *,
        state: JobState = JobState.PENDING,
    ) -> Callable[[Tx], Awaitable[tuple[Job, bool]]]:
        """Insert one checked job as part of a larger transaction. Returns the job and whether it was made.

        `state` may also be `APPROVAL_REQUIRED`: then it waits for a person.
        """
        new = self._new(CheckedSubmission(wanted, pool, messages), state)
        return lambda tx: submit_one(tx, self._bus, new)

    def _new(self, entry: CheckedSubmission, state: JobState) -> New:
        now_ns = self.clock.now().wall
        identity = entry.wanted.id or f"{now_ns // 1_000_000:012x}-{self.entropy.token()[:20]}"
        return new_job(entry, identity, now_ns, state)

    async def _submit(self, news: Sequence[New]) -> Sequence[tuple[Job, bool]]:
        if ARMED:
            await areach("plane.job.submit")
        try:
            kept: Sequence[tuple[Job, bool]] = await self.database.write(lambda tx: submit_many(tx, self._bus, news))
        except RowExists:
            if len(news) > 1:
                raise  # then each is inserted alone
            kept = [await self.database.write(lambda tx: submit_one(tx, self._bus, news[0]))]
        if ARMED:
            await areach("plane.job.submitted")
        return kept

    async def get(self, job_id: str) -> Job | None:
        """One job, or None."""
        return await self._reads.ask(check_id("id", job_id))

    async def _read(self, ids: Sequence[str]) -> Sequence[Job | None]:
        wanted = {"ids": json.dumps(ids)}
        rows = await self.database.read(lambda tx: tx.query(script("job_get_many", tx.dialect), wanted), one_view=False)
        jobs = {row["id"]: job_of(row) for row in rows}
        return [jobs.get(each) for each in ids]

    async def postponed(self, job_id: str) -> int:
        """How many attempts of a job have postponed it (`RetryLater`), which do not count."""
        rows = await self.database.read(lambda tx: tx.query(_POSTPONED, {"id": check_id("id", job_id)}))
        return int(rows[0]["postponed"])

    async def events(self, job_id: str) -> list[JobEvent]:
        """The history of a job, oldest first. Of one that does not exist: none."""
        check_id("id", job_id)
        return [event_of(row) for row in await self.database.read(lambda tx: tx.query(_EVENTS, {"job": job_id}))]

    # Updating, under a lease.

    async def change(self, lease: Fenced, job_id: str, decide: Callable[[Job], Writing | None]) -> Changed:
        """Read a job, decide, and write what was decided, in one transaction. All of it or nothing.

        `decide` may be called again, and must only compute. `FencedOut` if the lease is stale; `TenantFull`, `PoolFull`
        or `TopicFull` when the job would be with workers and there is no place left.
        """
        presented = await self._admit(lease, job_id, Rule.AT_LEAST)
        fence, now_ns = presented.checked_fence, self.clock.now().wall

        owned = self._owned(lease)
        try:
            outcome: UpdateOutcome = await self._updates.ask(FencedUpdate(job_id, fence, now_ns, decide, owned=owned))
        except InvalidTransition as refused:
            outcome = Failed(refused)
        ended = self._ended(presented, outcome)
        if isinstance(ended, Failed):
            raise ended.error
        return ended

    async def update(
        self, requests: Sequence[UpdateRequest], *, within: TransactionLocks | None = None, counted: bool = False
    ) -> list[UpdateResult | Failed]:
        """Update jobs that differ in one transaction, each under its own lock. One result per request.

        Each request brings the lease of its lock. `within` acquires the locks in the transaction itself instead. Then
        new jobs are durable on return; changes of others need not be where the bus is in the same database, because the
        message that caused such a change is acknowledged there after it. `counted`: most jobs will go to workers, so
        the counts are read with the jobs.
        """
        if within is not None:
            return await self._update_within(within, requests)
        presented: list[Presented | Failed] = []
        admitted: list[FencedUpdate] = []
        now_ns = self.clock.now().wall
        for each in requests:
            try:
                if each.lease is None:
                    raise BadInput("lease", f"is missing for job {each.job}", "acquire the lock, or give `within`")
                shown = await self._admit(each.lease, each.job, Rule.AT_LEAST)
                decide = each.decide(carried(each.lease))
                owned = self._owned(each.lease)
                admitted.append(FencedUpdate(each.job, shown.checked_fence, now_ns, decide, each.new, owned))
                presented.append(shown)
            except Exception as error:  # noqa: BLE001 - an error of one request is its own result
                presented.append(Failed(error))
        outcomes: Sequence[UpdateOutcome] = (
            await answered(partial(self._change, counted=counted), admitted) if admitted else ()
        )
        rest = iter(outcomes)
        return [each if isinstance(each, Failed) else self._result(each, next(rest)) for each in presented]

    async def _update_within(
        self, locks: TransactionLocks, requests: Sequence[UpdateRequest]
    ) -> list[UpdateResult | Failed]:
        results: list[UpdateResult | Failed] = []
        for each, end in zip(requests, await answered(partial(self._within, locks), requests), strict=True):
            if isinstance(end, Failed):
                results.append(end)
            elif isinstance(end.fence, Busy):
                results.append(UpdateResult(end.fence, Changed(None, None)))
            else:
                lease = granted(self._family.key(job=each.job), end.fence)
                results.append(self._result(await self._admit(lease, each.job, Rule.AT_LEAST), end.outcome))
        return results

    async def _within(self, locks: TransactionLocks, requests: Sequence[UpdateRequest]) -> Sequence[_Within | Failed]:
        now_ns = self.clock.now().wall
        keys = [self._family.key(job=each.job) for each in requests]

        async def work(tx: Tx) -> list[_Within]:
            # A new job has an id that was drawn a moment ago, so its lock is free (`scheduler.fast_path`).
            fresh = all(each.new is not None and each.new.wanted.id is None for each in requests)
            fences = await locks.take(tx.query, keys, unheard=fresh)
            admitted = [
                FencedUpdate(each.job, fence, now_ns, each.decide(granted(key, fence)), each.new)
                for each, key, fence in zip(requests, keys, fences, strict=True)
                if not isinstance(fence, Busy)
            ]
            ends = iter(await self._work(tx, admitted) if admitted else ())
            return [_Within(fence, Absent() if isinstance(fence, Busy) else next(ends)) for fence in fences]

        if ARMED:
            await areach("plane.job.change")
        lasting = not self._bus.within or any(each.new is not None for each in requests)
        found = await self.database.write(work, lasting=lasting)
        if ARMED:
            await areach("plane.job.changed")
        self._count_ends([each.outcome for each in found])
        return found

    def _result(self, presented: Presented, outcome: UpdateOutcome) -> UpdateResult | Failed:
        ended = self._ended(presented, outcome)
        return ended if isinstance(ended, Failed) else UpdateResult(presented.checked_fence, ended)

    def _ended(self, presented: Presented, outcome: UpdateOutcome) -> Changed | Failed:
        """The outcome of one change, with the admission told of it."""
        if isinstance(outcome, Failed):
            if isinstance(outcome.error, InvalidTransition):
                self._tell_end(presented, outcome.error)
            return outcome
        if isinstance(outcome, Absent):
            return Changed(None, None)
        try:
            changed, freed = self._admission.written(presented, outcome)
        except FencedOut as error:
            return Failed(error)
        if freed and changed.before is not None:
            self.slots.freed(changed.before.pool)
        return changed

    async def _change(self, wanted: Sequence[FencedUpdate], *, counted: bool = False) -> Sequence[UpdateOutcome]:
        if ARMED:
            await areach("plane.job.change")
        ends = await self.database.write(lambda tx: self._work(tx, wanted, counted=counted), checked=True)
        if ARMED:
            await areach("plane.job.changed")
        self._count_ends(ends)
        return ends

    async def _work(self, tx: Tx, wanted: Sequence[FencedUpdate], *, counted: bool = False) -> list[UpdateOutcome]:
        """Change jobs that are there, or make those that are not: never some of each."""
        if wanted[0].new is not None:
            return await insert_assigned(tx, self._bus, self.slots, wanted, check=self._check)
        return await update_many(tx, self._bus, self.slots, wanted, check=self._check, counted=counted)

    def _owned(self, lease: Fenced) -> Owned | None:
        return None if self._check is None else self._check.owned(lease)

    async def _admit(self, lease: Fenced, job_id: str, rule: Rule) -> Presented:
        async def seen() -> int | None:
            job = await self.get(job_id)
            return None if job is None else job.fence

        return await self._admission.admit(lease, f"job {job_id}", rule, seen, {"job": job_id})

    def _count_ends(self, ends: Sequence[UpdateOutcome]) -> None:
        for each in ends:
            if isinstance(each, Failed) and isinstance(each.error, InvalidTransition):
                self._count_end(each.error)

    def _count_end(self, refused: InvalidTransition) -> None:
        self.duplicate_ends += _ends_twice(refused)

    def _tell_end(self, presented: Presented, refused: InvalidTransition) -> None:
        if _ends_twice(refused):
            self._admission.repeated(presented, f"{refused.before} and then {refused.after}")


def _ends_twice(refused: InvalidTransition) -> bool:
    return refused.before is not None and duplicate_end(refused.before, refused.after)
