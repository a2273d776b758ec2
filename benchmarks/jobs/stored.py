"""Does scheduling slow down as stored jobs pile up? A plane works off a backlog beside a number of jobs that are over.

Rows are made by SQL, in the tables of the plane: jobs that have ended, over fifty tenants, with a line of history each;
and a backlog of the same size whatever else is stored. Then a scheduler and a worker run for a while, in this process.
Measured are jobs per second, and how long statements took for each job, without commits (but with that of a transaction
which is a single statement).

Clock: the performance counter.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from benchmarks.jobs.ours import app
from benchmarks.measure import Measurement
from holdfast.plane.db.ports import Database
from holdfast.plane.process.components import Components, open_components
from holdfast.plane.process.plane import Plane
from holdfast.plane.settings.settings import Settings

BACKLOG_PER_S = 5000.0  # more than it can do
TENANTS = 50
_CHUNK = 50_000
_WARM_UP = 100

_NUMBERS = {
    "sqlite": "(WITH RECURSIVE n (i) AS (SELECT :low UNION ALL SELECT i + 1 FROM n WHERE i < :high) SELECT i FROM n)",
    "postgres": "(SELECT i FROM generate_series(CAST(:low AS BIGINT), CAST(:high AS BIGINT)) AS i)",
}
_JOBS = """
INSERT INTO plane_job (id, tenant, topic, pool, state, priority, attempt, max_attempts, payload, created_ns, updated_ns,
    version, holdfast_fence, run_fence, worker, result, not_before_ns, submitted_by, trace, labels)
SELECT :kind || i, 'tenant-' || (i % {tenants}), 'noop', 'default', :state, i % 3, :attempt, 3, 'null', :now_ns + i,
    :now_ns + i, 4, NULL, NULL, NULL, 'null', 0, 'bench', '', '{{}}'
FROM {numbers} AS number
"""
_EVENTS = """
INSERT INTO plane_event (job, version, step, at_ns, before, after, attempt, fence, actor, reason)
SELECT :kind || i, 4, 0, :now_ns + i, 'RUNNING', 'SUCCEEDED', 1, i, 'bench', NULL FROM {numbers} AS number
"""
_DONE = "SELECT COUNT(*) AS n FROM plane_job WHERE state = 'PENDING' AND queue = 'pool'"
_HOUR_NS = 3600 * 1_000_000_000


class Stopwatch:
    """How long each statement took, all of its executions together."""

    def __init__(self) -> None:
        self.spent: defaultdict[str, float] = defaultdict(float)

    @contextmanager
    def on(self, kind: type[Any], *names: str) -> Iterator[Stopwatch]:
        """Time these coroutine methods of a class, by their first argument, a statement, or by their name."""
        before = {name: getattr(kind, name) for name in names}

        def timed(name: str, method: Any) -> Any:
            async def call(this: Any, *args: Any) -> Any:
                began = time.perf_counter()
                try:
                    return await method(this, *args)
                finally:
                    self.spent[args[0] if args else name] += time.perf_counter() - began

            return call

        for name, method in before.items():
            setattr(kind, name, timed(name, method))
        try:
            yield self
        finally:
            for name, method in before.items():
                setattr(kind, name, method)


async def fill(components: Components, stored: int, backlog: int) -> None:
    """Make the rows."""
    database = components.database
    now_ns = components.clock.now().wall - _HOUR_NS
    numbers = _NUMBERS[database.dialect]
    jobs, events = _JOBS.format(numbers=numbers, tenants=TENANTS), _EVENTS.format(numbers=numbers)
    for kind, state, attempt, count in (("old-", "SUCCEEDED", 1, stored), ("new-", "PENDING", 0, backlog)):
        for low in range(1, count + 1, _CHUNK):
            place = {"low": low, "high": min(count, low + _CHUNK - 1), "kind": kind, "now_ns": now_ns}
            await _run(database, jobs, {**place, "state": state, "attempt": attempt})
            if kind == "old-":
                await _run(database, events, place)
    if database.dialect == "postgres":  # as the server's own housekeeping does, a minute later
        for table in ("plane_job", "plane_event"):
            await _run(database, f"ANALYZE {table}", {})


async def _run(database: Database, statement: str, values: dict[str, Any]) -> None:
    await database.write(lambda tx: tx.query(statement, values))


async def _waiting(components: Components) -> int:
    return int((await components.database.read(lambda tx: tx.query(_DONE)))[0]["n"])


async def _worked(settings: Settings, backlog: int, seconds: float) -> tuple[float, float]:
    """Jobs per second, and the seconds that statements took for each job."""
    watch = Stopwatch()
    async with Plane(settings, parts={"scheduler", "worker"}, app=app) as plane:
        async with asyncio.timeout(60):
            while await _waiting(plane.components) > backlog - _WARM_UP:  # noqa: ASYNC110 - the plane notifies no one
                await asyncio.sleep(0.01)
        with watch.on(*_timed_of(plane.components.database.dialect)):
            before, began = await _waiting(plane.components), time.perf_counter()
            await asyncio.sleep(seconds)
            left, took = await _waiting(plane.components), time.perf_counter() - began
    if not left:
        raise RuntimeError(f"a backlog of {backlog} jobs is too short for {seconds:g} s")
    done = before - left
    return done / took, sum(watch.spent.values()) / max(1, done)


def _timed_of(dialect: str) -> tuple[Any, ...]:
    """The transactions of an engine, and those of their methods that wait for it."""
    if dialect == "sqlite":
        from holdfast.plane.db.sqlite.connection import SqliteTx

        return SqliteTx, "query", "query_many"
    from holdfast.plane.db.postgres.transaction import PostgresTx

    return PostgresTx, "query", "query_many", "flush", "whole"


def working_beside(settings: Settings, stored: int, seconds: float) -> Measurement:
    """How fast a plane works beside so many jobs that have ended."""

    backlog = _WARM_UP + round(BACKLOG_PER_S * seconds)

    async def main() -> tuple[float, float]:
        async with open_components(settings) as components:
            await fill(components, stored, backlog)
        return await _worked(settings, backlog, seconds)

    per_s, spent = asyncio.run(main())
    return Measurement(per_s, {"database_ms": 1e3 * spent})
