"""Progress that running attempts report, and values that they emit: stored for people and programs that watch a job.

Promises: a worker writes one transaction for all of its attempts, at most once every `EVERY_S`, or every
`VALUES_EVERY_S` while functions emit values. What a quiet worker reports first is written immediately. `report` and
`emit` may be called from any thread.

- **Progress**: only the newest report of each attempt is kept. One of an older attempt, or of an earlier job under the
  same id, never replaces a newer one. Reporting is free of errors for the job function: when the database does not
  answer, reports are dropped, counted and logged once per outage. Does not promise that every report is stored.
- **Values**: every value of an attempt is stored once, in order; `flush` returns when those of one attempt are. Values
  wait while the database does not answer, and `emit` refuses more than `PENDING_VALUES_MAX` of one attempt. Does not
  promise to store the values of an attempt that another one has followed.

Clock: the wall clock for `at_ns`; the event loop's for the rate limit.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from holdfast.errors import BackendError, BadInput, Timeout
from holdfast.flows.log import OutageLog
from holdfast.plane.db.ports import Database, Row, Tx
from holdfast.plane.db.statements import sql
from holdfast.plane.jobs.timeline import EmittedValue, TimelinePlace
from holdfast.plane.model.messages import ENDED_JOBS
from holdfast.runtime.thread_runtime import Mutex

EVERY_S: Final = 1.0
VALUES_EVERY_S: Final = 0.1
PENDING_VALUES_MAX: Final = 1_000
"""Values of one attempt that wait for the next write."""
PENDING_CHARS_MAX: Final = 2_000_000
"""The same, in characters of JSON."""
WRITTEN_MAX: Final = 1_000
"""Values of one transaction."""
WRITE_TIMEOUT_S: Final = 2.0
PENDING_MAX: Final = 10_000
"""Reports that wait for the next write. More come only from attempts that end within it; theirs are dropped."""

_PUT: Final = sql("progress_put")
_GET: Final = sql("progress_get")
_EMITTED_PUT: Final = sql("emitted_put")
_EMITTED_LIST: Final = sql("emitted_list")

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


@dataclass(frozen=True, slots=True)
class EmitReport:
    """A value that an attempt of a job emitted, as JSON text."""

    job: str
    made_ns: int
    attempt: int
    fence: int
    number: int
    at_ns: int
    text: str

    @property
    def by(self) -> tuple[str, int]:
        """The attempt that emitted it."""
        return self.job, self.fence


class ProgressStore:
    """The progress and the emitted values of all jobs of a plane."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def record(self, reports: Sequence[ProgressReport], emitted: Sequence[EmitReport] = ()) -> None:
        """Store reports of different jobs, and emitted values. A stale one changes nothing."""
        rows = [_values(each) for each in sorted(reports, key=lambda each: each.job)]  # one order: no deadlock
        values = [_emitted_values(each) for each in sorted(emitted, key=lambda each: (each.by, each.number))]

        async def work(tx: Tx) -> None:
            if rows:
                await tx.query_many(_PUT, rows)
            if values:
                await tx.query_many(_EMITTED_PUT, values)
                tx.notify(ENDED_JOBS)  # readers wait for values as for ends

        await self._database.write(work, lasting=False)

    async def get(self, job: str, made_ns: int) -> Progress | None:
        """What was last stored for the job of that id that was made at that time."""
        rows = await self._database.read(lambda tx: tx.query(_GET, {"job": job, "made_ns": made_ns}))
        return progress_of(rows[0]) if rows else None


async def emitted_after(tx: Tx, job: str, made_ns: int, place: TimelinePlace, most: int) -> list[EmittedValue]:
    """The values that a job emitted after a place, in their order."""
    where = {"job": job, "made_ns": made_ns, "fence": place.fence, "number": place.number, "most": most}
    return [
        EmittedValue(row["attempt"], row["fence"], row["number"], row["at_ns"], json.loads(row["value"]))
        for row in await tx.query(_EMITTED_LIST, where)
    ]


