"""Random graphs through the real store: two engines, messages that come twice, late, shuffled and at the same time.

What the pure engine promises of one run in memory (`plane.workflows.core.advance`) must be true of a run that two
engines move in a database, under real leases: every attempt is made once and ends once, fences never go back, and the
run ends as the rules say, judged by the reference that was written from their text (`run_reference`).
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st

from holdfast.errors import RetryLater
from holdfast.plane.approvals.rules import ApprovalVerdict
from holdfast.plane.bus.envelope import message_of
from holdfast.plane.db.ports import Row
from holdfast.plane.jobs.rules import JobCode
from holdfast.plane.model import messages as subjects
from holdfast.plane.model.job_states import JobState
from holdfast.plane.model.records import Delivery
from holdfast.plane.workflows.core.definition import Step, StepKind, StepRetry, Workflow
from holdfast.plane.workflows.core.run import CheckRun
from holdfast.plane.workflows.core.validation import check_workflow
from holdfast.types import MS, NS
from support.fixtures.workflows import ASKER, DECIDER, FlowReplica, FlowStage
from support.harness.run_reference import Reference
from support.harness.runs import job

LEAF = Workflow("leaf", {"only": job("only")})
ENDS = [JobState.SUCCEEDED] * 5 + [JobState.FAILED] * 2 + [JobState.CANCELLED, JobState.TIMEOUT]
OVER = ("succeeded", "failed", "denied", "cancelled", "timed_out")
LIMIT = 400

MESSAGES = "SELECT * FROM plane_message WHERE recipient = 'engine' AND id LIKE :run ORDER BY place, id"
STOPPED = "SELECT message_key FROM plane_message WHERE subject = 'job.cancel'"
JOBS = "SELECT id, state FROM plane_job WHERE id LIKE :run ORDER BY id"
RUNS = "SELECT id, status FROM plane_run WHERE id LIKE :run ORDER BY id"
GOING_BACK = """
    SELECT run, version, fence, before FROM (
        SELECT run, version, fence, lag(fence) OVER (PARTITION BY run ORDER BY version, line) AS before
        FROM plane_run_event WHERE fence IS NOT NULL)
    WHERE fence < before
"""
ENDED_TWICE = """
    SELECT run, step, count(*) AS times FROM plane_run_event
    WHERE kind IN ('succeeded', 'failed', 'denied', 'timed_out', 'cancelled', 'skipped')
    GROUP BY run, step HAVING count(*) > 1
"""
TRIED_TWICE = """
    SELECT run, step, attempt, count(*) AS times FROM plane_run_event WHERE kind = 'retrying'
    GROUP BY run, step, attempt HAVING count(*) > 1
