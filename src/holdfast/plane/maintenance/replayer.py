"""The replayer places waiting jobs again whose message was lost, before their time limit has ended.

Promises: these jobs continue: one whose time has come, one that waits in a queue although it could go, one that was
scheduled and not sent, one that was sent and not started, and one whose worker is gone with its message. Each is placed
under its own lock, by the code that places a new job. A job that waits because its pool, tenant or topic is full, or
because no worker serves its topic, is skipped after the first one of its kind was tried. So a long queue costs a tick
next to nothing. A job in the queue of a pool whose workers do not serve its topic, where no dispatcher would find it,
is moved to a pool whose workers do. Jobs that went on because of a replay are counted by topic: that is recovery, and
should be rare.

A dispatched attempt is sent again at half of its time limit, unless a worker's lease shows that it runs. If the first
message was only late, the attempt may run twice, one after the other: fences protect its effects. A running attempt is
sent again at half of its time limit, too, if no worker holds its lease and no unread result may be its own: its worker
is gone, or its result was lost with the bus. A worker keeps its lease until its result is published. So if there is no
lease, and then no unread result, no result will come. On a busy fleet there are always unread results; then the answer
comes a tick later, when all results that were unread at first have been handled. An attempt that too many workers did
not survive (`plane.bus.delivery_rules.given_up`) is not sent again: it ends at its time limit, or before.

Clock: the wall clock, on which jobs carry their times.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeAlias, TypeVar

from holdfast.errors import BackendError, BadInput, RetryLater
from holdfast.plane.bus.delivery_rules import given_up, lost_runs
from holdfast.plane.db.ports import Row
from holdfast.plane.db.statements import sql
from holdfast.plane.jobs.rules import StateLimits
from holdfast.plane.locks.registry import REPLAYER, WORKER_JOB, LockFamily
from holdfast.plane.loops.cadence import Mode, replay_problems
from holdfast.plane.loops.loop import Loop, Tick
from holdfast.plane.loops.scan import AT_ONCE, BATCH, Scan
from holdfast.plane.model.job_states import JobState
from holdfast.plane.model.messages import RESULT, SCHEDULER
from holdfast.plane.model.paging import Place
from holdfast.plane.scheduler.placement import Placement, PlacementResult
from holdfast.types import NS, Duration, duration_ns

INTERVAL: Final = 30.0
BATCHES: Final = 10  # in one tick, of each kind
SENT_MAX: Final = 10_000  # attempts that were sent again, or may have to be, and are remembered

V = TypeVar("V")

_DUE: Final = sql("replay_due")
_WAITING: Final = sql("replay_waiting")
_LOOK: Final = sql("attempt_check")
_QUEUED: Final = (JobState.PENDING, JobState.RETRYING)

_Run: TypeAlias = tuple[str, int, int | None]
"""A job, its attempt, and the fence under which that was begun, if it was."""


@dataclass(frozen=True, slots=True)
class ReplayerStatistics:
    """What a replayer has done since it was made."""

    orphan_replayed: Mapping[str, int]  # jobs that went on because of a replay, by topic
    redispatched: int  # attempts that were sent again; counted above as well
    waiting: int  # they still wait, perhaps in another queue
    left: int  # left for the next tick: their lock was held
    running: int  # sent long ago, and running although no start was reported
    errors: int  # skipped after an unexpected error


class Replayer:
    """The replayer of one plane."""

    def __init__(
        self,
        placement: Placement,
        *,
        limits: StateLimits | None = None,
        interval: Duration = INTERVAL,
        redispatch: Duration | None = None,
        batch: int = BATCH,
        batches: int = BATCHES,
        at_once: int = AT_ONCE,
        runs: LockFamily = WORKER_JOB,
    ) -> None:
        """`redispatch`: how long an attempt waits for a worker before it is sent again (half of its time limit).

        `runs`: of the locks that workers hold while they run a job.
        """
        self.limits = limits or StateLimits()
        self._interval_ns = duration_ns("interval", interval)
        half_ns = self.limits.dispatched_ns // 2
        self._redispatch_ns = half_ns if redispatch is None else duration_ns("redispatch", redispatch)
        problems = replay_problems(self.limits, self._interval_ns, self._redispatch_ns)
        if problems:
            raise BadInput("limits", "; ".join(problems), "replay sooner, tick more often, or time out later")
        self._placement = placement
        self._store = placement.store
        self._runs = runs
        self._replayed: Counter[str] = Counter()
        self._tally: Counter[str] = Counter()
        self._in_vain: set[tuple[str, ...]] = set()
        self._sent: OrderedDict[_Run, None] = OrderedDict()
        self._found: OrderedDict[_Run, int] = OrderedDict()  # without a lease; the last result that waited then
        sizes: dict[str, Any] = {"batch": batch, "batches": batches, "at_once": at_once}
        self._due = Scan("replayer of due jobs", self._page_due, "not_before_ns", **sizes)
        self._scheduled, self._dispatched, self._running, *self._queues = (
            Scan(f"replayer of {state}", partial(self._page, state, age_ns), "updated_ns", **sizes)
            for state, age_ns in (
                (JobState.SCHEDULED, self.limits.replay_ns),
                (JobState.DISPATCHED, self._redispatch_ns),
                (JobState.RUNNING, self.limits.replay_ns),
                *((state, self.limits.replay_ns) for state in _QUEUED),
            )
        )

    def loop(self, *, family: LockFamily = REPLAYER, mode: Mode | str = Mode.STICKY, **settings: Any) -> Loop:
        """The loop that runs it; its first scan is at the start."""
        settings = {"at_once": True, "mode": mode, **settings}
        return Loop("replayer", family, self._interval_ns / NS, self.tick, locks=self._placement.locks, **settings)

    def statistics(self) -> ReplayerStatistics:
        """Counts so far."""
        count = self._tally
        errors = sum(
            scan.errors for scan in (self._due, self._scheduled, self._dispatched, self._running, *self._queues)
        )
        return ReplayerStatistics(
            dict(self._replayed), count["redispatched"], count["waiting"], count["left"], count["running"], errors
        )

    async def tick(self, tick: Tick) -> None:
        """Look at all kinds of jobs that may be forgotten; those that certainly are come first."""
        self._in_vain.clear()
        await self._due.walk(tick, self._place)
        await self._scheduled.walk(tick, self._place)
        await self._dispatched.walk(tick, self._send_again)
        await self._running.walk(tick, self._run_again)
        for scan in self._queues:
            await scan.walk(tick, self._place_queued)

    # One job.

    async def _place_queued(self, row: Row) -> None:
        """Place a job of a queue, unless others of its kind could not go and its queue is the right one."""
        kinds = {("pool", row["pool"]), ("tenant", row["tenant"]), ("topic", row["pool"], row["topic"])}
        view = await self._placement.workers.view()
        if kinds & self._in_vain and view.pool_for(row["topic"], row["pool"]) == row["pool"]:
            self._tally["waiting"] += 1
        else:
            await self._place(row)

    async def _place(self, row: Row) -> None:
        try:
            placed = await self._placement.place(row["id"], timeout=0.0)
        except RetryLater as later:
            self._leave(later)
            return
        if placed in (PlacementResult.DISPATCHED, PlacementResult.ENDED):
            self._replayed[row["topic"]] += 1
        elif placed is PlacementResult.POOL_FULL:
            self._waits("pool", row["pool"])
        elif placed is PlacementResult.TENANT_FULL:
            self._waits("tenant", row["tenant"])
        elif placed in (PlacementResult.NO_WORKER, PlacementResult.TOPIC_FULL, PlacementResult.TOPIC_QUEUED):
            self._waits("topic", row["pool"], row["topic"])
        elif placed is PlacementResult.MOVED:
            self._tally["waiting"] += 1  # which does not concern the other jobs of its old queue

    async def _run_again(self, row: Row) -> None:
        """Send a running attempt again that has reported nothing for long."""
        limit_ns = row["timeout_ns"] or self.limits.running_ns
        if self._store.clock.now().wall - row["updated_ns"] < limit_ns // 2 or row["run_fence"] is None:
            return
        runs = await self._store.database.read(lambda tx: tx.query(_LOOK, {"id": row["id"]}))
        if all(given_up(lost_runs(each["begun"], each["given_back"])) is None for each in runs):
            await self._send_again(row, row["run_fence"])

    async def _send_again(self, row: Row, run_fence: int | None = None) -> None:
        attempt = row["id"], row["attempt"], run_fence
        if attempt in self._sent:
            return
        lock = self._runs.key(job=row["id"])
        if (await self._placement.locks.inspect(lock)).held:
            self._tally["running"] += 1
            return
        if run_fence is not None and await self._may_have_result(attempt):
            self._tally["left"] += 1
            return
        try:
            sent = await self._placement.redispatch(row["id"], run_fence=run_fence, timeout=0.0)
        except RetryLater as later:
            self._leave(later)
            return
        if sent:
            self._replayed[row["topic"]] += 1
            self._tally["redispatched"] += 1
            self._found.pop(attempt, None)
            _remember(self._sent, attempt, None)

    async def _may_have_result(self, attempt: _Run) -> bool:
        """Whether one of the unread results may belong to this attempt."""
        waiting = await self._store.bus.span(RESULT, SCHEDULER)
        if waiting is None:
            return False
        first, last = waiting
        if attempt in self._found:
            return first <= self._found[attempt]
        _remember(self._found, attempt, last)
        return True

    def _leave(self, later: RetryLater) -> None:
        if isinstance(later.__cause__, BackendError):
            raise later.__cause__ from later
        self._tally["left"] += 1

    def _waits(self, *kind: str) -> None:
        self._in_vain.add(kind)
        self._tally["waiting"] += 1

    # What is read.

    async def _page_due(self, after: Place, most: int) -> Sequence[Row]:
        until_ns = self._store.clock.now().wall - self.limits.replay_ns
        values = {"until_ns": until_ns, "not_before_ns": after.at_ns, "id": after.id, "most": most}
        return await self._store.database.read(lambda tx: tx.query(_DUE, values))

    async def _page(self, state: JobState, age_ns: int, after: Place, most: int) -> Sequence[Row]:
        until_ns = self._store.clock.now().wall - age_ns
        values = {
            "state": str(state),
            "until_ns": until_ns,
            "updated_ns": after.at_ns,
            "id": after.id,
            "most": most,
        }
        return await self._store.database.read(lambda tx: tx.query(_WAITING, values))


def _remember(known: OrderedDict[_Run, V], attempt: _Run, value: V) -> None:
    known[attempt] = value
    while len(known) > SENT_MAX:
        known.popitem(last=False)
