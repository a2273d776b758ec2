"""The fleet of an incident: a plane and its workers as processes, on real servers.

What is wrong with it is read as the engineer on call would: with `holdfast why`, and from the metrics of its processes.
Clock: monotonic, for time limits only.
"""

from __future__ import annotations

import json
import os
import signal
import time
import urllib.request
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from holdfast.drills.env.processes import Stalled, environment
from holdfast.drills.incidents.holdfast_commands import CommandEnd, HoldfastCommands, StayingCommand
from holdfast.ops.runbooks.evidence.metrics import Samples, samples_of
from holdfast.plane.settings.settings import PREFIX

LIMIT_S: Final = 60.0
_PAUSE_S: Final = 0.05
_PAUSE_MAX_S: Final = 0.5
_ASK_S: Final = 20.0
_LOG_CHARS: Final = 600

SETTINGS: Final = """
database = "{database}"
{leases}
{bus}

[api]
port = 0

[worker]
heartbeat = 1
lease_ttl = 3

[snapshot]
interval = 1

[reconciler]
interval = 2

[replayer]
interval = 2
"""

SERVING: Final = "api,scheduler,snapshot,reconciler,replayer,cleanup,engine,runs,delays,schedules"
OWN_FILE: Final = "sqlite:///plane.db?synchronous=normal"
WORKS: Final = "holdfast.drills.incidents.handlers:app"
OTHER: Final = "holdfast.drills.incidents.handlers:other"


def until(condition: Callable[[], object], what: str, limit_s: float = LIMIT_S) -> None:
    """Wait until the condition holds; `Stalled` if it never does."""
    limit, pause_s = time.monotonic() + limit_s, _PAUSE_S
    while not condition():
        if time.monotonic() > limit:
            raise Stalled(f"timed out waiting for {what}")
        time.sleep(pause_s)  # between two checks of other processes
        pause_s = min(_PAUSE_MAX_S, 1.5 * pause_s)


class FleetProcess:
    """A process of the fleet."""

    def __init__(self, name: str, command: StayingCommand, log: Path) -> None:
        self.name = name
        self.command = command
        self._log = log

    @property
    def pid(self) -> int:
        """The process."""
        return self.command.pid

    @property
    def log(self) -> str:
        """The end of what it has printed."""
        return self._log.read_text(encoding="utf-8", errors="replace")[-_LOG_CHARS:]

    def event(self, name: str) -> dict[str, Any] | None:
        """The first event with that name that it has printed. `Stalled`: it has ended instead."""
        for line in self._log.read_text(encoding="utf-8", errors="replace").split("\n")[:-1]:
            with suppress(ValueError):
                found: dict[str, Any] = json.loads(line)
                if found.get("event") == name:
                    return found
        if self.command.poll() is not None:
            raise Stalled(f"{self.name} ended early: {self.log}")
        return None

    def said(self, name: str) -> dict[str, Any]:
        """Wait for an event."""
        until(lambda: self.event(name) is not None, f"{self.name}: {name}")
        return self.event(name) or {}

    def end(self) -> None:
        """Kill it. A stopped process continues first."""
        if self.command.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGCONT)
            self.command.kill()
        self.command.wait()


