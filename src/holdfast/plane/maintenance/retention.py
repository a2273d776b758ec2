"""Retention: deletes finished jobs, their history, dead letters and workers after a time.

Promises: nothing unfinished is ever deleted. A finished job is kept for seven days from its end. One that has an
idempotency key is then emptied (no payload, result, labels, history) and kept as a small row until its key is ninety
days old, so that the same key still gives the same job and how it ended, and nothing is done twice. Dead letters are
kept for thirty days, and of each tenant the newest ten thousand. A worker that was silent for seven days is forgotten,
and with it the topics that only it served. Everything happens in short transactions, a bounded number in each tick, and
each carries the fence of the leader: a stale leader deletes nothing.

A SQLite file of which more than a quarter is free shrinks, in small steps, until it is not. That needs a file that was
made with `auto_vacuum = INCREMENTAL`; docs/operating.md says how to convert an older one.

Jobs are scanned in the order of their creation. The position is stored in a document, so a restart or another leader
continues there. Once a day the scan starts again, for jobs that had not finished when it passed them.

Clock: the wall clock.

**Workflows**: finished runs, their timelines and old approvals are deleted after a time.

Promises: nothing unfinished is ever deleted, and no definition is. A run is kept for thirty days from its end;
one that was started with an idempotency key for as long as that key is remembered, so that the same key still gives the
same run. Its timeline and its approvals go with it. An approval of a job goes when the job is gone and thirty days have
passed. A run that waits for months needs none of its finished jobs, which go sooner: their outputs are in it.

Does not promise that a run is there with all lines of its timeline until it goes: a long one goes in several steps.

Clock: the wall clock.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, TypeAlias

from holdfast.aio.client import Locks
from holdfast.core.ports import Clock, Observer
from holdfast.plane.db.ports import Database, Tx
from holdfast.plane.db.statements import sql
from holdfast.plane.locks.registry import DEAD_LETTER_CLEANUP, LockFamily
from holdfast.plane.loops.cadence import Mode
from holdfast.plane.loops.leader_document import Document
from holdfast.plane.loops.loop import Loop, Tick
from holdfast.plane.model.paging import BEFORE_ALL, Place
from holdfast.plane.model.records import check_whole
from holdfast.plane.settings.settings import DAY_NS, Retention
from holdfast.types import Duration

NAME: Final = "loop:cleanup"
INTERVAL: Final = 60.0
BATCH: Final = 500
BATCHES: Final = 100
LAP_NS: Final = DAY_NS
FREE_PAGES_MIN: Final = 1_000
FREE_SHARE: Final = 4  # one page of so many may be free
FREED_AT_ONCE: Final = 250  # a megabyte, in a transaction of a few milliseconds

_PAGE: Final = sql("cleanup_page")
_EVENTS: Final = sql("cleanup_events")
_PROGRESS: Final = sql("cleanup_progress")
_EMITTED: Final = sql("cleanup_emitted")
_CHILDREN: Final = sql("cleanup_children")
_JOBS: Final = sql("cleanup_jobs")
_STRIP: Final = sql("cleanup_content")
_LETTERS: Final = sql("deadletter_sweep")
_FIRST_TENANT: Final = sql("cleanup_first_tenant")
_NEXT_TENANT: Final = sql("cleanup_next_tenant")
_SURPLUS: Final = sql("cleanup_surplus")
_WORKERS: Final = sql("worker_sweep")
_INCREMENTAL: Final = 2  # of `PRAGMA auto_vacuum`
_PAGES: Final = ("PRAGMA freelist_count", "PRAGMA page_count", "PRAGMA auto_vacuum")


@dataclass(frozen=True, slots=True)
class CleanupStatistics:
    """Deleted items since the cleanup was made."""

    jobs: int = 0
    emptied: int = 0  # kept for their idempotency key
    letters: int = 0
    workers: int = 0
    runs: int = 0
    approvals: int = 0


@dataclass(frozen=True, slots=True)
class ScanPositions:
    """The positions of the scans, as stored in the document."""

    jobs: Place = BEFORE_ALL
    lap_ns: int = 0  # when the current scan of the jobs began
    tenant: str | None = None  # whose dead letters were counted last; None: start with the first

    @classmethod
    def of(cls, body: Mapping[str, Any]) -> ScanPositions:
        """From the document; without one, all scans start."""
        return cls(Place(*body["jobs"]), body["lap_ns"], body["tenant"]) if body else cls()

    def body(self) -> dict[str, Any]:
        """For the document."""
        return {"jobs": list(self.jobs), "lap_ns": self.lap_ns, "tenant": self.tenant}


Step: TypeAlias = Callable[[Tx, ScanPositions], Coroutine[Any, Any, tuple[Counter[str], ScanPositions, bool]]]
"""One batch: the deleted items, the new position, and whether there are more of the kind."""

FlowStep: TypeAlias = Callable[
    ["Cleanup", Tx, ScanPositions], Coroutine[Any, Any, tuple[Counter[str], ScanPositions, bool]]
]
"""The same for workflows."""


class Cleanup:
    """The cleanup of one plane."""

    def __init__(
        self,
        database: Database,
        locks: Locks,
        clock: Clock,
        *,
        retention: Retention | None = None,
        batch: int = BATCH,
        batches: int = BATCHES,
        flows: Sequence[FlowStep] = (),
        observer: Observer | None = None,
        family: LockFamily = DEAD_LETTER_CLEANUP,
    ) -> None:
        """`flows`: further batches where there are workflows."""
        self.retention = (retention or Retention()).check()
        self.document = Document(database, NAME, family, clock, observer)
        self._family = family
        self._locks = locks
        self._clock = clock
        self.batch = check_whole("batch", batch, 1, 100_000)
        self._flows: list[Step] = [partial(each, self) for each in flows]
        self._batches = check_whole("batches", batches, 1, 100_000)
        self._tally: Counter[str] = Counter()

    def loop(self, *, interval: Duration = INTERVAL, mode: Mode | str = Mode.STICKY, **settings: Any) -> Loop:
        """The loop that runs it."""
        return Loop("cleanup", self._family, interval, self.tick, locks=self._locks, mode=mode, **settings)

    def now_ns(self) -> int:
        """The current time of the clock that rows use."""
        return self._clock.now().wall

    def statistics(self) -> CleanupStatistics:
        """Counts so far."""
        return CleanupStatistics(**self._tally)

    async def tick(self, tick: Tick) -> None:
        """A bounded number of batches of each kind."""
        writer = tick.lease.owner
        progress = ScanPositions.of((await self.document.enter(tick.lease, writer=writer)).body)
        own: list[Step] = [self._old_letters, self._surplus_letters, self._finished_jobs, self._silent_workers]
        own.append(self._free_pages)
        for step in (*own, *self._flows):
            for _ in range(self._batches):
                if not tick.more():
                    return
                progress, more = await self._do(tick, step, progress)
                if not more:
                    break

    async def _do(self, tick: Tick, step: Step, progress: ScanPositions) -> tuple[ScanPositions, bool]:
        """One batch in one transaction, with its end position, under the leader's fence."""

        async def work(tx: Tx) -> tuple[tuple[Counter[str], ScanPositions, bool], Mapping[str, Any]]:
            done = await step(tx, progress)
            return done, done[1].body()

        gone, after, more = await self.document.write(tick.lease, work, writer=tick.lease.owner)
        self._tally.update(gone)
        return after, more

    # The kinds.

    async def _old_letters(self, tx: Tx, progress: ScanPositions) -> tuple[Counter[str], ScanPositions, bool]:
        before_ns = self.now_ns() - self.retention.letters_ns
        gone = await tx.query(_LETTERS, {"before_ns": before_ns, "most": self.batch})
        return Counter(letters=len(gone)), progress, len(gone) == self.batch

    async def _surplus_letters(self, tx: Tx, progress: ScanPositions) -> tuple[Counter[str], ScanPositions, bool]:
        """One tenant at a time, by name; after the last one the first again, in the next tick."""
        statement = _FIRST_TENANT if progress.tenant is None else _NEXT_TENANT
        found = await tx.query(statement, {"after": progress.tenant})
        if not found:
            return Counter(), replace(progress, tenant=None), False
        tenant = found[0]["tenant"]
        values = {"tenant": tenant, "keep": self.retention.letters_of_tenant, "most": self.batch}
        gone = await tx.query(_SURPLUS, values)
        if len(gone) < self.batch:
            progress = replace(progress, tenant=tenant)
        return Counter(letters=len(gone)), progress, True

    async def _finished_jobs(self, tx: Tx, progress: ScanPositions) -> tuple[Counter[str], ScanPositions, bool]:
        now_ns = self.now_ns()
        at, lap_ns = progress.jobs, progress.lap_ns
        if now_ns - lap_ns >= LAP_NS:
            at, lap_ns = BEFORE_ALL, now_ns
        values: dict[str, Any] = {
            "created_ns": at.at_ns,
            "id": at.id,
            "before_ns": now_ns - self.retention.jobs_ns,
            "keys_before_ns": now_ns - self.retention.keys_ns,
            "most": self.batch,
        }
        page = await tx.query(_PAGE, values)
        if not page:
            return Counter(), replace(progress, jobs=at, lap_ns=lap_ns), False
        last = Place(page[-1]["created_ns"], page[-1]["id"])
        values |= {"last_ns": last.at_ns, "last_id": last.id}
        await tx.query(_EVENTS, values)
        await tx.query(_PROGRESS, values)
        await tx.query(_EMITTED, values)
        await tx.query(_CHILDREN, values)
        emptied = await tx.query(_STRIP, values)
        gone = await tx.query(_JOBS, values)
        counts = Counter(jobs=len(gone), emptied=len(emptied))
        return counts, replace(progress, jobs=last, lap_ns=lap_ns), len(page) == self.batch

    async def _free_pages(self, tx: Tx, progress: ScanPositions) -> tuple[Counter[str], ScanPositions, bool]:
        """Return free pages of a SQLite file to the file system. Postgres does that automatically."""
        if tx.dialect != "sqlite":
            return Counter(), progress, False
        (free,), (pages,), (mode,) = [tuple((await tx.query(each))[0].values()) for each in _PAGES]
        surplus = 0 if mode != _INCREMENTAL or free < FREE_PAGES_MIN else free - pages // FREE_SHARE
        for _ in range(min(surplus, FREED_AT_ONCE)):
            await tx.query("PRAGMA incremental_vacuum(1)")  # Python's driver frees one page per call
        return Counter(), progress, surplus > FREED_AT_ONCE

    async def _silent_workers(self, tx: Tx, progress: ScanPositions) -> tuple[Counter[str], ScanPositions, bool]:
        before_ns = self.now_ns() - self.retention.workers_ns
        gone = await tx.query(_WORKERS, {"before_ns": before_ns})
        return Counter(workers=len(gone)), progress, False


