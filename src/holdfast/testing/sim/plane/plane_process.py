"""One process of a simulated plane: a host with its own clocks, the real locks, and the real `Plane` on top of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from holdfast.plane.app import App
from holdfast.plane.process.components import Components, build_components
from holdfast.plane.process.parts import Part, WorkerPart
from holdfast.plane.process.plane import WORKER, Plane
from holdfast.plane.settings.settings import Settings
from holdfast.testing.sim.environment.host import SimHost
from holdfast.testing.sim.environment.loop import SimLoop
from holdfast.testing.sim.plane.remote_database import SimDatabase


class SimPlane(Plane):
    """The plane as it is, on a simulated host: only where its leases, its state and its names come from is ours."""

    def __init__(
        self, settings: Settings, parts: Collection[str], app: App, host: SimHost, database: SimDatabase
    ) -> None:
        super().__init__(settings, parts, app=app, clock=host.clock, entropy=host.entropy, instance=host.name)
        self._host = host
        self._database = database
        self._jobs = app

    def _opened(self) -> AbstractAsyncContextManager[Components]:
        return self._founded()

    @asynccontextmanager
    async def _founded(self) -> AsyncIterator[Components]:
        host = self._host
        async with host.locks:
            try:
                on = build_components(
                    *(self.settings, host.locks, self._database),
                    clock=host.clock,
                    entropy=host.entropy,
                    serving=True,
                    prepare_now=False,
                )
                async with on as components:
                    yield components
            finally:
                await self._database.close()

    def _made(self, name: str) -> Part:
        if name == WORKER:
            names = (f"{self._host.name}-w{number}" for number in range(self.settings.worker.count))
            return WorkerPart(self.components, self._jobs, names)
        return super()._made(name)


class Process:
    """A process from its start to its end. `gone` is done when it is no more, whatever ended it."""

    def __init__(self, loop: SimLoop, role: str, host: SimHost, database: SimDatabase, plane: SimPlane) -> None:
        self.role = role
        self.host = host
        self.database = database
        self.plane = plane
        self.gone: asyncio.Future[None] = loop.create_future()
        self.started = False
        self.ending = False
        self._loop = loop
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def name(self) -> str:
        """What it is called in traces."""
        return self.host.name

    @property
    def serves(self) -> bool:
        """Whether it can be asked something."""
        return self.started and not self.ending and not self.gone.done()

    def begin(self, unwell: Callable[[BaseException], None]) -> None:
        """Start the plane. `unwell` is told what ended it, if that was neither a crash nor a stop."""
        self._tasks.append(self._loop.create_task(self._live(unwell), name=self.name, context=self.host.context))

    async def _live(self, unwell: Callable[[BaseException], None]) -> None:
        try:
            await self.plane.start()
            self.started = True
            await self.plane.wait()
        except Exception as error:  # noqa: BLE001 - whatever it is, the one who watches judges it
            unwell(error)
            await self.plane.stop(0.0)
        finally:
            self._end()

    def roll(self) -> None:
        """Ask it to end in peace."""
        if self.serves:
            self.ending = True
            self._tasks.append(self._loop.create_task(self._stop(), context=self.host.context))

    async def _stop(self) -> None:
        await self.plane.stop()

    def crash(self) -> None:
        """Nothing of it runs any more, from this moment on."""
        self.host.crash()
        self.database.hang_up()
        self._end()

    async def put_away(self) -> None:
        """Close what is still open. A real process is gone with all it had; here its objects are not."""
        if not self.started and self._tasks:
            for task in self._tasks:
                task.cancel()
            await asyncio.wait(self._tasks)  # one that was starting stops what it has started
        await self.plane.stop(0.0)

    def _end(self) -> None:
        if not self.gone.done():
            self.gone.set_result(None)
