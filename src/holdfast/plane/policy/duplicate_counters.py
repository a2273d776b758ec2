"""Counts of lock fallbacks and duplicate work over all processes: the input of an escalation.

    signals.step_repeated(run="r-1", step="fetch")     # the engine: a completed step was completed again
    signals.publish_repeated(job="j-1")                # a publisher: this job was published before
    await signals.sums(window_ns)                      # over all processes

Fallbacks are read from the statistics of the process's `Locks`, by family and risk class; no caller reports them here.

Promises:

- Reporting is a count in memory, costs no I/O and never fails.
- A task writes the counts every few seconds in buckets of ten seconds. A bucket is written as a whole, so a second
  write does not count twice. No lease is needed.
- While the database is down, counts are kept for up to `KEPT_NS` and written into their buckets later. Nothing else in
  the process is affected. Older counts are dropped.

Does not promise exact counts: the unwritten counts of a killed process are lost, and hosts with different clocks write
into neighboring buckets.

Clock: the wall clock, which hosts share.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple

from holdfast.core.history.events import EventKind as Happened
from holdfast.core.log_rate import LogRate
from holdfast.core.ports import Clock
from holdfast.errors import HoldfastError
from holdfast.flows.log import OutageLog, log_fields
from holdfast.plane.db.migrations import prepare
from holdfast.plane.db.ports import Database, Tx
from holdfast.plane.db.statements import sql
from holdfast.runtime.recorder import Recorder
from holdfast.types import NS

BUCKET_NS: Final = 10 * NS
KEPT_NS: Final = 3600 * NS
LINES_MAX: Final = 20  # in the log, of one kind, between two writes

SIGNAL_SCHEMA: Final = "signal_schema"
_PUT: Final = sql("signal_put")
_SUM: Final = sql("signal_sum")
_SWEEP: Final = sql("signal_sweep")

_log: Final = logging.getLogger("holdfast.plane")


class SignalKind(StrEnum):
    """The counted events."""

    FALLBACK = "fallback"  # a lock was granted locally because the store had failed
    EXERCISED = "exercised"  # a lock was granted locally because an exercise simulated a store error
    STEP = "step"  # a completed step was completed again
    PUBLISH = "publish"  # a published job was published again
    END = "end"  # an ended job ended again
    LOST = "lost"  # a lease was lost; the reason is in place of the risk class

    @property
    def duplicate(self) -> bool:
        """Whether the event means that work was done twice."""
        return self in {SignalKind.STEP, SignalKind.PUBLISH, SignalKind.END}


class SignalLabel(NamedTuple):
    """The key of a count. Duplicates have no family and no class."""

    sign: SignalKind
    family: str = ""
    risk: str = ""


@dataclass(frozen=True, slots=True)
class SignalTotal:
    """The count over all processes: in a window, and in the window before it."""

    label: SignalLabel
    lately: int
    earlier: int


class DuplicateCounters:
    """The counts of this process, and the sums over all."""

    def __init__(self, database: Database, clock: Clock, *, process: str, recorder: Recorder | None = None) -> None:
        """`process` is unique to this process; `recorder` counts its fallbacks."""
        self._database = database
        self._clock = clock
        self._process = process
        self._recorder = recorder
        self._sources: dict[SignalLabel, Callable[[], int]] = {}
        self._read: Counter[SignalLabel] = Counter()  # the last value of each source
        self._reported: Counter[SignalLabel] = Counter()
        self._buckets: dict[int, Counter[SignalLabel]] = {}
        self._unwritten: set[int] = set()
        self._swept_ns = 0
        self._prepared = False
        self._rates: dict[SignalKind, LogRate] = {}
        self._writing = OutageLog(
            _log, "signals could not be written and are kept for later", "signals can be written again"
        )
        self.totals: Counter[SignalLabel] = Counter()  # since the start, for metrics
        self.input_fail_open = 0  # jobs submitted without the store
        self.failed = 0  # failed writes

    # Reporting.

    def step_repeated(self, *, run: str, step: str) -> None:
        """A completed step was completed again. The second completion changed nothing."""
        self._report(SignalKind.STEP, "a step completed again", run=run, step=step)

    def publish_repeated(self, *, job: str) -> None:
        """A published job was published again."""
        self._report(SignalKind.PUBLISH, "a job was published again", job=job)

    def submitted_without_store(self, jobs: int) -> None:
        """Jobs were submitted by a run whose lock was granted without the store: another replica may hold it too.

        For metrics only: an escalation uses the fallbacks themselves.
        """
        self.input_fail_open += jobs

    def follow(self, sign: SignalKind, count: Callable[[], int]) -> None:
        """Include an existing counter that only increases."""
        self._sources[SignalLabel(sign)] = count

    # Writing.

    def collect(self) -> None:
        """Add the events since the last call to the current bucket."""
        fresh = self._reported
        self._reported = Counter()
        for label, count in self._counted().items():
            if (more := count - self._read[label]) > 0:
                fresh[label] += more
            self._read[label] = count
        if not fresh:
            return
        bucket = self._bucket()
        self._buckets.setdefault(bucket, Counter()).update(fresh)
        self._unwritten.add(bucket)
        self.totals.update(fresh)

    async def flush(self) -> bool:
        """Collect, and write the unwritten counts. False: the write failed, and the counts are kept for later."""
        self.collect()
        oldest = self._bucket() - KEPT_NS
        for bucket in [each for each in self._buckets if each < oldest]:
            del self._buckets[bucket]
            self._unwritten.discard(bucket)
        sweeping = self._bucket() - self._swept_ns >= 60 * NS
        if not self._unwritten and not sweeping:
            return True
        writing = {bucket: dict(self._buckets[bucket]) for bucket in self._unwritten}
        rows = [row for bucket, counts in writing.items() for row in self._rows(bucket, counts)]

        async def work(tx: Tx) -> None:
            await tx.query_many(_PUT, rows)
            if sweeping:
                await tx.query(_SWEEP, {"before_ns": oldest})

        try:
            await self._prepare()
            await self._database.write(work)
        except HoldfastError as error:
            self.failed += 1
            self._writing.met(error)
            return False
        self._writing.ended()
        self._swept_ns = self._bucket() if sweeping else self._swept_ns
        # Counts that arrived meanwhile are not written yet. A past bucket does not change.
        self._unwritten = {each for each in self._unwritten if dict(self._buckets[each]) != writing.get(each)}
        return True

    async def sums(self, window_ns: int) -> list[SignalTotal]:
        """The counts of all processes in the last `window_ns`, and in the window before it."""
        since_ns = self._clock.now().wall - window_ns
        values = {"since_ns": since_ns, "before_ns": since_ns - window_ns}
        await self._prepare()
        rows = await self._database.read(lambda tx: tx.query(_SUM, values))
        known = {str(each) for each in SignalKind}  # a newer version may count more
        return [
            SignalTotal(
                SignalLabel(SignalKind(row["kind"]), row["family"], row["risk"]),
                int(row["lately"]),
                int(row["earlier"]),
            )
            for row in rows
            if row["kind"] in known
        ]

    def _report(self, sign: SignalKind, text: str, **fields: str) -> None:
        """Count the event, and log it below a rate limit: an outage must not flood its own log."""
        self._reported[SignalLabel(sign)] += 1
        rate = self._rates.setdefault(sign, LogRate(LINES_MAX))
        log_fields(_log, logging.WARNING, text, fields, rate=rate, stacklevel=2)

    def _counted(self) -> Mapping[SignalLabel, int]:
        found = {label: count() for label, count in self._sources.items()}
        if self._recorder is not None:
            for sign, happened in (
                (SignalKind.FALLBACK, Happened.FELL_BACK),
                (SignalKind.EXERCISED, Happened.EXERCISED),
            ):
                counts = self._recorder.by_risk(happened)
                found |= {SignalLabel(sign, family, risk): count for (family, risk), count in counts.items()}
            lost = self._recorder.by_reason()
            found |= {SignalLabel(SignalKind.LOST, family, reason): count for (family, reason), count in lost.items()}
        return found

    def _rows(self, bucket: int, counts: Mapping[SignalLabel, int]) -> list[dict[str, object]]:
        return [
            {
                "bucket_ns": bucket,
                "process": self._process,
                "kind": str(label.sign),
                "family": label.family,
                "risk": label.risk,
                "number": number,
            }
            for label, number in counts.items()
        ]

    def _bucket(self) -> int:
        return self._clock.now().wall // BUCKET_NS * BUCKET_NS

    async def _prepare(self) -> None:
        if not self._prepared:
            await prepare(self._database, SIGNAL_SCHEMA)
            self._prepared = True
