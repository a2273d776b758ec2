"""How often locks fell back and work was done twice, in all processes: what an escalation is decided by.

    signals.step_repeated(run="r-1", step="fetch")     # the engine: a completion came for a step that was complete
    signals.publish_repeated(job="j-1")                # a publisher: this job had been published before
    await signals.sums(window_ns)                      # over all processes

Fallbacks are read from what the `Locks` of the process count, by family and risk class; nobody reports them here.

Promises: reporting is a count in memory, costs no I/O and never fails. A task writes the counts every few seconds, by
buckets of ten seconds, each bucket as a whole: written twice it counts once. No lease is needed for it. While the
database is down counts are kept, up to `KEPT_NS`, and written into the buckets in which they belong; nothing else of
the process notices. What is older than `KEPT_NS` is forgotten.

Does not promise to the last one: what a killed process had not written is lost, and hosts whose clocks differ put
counts into neighbouring buckets.

Clock: the wall clock, which hosts share.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple

from holdfast.core.history.events import Kind as Happened
from holdfast.core.log_rate import LogRate
from holdfast.core.ports import Clock
from holdfast.errors import HoldfastError
from holdfast.flows.log import Trouble, tell
from holdfast.plane.db.migrations import prepare
from holdfast.plane.db.ports import Database, Tx
from holdfast.plane.db.statements import sql
from holdfast.runtime.recorder import Recorder
from holdfast.types import NS

BUCKET_NS: Final = 10 * NS
KEPT_NS: Final = 3600 * NS
LINES_MAX: Final = 20  # in the log, of one sign, between two writes

SIGNAL_SCHEMA: Final = "signal_schema"
_PUT: Final = sql("signal_put")
_SUM: Final = sql("signal_sum")
_SWEEP: Final = sql("signal_sweep")

_log: Final = logging.getLogger("holdfast.plane")


class Sign(StrEnum):
    """What is counted."""

    FALLBACK = "fallback"  # a lock was given out without the store, because that had failed
    EXERCISED = "exercised"  # likewise, because an exercise pretended so
    STEP = "step"  # a step of a run completed that was complete
    PUBLISH = "publish"  # a job was published that had been published
    END = "end"  # a job ended that was over

    @property
    def duplicate(self) -> bool:
        """Whether it says that something was done twice."""
        return self in {Sign.STEP, Sign.PUBLISH, Sign.END}


class Label(NamedTuple):
    """What a count is about. Duplicates have no family and no class."""

    sign: Sign
    family: str = ""
    risk: str = ""


@dataclass(frozen=True, slots=True)
class Sum:
    """What all processes have seen of one thing: in a window, and in the one before it."""

    label: Label
    lately: int
    earlier: int


class Signals:
    """The counts of this process, and the sums over all."""

    def __init__(self, database: Database, clock: Clock, *, process: str, recorder: Recorder | None = None) -> None:
        """`process` tells processes apart, and is not used twice; `recorder` is what counts the fallbacks here."""
        self._database = database
        self._clock = clock
        self._process = process
        self._recorder = recorder
        self._sources: dict[Label, Callable[[], int]] = {}
        self._read: Counter[Label] = Counter()  # how far each source had counted when it was last looked at
        self._reported: Counter[Label] = Counter()
        self._buckets: dict[int, Counter[Label]] = {}
        self._unwritten: set[int] = set()
        self._swept_ns = 0
        self._prepared = False
        self._rates: dict[Sign, LogRate] = {}
        self._writing = Trouble(
            _log, "signals could not be written and are kept for later", "signals can be written again"
        )
        self.totals: Counter[Label] = Counter()  # since the start, for metrics
        self.input_fail_open = 0  # jobs submitted without the store
        self.failed = 0  # writes that did not come to pass

    # Reporting.

    def step_repeated(self, *, run: str, step: str) -> None:
        """A step completed that was complete: the second completion changed nothing."""
        self._report(Sign.STEP, "a step completed again", run=run, step=step)

    def publish_repeated(self, *, job: str) -> None:
        """A job was published that had been published."""
        self._report(Sign.PUBLISH, "a job was published again", job=job)

    def submitted_without_store(self, jobs: int) -> None:
        """Jobs reached the scheduler from a run whose lock was had without the store: another replica may hold it too.

        Counted here for metrics only: an escalation goes by the fallbacks themselves.
        """
        self.input_fail_open += jobs

    def follow(self, sign: Sign, count: Callable[[], int]) -> None:
        """Count along with something that counts already, and only upwards."""
        self._sources[Label(sign)] = count

    # Writing.

    def collect(self) -> None:
        """Put what has happened since the last time into the present bucket."""
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
        """Collect, and write what was not written. False: the database did not take it; it is kept for later."""
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
        # What was counted meanwhile is not written yet; a bucket that is over needs no second look.
        self._unwritten = {each for each in self._unwritten if dict(self._buckets[each]) != writing.get(each)}
        return True

    async def sums(self, window_ns: int) -> list[Sum]:
        """What all processes have seen in the last `window_ns`, and in the equally long time before."""
        since_ns = self._clock.now().wall - window_ns
        values = {"since_ns": since_ns, "before_ns": since_ns - window_ns}
        await self._prepare()
        rows = await self._database.read(lambda tx: tx.query(_SUM, values))
        known = {str(each) for each in Sign}  # a newer version may count more
        return [
            Sum(Label(Sign(row["kind"]), row["family"], row["risk"]), int(row["lately"]), int(row["earlier"]))
            for row in rows
            if row["kind"] in known
        ]

    def _report(self, sign: Sign, text: str, **fields: str) -> None:
        """Count it; and log it, unless there were very many just now: an outage must not drown its own log."""
        self._reported[Label(sign)] += 1
        rate = self._rates.setdefault(sign, LogRate(LINES_MAX))
        tell(_log, logging.WARNING, text, fields, rate=rate, stacklevel=2)

    def _counted(self) -> Mapping[Label, int]:
        found = {label: count() for label, count in self._sources.items()}
        if self._recorder is not None:
            for sign, happened in ((Sign.FALLBACK, Happened.FELL_BACK), (Sign.EXERCISED, Happened.EXERCISED)):
                counts = self._recorder.by_risk(happened)
                found |= {Label(sign, family, risk): count for (family, risk), count in counts.items()}
        return found

    def _rows(self, bucket: int, counts: Mapping[Label, int]) -> list[dict[str, object]]:
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
