"""What a simulated plane is used for: people who submit, cancel and approve, and functions with guarded effects.

A submitter repeats what was not answered, under the same idempotency key, until it is. A function has one effect
that must not occur twice: it registers its fence with a read, works, and writes; later attempts see the effect.
Some functions ignore a request to stop: then only the fence refuses their writes. Some kill their worker.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, TypeVar

from holdfast.errors import BackendError, Closed, FencedOut, LeaseLost, LockBusy, RetryLater, RowMissing
from holdfast.plane.app import App
from holdfast.plane.approvals.rules import ApprovalConflict, ApprovalVerdict, SelfApproval
from holdfast.plane.model.outcome import Fatal
from holdfast.plane.model.records import Submission
from holdfast.plane.service.service import Caller, Service
from holdfast.plane.worker.context import Context
from holdfast.plane.workflows.builder import Flow
from holdfast.plane.workflows.core.definition import Workflow
from holdfast.testing.sim.environment.clock import SimEntropy
from holdfast.testing.sim.environment.host import SimHost
from holdfast.types import NS

if TYPE_CHECKING:
    from holdfast.testing.sim.plane.simulated_plane import PlaneWorld

T = TypeVar("T")

TOPICS: Final = {"effect": "default", "chore": "default", "heavy": "heavy"}  # topic -> pool
PATIENCE_S: Final = 8.0  # of a client that waits for a response
CALLER: Final = Caller("client")
_AGAIN: Final = (BackendError, Closed, asyncio.CancelledError)


@dataclass(slots=True)
class Asked:
    """A request of a client, and the response."""

    key: str
    tenant: str
    answers: list[str] = field(default_factory=list)  # the id in each answer; the first is the acknowledgement
    made: int = 0  # answers that said that it was made just now


class Programs:
    """All clients of the plane of one world."""

    def __init__(self, world: PlaneWorld) -> None:
        self._world = world
        self.draw = SimEntropy(f"{world.seed}/programs").random
        self.jobs: list[Asked] = []
        self.runs: list[Asked] = []
        self.verdicts: dict[str, list[str]] = {}  # by job: the decisions that were acknowledged

    # Functions.

    def app(self, host: SimHost) -> App:
        """What the workers of one host run."""
        app = App("simulated")

        async def perform(payload: dict[str, Any], *, ctx: Context) -> dict[str, int]:
            try:
                return await self._perform(host, payload, ctx)
            except (FencedOut, BackendError, LeaseLost) as error:
                raise RetryLater(0.2, error) from error

        for topic, pool in TOPICS.items():
            app.job(topic, pool=pool, max_concurrency=2 if topic == "heavy" else None)(perform)
        app.include(_chain())
        app.include(_asking())
        return app

    async def _perform(self, host: SimHost, payload: dict[str, Any], ctx: Context) -> dict[str, int]:
        world = self._world
        world.counts["attempts"] += 1
        if payload.get("fatal"):
            raise Fatal("as planned")
        if payload.get("kills"):
            world.kill(host)
            await asyncio.Event().wait()
        resource = world.resource(ctx.job)
        version = await resource.read(host.name, ctx.lease.owner, ctx.fence)
        if version == 0:
            stubborn = await self._work(payload, ctx)
            if not stubborn:
                ctx.ensure_held()
                world.step(host, ctx.lease)
            if world.failpoint(host, "between check and write"):
                await asyncio.sleep(0)
            version = await resource.write(host.name, ctx.lease.owner, ctx.fence, version)
        if ctx.attempt <= payload.get("fails", 0):
            raise RetryLater(payload.get("delay", 0.1), "as planned")
        return {"effect": version}

    async def _work(self, payload: dict[str, Any], ctx: Context) -> bool:
        """Take some time. Whether it was told to stop and continues all the same."""
        left = payload.get("work_ms", 10) / 1000
        if not payload.get("stubborn"):
            await asyncio.sleep(left)
            return False
        try:
            await asyncio.sleep(left)
        except asyncio.CancelledError:
            await asyncio.sleep(left)
            return True
        return bool(ctx.cancelled)

    # People.

    def begin(self) -> list[asyncio.Task[None]]:
        """Start all clients. They are done when all their requests were acknowledged."""
        world, swarm = self._world, self._world.swarm
        loop = world.loop
        shares = [range(number, swarm.jobs, swarm.submitters) for number in range(swarm.submitters)]
        tasks = [loop.create_task(self._submit_all(share)) for share in shares]
        tasks += [loop.create_task(self._poison(number)) for number in range(swarm.poison)]
        return [*tasks, loop.create_task(self._start_runs())]

    async def _poison(self, number: int) -> None:
        """A client submits a job that kills its worker."""
        await asyncio.sleep(self._world.swarm.phase_ns / 2 / NS)
        asked = Asked(f"poison-{number}", "tenant-0")
        self.jobs.append(asked)
        wanted = Submission("effect", {"kills": True}, tenant="tenant-0", idempotency_key=asked.key)
        await self._acknowledged(asked, lambda service: _submit(service, wanted))

    async def _submit_all(self, share: range) -> None:
        world = self._world
        for number in share:
            await asyncio.sleep(self.draw.randrange(2 * world.swarm.phase_ns // max(1, len(share))) / NS)
            wanted = self._wanted(number)
            asked = Asked(wanted.idempotency_key or "", wanted.tenant)
            self.jobs.append(asked)
            job = await self._acknowledged(asked, lambda service, what=wanted: _submit(service, what))  # type: ignore[misc]  # bound now
            if self.draw.randrange(1000) < world.swarm.cancels:
                world.loop.create_task(self._cancel(job))

    def _wanted(self, number: int) -> Submission:
        draw, world = self.draw, self._world
        payload: dict[str, Any] = {"work_ms": draw.choice([1, 20, 300, 2_000, 6_000])}
        kind = draw.randrange(10)
        if kind < 2:
            payload.update(fails=draw.randint(1, 3), delay=draw.choice([0.1, 1.0]))
        elif kind == 2:
            payload["fatal"] = True
        elif kind < 5:
            payload["stubborn"] = True
        now = world.wall_ns()
        return Submission(
            draw.choice(list(TOPICS)),
            payload,
            tenant=f"tenant-{draw.randrange(world.swarm.tenants)}",
            idempotency_key=f"job-{number}",
            priority=draw.choice([0, 0, 5]),
            max_attempts=draw.choice([1, 3, 5]),
            timeout_ns=draw.choice([None, None, 3 * NS, 20 * NS]),
            deadline_ns=draw.choice([None, None, None, now + draw.randrange(5, 60) * NS]),
            not_before_ns=draw.choice([0, 0, 0, now + draw.randrange(10 * NS)]),
        )

    async def _start_runs(self) -> None:
        for number in range(self._world.swarm.runs):
            await asyncio.sleep(self.draw.randrange(self._world.swarm.phase_ns // 2) / NS)
            asked = Asked(f"run-{number}", "tenant-0")
            self.runs.append(asked)
            name = self.draw.choice(["chain", "asking"])
            run = await self._acknowledged(asked, lambda service, key=asked.key, what=name: _start(service, what, key))  # type: ignore[misc]  # bound now
            if self.draw.randrange(1000) < self._world.swarm.cancels:
                self._world.loop.create_task(self._cancel_run(run))

    async def _acknowledged(self, asked: Asked, call: Callable[[Service], Awaitable[tuple[str, bool]]]) -> str:
        """Ask until it is answered, and now and then once more."""
        for _ in range(self.draw.choice([1, 1, 1, 2, 3])):
            name, made = await self.ask(call)
            asked.answers.append(name)
            asked.made += made
        return asked.answers[0]

    async def _cancel(self, job: str) -> None:
        await asyncio.sleep(self.draw.choice([0.0, 0.5, 3.0]) * self.draw.random())
        await self.ask(lambda service: service.cancel(CALLER, job))
        self._world.counts["cancels"] += 1

    async def _cancel_run(self, run: str) -> None:
        await asyncio.sleep(8 * self.draw.random())
        await self.ask(lambda service: service.flows.cancel(CALLER, run))

    async def approve(self) -> None:
        """Two approvers who decide all pending approvals, not always alike, until the world ends."""
        while True:  # ends with the world
            await asyncio.sleep(2.0)
            page = await self.ask(lambda service: service.flows.approvals(CALLER))
            for each in page.items:
                for name in ("ann", "bob")[: self.draw.randint(1, 2)]:
                    verdict = self.draw.choice(
                        [ApprovalVerdict.APPROVE, ApprovalVerdict.APPROVE, ApprovalVerdict.REJECT]
                    )
                    self._world.loop.create_task(self._decide(name, each.job, verdict))

    async def _decide(self, name: str, job: str, verdict: ApprovalVerdict) -> None:
        try:
            await self.ask(lambda service: service.flows.decide(Caller(name), job, verdict))
        except (ApprovalConflict, SelfApproval, LockBusy, RowMissing) as refused:
            self._world.counts[f"refused {type(refused).__name__}"] += 1
        else:
            self.verdicts.setdefault(job, []).append(str(verdict))

    # Asking.

    async def ask(self, call: Callable[[Service], Awaitable[T]]) -> T:
        """Ask any process that serves, again and again, until there is an answer."""
        world = self._world
        while True:  # ends with an answer, or with the world
            serving = [each for each in world.processes if each.role == "api" and each.serves]
            if not serving:
                await asyncio.sleep(0.5)
                continue
            process = self.draw.choice(serving)
            asked = _asked(call, process.plane.components.service)
            task = world.loop.create_task(asked, context=process.host.context)
            await asyncio.wait([task], timeout=PATIENCE_S)
            if task.done():
                try:
                    return task.result()
                except _AGAIN:
                    world.counts["not answered"] += 1
            else:
                world.counts["given up"] += 1
                task.add_done_callback(world.forget)
                if self.draw.random() < 0.5:
                    task.cancel()
            await asyncio.sleep(self.draw.choice([0.05, 1.0]))


async def _asked(call: Callable[[Service], Awaitable[T]], service: Service) -> T:
    return await call(service)


async def _submit(service: Service, wanted: Submission) -> tuple[str, bool]:
    job, made = await service.submit(replace(CALLER, tenant=wanted.tenant), wanted, pool=TOPICS[wanted.topic])
    return job.id, made


async def _start(service: Service, workflow: str, key: str) -> tuple[str, bool]:
    stored, made = await service.flows.start(CALLER, workflow, {}, tenant="tenant-0", idempotency_key=key)
    return stored.run.id, made


@functools.cache
def _chain() -> Workflow:
    flow = Flow("chain", risk="high", timeout="2m")
    first = flow.job("first", topic="effect", input={"work_ms": 50}, retries=2)
    rest = flow.delay("rest", 1, after=first)
    each = flow.job("each", topic="chore", after=rest, for_each=[1, 2, 3], input={"work_ms": 100}, retries=1)
    flow.job("last", topic="effect", after=each, input={"work_ms": 500, "fails": 1}, timeout="20s")
    return flow.build()


@functools.cache
def _asking() -> Workflow:
    flow = Flow("asking", risk="low", timeout="2m")
    first = flow.job("first", topic="effect", input={"work_ms": 20})
    agreed = flow.approval("agreed", after=first, message="go on?", timeout="40s")
    flow.job("second", topic="effect", after=agreed, input={"work_ms": 20})
    return flow.build()
