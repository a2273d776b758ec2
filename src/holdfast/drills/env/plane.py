"""The plane of a drill: schedulers and workers as processes, started with the public commands.

State, messages and leases are in one SQLite file in the scene's directory, or in sandboxes of a configured deployment
(`workspace`). The outcomes of jobs are read from that database. The audit ledgers of all processes become the scene's
history. It ends only processes that it has started, by their pid; the kernel ends them when the drill dies. The
sandboxes are cleared when all processes have ended.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import closing, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Final, NamedTuple, Self

from holdfast.drills.env.processes import LIMIT_S, Stalled
from holdfast.drills.env.stage import SceneHarness
from holdfast.drills.env.workspace import Sandbox, lent_by, own
from holdfast.drills.jobs import CLASS, GATE, PLACE, POOL, TOPIC
from holdfast.drills.verdict.effects import EffectAttempt, Effects, EffectTally
from holdfast.errors import HoldfastError
from holdfast.plane.db.open import open_database
from holdfast.plane.db.ports import Database, Row, Tx
from holdfast.plane.model.job_states import JobState
from holdfast.plane.model.records import Submission
from holdfast.plane.process.components import open_components
from holdfast.plane.service.service import Caller
from holdfast.plane.settings.settings import Settings

LOOPS: Final = "scheduler,reconciler,replayer"
ENDS: Final = tuple(str(state) for state in JobState if state.terminal)
TIED_RUN: Final = (
    "import runpy, sys; from holdfast.drills.env.processes import tie_to; tie_to(int(sys.argv.pop(1))); "
    "runpy.run_module('holdfast', run_name='__main__', alter_sys=True)"
)
_PLACES: Final = ", ".join(f":end{number}" for number in range(len(ENDS)))
_JOBS: Final = f"""
    SELECT payload, state, attempt, created_ns, updated_ns,
           (SELECT count(*) FROM plane_event WHERE job = plane_job.id AND after IN ({_PLACES})) AS ends
    FROM plane_job
"""  # noqa: S608 - placeholders, as many as there are states
_PACE_S: Final = 0.1
_MESSAGE_CHARS: Final = 300


class DrillJob(NamedTuple):
    """The state of a job."""

    number: int
    state: str
    attempts: int
    ends: int  # terminal states that it has ever had
    created_ns: int
    updated_ns: int


class DrillPlaneProcess:
    """One process of the plane."""

    def __init__(self, name: str, words: list[str], place: Path, quarters: Sandbox) -> None:
        self.name = name
        self._log = place / f"{name}.log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(  # noqa: S603 - our own interpreter and package
                [sys.executable, "-c", TIED_RUN, str(os.getpid()), *words],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=quarters.directory,
                env={**quarters.variables, PLACE: str(place), "PYTHONUNBUFFERED": "1"},
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """The process."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether it runs."""
        return self._process.poll() is None

    def ready(self) -> bool:
        """Whether it has reported that it is ready. `Stalled`: it has ended instead."""
        text = self._log.read_text(encoding="utf-8", errors="replace")
        for line in text.split("\n")[:-1]:
            with suppress(ValueError):
                if json.loads(line).get("event") in ("started", "ready"):
                    return True
        if not self.alive:
            raise Stalled(f"{self.name} did not start: {text[-_MESSAGE_CHARS:].strip()}")
        return False

    def kill(self) -> int:
        """Kill it without grace. Returns the time."""
        self._process.kill()
        self._process.wait()
        return time.time_ns()

    def terminate(self) -> None:
        """Ask it to end."""
        self._process.send_signal(signal.SIGTERM)

    @property
    def code(self) -> int | None:
        """Its exit code, once it has ended."""
        return self._process.poll()


