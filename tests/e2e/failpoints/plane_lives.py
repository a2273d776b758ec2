"""A plane in one process, killed at every step that it persists and at every other failpoint, life after life.

Each life starts the whole plane on the file that the one before has left, submits two jobs and a workflow run of its
own (and again what the one before may not have submitted, under the same ids), and continues until all that was ever
submitted is over, or until it comes to its point. The last life has none. What was done is left for the checker.

Time between two lives is skipped, not waited for: the clock of each life is ahead of the previous one, so that
in-flight messages of the dead process are due. Leases need no help: a lock of a dead process is free immediately.
Skipped time must not count against jobs, so there is no reconciler, which would end jobs that are too long in a state.
And since the test kills the processes, no message is dead-lettered because ten of its workers have died.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from e2e.failpoints.lives import Death, Life, Say, deaths, live, recorded
from holdfast.plane.bus import delivery_rules
from holdfast.plane.model.job_states import JobState
from holdfast.plane.model.records import Submission
from holdfast.plane.process.plane import PARTS, Plane
from holdfast.plane.service.service import Caller
from holdfast.plane.settings.settings import (
    CleanupSettings,
    LimitSettings,
    ReplayerSettings,
    Settings,
    SnapshotSettings,
    WorkerSettings,
)
from holdfast.plane.workflows.core.definition_codec import from_document
from holdfast.plane.workflows.core.run import RunStatus
from support.fixtures.scheduling import PushedClock
from support.fleet import flow_app

ME: Final = Caller("test")
WORKFLOW: Final = {
    "name": "pair",
    "steps": {"one": {"topic": "flow.effect"}, "two": {"topic": "flow.effect", "after": "one"}},
}
AHEAD_S: Final = 120.0  # longer than a message may be in flight without an extension
LIMIT_S: Final = 60.0
LEFT_OUT: Final = {"api", "reconciler"}
_OVER: Final = ", ".join(f"'{state}'" for state in JobState if state.terminal)
_JOBS: Final = f"SELECT count(*) AS number FROM plane_job WHERE state NOT IN ({_OVER})"
_LEFT: Final = f"SELECT id, state, attempt, version, not_before_ns FROM plane_job WHERE state NOT IN ({_OVER})"
_ENDED: Final = ", ".join(f"'{status}'" for status in RunStatus if status.terminal)
_RUNS: Final = f"SELECT count(*) AS number FROM plane_run WHERE status NOT IN ({_ENDED})"


def settings(place: Path) -> Settings:
    return Settings(
        database=f"sqlite:///{place}/plane.db",
        worker=WorkerSettings(count=1, heartbeat=0.2, cancel_grace=1.0),
        replayer=ReplayerSettings(interval=0.5),
        snapshot=SnapshotSettings(interval=0.5),
        cleanup=CleanupSettings(interval=1.0),
        limits=LimitSettings(replay=1.0),
    )


async def life(place: Path, number: int, unsure: Iterable[int], say: Say) -> None:
    clock = PushedClock()
    clock.push(number * AHEAD_S)
    plane = Plane(settings(place), [each for each in PARTS if each not in LEFT_OUT], app=flow_app.app, clock=clock)
    await plane.start()
    components = plane.components
    await components.flows.define(ME, from_document(WORKFLOW))
    for each in (*unsure, number):
        for job in (f"job-{each}-a@1", f"job-{each}-b@1"):
            await components.service.submit(ME, Submission("flow.effect", None, id=job))
        await components.flows.start(ME, "pair", None, run_id=f"run-{each}", idempotency_key=f"run-{each}")
    say({"submitted": number})

    async def left() -> int:
        rows = await components.database.read(lambda tx: tx.query(_JOBS))
        runs = await components.database.read(lambda tx: tx.query(_RUNS))
        return int(rows[0]["number"]) + int(runs[0]["number"])

    try:
        async with asyncio.timeout(LIMIT_S):
            while await left():  # noqa: ASYNC110 - what is looked at lives in a database
                await asyncio.sleep(0.01)
    except TimeoutError:
        raise RuntimeError(f"not over: {await components.database.read(lambda tx: tx.query(_LEFT))}") from None
    # The end of a plane in peace is tested elsewhere, and would cost each life its grace.


def main() -> None:
    place = Path(sys.argv[1])
    vars(delivery_rules)["LOST_MAX"] = 10_000
    os.environ[flow_app.DATABASE] = address = f"sqlite:///{place}/effects.db"
    flow_app.furnish(address)
    lives: list[Life] = []
    unsure: list[int] = []

    def one(death: Death | None = None) -> None:
        number = len(lives)
        made = live(lambda say: asyncio_run(life(place, number, tuple(unsure), say)), death)
        lives.append(made)
        if made.said:
            unsure.clear()
        else:
            unsure.append(number)

    one()
    points = recorded(lambda say: asyncio_run(life(place, 1, (), say)))
    lives.append(Life(killed=False, said=[{"submitted": 1}]))
    planned = deaths([each for each in points if each.startswith("plane.")], _most)
    for death in planned:
        one(death)
    one()
    killed = sum(each.killed for each in lives)
    told = {"lives": len(lives), "planned": len(planned), "killed": killed}
    print(json.dumps({**told, "points": sorted(set(points))}))


def _most(point: str) -> int:
    """Every commit, as far as a life has them; elsewhere the first time and the second."""
    return 20 if point in {"plane.sqlite.written", "plane.sqlite.committed", "plane.sqlite.synced"} else 2


def asyncio_run(body: object) -> None:
    """Run it to its end, and exit immediately."""
    loop = asyncio.new_event_loop()
    loop.run_until_complete(body)  # type: ignore[arg-type]  # a coroutine


if __name__ == "__main__":
    main()
