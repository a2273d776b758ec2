"""The process that submits: `python -m benchmarks.jobs.client NAME`, with what it needs in the environment.

It warms up, submits a number of jobs that do nothing as quickly as this queue can (in batches where it has them) and
waits until all are done and their ends are stored; then submits some at a steady pace, each of which notes how long it
took to get to its function. Prints one line of JSON.

Clock: the performance counter for rates; the monotonic clock, which all processes of a host share, for latencies.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Protocol

from benchmarks.contender import module
from benchmarks.jobs.stamps import noted

WARM_UP = 50
BATCH = 100
LOOK_S = 0.05  # a poll costs CPU time of the server, too
LIMIT_S = 120.0

_LIVE = "state IN ('PENDING', 'APPROVAL_REQUIRED', 'SCHEDULED', 'DISPATCHED', 'RUNNING', 'RETRYING')"


class Client(Protocol):
    """One queue, as its submitter sees it."""

    async def noops(self, number: int) -> None:
        """Submit jobs that do nothing. Returns when all are accepted."""
        ...

    async def stamp(self, sent_ns: int) -> None:
        """Submit one that notes when it began."""
        ...

    async def over(self, number: int) -> bool:
        """Whether so many jobs, which are all that were submitted, are done, with their end stored."""
        ...


class CeleryClient:
    """One call for each job: there is no other way."""

    def __init__(self) -> None:
        self._tasks = module("benchmarks.jobs.peer_celery")
        self._results = module("redis").Redis.from_url(os.environ["BENCH_RESULTS"])

    async def noops(self, number: int) -> None:
        for _ in range(number):
            self._tasks.noop.delay()

    async def stamp(self, sent_ns: int) -> None:
        self._tasks.stamp.delay(sent_ns)

    async def over(self, number: int) -> bool:
        return int(self._results.dbsize()) >= number


class DramatiqClient:
    """One call for each job: there is no other way."""

    def __init__(self) -> None:
        self._tasks = module("benchmarks.jobs.peer_dramatiq")
        self._results = module("redis").Redis.from_url(os.environ["BENCH_RESULTS"])

    async def noops(self, number: int) -> None:
        for _ in range(number):
            self._tasks.noop.send()

    async def stamp(self, sent_ns: int) -> None:
        self._tasks.stamp.send(sent_ns)

    async def over(self, number: int) -> bool:
        return int(self._results.dbsize()) >= number


class ProcrastinateClient:
    """In batches. It is asked whether any is left, which costs its database next to nothing."""

    def __init__(self, tasks: Any) -> None:
        self._tasks = tasks

    async def noops(self, number: int) -> None:
        while number > 0:
            await self._tasks.noop.batch_defer_async(*({} for _ in range(min(BATCH, number))))
            number -= BATCH

    async def stamp(self, sent_ns: int) -> None:
        await self._tasks.stamp.defer_async(sent_ns=sent_ns)

    async def over(self, number: int) -> bool:
        query = "SELECT EXISTS (SELECT 1 FROM procrastinate_jobs WHERE status IN ('todo', 'doing')) AS more"
        return not (await self._tasks.app.connector.execute_query_one_async(query))["more"]


class HoldfastClient:
    """In batches. It is asked whether any is left, which costs its database next to nothing."""

    def __init__(self, components: Any) -> None:
        self._components = components
        self._model = module("holdfast.plane.model.records")
        self._caller = module("holdfast.plane.service.service").Caller("bench")

    async def noops(self, number: int) -> None:
        wanted = self._model.Submission("noop")
        while number > 0:
            answers = await self._components.service.submit_many(self._caller, [wanted] * min(BATCH, number))
            if any(isinstance(each, Exception) for each in answers):
                raise RuntimeError(f"not all were accepted: {answers}")
            number -= BATCH

    async def stamp(self, sent_ns: int) -> None:
        await self._components.service.submit(self._caller, self._model.Submission("stamp", sent_ns))

    async def over(self, number: int) -> bool:
        if await self._asked(f"SELECT EXISTS (SELECT 1 FROM plane_job WHERE {_LIVE}) AS found"):
            return False
        ended = await self._asked("SELECT COUNT(*) AS found FROM plane_job WHERE state = 'SUCCEEDED'")
        if ended != number:
            raise RuntimeError(f"{number - ended} jobs ended otherwise")
        return True

    async def _asked(self, query: str) -> int:
        return int((await self._components.database.read(lambda tx: tx.query(query)))[0]["found"])


@asynccontextmanager
async def connected(name: str) -> AsyncIterator[Client]:
    """The client of one queue."""
    if name.startswith("celery"):
        yield CeleryClient()
    elif name.startswith("dramatiq"):
        yield DramatiqClient()
    elif name == "procrastinate":
        tasks = module("benchmarks.jobs.peer_procrastinate")
        async with tasks.app.open_async():
            yield ProcrastinateClient(tasks)
    else:
        settings = module("benchmarks.jobs.ours").settings()
        async with module("holdfast.plane.process.components").open_components(settings) as components:
            yield HoldfastClient(components)


async def done(client: Client, number: int) -> None:
    """Wait until so many jobs are done."""
    async with asyncio.timeout(LIMIT_S):
        while not await client.over(number):  # noqa: ASYNC110 - what is waited for happens in other processes
            await asyncio.sleep(LOOK_S)


def cpu_s() -> float:
    """CPU time of this process, and of the workers and their children. Servers are left out: some are shared."""
    tick = os.sysconf("SC_CLK_TCK")
    todo, ticks = os.environ["BENCH_WORKERS"].split(), 0
    while todo:
        with contextlib.suppress(OSError):  # one that has just ended
            process = Path("/proc") / todo.pop()
            fields = (process / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
            for task in (process / "task").iterdir():
                todo += (task / "children").read_text(encoding="utf-8").split()
    return time.process_time() + ticks / tick


async def measured(client: Client, number: int, paced: int, rate: float) -> dict[str, Any]:
    """All that is measured of one queue."""
    await client.noops(WARM_UP)
    await done(client, WARM_UP)
    before, cpu = time.perf_counter(), cpu_s()
    await client.noops(number)
    accepted = time.perf_counter()
    await done(client, WARM_UP + number)
    ended = time.perf_counter()
    found: dict[str, Any] = {
        "per_s": number / (ended - before),
        "submit_per_s": number / (accepted - before),
        "cpu_us": 1e6 * (cpu_s() - cpu) / max(1, number),
    }
    begin = time.monotonic()
    for turn in range(paced):
        await asyncio.sleep(max(0.0, begin + turn / rate - time.monotonic()))
        await client.stamp(time.monotonic_ns())
    await done(client, WARM_UP + number + paced)
    found["latencies_ns"] = noted()
    return found


async def main(name: str) -> None:
    """Measure, and say what came out."""
    number, paced, rate = (float(os.environ[f"BENCH_{each}"]) for each in ("NUMBER", "PACED", "RATE"))
    async with connected(name) as client:
        print(json.dumps(await measured(client, int(number), int(paced), rate)))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