"""


def a_step(rng: Random, place: int, names: list[str]) -> Step:
    kind = rng.choice([StepKind.JOB, StepKind.JOB, *StepKind])
    after = tuple(rng.sample(names[:place], rng.randint(0, min(place, 2))))
    later = names[place + 1 :]
    works = kind in (StepKind.JOB, StepKind.APPROVAL, StepKind.WORKFLOW)
    return Step(
        names[place],
        kind,
        after=after,
        join=1 if len(after) == 2 and rng.random() < 0.3 else None,
        when=rng.choice(["true", "false"]) if rng.random() < 0.15 else None,
        on_error=rng.choice(later) if later and rng.random() < 0.3 else None,
        retry=StepRetry(rng.choice([0, 1]), initial_ns=50 * MS) if works else StepRetry(),
        input={"n": place} if kind in (StepKind.JOB, StepKind.TRANSFORM) else None,
        topic="work" if kind is StepKind.JOB else None,
        workflow="leaf" if kind is StepKind.WORKFLOW else None,
        delay_ns=NS if kind is StepKind.DELAY else None,
        message="?" if kind is StepKind.APPROVAL else None,
        for_each=[1, 2] if rng.random() < 0.2 else None,
    )


def a_workflow(rng: Random, size: int, name: str) -> Workflow:
    names = [f"s{n}" for n in range(size)]
    while True:
        made = Workflow(name, {step.name: step for step in (a_step(rng, place, names) for place in range(size))})
        if not check_workflow(made):
            note("\n".join(map(str, made.steps.values())))
            return made


class World:
    """Two engines on one database, and everything else that happens to a run."""

    def __init__(self, stage: FlowStage, one: FlowReplica, other: FlowReplica) -> None:
        self.stage = stage
        self.replicas = (one, other)
        self.number = 0
        self.rng = Random()
        self.run = ""
        self.handled: set[str] = set()

    async def live(self, rng: Random, size: int) -> None:
        """One run, from its start to its end."""
        self.rng, self.number = rng, self.number + 1
        one = self.replicas[0]
        workflow = a_workflow(rng, size, f"w{self.number}")
        await one.components.flows.define(ASKER, workflow)
        self.run = await one.start(workflow.name, run_id=f"r{self.number}.")
        for _ in range(LIMIT):
            if (await one.run(self.run)).run.status.terminal and not await self._messages():
                break
            await self._act()
        else:
            raise AssertionError(f"it goes on for ever: {await one.status(self.run)}")
        await self._check()

    async def _act(self) -> None:
        """Both engines get some messages concurrently: new ones, and sometimes old ones; or something ends."""
        fresh = await self._messages()
        old = [row for row in await self._own(MESSAGES) if row["id"] in self.handled]
        chosen = self.rng.sample(fresh, min(len(fresh), 3)) + self.rng.sample(
            old, min(len(old), self.rng.randint(0, 2))
        )
        if chosen:
            self.rng.shuffle(chosen)
            await asyncio.gather(*(self._deliver(row) for row in chosen))
        if not fresh and not await self._end_something():
            self.stage.clock.push(1.0)
            await self.replicas[0].engine.move(self.run, CheckRun())

    async def _deliver(self, row: Row) -> None:
        engine = self.rng.choice(self.replicas).engine
        try:
            await engine.handlers[row["subject"]](Delivery(message_of(row), subjects.ENGINE, 1, 0, 0))
            self.handled.add(row["id"])
        except RetryLater:
            pass  # it comes again

    async def _end_something(self) -> bool:
        one = self.replicas[0]
        rows = await self._own(JOBS)
        stopped = {row["message_key"] for row in await one.query(STOPPED)}
        live = [row for row in rows if not JobState(row["state"]).terminal and row["id"] not in stopped]
        if not live:
            return False
        row = self.rng.choice(live)
        gates = {gate.job for gate in (await one.components.flows.approvals(ASKER)).items}
        if row["id"] in gates:
            verdict = ApprovalVerdict.APPROVE if self.rng.random() < 0.7 else ApprovalVerdict.REJECT
            await one.components.flows.decide(DECIDER, row["id"], verdict)
        else:
            state = self.rng.choice(ENDS)
            code = JobCode.FATAL if state is JobState.FAILED and self.rng.random() < 0.5 else None
            await one.end(row["id"], {"n": 1}, state=state, code=code)
        return True

    async def _own(self, statement: str) -> list[Row]:
        """The rows of this run, and of those that it has started."""
        return await self.replicas[0].query(statement, run=f"%{self.run}%")

    async def _messages(self) -> list[Row]:
        return [row for row in await self._own(MESSAGES) if row["id"] not in self.handled]

    async def _check(self) -> None:
        one = self.replicas[0]
        run = (await one.run(self.run)).run
        assert run.status == Reference(run.workflow, run.steps).verdict()
        for statement in (GOING_BACK, ENDED_TWICE, TRIED_TWICE):
            assert await one.query(statement) == []
        runs = {row["id"]: row["status"] for row in await self._own(RUNS)}
        made = {row["id"] for row in await self._own(JOBS)} | {*runs}
        for name, state in run.steps.items():
            kind = run.workflow.steps[name].kind
            if kind in (StepKind.JOB, StepKind.APPROVAL, StepKind.WORKFLOW):
                slots = (
                    [(name, state)]
                    if state.items is None
                    else [(f"{name}[{number}]", child) for number, child in enumerate(state.children)]
                )
                for path, each in slots:
                    wanted = {f"{run.id}:{path}@{attempt + 1}" for attempt in range(each.attempt)}
                    assert {each_id for each_id in made if each_id.rpartition("@")[0] == f"{run.id}:{path}"} == wanted
        assert [replica.engine.tally["repeated_publishes"] for replica in self.replicas] == [0, 0]
        assert [each for each, status in runs.items() if status not in OVER] == []


@pytest.mark.requires("R47", "R52", "R93")
def test_each_step_takes_effect_once_and_each_run_ends_as_the_rules_say_whatever_comes_twice(tmp_path: Path) -> None:
    async def opened(stack: AsyncExitStack) -> World:
        stage = FlowStage(
            f"sqlite:///{tmp_path / 'plane.db'}?synchronous=normal", f"sqlite:///{tmp_path / 'leases.db'}", stack
        )
        made = World(stage, await stage.replica(serve=False), await stage.replica(serve=False))
        await made.replicas[0].components.flows.define(ASKER, LEAF)
        return made

    with asyncio.Runner() as runner:
        stack = AsyncExitStack()
        world = runner.run(opened(stack))

        @settings(max_examples=25)
        @given(st.randoms(use_true_random=True), st.integers(2, 6))
        def live(rng: Random, size: int) -> None:
            runner.run(world.live(rng, size))

        try:
            live()
        finally:
            runner.run(stack.aclose())
