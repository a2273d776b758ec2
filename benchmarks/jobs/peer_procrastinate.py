"""Procrastinate on Postgres: `python -m benchmarks.jobs.peer_procrastinate`. It keeps states and events, no results.

Its own worker, with its defaults: it listens for new jobs, and keeps those that are done.
"""

from __future__ import annotations

import asyncio
import os

from benchmarks.contender import module
from benchmarks.jobs.stamps import note

procrastinate = module("procrastinate")
app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=os.environ["BENCH_POSTGRES"]))


async def _nothing() -> int:
    return 1


async def _stamp(sent_ns: int) -> int:
    return note(sent_ns)


noop = app.task(name="noop")(_nothing)
stamp = app.task(name="stamp")(_stamp)


async def main() -> None:
    """Work until the process is ended."""
    async with app.open_async():
        await app.run_worker_async(concurrency=int(os.environ["BENCH_CONCURRENCY"]))


if __name__ == "__main__":
    asyncio.run(main())
