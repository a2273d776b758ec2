"""Holdfast's plane: `python -m benchmarks.jobs.ours` runs a scheduler and a worker in one process, or one of them."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Sequence

from benchmarks.jobs.stamps import note
from holdfast.cli.server.lifecycle import collect_less_often
from holdfast.plane import App
from holdfast.plane.process.plane import Plane
from holdfast.plane.settings.settings import Settings, WorkerSettings

PARTS = ("scheduler", "worker")

app = App("bench")


@app.job("noop")
async def noop(payload: object) -> int:
    """Nothing."""
    return 1


@app.job("stamp")
async def stamp(payload: int) -> int:
    """Note how long it took to get here."""
    return note(payload)


def settings_of(database: str, bus: str | None, leases: str | None, concurrency: int) -> Settings:
    """A plane with one worker."""
    return Settings(database=database, bus=bus, leases=leases, worker=WorkerSettings(count=1, concurrency=concurrency))


def settings() -> Settings:
    """A plane where the environment says, with a worker of the common size."""
    places = os.environ
    concurrency = int(places["BENCH_CONCURRENCY"])
    return settings_of(places["BENCH_DATABASE"], places.get("BENCH_BUS"), places.get("BENCH_LEASES"), concurrency)


async def main(parts: Sequence[str]) -> None:
    """Work until the process is ended."""
    async with Plane(settings(), parts=parts, app=app if "worker" in parts else None) as plane:
        await plane.wait()


if __name__ == "__main__":
    collect_less_often()  # as `holdfast up` does
    asyncio.run(main(sys.argv[1:] or PARTS))
