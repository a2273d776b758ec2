"""A bus that loses what it had acknowledged: what the plane relies on is its database, and not the disk of its bus.

NATS acknowledges a message before the disk has it, and asks the disk every two minutes (`sync_interval`). So a loss of
power may take whatever was on the bus; here it takes everything, at each step of a job's life.
"""

from __future__ import annotations

import asyncio
import shutil
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from holdfast.plane.app import App
from holdfast.plane.db.ports import Tx
from holdfast.plane.model import messages as subjects
from holdfast.plane.model.job_states import JobState
from holdfast.plane.model.records import Heartbeat, Job, Submission
from holdfast.plane.process.components import Components, open_components
from holdfast.plane.process.plane import Plane
from holdfast.plane.settings.settings import LimitSettings
from holdfast.plane.worker.context import Context
from holdfast.types import NS
from support.polling import pauses
from support.power.power_plane_child import ME, OWN, settings
from support.servers.nats import NatsServer, own_stream

pytestmark = [pytest.mark.asyncio, pytest.mark.timeout(300)]

LIMIT_S = 90.0
REST = tuple(part for part in OWN if part != "worker")


async def until(condition: Callable[[], Awaitable[object]]) -> None:
    pause = pauses()
    async with asyncio.timeout(LIMIT_S):
        while not await condition():  # noqa: ASYNC110 - servers and databases change
            await asyncio.sleep(next(pause))


class Crew:
    """Functions that wait at a gate, and the fences under which each job was run."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.fences: dict[str, list[int]] = {}
        self.app = App("crew")

        @self.app.job("gated")
        async def gated(payload: Any, *, ctx: Context) -> None:
            self.fences.setdefault(ctx.job, []).append(ctx.fence)
            await self.gate.wait()


async def submitted(components: Components, number: int) -> list[Job]:
    made = [await components.service.submit(ME, Submission("gated", each), pool="default") for each in range(number)]
    return [job for job, _ in made]


async def states(components: Components, jobs: list[Job]) -> Counter[JobState]:
    return Counter([(await components.service.job(ME, each.id)).state for each in jobs])


async def on_the_bus(components: Components, subject: str, group: str) -> int:
    """What the server has of a subject; nothing waits in the database to be sent."""
    rows = await components.database.read(lambda tx: tx.query("SELECT COUNT(*) AS number FROM plane_outbox"))
    return 0 if rows[0]["number"] else await components.bus.pending(subject, group)


async def later(components: Components, jobs: list[Job]) -> None:
    """Half of the time is over that an attempt may take to begin, or to run."""
    limits = LimitSettings()
    statement = "UPDATE plane_job SET updated_ns = updated_ns - :past_ns WHERE id = :id AND state = :state"
    for state, seconds in ((JobState.DISPATCHED, limits.dispatched), (JobState.RUNNING, limits.running)):
        for job in jobs:
            values = {"past_ns": round(seconds / 2 * NS), "id": job.id, "state": str(state)}
            await components.database.write(partial(_query, statement, values))


async def _query(statement: str, values: Mapping[str, Any], tx: Tx) -> None:
    await tx.query(statement, values)


def forgets(server: NatsServer, *, keep: bool = False, older: bool = False) -> None:
    """The power fails, and comes back: nothing of what the server acknowledged was on its disk.

    `keep`: what it had is put aside. `older`: that is what its disk has, as if it had been synced then for the last
    time.
    """
    server.kill()
    store, aside = server.directory / "store", server.directory / "aside"
    if keep:
        shutil.copytree(store, aside)
    shutil.rmtree(store)
    if older:
        aside.rename(store)
    server.start()


@pytest.mark.requires("R63")
@pytest.mark.parametrize("older", [False, True], ids=["everything", "the newest"])
async def test_a_bus_that_forgets_costs_time_and_no_job(
    postgres_url: str, own_nats: NatsServer, tmp_path: Path, older: bool
) -> None:
    chosen = settings(postgres_url, bus=own_stream(own_nats), leases=f"sqlite:///{tmp_path}/leases.db")
    chosen = replace(chosen, worker=replace(chosen.worker, count=1, concurrency=1))
    crew = Crew()

    # Submitted: the messages were on the bus, and not delivered.
    async with open_components(chosen) as components:
        jobs = await submitted(components, 3)
        await until(lambda: _equals(on_the_bus(components, subjects.SUBMIT, subjects.SCHEDULER), 3))
        forgets(own_nats)
        assert (await states(components, jobs)).keys() == {JobState.PENDING}
        # A worker that has just died, and is still considered alive: its messages wait on the bus.
        died = Heartbeat("died", "default", ("gated",), 2, 0, components.clock.now().wall)
        assert await components.workers.record(died)

    async with Plane(chosen, ("worker",), app=crew.app):
        async with Plane(chosen, REST) as rest:
            # Sent: one runs, and the others wait on the bus.
            await until(lambda: _equals(states(rest.components, jobs), {JobState.RUNNING: 1, JobState.DISPATCHED: 2}))
            await until(lambda: on_the_bus(rest.components, subjects.work_subject("default"), subjects.WORKERS))
            forgets(own_nats, keep=older)
        # Done: the worker has said so, the bus has taken it, and no scheduler has heard it.
        crew.gate.set()
        async with open_components(chosen) as components:
            await until(lambda: on_the_bus(components, subjects.RESULT, subjects.SCHEDULER))
            forgets(own_nats, older=older)
            await later(components, jobs)

    async with Plane(chosen, OWN, app=crew.app) as whole:
        await until(lambda: _equals(states(whole.components, jobs), {JobState.SUCCEEDED: 3}))
        for job in jobs:
            ends = [each for each in await whole.components.service.events(ME, job.id) if each.after.terminal]
            assert len(ends) == 1
    assert max(map(len, crew.fences.values())) == 2, "what was done and not heard of is run again"
    assert all(fences == sorted(set(fences)) for fences in crew.fences.values())


async def _equals(answer: Awaitable[object], wanted: object) -> bool:
    return await answer == wanted
