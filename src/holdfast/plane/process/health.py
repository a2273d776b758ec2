"""How one process of a plane is, for whoever asks from outside: does it work, can it be given work, what does it count.

Three questions with three answers, which must not be confused. *Troubles* are what a restart would cure: a part that
has failed, a keeper that has stopped renewing although leases are held. A store that does not answer is none, or one
outage would restart a whole fleet. *Checks* say what keeps the process from working now: a store that does not answer,
a database that takes no writes where somebody here has to write, a part that does not run, and its own end, from the
moment at which that begins. *Readings* are what its parts count.

Before it has begun, and from the moment at which a newer Holdfast has changed the tables, a process is *barred*: it
serves no request that needs the plane.

Whoever waits in the process for something that may take long is told when it begins to end, so that no wait holds it
up.

Clock: the event loop's, for the time that a store has to answer.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Final

from holdfast.core.metric_reading import Reading, Value
from holdfast.errors import HoldfastError
from holdfast.flows.log import Trouble, say
from holdfast.guards.refusals import REFUSALS
from holdfast.plane.db.migrations import Outgrown
from holdfast.plane.locks import registry as families
from holdfast.plane.process import metrics as readings
from holdfast.plane.process.bounded_call import Asking
from holdfast.plane.process.parts import Health, State
from holdfast.plane.resources.client_wait import ClientWait, WaitEnd
from holdfast.plane.service.service import CHECKED, DATABASE, Caller, Service
from holdfast.runtime.statistics import of_locks

CHECK_LIMIT_S: Final = 2.0
COUNT_LIMIT_S: Final = 2.0
OK: Final = "ok"
PROCESS: Final = "process"
DRAINING: Final = "draining"

_EVERYONE: Final = Caller("metrics")
_log: Final = logging.getLogger("holdfast.plane")


class ProcessHealth:
    """What can be asked of one process."""

    def __init__(
        self,
        service: Service,
        *,
        health: Callable[[], Sequence[Health]] = tuple,
        counts: Callable[[], Iterable[Reading]] = tuple,
        writes: bool = True,
    ) -> None:
        """`health` says how each part is, `counts` what the parts count. The service is opened and closed elsewhere.

        `writes`: whether what runs here needs a database that takes writes; see `parts.writes_needed`.
        """
        self.service = service
        self._health = health
        self._counts = counts
        self._writes = writes
        self._unready = {part: Trouble(_log, "not ready", "ready again", part=part) for part in CHECKED}
        self._checking = {part: Asking() for part in CHECKED}
        self._counting = Asking()
        self._more: list[Callable[[], Iterable[Reading]]] = []
        self._servers: list[Callable[[], Reading]] = []
        self._waits: set[ClientWait] = set()
        self.counts_jobs = False  # a server here tells of the jobs of the whole plane
        self.draining = False
        self.begun = True
        """False: it waits for its stores, and has not prepared the database."""
        self.outgrown: Outgrown | None = None

    def also(self, counts: Callable[[], Iterable[Reading]]) -> None:
        """Something else in this process counts too."""
        self._more.append(counts)

    def serve(self, answers: Callable[[], Reading], *, jobs: bool) -> None:
        """A server in this process answers, and counts what. `jobs`: it tells of the jobs of the whole plane too."""
        self._servers.append(answers)
        self.counts_jobs |= jobs

    def drain(self) -> None:
        """The process has begun to end: it takes nothing more, and is well. Whoever waits here is told."""
        self.draining = True
        self._end_waits()

    def outgrow(self, reason: Outgrown) -> None:
        """A newer Holdfast has changed the tables: the process must not use them, and only says so from now on."""
        self.outgrown = reason
        say(_log, logging.ERROR, "this process is too old for its database and does nothing more", reason)
        self._end_waits()

    @property
    def barred(self) -> str | None:
        """Why no request that needs the plane can be served; None: it can."""
        if self.outgrown is not None:
            return str(self.outgrown)
        return None if self.begun else "the process waits for its database"

    def _end_waits(self) -> None:
        for each in self._waits:
            each.end(WaitEnd.CLOSING)

    @contextmanager
    def waiting(self, client: ClientWait) -> Iterator[None]:
        """Somebody waits in this process while the block runs, and is told when it begins to end, or has."""
        self._waits.add(client)
        if self.draining or self.outgrown is not None:
            client.end(WaitEnd.CLOSING)
        try:
            yield
        finally:
            self._waits.discard(client)

    def troubles(self) -> list[str]:
        """Why the process does not do its work although it lives; none: it does."""
        found = [f"the {each.part} has failed" for each in self._health() if each.state is State.FAILED]
        report = self.service.parts.locks.health()
        if report.stalled:
            found.append(f"leases are held and not renewed: {report.problems[0]}")
        return found

    async def checks(self) -> dict[str, str]:
        """What each thing that is needed answers: `ok`, or what is wrong. Stores are asked at once, within a limit."""
        if self.draining:
            return {PROCESS: DRAINING}
        if self.outgrown is not None:
            return {PROCESS: str(self.outgrown)}
        answers = await asyncio.gather(*(self._answer(name) for name in CHECKED))
        down = {each.part: str(each.state) for each in self._health() if not each.well}
        if not self.begun:  # the stores may answer, and requests that need the plane are still refused
            down[PROCESS] = str(State.STARTING)
        return {**dict(zip(CHECKED, answers, strict=True)), **down}

    def readings(self) -> Iterator[Reading]:
        """What the process counts now."""
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
        """What the servers of this process have answered, each for itself."""
        return [answers() for answers in self._servers]

    async def live(self) -> list[Reading]:
        """The live jobs and runs of the whole plane, which the database is asked for.

        When it does not answer, what is counted here matters most: it is told without the jobs and runs.
        """
        jobs: Value = None
        runs: Value = None
        try:
            jobs, runs = await self._counting.within(COUNT_LIMIT_S, self._count)
        except (HoldfastError, TimeoutError, OSError) as error:
            say(_log, logging.WARNING, "the jobs and runs could not be counted", error)
        return [Reading("jobs", {"live": jobs}), Reading("runs", {"live": runs})]

    async def _count(self) -> tuple[Value, Value]:
        jobs = await self.service.counts(_EVERYONE, finished=False)
        return jobs, None if self.service.parts.flows is None else await self.service.flows.store.counts()

    async def _answer(self, part: str) -> str:
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
