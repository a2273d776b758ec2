"""Progress that running attempts report: stored for people and programs that watch a job.

Promises: a worker writes at most once every `EVERY_S`, one transaction for all of its attempts, and keeps only the
newest report of each; the first report of a quiet worker is written immediately. A report of an older attempt, or of an
earlier job under the same id, never replaces a newer one. Reporting is free of errors for the job function: when the
database does not answer, reports are dropped, counted and logged once per outage. `ProgressReporter.report` may be
called from any thread.

Does not promise that every report is stored, nor that the last one is durable before the job's result is.

Clock: the wall clock for `at_ns`; the event loop's for the rate limit.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from holdfast.errors import BackendError, Timeout
from holdfast.flows.log import OutageLog
from holdfast.plane.db.ports import Database, Row, Tx
from holdfast.plane.db.statements import sql
from holdfast.runtime.thread_runtime import Mutex

EVERY_S: Final = 1.0
WRITE_TIMEOUT_S: Final = 2.0
PENDING_MAX: Final = 10_000
"""Reports that wait for the next write. More come only from attempts that end within it; theirs are dropped."""

_PUT: Final = sql("progress_put")
_GET: Final = sql("progress_get")

_log: Final = logging.getLogger("holdfast.plane.worker")


@dataclass(frozen=True, slots=True)
class Progress:
    """How far an attempt has come, as its function reported it."""

    attempt: int
    fence: int  # of the worker's lease under which the attempt runs
    at_ns: int
    fraction: float | None = None  # of the work, 0 to 1
    note: str | None = None


@dataclass(frozen=True, slots=True)
class ProgressReport:
    """Progress of one job."""

    job: str
    made_ns: int
    progress: Progress


class ProgressStore:
    """The progress of all jobs of a plane."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def record(self, reports: Sequence[ProgressReport]) -> None:
        """Store reports of different jobs. A stale one changes nothing."""
        rows = [_values(each) for each in sorted(reports, key=lambda each: each.job)]  # one order: no deadlock

        async def work(tx: Tx) -> None:
            await tx.query_many(_PUT, rows)

        await self._database.write(work, lasting=False)

    async def get(self, job: str, made_ns: int) -> Progress | None:
        """What was last stored for the job of that id that was made at that time."""
        rows = await self._database.read(lambda tx: tx.query(_GET, {"job": job, "made_ns": made_ns}))
        return progress_of(rows[0]) if rows else None


class ProgressReporter:
    """Gathers the reports of one worker and writes them. Belongs to the event loop on which it was made."""

    def __init__(self, store: ProgressStore) -> None:
        self._store = store
        self._loop = asyncio.get_running_loop()
        self._mutex = Mutex()  # around the two below; a signal handler may report, too
        self._pending: dict[str, ProgressReport] = {}
        self._awake = False  # a write is due or under way: the next report need not start one
        self._writing: asyncio.Task[None] | None = None
        self._trouble = OutageLog(_log, "progress of jobs cannot be stored", "progress of jobs is stored again")
        self.dropped = 0

    def report(self, report: ProgressReport) -> None:
        """Store this soon. Any thread may call it, as often as it likes."""
        try:
            with self._mutex:
                if report.job not in self._pending and len(self._pending) >= PENDING_MAX:
                    self.dropped += 1
                    return
                self._pending[report.job] = report
                if self._awake:
                    return
                self._awake = True
            self._loop.call_soon_threadsafe(self._wake)
        except RuntimeError:  # the loop has ended, and the worker with it
            self.dropped += 1
        except BaseException:  # of a signal handler: the next report wakes the loop, perhaps once more
            self._awake = False
            raise

    async def close(self) -> None:
        """Write what is left, within the time of one write."""
        if self._writing is not None:
            self._writing.cancel()
            await asyncio.wait((self._writing,))
        await self._write()

    def _wake(self) -> None:
        if self._writing is not None and not self._writing.done():
            return
        self._writing = self._loop.create_task(self._write_on(), name="store progress")

    async def _write_on(self) -> None:
        """Write, and again after `EVERY_S` while there are new reports."""
        while self._more():
            await self._write()
            await asyncio.sleep(EVERY_S)

    def _more(self) -> bool:
        with self._mutex:
            self._awake = bool(self._pending)
            return self._awake

    async def _write(self) -> None:
        with self._mutex:
            reports, self._pending = list(self._pending.values()), {}
        if not reports:
            return
        try:
            async with asyncio.timeout(WRITE_TIMEOUT_S):
                await self._store.record(reports)
        except (BackendError, TimeoutError) as error:
            self.dropped += len(reports)
            known = error if isinstance(error, BackendError) else Timeout(f"no answer within {WRITE_TIMEOUT_S:g} s")
            self._trouble.met(known, reports=len(reports))
        else:
            self._trouble.ended()


def progress_of(row: Row) -> Progress:
    """From a row."""
    fraction = row["fraction"]
    return Progress(
        row["attempt"], row["fence"], row["at_ns"], None if fraction is None else float(fraction), row["note"]
    )


def _values(report: ProgressReport) -> dict[str, Any]:
    progress = report.progress
    return {
        "job": report.job,
        "made_ns": report.made_ns,
        "attempt": progress.attempt,
        "fence": progress.fence,
        "at_ns": progress.at_ns,
        "fraction": progress.fraction,
        "note": progress.note,
    }