class DrillPlane:
    """Schedulers and workers on one database, for the duration of a block."""

    def __init__(self, it: SceneHarness, times: Mapping[str, float]) -> None:
        """`times`: settings of the drill's own plane. A configured deployment has its own."""
        self._it = it
        deployment = it.stage.plan.deployment
        self._quarters = own(it.place, times) if deployment is None else lent_by(deployment)
        self.schedulers: list[DrillPlaneProcess] = []
        self.workers: list[DrillPlaneProcess] = []
        self._made: list[DrillPlaneProcess] = []
        self._submitted = 0
        self._runner: asyncio.Runner | None = None
        self._database: Database | None = None

    @property
    def settings(self) -> Settings:
        """The settings of its processes."""
        return self._quarters.settings

    def scheduler(self) -> DrillPlaneProcess:
        """Start one more replica of scheduler and loops, without waiting for it."""
        made = self._start("scheduler", ["up", "--only", LOOPS])
        self.schedulers.append(made)
        return made

    def worker(self) -> DrillPlaneProcess:
        """Start one more worker, without waiting for it."""
        ttl = str(self.settings.worker.lease_ttl)
        made = self._start("worker", ["worker", "holdfast.drills.jobs:app", "--lease-ttl", ttl, "--pool", POOL])
        self.workers.append(made)
        return made

    def _start(self, kind: str, words: list[str]) -> DrillPlaneProcess:
        name = f"{kind}-{len(self._made) + 1}"
        options = [*self._quarters.options, "--audit", str(self._it.place / "ledger"), "--no-probe", "--json"]
        made = DrillPlaneProcess(name, [*words, *options], self._it.place, self._quarters)
        self._made.append(made)
        return made

    def wait_ready(self, *parts: DrillPlaneProcess) -> None:
        """Wait until all of these are ready."""
        for part in parts:
            self._it.until(part.ready, f"{part.name} to start", LIMIT_S)

    def submit(self, number: int, takes: float) -> None:
        """Submit so many jobs; all are acknowledged when this returns."""
        asyncio.run(self._submit(number, takes))

    async def _submit(self, number: int, takes: float) -> None:
        async with open_components(self.settings, service_name="drill") as components:
            wanted = [self._wanted(takes) for _ in range(number)]
            for answer in await components.service.submit_many(Caller("drill"), wanted):
                if isinstance(answer, Exception):
                    raise answer

    def _wanted(self, takes: float) -> Submission:
        self._submitted += 1
        payload = {"number": self._submitted, "takes": takes}
        return Submission(TOPIC, payload, idempotency_key=str(self._submitted), max_attempts=20)

    def close_gate(self) -> None:
        """From now on jobs start but do not finish, so that workers have jobs in flight."""
        (self._it.place / GATE).touch()

    def open_gate(self) -> None:
        """Let the jobs finish."""
        (self._it.place / GATE).unlink()

    def load(self, takes: float) -> SubmitLoad:
        """Submit jobs at a steady rate for the duration of a block."""
        return SubmitLoad(self, takes)

    @property
    def submitted(self) -> int:
        """The number of submitted jobs."""
        return self._submitted

    def jobs(self) -> list[DrillJob]:
        """The state of every job in the database."""

        async def look(tx: Tx) -> list[Row]:
            return await tx.query(_JOBS, {f"end{number}": state for number, state in enumerate(ENDS)})

        async def ask() -> list[Row]:
            if self._database is None:
                self._database = open_database(self.settings.database_url)
            return await self._database.read(look)

        if self._runner is None:
            self._runner = asyncio.Runner()  # one for all queries, to reuse the connection
        return [
            DrillJob(
                *(json.loads(row["payload"])["number"], row["state"], row["attempt"], row["ends"]),
                *(row["created_ns"], row["updated_ns"]),
            )
            for row in self._runner.run(ask())
        ]

    def all_over(self) -> bool:
        """Whether every submitted job has finished."""
        jobs = self.jobs()
        return len(jobs) >= self._submitted and all(job.state in ENDS for job in jobs)

    def attempts(self) -> list[EffectAttempt]:
        """Every attempt, as recorded by the jobs themselves."""
        with closing(Effects(self._it.place / "effects.db", "director")) as effects:
            return effects.attempts(CLASS, 0)

    def tally(self) -> EffectTally:
        """The effects of all jobs."""
        with closing(Effects(self._it.place / "effects.db", "director")) as effects:
            return effects.tally(CLASS)

    def running_on(self, part: DrillPlaneProcess) -> list[int]:
        """The jobs that a worker has started and that have had no effect yet."""
        with closing(Effects(self._it.place / "effects.db", "director")) as effects:
            begun = [each.item for each in effects.attempts(CLASS, 0) if each.worker == str(part.pid)]
            return [item for item in begun if not effects.done(CLASS, item)]

    def __enter__(self) -> Self:
        self._quarters.prepare()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._end(in_order=kind is None)
        finally:
            self._leave(ended_early=kind is not None and not issubclass(kind, Exception))

    def _end(self, *, in_order: bool) -> None:
        """End every process, and close the database."""
        living = [part for part in self._made if part.alive]
        try:
            if in_order:
                for part in living:
                    part.terminate()
                limit = time.monotonic() + LIMIT_S
                while any(part.alive for part in living) and time.monotonic() < limit:
                    time.sleep(0.01)  # between two checks of other processes
        finally:
            for part in living:
                part.kill()
            runner, database = self._runner, self._database
            if runner is not None:
                if database is not None:
                    runner.run(database.close())
                runner.close()

    def _leave(self, *, ended_early: bool) -> None:
        """Clear the sandboxes. A failure fails the scene; without a verdict it is an error of its own."""
        told, claim = self._quarters.told, "nothing of the drill is left in the deployment"
        try:
            self._quarters.clear()
        except HoldfastError as error:
            self._it.claim(claim, kept=False, seen=f"{told}: {error}; holdfast drill unmark --config … clears it")
            if ended_early:
                raise
        else:
            if told:
                self._it.claim(claim, kept=True, seen=f"gone: {told}")


class SubmitLoad:
    """Submits jobs continuously, in a thread."""

    def __init__(self, plane: DrillPlane, takes: float) -> None:
        self._plane = plane
        self._takes = takes
        self._stop = threading.Event()
        self._trouble: list[BaseException] = []
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join(LIMIT_S)
        if error is None and self._trouble:
            raise Stalled(f"jobs could not be submitted: {self._trouble[0]}")

    def _run(self) -> None:
        try:
            asyncio.run(self._submit())
        except BaseException as error:  # noqa: BLE001 - told where the block ends
            self._trouble.append(error)

    async def _submit(self) -> None:
        async with open_components(self._plane.settings, service_name="drill") as components:
            while not self._stop.is_set():
                await components.service.submit(Caller("drill"), self._plane._wanted(self._takes))  # noqa: SLF001 - its own
                await asyncio.sleep(_PACE_S)


def shown(jobs: list[DrillJob]) -> dict[str, Any]:
    """The number of jobs by state."""
    counts: dict[str, Any] = {}
    for job in jobs:
        counts[job.state] = counts.get(job.state, 0) + 1
    return counts
