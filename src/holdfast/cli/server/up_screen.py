"""The output of `holdfast up`: addresses, running components, their state, and the end.

On a terminal the last line is live: jobs by state, and the loops that this process leads. Elsewhere there is a line for
each event, and with --json an object. Log lines of jobs are shown too, except the intended failures of the sample.

Promises: output never blocks and never fails; a stalled or gone reader only loses its own lines.
"""

from __future__ import annotations

import asyncio
import logging
import shlex
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.live import Live
from rich.text import Text

from holdfast import __version__
from holdfast.cli.output.async_writer import OutputWriter
from holdfast.cli.output.jobs import state_cell
from holdfast.cli.output.screen import (
    cell,
    json_line,
    note_line,
    out,
    plain_table,
    printable,
    put_json,
    put_table,
    seconds,
)
from holdfast.cli.server.log_format import JobLogLine, chosen_format, job_lines
from holdfast.errors import BackendError, Closed
from holdfast.observe.logs import message_of
from holdfast.plane.app import App
from holdfast.plane.model.job_states import JobState
from holdfast.plane.process.plane import API, LOOPS, WORKER, Plane
from holdfast.plane.service.service import Caller
from holdfast.plane.settings.consistency import takeovers
from holdfast.plane.settings.sections import TEXT
from holdfast.plane.settings.settings import FILE, Settings
from holdfast.stores.registry import redacted

LOOK_S: Final = 1.0
_ME: Final = Caller("holdfast up")
_SHOWN: Final = (
    *(JobState.PENDING, JobState.RETRYING, JobState.DISPATCHED, JobState.RUNNING),
    *(JobState.SUCCEEDED, JobState.FAILED, JobState.TIMEOUT, JobState.CANCELLED),
)


