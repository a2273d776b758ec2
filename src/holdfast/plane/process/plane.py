"""A plane in one process: any of its parts, started in the right order and stopped in the reverse one.

    async with Plane(settings, parts={"scheduler", "worker"}, app=app) as plane:
        await plane.wait()

Promises:

- Leaving the block stops within the grace period. The plane is not ready from the first moment; workers finish or
  return attempts, consumers drain, loops release their leadership, and waiting requests end. Only then are bus,
  database and leases closed. The API ends last, because it reports the state of the others until then.
- A part that cannot start stops those that have started.
- The plane waits for a store that does not answer, at the start and later. The API starts first and needs only the
  database.
- When a newer Holdfast changes the tables so that this code must not use them, all other parts stop and the stores are
  closed. The process stays, is not ready, and reports the reason.
- Any number of planes, in one process or many, may share the same places. A lease protects work that only one may do.
- Killing a plane loses nothing that was acknowledged.

Does not promise that a function which ignores its cancellation is gone: it is reported, and its writes are refused.

Clock: the event loop's, for the grace period.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from types import TracebackType
from typing import Any, Final, Self, TypeAlias

from holdfast.core.metric_reading import Reading
from holdfast.core.ports import Clock, Entropy
from holdfast.errors import BadInput
from holdfast.flows.log import log_event
from holdfast.plane.app import App
from holdfast.plane.db.migrations import outgrown
from holdfast.plane.db.ports import Audit
from holdfast.plane.process.components import TABLES, Components, open_components
from holdfast.plane.process.declare_schedules import declaring
from holdfast.plane.process.health import ProcessHealth
from holdfast.plane.process.parts import Part, PartHealth, SchedulerPart, State, WorkerPart, loop_part, writes_needed
from holdfast.plane.process.register_workflows import keep_workflows
from holdfast.plane.process.startup_check import stores_ready
from holdfast.plane.process.workflow_parts import EnginePart, flow_loop_part
from holdfast.plane.service.service import CHECKED, DATABASE
from holdfast.plane.settings.key_prefix import end_at_switch
from holdfast.plane.settings.settings import Settings

API: Final = "api"
WORKER: Final = "worker"
ENGINE: Final = "engine"
SCHEDULES: Final = "schedules"
FLOW_LOOPS: Final = ("runs", "delays")
LOOPS: Final = ("snapshot", "reconciler", "replayer", "cleanup", SCHEDULES, *FLOW_LOOPS)
PARTS: Final = (*LOOPS, "scheduler", ENGINE, WORKER, API)
"""All parts, in the order in which they start."""

FLOOR_S: Final = 2.0
"""The least time that a part has to stop when the parts before it have used up the grace period."""

PartMaker: TypeAlias = Callable[["Plane"], Part]

_log: Final = logging.getLogger("holdfast.plane")


class Plane:
    """The parts of a plane that run in this process. Make it, enter it, and leave it; it cannot be used twice."""

    def __init__(
        self,
        settings: Settings,
        parts: Collection[str] | None = None,
        *,
        app: App | None = None,
        api: PartMaker | None = None,
        clock: Clock | None = None,
        entropy: Entropy | None = None,
        instance: str | None = None,
        audit: Audit | None = None,
    ) -> None:
        """`parts`: by default all, without a worker if there is no `app`, and without an API if there is no `api`.

        `app` has the functions of the workers; `api` makes the part that serves HTTP, which is not in this package.

        `audit` records lease events, for example the ledger of `plane.process.audit_ledger`. The caller closes it.
        """
        self.settings = settings
        able = [part for part in PARTS if (part != API or api is not None) and (part != WORKER or app is not None)]
        self.names = check_parts(able if parts is None else parts)
        if WORKER in self.names and app is None:
            raise BadInput("app", "is missing, and a worker needs one", "give an App, or leave the worker out")
        if API in self.names and api is None:
            raise BadInput("api", "is missing", "give what makes it, or leave the part out")
        self._app, self._api = app, api
        self._clock, self._entropy, self._instance, self._audit = clock, entropy, instance, audit
        self._stack = AsyncExitStack()
        self._components: Components | None = None
        self._process_health: ProcessHealth | None = None
        self._parts: list[Part] = []
        self._states: dict[str, State] = dict.fromkeys(self.names, State.STARTING)
        self._watches: dict[str, asyncio.Task[None]] = {}
        self._following: asyncio.Task[None] | None = None
        self._keys: asyncio.Task[None] | None = None
        self._failure: asyncio.Future[None] | None = None
        self._stopping: asyncio.Task[bool] | None = None

    @property
    def components(self) -> Components:
        """The components that the parts use. There are none before the start."""
        if self._components is None:
            raise BadInput("plane", "was not started", "enter it first: async with Plane(…) as plane")
        return self._components

    @property
    def ground(self) -> Components:
        """The former name of `components`, kept for code that uses it."""
        return self.components

    @property
    def process_health(self) -> ProcessHealth:
        """The health of this process. There is none before the start."""
        if self._process_health is None:
            writes = writes_needed(self.settings, self.names)
            self._process_health = ProcessHealth(
                self.components.service, health=self.health, counts=self._readings, writes=writes
            )
        return self._process_health

    def part(self, name: str) -> Part:
        """One of the running parts."""
        for each in self._parts:
            if each.name == name:
                return each
        raise BadInput("part", f"{name!r:.60} does not run here", f"use one of {', '.join(self.names) or 'none'}")

    def health(self) -> Sequence[PartHealth]:
        """The health of each part, in the order in which they start."""
        details: dict[str, Mapping[str, Any]] = {each.name: each.detail() for each in self._parts}
        return [PartHealth(name, self._states[name], details.get(name, {})) for name in self.names]

    async def open(self) -> None:
        """Create the components, without using a store: from then on there is `process_health`."""
        if self._failure is not None:
            raise BadInput("plane", "was started before", "make another")
        self._failure = asyncio.get_running_loop().create_future()
        try:
            self._components = await self._stack.enter_async_context(self._opened())
            self.process_health.begun = False
        except BaseException:
            await self.stop(0.0)
            raise

    async def start(self) -> None:
        """Open everything and start the parts. If one cannot start, stop the others and raise its error.

        Waits for stores that do not answer. A caller that needs `process_health` meanwhile calls `open` first.
        """
        if self._failure is None or self._parts:
            await self.open()
        try:
            if API in self.names:
                await self._start_part(API)
            await stores_ready(self.components, CHECKED if set(self.names) - {API} else (DATABASE,))
            if self._app is not None:
                await keep_workflows(self.components.runs.definitions, self._app)
                await self._stack.enter_async_context(declaring(self.components.schedules, self._app))
            self.process_health.begun = True
            for name in self.names:
                if name != API:
                    await self._start_part(name)
            self._following = asyncio.create_task(self._follow_tables(), name="follow the version of the tables")
            self._keys = asyncio.create_task(self._watch_keys(), name="watch the prefix of keys")
        except BaseException:
            await self.stop(0.0)
            raise

    async def wait(self) -> None:
        """Return when the plane was stopped; raise the error of a part that ended before."""
        if self._failure is not None:
            await asyncio.shield(self._failure)

    async def stop(self, grace: float | None = None) -> bool:
        """Stop everything within `grace` seconds, by default those of the settings. False: work was cut short.

        Idempotent: a second call waits for the first.
        """
        if self._stopping is None:
            limit = self.settings.grace if grace is None else grace
            self._stopping = asyncio.create_task(self._stop(limit), name="stop the plane")
        return await asyncio.shield(self._stopping)

    def hurry(self) -> None:
        """End the grace period of a running stop: attempts are stopped and returned now."""
        for part in self._parts:
            if isinstance(part, WorkerPart):
                part.hurry()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop(None if error is None else 0.0)

    def _readings(self) -> Iterator[Reading]:
        for part in self._parts:
            yield from part.readings()

    # Starting.

    def _opened(self) -> AbstractAsyncContextManager[Components]:
        """The components of the settings."""
        return open_components(
            self.settings,
            clock=self._clock,
            entropy=self._entropy,
            instance=self._instance,
            serving=True,
            prepare_now=False,
            audit=self._audit,
        )

    async def _start_part(self, name: str) -> None:
        part = self._made(name)
        self._parts.append(part)
        await part.start()
        self._states[name] = State.RUNNING
        self._watches[name] = asyncio.create_task(self._watch(part), name=f"watch {name}")

    async def _follow_tables(self) -> None:
        """Stop all but the API when a newer Holdfast has changed the tables under this process."""
        self.process_health.outgrow(await outgrown(self.components.database, TABLES))
        await self._stop_parts([each for each in reversed(self._parts) if each.name != API], self.settings.grace)
        await self._stack.aclose()

    def _made(self, name: str) -> Part:
        components = self.components
        if name == API and self._api is not None:
            return self._api(self)
        if name == WORKER and self._app is not None:
            return WorkerPart(components, self._app)
        if name == ENGINE:
            return EnginePart(components)
        if name in FLOW_LOOPS:
            return flow_loop_part(components, name)
        return SchedulerPart(components) if name == "scheduler" else loop_part(components, name)

    async def _watch(self, part: Part) -> None:
        """A part that ends without `stop` has failed: `wait` raises its error."""
        try:
            await part.ended()
            error: Exception = RuntimeError(f"the {part.name} ended unexpectedly")
        except Exception as caught:  # noqa: BLE001 - whatever it was, `wait` raises it
            error = caught
        self._states[part.name] = State.FAILED
        log_event(_log, logging.ERROR, f"the {part.name} has ended", error, part=part.name)
        self._fail(error)

    async def _watch_keys(self) -> None:
        """A process whose plane was switched to other lock keys would exclude no other: it must end."""
        try:
            await end_at_switch(self.components.database, self.settings.names.keys)
        except BadInput as error:
            log_event(_log, logging.ERROR, "the lock keys of the plane were switched", error)
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        """Let `wait` raise the error."""
        if self._failure is not None and not self._failure.done():
            self._failure.set_exception(error)
            self._failure.exception()  # it is in the log, even if `wait` is not called

    # Stopping.

    async def _stop(self, grace: float) -> bool:
        if self._components is not None:
            self.process_health.drain()
        if self._keys is not None:
            self._keys.cancel()
            await asyncio.wait((self._keys,))
        if self._following is not None:
            if self.process_health.outgrown is None:
                self._following.cancel()
            await asyncio.wait((self._following,))
        order = [each for each in reversed(self._parts) if self._states[each.name] is not State.STOPPED]
        order.sort(key=lambda each: each.name == API)  # the API last: until then it reports the state of the others
        finished = await self._stop_parts(order, grace)
        self._states |= {name: State.STOPPED for name, state in self._states.items() if state is State.STARTING}
        await self._stack.aclose()
        if self._failure is not None and not self._failure.done():
            self._failure.set_result(None)
        return finished

    async def _stop_parts(self, parts: Sequence[Part], grace: float) -> bool:
        loop = asyncio.get_running_loop()
        until = loop.time() + grace
        watches = [self._watches.pop(part.name) for part in parts if part.name in self._watches]
        for watch in watches:
            watch.cancel()
        if watches:
            await asyncio.wait(watches)
        finished = True
        for part in parts:
            left = until - loop.time()
            finished = await self._stop_part(part, max(left, min(grace, FLOOR_S))) and finished
        return finished

    async def _stop_part(self, part: Part, grace: float) -> bool:
        """Stop one part. Its error must not keep the others from stopping."""
        failed = self._states[part.name] is State.FAILED
        self._states[part.name] = State.STOPPING
        try:
            finished = await part.stop(grace)
        except Exception as error:  # noqa: BLE001 - it is logged, and the rest has to be closed
            log_event(_log, logging.ERROR, f"the {part.name} did not end well", error, part=part.name)
            finished = False
        self._states[part.name] = State.FAILED if failed else State.STOPPED
        return finished


def check_parts(parts: Collection[str]) -> tuple[str, ...]:
    """The parts in the order in which they start, or `BadInput`."""
    if isinstance(parts, str):
        raise BadInput("parts", f"{parts!r:.60} is one text", "give a set of names")
    unknown = [str(each) for each in parts if each not in PARTS]
    if unknown:
        raise BadInput("parts", f"{unknown[0]!r:.60} is no part", f"use some of {', '.join(PARTS)}")
    return tuple(name for name in PARTS if name in parts)
