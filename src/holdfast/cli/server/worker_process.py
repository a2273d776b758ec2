"""The process behind `holdfast worker`: opens stores, works until a signal comes, drains, and closes them again."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Iterator
from contextlib import AsyncExitStack, ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Final

from holdfast.cli.exit_codes import Exit
from holdfast.cli.output.async_writer import OutputWriter
from holdfast.cli.output.screen import printable, seconds
from holdfast.cli.server import probe as probing
from holdfast.cli.server import telemetry
from holdfast.cli.server.bind import http_missing
from holdfast.cli.server.lifecycle import first, leave_quickly, started
from holdfast.cli.server.log_format import JobLogLine, chosen_format, job_lines, log_lines
from holdfast.cli.server.probe import Probe
from holdfast.cli.supervise.reporter import Reporter
from holdfast.core.metric_reading import Reading
from holdfast.plane.app import App
from holdfast.plane.db.migrations import outgrown
from holdfast.plane.db.ports import Audit
from holdfast.plane.fleet.registry import check_free
from holdfast.plane.process import metrics as readings
from holdfast.plane.process.audit_ledger import plane_ledger
from holdfast.plane.process.components import TABLES, Components, open_components
from holdfast.plane.process.declare_schedules import declaring
from holdfast.plane.process.health import ProcessHealth
from holdfast.plane.process.parts import PartHealth, State, WorkerPart, worker_of, writes_needed
from holdfast.plane.process.register_workflows import keep_workflows
from holdfast.plane.process.startup_check import stores_ready
from holdfast.plane.settings.sections import TEXT
from holdfast.plane.settings.settings import Settings
from holdfast.plane.worker.worker import Drained, Worker
from holdfast.runtime.system import this_owner

if TYPE_CHECKING:
    from holdfast.observe.otel.push import MetricPush

_ENDING: Final = (signal.SIGTERM, signal.SIGINT)


class WorkerProcess:
    """One worker process, from opening its stores to closing them."""

    def __init__(self, app: App, settings: Settings, name: str | None, report: Reporter) -> None:
        self._app = app
        self._settings = settings
        self._name = name
        self._report = report

    def run(self, grace: float | None, *, as_json: bool) -> int:
        """Work until a signal comes, then drain for at most `grace` seconds, by default as the settings say.

        Returns the exit code.
        """
        limit = self._settings.grace if grace is None else grace
        by_events = as_json or chosen_format(self._settings, as_json=False) == TEXT
        with ExitStack() as stack:
            stack.callback(leave_quickly)
            errors = stack.enter_context(log_lines(self._settings, "worker", as_json=as_json))
            stack.enter_context(self._report.through(partial(errors.line, rare=True)))
            stack.enter_context(job_lines(partial(_tell, errors, as_json=as_json), shown=by_events))
            probe = stack.enter_context(self._probe())
            audit = stack.enter_context(ledger) if (ledger := plane_ledger(self._settings)) is not None else None
            sending = stack.enter_context(telemetry.opened(self._settings))
            return asyncio.run(self._run(limit, probe, audit, sending))

    @contextmanager
    def _probe(self) -> Iterator[Probe | None]:
        """A worker works without an HTTP server, unless one was requested; it reports that once."""
        missing, asked = http_missing(), self._settings.origin("probe.port").kind != "default"
        if missing and self._settings.probe.enabled and not asked:
            text = f"no health and metrics here: {' and '.join(missing)} is not installed (holdfast[plane])"
            self._report("unprobed", text, missing=list(missing))
            yield None
            return
        with probing.opened(self._settings) as probe:
            yield probe

    async def _run(self, grace: float, probe: Probe | None, audit: Audit | None, sending: MetricPush | None) -> int:
        ending, loop = asyncio.Event(), asyncio.get_running_loop()
        ended_by = signal.SIGINT

        def signalled(number: signal.Signals) -> None:
            nonlocal ended_by
            ended_by = number
            ending.set()

        for number in _ENDING:
            loop.add_signal_handler(number, signalled, number)
        async with AsyncExitStack() as outer:
            stack = await outer.enter_async_context(AsyncExitStack())  # closed earlier if the schema is newer
            how = open_components(
                self._settings, service_name=self._app.name, serving=True, prepare_now=False, audit=audit
            )
            components = await stack.enter_async_context(how)
            worker = worker_of(components, self._app, self._name)
            writes = writes_needed(self._settings, (WorkerPart.name,))
            process_health = ProcessHealth(
                components.service,
                health=lambda: _health(process_health),
                counts=lambda: _counts(worker),
                writes=writes,
            )
            process_health.begun = False
            if probe is not None:
                await outer.enter_async_context(probe.serving(process_health))
            await outer.enter_async_context(telemetry.exporting(sending, process_health))
            if await started(self._begin(stack, components, worker), ending) is None:
                return Exit.SIGNALLED + ended_by
            process_health.begun = True
            self._ready(worker, probe)
            await first(ending.wait(), worker.wait(), _outgrown(components, process_health))
            old = process_health.outgrown is not None
            if not old:
                process_health.drain()
            for number in _ENDING:
                loop.add_signal_handler(number, _hurry, worker, ending)
            drained = await self._drained(worker, grace)
            if old:
                await stack.aclose()
                self._report("outgrown", f"{process_health.outgrown}; this worker is idle until it is ended")
                await ending.wait()
        text = "ended; all work was finished"
        if not drained.finished:
            text = f"ended; {drained.interrupted} attempts were stopped and released, {drained.stuck} did not stop"
        self._report("ended", text, interrupted=drained.interrupted, stuck=drained.stuck)
        return Exit.OK if drained.finished else Exit.NO

    async def _drained(self, worker: Worker, grace: float) -> Drained:
        running = len(worker.running())
        within = max(grace, self._settings.worker.cancel_grace)  # stopped work always gets that
        text = f"ending; {running} attempts have up to {seconds(within)} to finish"
        self._report("draining", text, running=running, within=within)
        return await worker.drain(grace)

    async def _begin(self, stack: AsyncExitStack, components: Components, worker: Worker) -> None:
        """Start accepting jobs, on stores that answer."""
        await stores_ready(components)
        if self._name is not None:
            await check_free(components.workers, worker.name, this_owner(self._app.name), components.clock.now().wall)
        await keep_workflows(components.runs.definitions, self._app)
        await stack.enter_async_context(declaring(components.schedules, self._app))
        await stack.enter_async_context(worker)

    def _ready(self, worker: Worker, probe: Probe | None) -> None:
        served = ", ".join(self._settings.worker.pools or self._app.pools)
        address = None if probe is None else probe.address
        asked = "" if address is None else f"; health and metrics are at {address}"
        self._report("ready", f"worker {worker.name} serves {served}{asked}", worker=worker.name, probe=address)


def _health(process_health: ProcessHealth) -> list[PartHealth]:
    if not process_health.begun:
        return [PartHealth("worker", State.STARTING)]
    return [PartHealth("worker", State.STOPPING if process_health.draining else State.RUNNING)]


async def _outgrown(components: Components, process_health: ProcessHealth) -> None:
    """Return when a newer Holdfast has migrated the tables under this process."""
    process_health.outgrow(await outgrown(components.database, TABLES))


def _hurry(worker: Worker, ending: asyncio.Event) -> None:
    worker.hurry()
    ending.set()


def _counts(worker: Worker) -> Iterator[Reading]:
    return readings.of_workers([worker.statistics()], worker.capacity)


def _tell(errors: OutputWriter, line: JobLogLine, *, as_json: bool) -> None:
    """Print a log line of a job with its traceback, which no other output has."""
    if as_json:
        said = {"event": "log", "level": line.level, "text": line.text, **line.about}
        told = {**said, "traceback": trace} if (trace := line.trace) else said
        shown = json.dumps(told, ensure_ascii=False, default=str)
    else:
        first = f"{line.level.lower()} {line.about['job']}#{line.about['attempt']}: {line.text}"
        shown = "\n  ".join(map(printable, (first, *line.trace)))
    errors.line(shown, rare=line.rare)
