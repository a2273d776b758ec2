"""Jobs in the database: entered and written under a fence, with their events and messages, in one transaction each.

Promises: a write is refused, and changes nothing, when a newer fence has entered or written the job (`FencedOut`), when
the job is not as it was when it was entered (`NotEntered`), or when the table of states does not allow it
(`InvalidTransition`); a job ends once; a tenant never has more jobs with workers than its limit, nor a pool more than
its capacity; whatever is told about a job is staged in the same transaction as what it tells.

There are two ways to write. `change` reads, decides and writes in one transaction, so that nothing can come in between;
the decision must be pure. `enter` and `apply` are for sections with something slow between reading and writing.

Clock: the wall clock, for people and for time limits.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

from holdfast.core.fencing import Absent, Accepted, Outcome, Rule, Stale, Unregistered, accepts, judge
from holdfast.core.jobs import InvalidTransition, JobState, Move, duplicate_end, move
from holdfast.errors import BadInput, RowMissing
from holdfast.guards.admission import Admission, GuardStatistics, Presented
from holdfast.guards.bearer import Fenced
from holdfast.plane.jobrows import about, applied, event_of, event_values, job_of, letter_values, sql, values_of
from holdfast.plane.model import Change, Job, JobEvent, Message, Submission, check_id
from holdfast.plane.ports import Bus, Database, Tx
from holdfast.plane.slots import WITH_WORKERS, PoolFull, Slots, TenantFull
from holdfast.ports import Clock, Entropy
from holdfast.types import check_label

__all__ = ["WITH_WORKERS", "Changed", "JobStore", "PoolFull", "TenantFull", "Writing", "job_of", "sql"]

_INSERT: Final = sql("job_insert")
_ENTER: Final = sql("job_enter")
_APPLY: Final = sql("job_apply")
_CHANGE: Final = sql("job_change")
_TOUCH: Final = sql("job_touch")
_GET: Final = sql("job_get")
_HOLD: Final = {"sqlite": _GET, "postgres": f"{_GET} FOR UPDATE"}  # SQLite has one writer at a time anyway
_BY_KEY: Final = sql("job_by_key")
_EVENT: Final = sql("event_insert")
_EVENTS: Final = sql("event_list")
_LETTER: Final = sql("deadletter_insert")

Telling: TypeAlias = Sequence[Message] | Callable[[Job], Sequence[Message]]
"""Messages, or what makes them from the job as it is after the write."""


@dataclass(frozen=True, slots=True)
class Writing:
    """What a decision wants written. Without changes, only messages are sent, and the state stays."""

    changes: Sequence[Change] = ()
    tell: Telling = ()
    dead: bool = False  # keep a dead letter of it
    capacity: int | None = None  # how many jobs the workers of its pool can take; None: as many as one likes
    not_before_ns: int | None = None  # without changes: when its time comes; 0: now, so it waits in line


class Changed(NamedTuple):
    """A job before and after a `change`. Without a job, neither; without a decision to write, no `after`."""

    before: Job | None
    after: Job | None


class JobStore:
    """The jobs of one plane."""

    def __init__(
        self, database: Database, bus: Bus, clock: Clock, entropy: Entropy, *, slots: int | None = None
    ) -> None:
        """`slots` is how many jobs of one tenant may be with workers at once, unless its own row says otherwise."""
        self.database = database
        self.clock = clock
        self.entropy = entropy
        self.slots = Slots(slots)
        self._bus = bus
        self._admission = Admission("plane:jobs", names=("job",), key="holdfast:scheduler:job:{job}", clock=clock)
        self.duplicate_ends = 0

    def statistics(self) -> GuardStatistics:
        """What the guard in front of the jobs has accepted and refused."""
        return self._admission.statistics()

    # Making and looking.

    async def submit(self, wanted: Submission, pool: str, messages: Sequence[Message] = ()) -> tuple[Job, bool]:
        """Make a job, and stage `messages` with it. The same idempotency key of a tenant gives the first job again.

        Also returns whether it was made. An id that is taken by another tenant's job is `InvalidTransition`.
        """
        wanted.check()
        check_label("pool", pool)
        return await self.database.write(self.submission(wanted, pool, messages))

    def submission(
        self, wanted: Submission, pool: str, messages: Sequence[Message] = ()
    ) -> Callable[[Tx], Awaitable[tuple[Job, bool]]]:
        """The work of `submit`, to be part of a larger transaction. The submission was checked."""
        now_ns = self.clock.now().wall
        identity = wanted.id or f"{now_ns // 1_000_000:012x}-{self.entropy.token()[:20]}"
        values = values_of(wanted, identity, pool, now_ns)

        async def work(tx: Tx) -> tuple[Job, bool]:
            if wanted.idempotency_key is not None:
                known = await tx.query(_BY_KEY, {"tenant": wanted.tenant, "idempotency_key": wanted.idempotency_key})
                if known:
                    return job_of(known[0]), False
            made = await tx.query(_INSERT, values)
            if not made:
                return await self._known(tx, wanted, identity), False
            job = job_of(made[0])
            first = Move(None, job.state, 0, ends=False)
            await tx.query(_EVENT, event_values(job, 0, first, None, wanted.submitted_by or "api", None))
            await self._bus.stage(tx, [about(message, identity) for message in messages])
            return job, True

        return work

    async def get(self, job_id: str) -> Job | None:
        """One job, or None."""
        check_id("id", job_id)
        rows = await self.database.read(lambda tx: tx.query(_GET, {"id": job_id}))
        return job_of(rows[0]) if rows else None

    async def events(self, job_id: str) -> list[JobEvent]:
        """The history of a job, oldest first. Of one that does not exist: none."""
        check_id("id", job_id)
        return [event_of(row) for row in await self.database.read(lambda tx: tx.query(_EVENTS, {"job": job_id}))]

    # Writing, under a lease.

    async def change(self, lease: Fenced, job_id: str, decide: Callable[[Job], Writing | None]) -> Changed:
        """Read a job, decide, and write what was decided, in one transaction. All of it or nothing.

        `decide` may be called again, and must only compute. `FencedOut` if the lease is stale; `TenantFull` or
        `PoolFull` when the job would be with workers and there is no place left.
        """
        presented = await self._admit(lease, job_id, Rule.AT_LEAST)
        fence, now_ns = presented.checked_fence, self.clock.now().wall

        async def work(tx: Tx) -> Outcome[tuple[Changed, bool]]:
            there = await tx.query(_HOLD[tx.dialect], {"id": job_id})
            if not there:
                return Absent()
            before = job_of(there[0])
            if not accepts(before.fence, fence):
                return Stale(before.fence or 0)
            wanted = decide(before)
            if wanted is None:
                return Accepted((Changed(before, None), False))
            after, freed = await self._write(tx, _CHANGE, before, wanted, fence, now_ns)
            if after is None:
                raise RowMissing(f"job {job_id} changed under a lock of the database")
            return Accepted((Changed(before, after), freed))

        with self._counted_ends():
            outcome = await self.database.write(work)
        if isinstance(outcome, Absent):
            return Changed(None, None)
        changed, freed = self._admission.written(presented, outcome)
        if freed and changed.before is not None:
            self.slots.freed(changed.before.pool)
        return changed

    async def enter(self, lease: Fenced, job_id: str) -> Job | None:
        """Register the fence and read the job, in one statement; None: there is no such job. `FencedOut` if stale."""
        presented = await self._admit(lease, job_id, Rule.AT_LEAST)
        fence = presented.checked_fence

        async def work(tx: Tx) -> Outcome[Job | None]:
            found = await tx.query(_ENTER, {"id": job_id, "fence": fence})
            if found:
                return Accepted(job_of(found[0]))
            there = await tx.query(_GET, {"id": job_id})
            return Stale(there[0]["holdfast_fence"]) if there else Accepted(None)

        return self._admission.entered(presented, await self.database.write(work))

    async def apply(
        self,
        lease: Fenced,
        job: Job,
        changes: Sequence[Change],
        messages: Telling = (),
        *,
        dead: bool = False,
        capacity: int | None = None,
    ) -> Job:
        """Move a job that was entered under this lease, and stage what is to be told. All of it or nothing.

        `dead` keeps a dead letter of it. `TenantFull` or `PoolFull` as for `change`.
        """
        if not changes:
            raise BadInput("changes", "are none", "use change(), which can send messages and leave the state")
        presented = await self._admit(lease, job.id, Rule.EXACTLY)
        wanted = Writing(changes, messages, dead, capacity)
        with self._counted_ends():
            _moves(job, changes)
        now_ns = self.clock.now().wall

        async def work(tx: Tx) -> Outcome[tuple[Job, bool]]:
            written, freed = await self._write(tx, _APPLY, job, wanted, presented.checked_fence, now_ns)
            return await self._why_not(tx, job, presented) if written is None else Accepted((written, freed))

        written, freed = self._admission.written(presented, await self.database.write(work))
        if freed:
            self.slots.freed(job.pool)
        return written

    async def _write(
        self, tx: Tx, statement: str, before: Job, wanted: Writing, fence: int, now_ns: int
    ) -> tuple[Job | None, bool]:
        """One write with all that belongs to it; no job: the statement found it otherwise than expected."""
        steps = _moves(before, wanted.changes)
        if steps:
            found = await tx.query(statement, applied(before, wanted.changes, steps[-1], fence, now_ns))
        else:
            not_before_ns = before.not_before_ns if wanted.not_before_ns is None else wanted.not_before_ns
            values = {"id": before.id, "version": before.version, "fence": fence, "not_before_ns": not_before_ns}
            found = await tx.query(_TOUCH, values)
        if not found:
            return None, False
        after = job_of(found[0])
        lines = [
            event_values(after, step, made, fence, change.actor, change.reason)
            for step, (change, made) in enumerate(zip(wanted.changes, steps, strict=True))
        ]
        if lines:
            await tx.query_many(_EVENT, lines)
        freed = await self.slots.count(tx, before, after, wanted.capacity)
        if wanted.dead:
            await tx.query(_LETTER, letter_values(before, after))
        messages = wanted.tell(after) if callable(wanted.tell) else wanted.tell
        if messages:
            await self._bus.stage(tx, messages)
        return after, freed

    async def _admit(self, lease: Fenced, job_id: str, rule: Rule) -> Presented:
        async def seen() -> int | None:
            job = await self.get(job_id)
            return None if job is None else job.fence

        return await self._admission.admit(lease, f"job {job_id}", rule, seen, {"job": job_id})

    @contextmanager
    def _counted_ends(self) -> Iterator[None]:
        try:
            yield
        except InvalidTransition as refused:
            self.duplicate_ends += refused.before is not None and duplicate_end(refused.before, refused.after)
            raise

    async def _why_not(self, tx: Tx, job: Job, presented: Presented) -> Outcome[tuple[Job, bool]]:
        there = await tx.query(_GET, {"id": job.id})
        if not there:
            raise RowMissing(f"job {job.id} does not exist any more")
        seen = there[0]["holdfast_fence"]
        return judge(Rule.EXACTLY, seen, presented.checked_fence) or Unregistered(seen)

    async def _known(self, tx: Tx, wanted: Submission, identity: str) -> Job:
        """The job that stood in the way of an insert: the same key from somebody quicker, or another with this id."""
        if wanted.idempotency_key is not None:
            known = await tx.query(_BY_KEY, {"tenant": wanted.tenant, "idempotency_key": wanted.idempotency_key})
            if known:
                return job_of(known[0])
        there = await tx.query(_GET, {"id": identity})
        if there and there[0]["tenant"] == wanted.tenant:
            return job_of(there[0])
        raise InvalidTransition(JobState(there[0]["state"]) if there else None, JobState.PENDING)


def _moves(job: Job, changes: Sequence[Change]) -> list[Move]:
    """The moves that the changes are, one after the other, or `InvalidTransition`."""
    state: JobState = job.state
    attempt = job.attempt
    made: list[Move] = []
    for change in changes:
        made.append(move(state, change.after, attempt))
        state, attempt = made[-1].after, made[-1].attempt
    return made