class ProgressReporter:
    """Gathers the reports of one worker and writes them. Belongs to the event loop on which it was made."""

    def __init__(self, store: ProgressStore) -> None:
        self._store = store
        self._loop = asyncio.get_running_loop()
        self._mutex = Mutex()  # around the two below; a signal handler may report, too
        self._pending: dict[str, ProgressReport] = {}
        self._emitted: list[EmitReport] = []  # not written yet
        self._sizes: Counter[tuple[str, int]] = Counter()  # of these, in characters, by attempt
        self._counts: Counter[tuple[str, int]] = Counter()
        self._awake = False  # a write is due or under way: the next report need not start one
        self._writing: asyncio.Task[None] | None = None
        self._turn = asyncio.Lock()  # one write at a time: values are stored in order
        self._soon = asyncio.Event()  # there are values
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
                awake, self._awake = self._awake, True
            if not awake:
                self._loop.call_soon_threadsafe(self._wake)
        except RuntimeError:  # the loop has ended, and the worker with it
            self.dropped += 1
        except BaseException:  # of a signal handler: the next report wakes the loop, perhaps once more
            self._awake = False
            raise

    def emit(self, emitted: EmitReport) -> None:
        """Store this value soon. Any thread may call it. `BadInput`: too many values of its attempt wait."""
        by = emitted.by
        if (
            self._counts.get(by, 0) >= PENDING_VALUES_MAX
            or self._sizes.get(by, 0) + len(emitted.text) > PENDING_CHARS_MAX
        ):
            fix = "emit fewer values, or larger ones less often"
            raise BadInput("value", "comes sooner than earlier values can be stored", fix)
        try:
            with self._mutex:
                self._emitted.append(emitted)
                self._counts[by] += 1
                self._sizes[by] += len(emitted.text)
                awake, self._awake = self._awake, True
            self._loop.call_soon_threadsafe(self._soon.set if awake else self._wake)
        except RuntimeError:  # as above
            self.dropped += 1
        except BaseException:  # as above
            self._awake = False
            raise

    async def flush(self, job: str, fence: int) -> None:
        """Return when all values of this attempt are stored; immediately if it emitted none. Raises store errors."""
        while self._counts.get((job, fence)):
            if (error := await self._write()) is not None:
                raise error

    async def close(self) -> None:
        """Write what is left, within the time of one write."""
        if self._writing is not None:
            self._writing.cancel()
            await asyncio.wait((self._writing,))
        while self._more() and await self._write() is None:
            pass

    def _wake(self) -> None:
        if self._writing is not None and not self._writing.done():
            self._soon.set()
            return
        self._writing = self._loop.create_task(self._write_on(), name="store progress")

    async def _write_on(self) -> None:
        """Write, and again after a while as long as there is something new."""
        while self._more():
            self._soon.clear()
            failed = await self._write() is not None
            await asyncio.sleep(EVERY_S if failed else VALUES_EVERY_S)
            if failed or self._emitted:
                continue
            with suppress(TimeoutError):
                async with asyncio.timeout(EVERY_S - VALUES_EVERY_S):
                    await self._soon.wait()

    def _more(self) -> bool:
        with self._mutex:
            self._awake = bool(self._pending or self._emitted)
            return self._awake

    async def _write(self) -> BackendError | None:
        """Write reports and the oldest values; the error if that failed."""
        async with self._turn:
            with self._mutex:
                reports, self._pending = list(self._pending.values()), {}
                values = self._emitted[:WRITTEN_MAX]
            if not reports and not values:
                return None
            try:
                async with asyncio.timeout(WRITE_TIMEOUT_S):
                    await self._store.record(reports, values)
            except (BackendError, TimeoutError) as error:
                self.dropped += len(reports)
                known = error if isinstance(error, BackendError) else Timeout(f"no answer within {WRITE_TIMEOUT_S:g} s")
                self._trouble.met(known, reports=len(reports), values=len(values))
                return known
            self._trouble.ended()
            with self._mutex:
                del self._emitted[: len(values)]
                for each in values:
                    self._counts[each.by] -= 1
                    self._sizes[each.by] -= len(each.text)
                    if not self._counts[each.by]:
                        del self._counts[each.by], self._sizes[each.by]
            return None


def progress_of(row: Row) -> Progress:
    """From a row."""
    fraction = row["fraction"]
    return Progress(
        row["attempt"], row["fence"], row["at_ns"], None if fraction is None else float(fraction), row["note"]
    )


def _emitted_values(emitted: EmitReport) -> dict[str, Any]:
    return {
        "job": emitted.job,
        "made_ns": emitted.made_ns,
        "fence": emitted.fence,
        "number": emitted.number,
        "attempt": emitted.attempt,
        "at_ns": emitted.at_ns,
        "value": emitted.text,
    }


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
