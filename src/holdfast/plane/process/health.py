"""The health of one process of a plane: liveness, readiness and counters.

- *Troubles* are failures that a restart would cure: a part that has failed, or a renewer that has stopped although
  leases are held. A store that does not answer is none, or one outage would restart a whole fleet.
- *Checks* list what keeps the process from working now: a store that does not answer, a database that refuses writes
  which a part needs, a part that does not run, and a drain from its first moment.
- *Readings* are the counters of its parts.

Before the start is complete, and after a newer Holdfast has changed the tables, a process is *barred*: it serves no
request that needs the plane. Long waits in the process are ended when a drain begins, so that they do not delay it.

Clock: the event loop's, for the time limit of a store.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Final

from holdfast.core.metric_reading import Reading, Value
from holdfast.core.ports import SharesTransactions
from holdfast.errors import HoldfastError
from holdfast.flows.log import OutageLog, log_event
from holdfast.guards.admission import REFUSALS
from holdfast.plane.db.migrations import Outgrown
from holdfast.plane.locks import registry as families
from holdfast.plane.process import metrics as readings
from holdfast.plane.process.bounded_call import BoundedCall
from holdfast.plane.process.parts import PartHealth, State
from holdfast.plane.resources.client_wait import ClientWait, WaitEnd
from holdfast.plane.service.overview import Overview, PlaneOverview
from holdfast.plane.service.service import CHECKED, DATABASE, Caller, Service, ServiceParts
from holdfast.runtime.statistics import of_locks
from holdfast.types import NS

CHECK_LIMIT_S: Final = 2.0
COUNT_LIMIT_S: Final = 2.0
OK: Final = "ok"
UNCHECKED: Final = "not checked: it needs the database"
PROCESS: Final = "process"
DRAINING: Final = "draining"
CLOCK: Final = "clock"

_SERVER_NOW: Final = "SELECT CAST(EXTRACT(EPOCH FROM clock_timestamp()) * 1000000000 AS BIGINT) AS now_ns"

_EVERYONE: Final = Caller("metrics")
_log: Final = logging.getLogger("holdfast.plane")


class ProcessHealth:
    """The health of one process."""

    def __init__(
        self,
        service: Service,
        *,
        health: Callable[[], Sequence[PartHealth]] = tuple,
        counts: Callable[[], Iterable[Reading]] = tuple,
        writes: bool = True,
    ) -> None:
        """`health` returns the health of each part, `counts` its counters. The caller opens and closes the service.

        `writes`: whether a part needs a database that accepts writes; see `parts.writes_needed`.
        """
        self.service = service
        self._health = health
        self._counts = counts
        self._writes = writes
        self._unready = {part: OutageLog(_log, "not ready", "ready again", part=part) for part in CHECKED}
        self._checking = {part: BoundedCall() for part in CHECKED}
        self._counting = BoundedCall()
        self._measuring = {part: BoundedCall() for part in (*CHECKED, CLOCK)}
        self._more: list[Callable[[], Iterable[Reading]]] = []
        self._servers: list[Callable[[], Reading]] = []
        self._waits: set[ClientWait] = set()
        self.counts_jobs = False  # a server of this process shows the jobs of the whole plane
        self.draining = False
        self.begun = True
        """False: the process waits for its stores, and has not prepared the database."""
        self.outgrown: Outgrown | None = None

    def also(self, counts: Callable[[], Iterable[Reading]]) -> None:
        """Add counters of another object in this process."""
        self._more.append(counts)

    def serve(self, answers: Callable[[], Reading], *, jobs: bool) -> None:
        """Add a server of this process with its counters. `jobs`: it shows the jobs of the whole plane, too."""
        self._servers.append(answers)
        self.counts_jobs |= jobs

    def drain(self) -> None:
        """The process has begun to drain: it accepts nothing more, and is alive. Ends all waits."""
        self.draining = True
        self._end_waits()

    def outgrow(self, reason: Outgrown) -> None:
        """A newer Holdfast has changed the tables: the process must not use them, and only reports that from now on."""
        self.outgrown = reason
        log_event(_log, logging.ERROR, "this process is too old for its database and does nothing more", reason)
        self._end_waits()

    @property
    def barred(self) -> str | None:
        """Why no request that needs the plane can be served; None: requests are served."""
        if self.outgrown is not None:
            return str(self.outgrown)
        return None if self.begun else "the process waits for its database"

    def _end_waits(self) -> None:
        for each in self._waits:
            each.end(WaitEnd.CLOSING)

    @contextmanager
    def waiting(self, client: ClientWait) -> Iterator[None]:
        """A request waits in this process while the block runs. The wait ends when a drain begins, or has begun."""
        self._waits.add(client)
        if self.draining or self.outgrown is not None:
            client.end(WaitEnd.CLOSING)
        try:
            yield
        finally:
            self._waits.discard(client)

    def troubles(self) -> list[str]:
        """Why the process does not work although it lives; empty: it works."""
        found = [f"the {each.part} has failed" for each in self._health() if each.state is State.FAILED]
        report = self.service.parts.locks.health()
        if report.stalled:
            found.append(f"leases are held and not renewed: {report.problems[0]}")
        return found

    async def checks(self) -> dict[str, str]:
        """For each dependency `ok`, or the problem. Stores are asked concurrently, within a limit."""
        if self.draining:
            return {PROCESS: DRAINING}
        if self.outgrown is not None:
            return {PROCESS: str(self.outgrown)}
        answers = await asyncio.gather(*(self._answer(name) for name in CHECKED))
        down = {each.part: str(each.state) for each in self._health() if not each.well}
        if not self.begun:  # the stores may answer, and requests that need the plane are still refused
            down[PROCESS] = str(State.STARTING)
        return {**self._at_fault(dict(zip(CHECKED, answers, strict=True))), **down}

    def _at_fault(self, answers: dict[str, str]) -> dict[str, str]:
        """The answers without those of innocent components: both buses read the database, and so may leases."""
        if answers[DATABASE] == OK:
            return answers
        store = self.service.parts.locks.ports.store
        needs = ["bus", *(["leases"] if isinstance(store, SharesTransactions) and store.rides else [])]
        return {part: UNCHECKED if part in needs and answer != OK else answer for part, answer in answers.items()}

    def readings(self) -> Iterator[Reading]:
        """The current counters of the process."""
        parts = self.service.parts
        yield Reading(
            "process", {"draining": self.draining, "parts": {each.part: each.well for each in self._health()}}
        )
        yield REFUSALS.reading()
        yield from readings.of_store(parts.store)
        yield from readings.of_submissions(self.service.fast_path)
        if parts.flows is not None:
            yield from readings.of_runs(parts.flows.store)
        yield from readings.of_database(parts.database.statistics())
        yield from readings.of_bus(parts.bus.statistics())
        names = [family.name for family in families.FAMILIES.values()]
        yield from of_locks(parts.locks.manager, names, parts.locks.policy.current())
        if parts.audit is not None:
            yield from readings.of_audit(parts.audit.statistics())
        if parts.policing is not None:
            yield Reading("policy", parts.policing.statistics())
        if parts.approvals is not None:
            yield from readings.of_approvals(parts.approvals)
        yield from self._counts()
        for counts in self._more:
            yield from counts()

    def served(self) -> list[Reading]:
        """The counters of each server of this process."""
        return [answers() for answers in self._servers]

    async def asked(self, *, jobs: bool) -> list[Reading]:
        """Readings that need requests: whether each dependency answers, and with `jobs` those of the whole plane."""
        components, plane = await asyncio.gather(self._measured(), self._live() if jobs else _nothing())
        return [*components, *plane]

    async def _measured(self) -> list[Reading]:
        """Whether each dependency answers this process, and how long that took."""
        if self.outgrown is not None:
            return []
        took = dict(zip(CHECKED, await asyncio.gather(*map(self._took_ns, CHECKED)), strict=True))
        up = {part: int(each is not None) for part, each in took.items()}
        limit_ns = round(CHECK_LIMIT_S * NS)
        found = [
            Reading(
                "dependency",
                {"up": up, "took_ns": {part: limit_ns if each is None else each for part, each in took.items()}},
            )
        ]
        if took[DATABASE] is not None and (ahead_ns := await self._ahead_ns()) is not None:
            found.append(Reading("clock", {"ahead_ns": ahead_ns}))
        return [*found, *disk_readings(self.service.parts)]

    async def _took_ns(self, part: str) -> int | None:
        """How long an answer took; None: there was none within the limit."""
        began = self.service.parts.store.clock.now().mono
        try:
            await self._measuring[part].within(CHECK_LIMIT_S, partial(self.service.check, part))
        except (HoldfastError, TimeoutError, OSError):
            return None
        return self.service.parts.store.clock.now().mono - began

    async def _ahead_ns(self) -> int | None:
        """How far the clock of this process is ahead of the database server's; None: they are the same clock."""
        database, clock = self.service.parts.database, self.service.parts.store.clock
        if database.dialect != "postgres":
            return None
        before = clock.now()
        try:
            rows = await self._measuring[CLOCK].within(
                CHECK_LIMIT_S, lambda: database.read(lambda tx: tx.query(_SERVER_NOW), lasting=False)
            )
        except (HoldfastError, TimeoutError, OSError):
            return None
        return before.wall + (clock.now().mono - before.mono) // 2 - int(rows[0]["now_ns"])

    async def _live(self) -> list[Reading]:
        """The live jobs and runs of the whole plane, from the database. Empty if that does not answer."""
        jobs: Value = None
        runs: Value = None
        found: list[Reading] = []
        try:
            jobs, runs, overview = await self._counting.within(COUNT_LIMIT_S, self._count)
            found.append(readings.of_overview(overview))
        except (HoldfastError, TimeoutError, OSError) as error:
            log_event(_log, logging.WARNING, "the jobs and runs could not be counted", error)
        return [Reading("jobs", {"live": jobs}), Reading("runs", {"live": runs}), *found]

    async def _count(self) -> tuple[Value, Value, PlaneOverview]:
        parts = self.service.parts
        jobs = await self.service.counts(_EVERYONE, finished=False)
        runs = None if parts.flows is None else await self.service.flows.store.counts()
        return jobs, runs, await Overview(parts.database, parts.workers, parts.store.clock).read()

    async def _answer(self, part: str) -> str:
        if part == "bus" and not self.begun and self.service.parts.bus.within:
            return UNCHECKED  # its tables are among those that this process has not prepared yet
        try:
            await self._checking[part].within(CHECK_LIMIT_S, partial(self.service.check, part))
        except TimeoutError:
            self._unready[part].met(limit_s=CHECK_LIMIT_S, error="no answer in time")
            return "no answer in time"
        except (HoldfastError, OSError) as error:
            self._unready[part].met(error)
            return type(error).__name__.lower()
        tries = part == DATABASE and self._writes and self.begun  # before that there is no table to write to
        if tries and (refusal := await self.service.writability.refusal()) is not None:
            self._unready[part].met(refusal.error)
            return refusal.shown
        self._unready[part].ended()
        return OK


async def _nothing() -> list[Reading]:
    return []


def disk_readings(parts: ServiceParts) -> list[Reading]:
    """The free space beside each file of this process. A disk that does not answer is left out."""
    files = {DATABASE: parts.database.file, "audit": parts.settings.audit_path}
    free: dict[str, int] = {}
    for what, path in files.items():
        if path is not None:
            with suppress(OSError):
                found = os.statvfs(Path(path).absolute().parent)
                free[what] = found.f_bavail * found.f_frsize
    return [Reading("disk", {"free": free})] if free else []