RUNS_MAX: Final = 100
LINES_MAX: Final = 5_000
"""How much one transaction deletes: it must not delay others, and timelines may be long."""

_OVER: Final = (sql("cleanup_runs"), sql("cleanup_runs_keyed"))
_LINES: Final = sql("cleanup_run_events")
_GATES: Final = sql("cleanup_gates")
_RUN: Final = sql("cleanup_run")
_APPROVALS: Final = sql("cleanup_approvals")


async def finished_runs(cleanup: Cleanup, tx: Tx, progress: ScanPositions) -> tuple[Counter[str], ScanPositions, bool]:
    """One batch of runs. A timeline that is too long for one batch continues in the next, and its run goes last."""
    now_ns, kept = cleanup.now_ns(), cleanup.retention
    most = min(cleanup.batch, RUNS_MAX)
    values = {"before_ns": now_ns - kept.runs_ns, "keys_before_ns": now_ns - kept.keys_ns, "most": most}
    found = [row["id"] for statement in _OVER for row in await tx.query(statement, values)][:most]
    counts: Counter[str] = Counter(runs=0)
    room = LINES_MAX
    for run in found:
        room -= len(await tx.query(_LINES, {"run": run, "most": room}))
        if room == 0:
            return counts, progress, True
        counts["approvals"] += len(await tx.query(_GATES, {"run": run}))
        counts["runs"] += len(await tx.query(_RUN, {"run": run}))
    return counts, progress, len(found) == most


async def old_approvals(cleanup: Cleanup, tx: Tx, progress: ScanPositions) -> tuple[Counter[str], ScanPositions, bool]:
    """One batch of approvals whose job was deleted."""
    values = {"before_ns": cleanup.now_ns() - cleanup.retention.runs_ns, "most": cleanup.batch}
    gone = await tx.query(_APPROVALS, values)
    return Counter(approvals=len(gone)), progress, len(gone) == cleanup.batch