class UpScreen:
    """The screen of one plane process."""

    def __init__(
        self, settings: Settings, parts: tuple[str, ...], app: App | None, *, sample: bool, json: bool
    ) -> None:
        self._settings = settings
        self._parts = parts
        self._app = app
        self._sample = sample
        self._json = json
        self._live = not json and out().is_terminal
        self._out = OutputWriter("stdout", self._gap)
        self._errors: OutputWriter | None = None
        self._counted: Mapping[JobState, int] = {}
        self._count_again = 0.0
        self.address: str | None = None
        self.probe: str | None = None

    # Events, in their order.

    def opening(self) -> None:
        """Stores are being opened."""
        if not self._json:
            self._tell_people(f"opening {redacted(self._settings.database_url)}")

    def started(self, plane: Plane) -> None:
        """All components run."""
        if self._json:
            health = [each.as_dict() for each in plane.health()]
            self._event("started", address=self.address, probe=self.probe, places=self._places(), parts=health)
            return
        console = out()
        with console.capture() as captured:
            self._print_start(console)
        self._out.line(captured.get(), rare=True)

    def _print_start(self, console: Console) -> None:
        console.print()
        console.print(
            Text.assemble(cell(" HOLDFAST ", "bold reverse"), cell(f"  {__version__}  the plane is running", "bold"))
        )
        console.print()
        if self.address is not None:
            console.print(cell("  open       ", "bold"), cell(self.address, "bold green underline"), soft_wrap=True)
            console.print()
        for name, place in self._places().items():
            console.print(cell(f"  {name:<11}", "dim"), cell(place), soft_wrap=True)
        if self.probe is not None:
            console.print(cell("  probe      ", "dim"), cell(f"{self.probe}/healthz"), soft_wrap=True)
        console.print()
        for name, doing in self._doing().items():
            console.print(cell(f"  {name:<11}", "bold"), cell(doing), soft_wrap=True)
        console.print()
        for number, text in enumerate(self._hints()):
            console.print(cell(f"  {'try' if not number else '':<11}", "dim"), cell(text, "cyan"), soft_wrap=True)
        console.print()
        grace = f"  Ctrl-C drains within {seconds(self._settings.grace)}; a second one ends the wait."
        console.print(cell(grace, "dim"))

    @asynccontextmanager
    async def watching(self, plane: Plane) -> AsyncIterator[None]:
        """Show the state while the block runs. Only on a terminal."""
        if not self._live:
            yield
            return
        live = Live(console=out(), auto_refresh=False, transient=True)
        self._out.put(live.start)
        looking = asyncio.create_task(self._look(plane, live))
        try:
            yield
        finally:
            looking.cancel()
            await asyncio.wait((looking,))
            self._out.put(live.stop, rare=True)

    def draining(self, plane: Plane) -> None:
        """It was told to end, or a component has failed."""
        health = plane.health()
        running = sum(each.detail.get("active", 0) for each in health)
        text = f"ending: no new work starts; {running} attempts have up to {seconds(self._settings.grace)} to finish"
        self._print_event("draining", text, running=running, parts=[each.as_dict() for each in health])

    def hurrying(self) -> None:
        """It got a second signal."""
        self._print_event("hurrying", "ending now: running work is stopped and released")

    def ended(self, *, finished: bool) -> None:
        """Everything is closed."""
        text = "ended; all started work is finished, and every lease is released"
        if not finished:
            text = "ended; some work was interrupted and released, for other processes or the next start"
        self._print_event("ended", text, finished=finished)

    @contextmanager
    def shown(self, errors: OutputWriter) -> Iterator[None]:
        """Show events and log lines of jobs while the block runs; text goes through `errors`."""
        self._errors = errors
        by_events = self._json or chosen_format(self._settings, as_json=False) == TEXT
        level = logging.CRITICAL if self._sample else logging.INFO
        with self._out, job_lines(self._said_by_job, shown=by_events, level=level):
            yield

    # Its elements.

    def _said_by_job(self, line: JobLogLine) -> None:
        text = line.text + (f" ({message_of(line.error)})" if line.error else "")
        fields = {name: line.about[name] for name in ("job", "attempt", "tenant", "topic")}
        if self._json:
            more = {"traceback": trace} if (trace := line.trace) else {}
            self._event("log", rare=line.rare, level=line.level.lower(), text=text, **fields, **more)
        else:
            self._tell_people(f"{fields['job']}, attempt {fields['attempt']}: {text}", *line.trace, rare=line.rare)

    def _places(self) -> dict[str, str]:
        settings = self._settings
        database, leases = redacted(settings.database_url), redacted(settings.lease_url)
        same = leases == database.partition("?")[0]
        bus = "in the database" if settings.bus is None else redacted(settings.bus)
        return {"database": database, "bus": bus, "leases": "in the database" if same else leases}

    def _doing(self) -> dict[str, str]:
        settings, doing = self._settings, dict[str, str]()
        for name in self._parts:
            if name in LOOPS:
                every = seconds(settings.value(f"{name}.interval"))
                doing[name] = f"every {every}, {settings.value(f'{name}.lead')} leader"
        if "scheduler" in self._parts:
            doing["scheduler"] = f"{settings.scheduler.concurrency} concurrent messages, a lock for each job"
        if "engine" in self._parts:
            doing["engine"] = f"{settings.engine.concurrency} concurrent messages, a lock for each run"
        if WORKER in self._parts and self._app is not None:
            each, pools = settings.worker, ", ".join(settings.worker.pools or self._app.pools)
            doing["workers"] = f"{each.count} × {each.concurrency} attempts of {self._app.name}, in {pools}"
        elif WORKER not in self._parts and API in self._parts and self._app is None:
            doing["workers"] = "none here; use --app module:name, run `holdfast worker`, or try --sample"
        if self._sample:
            doing["sample"] = "agents of three tenants plan, call tools and report; some calls fail and are retried"
        return doing

    def _hints(self) -> list[str]:
        named = self._flags("database", "bus", "leases")
        goal = '\'{"goal": "find the slow query"}\''
        hints = [f"holdfast jobs submit agent.plan --payload {goal} --follow{named}"] if self._sample else []
        return [
            *hints,
            f"holdfast jobs list{self._flags('database')}",  # reading needs nothing else
            f"holdfast watch {self._settings.names.keys}: --url {redacted(self._settings.lease_url)}",
        ]

    def _flags(self, *keys: str) -> str:
        """The flags with which another shell in this directory finds the same plane, if needed."""
        settings = self._settings
        by_itself = settings.file is None or Path(settings.file) == Path.cwd() / FILE
        config = "" if by_itself else f" --config {shlex.quote(str(settings.file))}"
        given = [key for key in keys if settings.origin(key).kind == "flag"]
        return config + "".join(f" --{key} {shlex.quote(redacted(str(settings.value(key))))}" for key in given)

    async def _look(self, plane: Plane, live: Live) -> None:
        while True:  # ends by cancellation
            try:
                line = await self._line(plane)
            except (BackendError, Closed) as error:
                line = cell(f"  {plane.process_health.barred or error}", "red")
            self._out.put(partial(live.update, line, refresh=True))
            await asyncio.sleep(LOOK_S)

    async def _line(self, plane: Plane) -> Text:
        counts = await self._counts(plane)
        line = cell("  ")
        for state in _SHOWN:
            if counts[state]:
                line.append_text(state_cell(state)).append_text(cell(f" {counts[state]}   "))
        leads = [each.part for each in plane.health() if each.detail.get("leader")]
        if leads:
            line.append_text(cell(f"leads {', '.join(leads)}", "dim"))
        return line if line.plain.strip() else cell("  no jobs yet", "dim")

    async def _counts(self, plane: Plane) -> Mapping[JobState, int]:
        """Finished jobs are counted rarely if there are many: counting takes a fiftieth of the time at most."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        if began < self._count_again:
            return {**self._counted, **await plane.components.service.counts(_ME, finished=False)}
        self._counted = await plane.components.service.counts(_ME)
        self._count_again = loop.time() + 50 * (loop.time() - began)
        return self._counted

    def _print_event(self, event: str, text: str, **fields: Any) -> None:
        if self._json:
            self._event(event, text=text, **fields)
        else:
            self._tell_people(text)

    def _tell_people(self, text: str, *more: str, rare: bool = True) -> None:
        if self._errors is not None:
            self._errors.line("\n  ".join((note_line(text), *map(printable, more))), rare=rare)

    def _event(self, event: str, *, rare: bool = True, **fields: Any) -> None:
        self._out.line(json_line({"event": event, **fields}), rare=rare)

    def _gap(self, dropped: int) -> str:
        text = f"{dropped} lines were dropped, because standard output was not read"
        return json_line({"event": "dropped", "text": text, "dropped": dropped}) if self._json else text


def show_settings(settings: Settings, *, shown: Mapping[str, Mapping[str, Any]] | None = None, json: bool) -> None:
    """Print the settings in effect, the origin of each, and the resulting takeover bounds. No secrets.

    `shown`: some of `settings.shown()`; then without the bounds.
    """
    whole = shown is None
    shown = settings.shown() if shown is None else shown
    bounds = takeovers(settings) if whole else []
    if json:
        more = {"takeover": [each._asdict() for each in bounds]} if whole else {}
        put_json({"file": settings.file, "settings": shown, **more})
        return
    table = plain_table(("SETTING", "left"), ("VALUE", "left"), ("FROM", "left"))
    for name, fields in shown.items():
        value = fields["value"]
        text = "-" if value in (None, []) else ", ".join(value) if isinstance(value, list) else f"{value}"
        given = fields["from"] != "default"
        table.add_row(cell(name, "bold"), cell(text), cell(fields["from"], "green" if given else "dim"))
    put_table(table)
    if not whole:
        return
    print()
    table = plain_table(("TAKEOVER OF", "left"), ("WITHIN", "right"), ("BECAUSE", "left"))
    for each in bounds:
        table.add_row(cell(each.what), cell(f"{each.seconds:g} s", "bold"), cell(each.because))
    put_table(table)
    print()
    out().print(cell(f"valid: {settings.file or 'no file, only defaults, environment and flags'}", "bold green"))
