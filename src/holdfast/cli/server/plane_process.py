"""The process behind `holdfast up`: binds its ports, starts the components, runs until a signal comes, and drains."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Final

from holdfast.cli.exit_codes import Exit
from holdfast.cli.server import probe as probing
from holdfast.cli.server import telemetry
from holdfast.cli.server.bind import ListenAddress, address_of, check_http, listen
from holdfast.cli.server.lifecycle import first, leave_quickly, started
from holdfast.cli.server.log_format import log_lines
from holdfast.cli.server.probe import Probe
from holdfast.cli.server.up_screen import UpScreen
from holdfast.plane.app import App
from holdfast.plane.db.ports import Audit
from holdfast.plane.process import sample as sampled
from holdfast.plane.process.audit_ledger import plane_ledger
from holdfast.plane.process.plane import API, WORKER, PartMaker, Plane
from holdfast.plane.settings.settings import Settings

if TYPE_CHECKING:
    from holdfast.observe.otel.push import MetricPush

_ENDING: Final = (signal.SIGTERM, signal.SIGINT)


class PlaneProcess:
    """One process of a plane, from its port to its exit code."""

    def __init__(
        self, settings: Settings, parts: tuple[str, ...], app: App | None, *, sample: bool, json: bool
    ) -> None:
        self._settings = settings
        self._parts = parts
        self._app = app
        self._sample = sample
        self._json = json
        self._screen = UpScreen(settings, parts, app, sample=sample, json=json)

    def run(self) -> int:
        """Run until a signal comes or a component fails; returns the exit code."""
        try:
            with log_lines(self._settings, "up", as_json=self._json) as errors, self._screen.shown(errors):
                return self._served()
        finally:
            leave_quickly()

    def _served(self) -> int:
        # Ports are bound before anything is opened: an accidental second plane should fail immediately.
        with ExitStack() as stack:
            api = self._api(stack) if API in self._parts else None
            probe = stack.enter_context(probing.opened(self._settings, api=api is not None))
            self._screen.probe = None if probe is None else probe.address
            audit = stack.enter_context(ledger) if (ledger := plane_ledger(self._settings)) is not None else None
            sending = stack.enter_context(telemetry.opened(self._settings))
            return asyncio.run(self._run(api, probe, audit, sending))

    def _api(self, stack: ExitStack) -> PartMaker:
        check_http("api", "exclude it with --only")
        from holdfast.cli.server.http_server import ApiPart, access_for

        chosen = self._settings.api
        access = access_for(chosen.host, chosen.tokens)
        wish = ListenAddress(chosen.host, chosen.port, "host", "port", "holdfast up --only … excludes the API")
        ours = stack.enter_context(contextlib.closing(listen(wish)))
        self._screen.address = address_of(ours)
        return lambda plane: ApiPart(plane, ours, access)

    async def _run(
        self, api: PartMaker | None, probe: Probe | None, audit: Audit | None, sending: MetricPush | None
    ) -> int:
        ending, hurrying = asyncio.Event(), asyncio.Event()
        loop = asyncio.get_running_loop()

        ended_by = signal.SIGINT

        def signalled(number: signal.Signals) -> None:
            nonlocal ended_by
            ended_by = number
            (hurrying if ending.is_set() else ending).set()

        for number in _ENDING:
            loop.add_signal_handler(number, signalled, number)
        app = self._app if WORKER in self._parts else None
        plane = Plane(self._settings, self._parts, app=app, api=api, audit=audit)
        self._screen.opening()
        try:
            await plane.open()
            async with (
                contextlib.nullcontext() if probe is None else probe.serving(plane.process_health),
                telemetry.exporting(sending, plane.process_health),
            ):
                if await started(plane.start(), ending) is None:
                    return Exit.SIGNALLED + ended_by
                return await self._work(plane, ending, hurrying)
        finally:
            await plane.stop()  # does nothing if it has stopped already

    async def _work(self, plane: Plane, ending: asyncio.Event, hurrying: asyncio.Event) -> int:
        """Run until a signal comes, or a component fails; then drain."""
        failure: BaseException | None = None
        try:
            self._screen.started(plane)
            async with self._feeding(plane), self._screen.watching(plane):
                await first(ending.wait(), plane.wait())
        except Exception as error:  # noqa: BLE001 - it is said, and makes the exit code, after all has been closed
            failure = error
        finished = await self._drain(plane, hurrying)
        if failure is not None:
            raise failure
        return Exit.OK if finished else Exit.NO

    async def _drain(self, plane: Plane, hurrying: asyncio.Event) -> bool:
        self._screen.draining(plane)
        stopping = asyncio.create_task(plane.stop())
        hurry = asyncio.create_task(hurrying.wait())
        await asyncio.wait((stopping, hurry), return_when=asyncio.FIRST_COMPLETED)
        if not stopping.done():
            self._screen.hurrying()
            plane.hurry()
        hurry.cancel()
        finished = await stopping
        self._screen.ended(finished=finished)
        return finished

    @asynccontextmanager
    async def _feeding(self, plane: Plane) -> AsyncIterator[None]:
        if not self._sample:
            yield
            return
        feeding = asyncio.create_task(sampled.feed(plane.components.service))
        try:
            yield
        finally:
            feeding.cancel()
            await asyncio.wait((feeding,))