class IncidentFleet:
    """A fleet in a directory, with its processes."""

    def __init__(
        self,
        directory: Path,
        commands: HoldfastCommands,
        *,
        database: str = OWN_FILE,
        leases: str = "",
        bus: str = "",
        more: str = "",
    ) -> None:
        """`more`: additional settings."""
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self.workers: list[FleetProcess] = []
        self.processes: list[FleetProcess] = []
        self._commands = commands
        self._address = ""
        self._environment = {name: value for name, value in environment().items() if not name.startswith(f"{PREFIX}_")}
        settings = SETTINGS.format(
            database=database,
            leases=f'leases = "{leases}"' if leases else "",
            bus=f'bus = "{bus}"' if bus else "",
        )
        (directory / "holdfast.toml").write_text(settings + more, encoding="utf-8")

    @property
    def address(self) -> str:
        """The URL of its API."""
        return self._address

    def run(self, *words: str) -> CommandEnd:
        """Run a `holdfast` command to its end, in the directory of the fleet."""
        return self._commands.run(words, self.directory, self._environment)

    def start(self, *, workers: int = 1, slots: int = 4, without: str = "") -> None:
        """Start the plane and its workers, and wait until a job has succeeded. `without`: a part that is left out."""
        parts = ",".join(part for part in SERVING.split(",") if part != without)
        self._address = str(self.serve(parts).said("started")["address"])
        for _ in range(workers):
            self.work(slots=slots)
        if workers:
            self.finish("quick")

    def serve(self, parts: str, *more: str) -> FleetProcess:
        """Start a process with these parts of a plane, without waiting for it."""
        return self._start("plane", ["up", "--json", "--only", parts, *more], {})

    def work(self, app: str = WORKS, *, slots: int = 4, env: Mapping[str, str] | None = None) -> FleetProcess:
        """Start a worker, without waiting for it."""
        made = self._start("worker", ["worker", app, "--concurrency", str(slots), "--json"], env or {})
        self.workers.append(made)
        return made

    def _start(self, kind: str, words: list[str], env: Mapping[str, str]) -> FleetProcess:
        name = f"{kind}-{len(self.processes) + 1}"
        log = self.directory / f"{name}.log"
        command = self._commands.start(words, self.directory, {**self._environment, **env}, log)
        made = FleetProcess(name, command, log)
        self.processes.append(made)
        return made

    def api(self, path: str, body: object = None, method: str | None = None) -> Any:
        """One request to the API; its response."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(  # noqa: S310 - the address of our own process
            f"{self._address}/api/v1{path}", data, {"content-type": "application/json"}, method=method
        )
        with urllib.request.urlopen(request, timeout=_ASK_S) as answer:  # noqa: S310 - the same
            return json.load(answer)

    def submit(self, topic: str, payload: object = None, tenant: str = "default", **more: object) -> str:
        """Submit a job; its id."""
        return str(self.api("/jobs", {"topic": topic, "payload": payload, "tenant": tenant, **more})["id"])

    def finish(self, topic: str, payload: object = None) -> None:
        """Submit a job and wait until it has succeeded."""
        job = self.submit(topic, payload)

        def done() -> bool:
            for each in self.workers:
                if each.command.poll() is not None:
                    raise Stalled(f"{each.name} ended early: {each.log}")
            return self.state(job) == "SUCCEEDED"

        until(done, f"the end of {topic}")

    def state(self, job: str) -> str:
        """The state of a job."""
        return str(self.api(f"/jobs/{job}")["state"])

    def running(self, *jobs: str) -> None:
        """Wait until these jobs run."""
        until(lambda: all(self.state(each) == "RUNNING" for each in jobs), f"{len(jobs)} running jobs")

    def why(self, *more: str) -> dict[str, Any]:
        """The report of `holdfast why`, with its exit code as `code`."""
        done = self.run("why", "--json", *more)
        if done.code not in {0, 1, 3}:
            raise Stalled(f"holdfast why exited {done.code}: {done.err[-_LOG_CHARS:]}")
        report: dict[str, Any] = json.loads(done.out)
        return {**report, "code": done.code}

    def metrics(self) -> list[Samples]:
        """The metrics of every process that answers."""
        found = []
        for each in self.processes:
            with suppress(OSError, Stalled):
                told = each.event("started") or each.event("ready") or {}
                address = told.get("probe") or told.get("address")
                if address:
                    with urllib.request.urlopen(f"{address}/metrics", timeout=_ASK_S) as answer:  # noqa: S310 - our own
                        found.append(samples_of(answer.read().decode()))
        return found

    def close(self) -> None:
        """End all processes."""
        for each in self.processes:
            each.end()


def total(pages: list[Samples], name: str, **labels: str) -> float:
    """The sum of a metric over processes and all series with these labels."""
    wanted = set(labels.items())
    return sum(
        value for page in pages for (metric, found), value in page.items() if metric == name and wanted <= {*found}
    )


def present(pages: list[Samples], name: str, **labels: str) -> list[float]:
    """All values of a metric with these labels."""
    wanted = set(labels.items())
    return [value for page in pages for (metric, found), value in page.items() if metric == name and wanted <= {*found}]
