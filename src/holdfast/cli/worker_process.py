"""The process behind `holdfast worker`: opens stores, works until a signal comes, drains, and closes them again."""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import traceback
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from typing import Any, Final

from holdfast import aio
from holdfast.cli.reporting import Reporter
from holdfast.cli.screen import printable, put_line
from holdfast.plane.app import App
from holdfast.plane.attempts import Attempts
from holdfast.plane.buses import open_bus
from holdfast.plane.databases import open_database
from holdfast.plane.schema import prepare
from holdfast.plane.settings import Settings
from holdfast.plane.undelivered import Undelivered
from holdfast.plane.worker import Drained, Worker
from holdfast.plane.workers import Workers
from holdfast.runtime.system import SystemClock, SystemEntropy

_ENDING: Final = (signal.SIGTERM, signal.SIGINT)
_FIELDS: Final = ("job", "attempt", "tenant", "topic", "fence")


class WorkerProcess:
    """One worker process, from opening its stores to closing them."""

    def __init__(
        self,
        app: App,
        places: Settings,
        pools: Sequence[str] | None,
        concurrency: int,
        lease_ttl: float,
        name: str | None,
        report: Reporter,
    ) -> None:
        self._app = app
        self._places = places
        self._pools = pools
        self._concurrency = concurrency
        self._lease_ttl = lease_ttl
        self._name = name
        self._report = report

    def run(self, grace: float, *, as_json: bool) -> Drained:
        """Work until a signal comes, then drain for at most `grace` seconds."""
        with _job_lines(as_json=as_json):
            return asyncio.run(self._run(grace))

    async def _run(self, grace: float) -> Drained:
        ending, loop = asyncio.Event(), asyncio.get_running_loop()
        for number in _ENDING:
            loop.add_signal_handler(number, ending.set)
        async with AsyncExitStack() as stack:
            worker = await self._open(stack)
            await worker.start()
            served = ", ".join(self._pools or self._app.pools)
            self._report("ready", f"worker {worker.name} takes jobs of {served}", worker=worker.name)
            await _first(ending.wait(), worker.wait())
            for number in _ENDING:
                loop.add_signal_handler(number, worker.hurry)
            running = len(worker.running())
            self._report("draining", f"ending; {running} attempts are to be finished", running=running)
            drained = await worker.drain(grace)
        text = "ended; everything was finished"
        if not drained.finished:
            text = f"ended; {drained.interrupted} attempts were stopped and given back, {drained.stuck} would not stop"
        self._report("ended", text, interrupted=drained.interrupted, stuck=drained.stuck)
        return drained

    async def _open(self, stack: AsyncExitStack) -> Worker:
        clock, entropy = SystemClock(), SystemEntropy()
        database = open_database(self._places.database_url)
        stack.push_async_callback(database.close)
        await prepare(database)
        bus = open_bus(self._places.bus, database, clock, entropy, dead=Undelivered(database, clock))
        stack.push_async_callback(bus.close)
        await bus.prepare()
        locks = await stack.enter_async_context(aio.connect(self._places.lease_url, service=self._app.name))
        return Worker(
            self._app,
            bus=bus,
            locks=locks,
            registry=Workers(database, clock),
            currency=Attempts(database),
            pools=self._pools,
            concurrency=self._concurrency,
            lease_ttl=self._lease_ttl,
            name=self._name,
        )


async def _first(*waits: Coroutine[Any, Any, object]) -> None:
    """Return when one of them has; raise what it raised."""
    tasks = [asyncio.create_task(each) for each in waits]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
    for task in done:
        task.result()


@contextmanager
def _job_lines(*, as_json: bool) -> Iterator[None]:
    """What jobs log is shown, with their tracebacks: nobody else sees those."""
    log, lines = logging.getLogger("holdfast.plane.job"), _JobLines(as_json=as_json)
    level, propagate = log.level, log.propagate
    log.addHandler(lines)
    log.setLevel(logging.INFO)
    log.propagate = False
    try:
        yield
    finally:
        log.removeHandler(lines)
        log.setLevel(level)
        log.propagate = propagate


class _JobLines(logging.Handler):
    """One line for each thing that a job says."""

    def __init__(self, *, as_json: bool) -> None:
        super().__init__()
        self._json = as_json

    def emit(self, record: logging.LogRecord) -> None:
        """Print it."""
        error = record.exc_info[1] if record.exc_info else None
        trace = [] if error is None else "".join(traceback.format_exception(error)).splitlines()
        known = {field: record.__dict__.get(field) for field in _FIELDS}
        if self._json:
            said = {"event": "log", "level": record.levelname, "text": record.getMessage(), **known}
            put_line(json.dumps({**said, "traceback": trace} if trace else said, ensure_ascii=False, default=str))
            return
        put_line(printable(f"{record.levelname.lower()} {known['job']}#{known['attempt']}: {record.getMessage()}"))
        for line in trace:
            put_line(f"  {printable(line)}")
