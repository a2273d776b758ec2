"""Planes that run workflows, for tests: replicas of the engine as processes of their own, on either stack.

`embedded` is everything in one directory: state, messages and leases in one SQLite file that all processes share.
`servers` is the stack of a fleet: Postgres, NATS JetStream, and Redis behind a proxy that can cut the way to it. The
commands are those that people use; only the times in `holdfast.toml` are shorter. Requesters and approvers have
tokens of their own, because a requester may not approve its own run.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import httpx
import nats

from holdfast.plane.settings.settings import Settings
from holdfast.plane.settings.sources import load
from support.fleet import flow_app
from support.fleet.fleet import ROOT, Process, Servers, until
from support.servers.nats import own_stream

ENGINE: Final = "engine,runs,delays"
REST: Final = "api,scheduler,reconciler,replayer,snapshot"
OVER: Final = ("succeeded", "failed", "denied", "cancelled", "timed_out")

TIMES: Final = {
    "engine.run_ttl": 1.5,
    "runs.interval": 0.5,
    "runs.patience": 2,
    "delays.interval": 0.3,
    "scheduler.job_ttl": 3,
    "scheduler.ack_wait": 3,
    "scheduler.busy_delay": 0.2,
    "scheduler.backend_delay": 0.4,
    "worker.heartbeat": 1,
    "worker.lease_ttl": 2,
    "reconciler.interval": 1,
    "replayer.interval": 1,
    "snapshot.interval": 0.5,
    "limits.replay": 3,
    "grace": 20,
    "api.port": 0,
    "api.rate": 0,
}

_EFFECTS: Final = "SELECT job, count(*) FROM flow_effect GROUP BY job"
_ASKER, _DECIDER = "the-token-of-the-requester", "the-token-of-the-approver"


@dataclass
class FlowFleet:
    """A plane with replicas of its engine. `with embedded(…)` or `with on_servers(…)` starts and ends them."""

    directory: Path
    settings: Settings
    data: str  # where effects are kept
    servers: Servers | None = None
    processes: list[Process] = field(default_factory=list)
    engines: list[Process] = field(default_factory=list)
    _stack: ExitStack = field(default_factory=ExitStack)
    _lines: list[httpx.Client] = field(default_factory=list)
    _data: dict[str, Any] = field(default_factory=dict)

    # Parts.

    def engine(self, *words: str) -> Process:
        """One more replica of the engine, with the two loops. Not waited for."""
        made = self._start("engine", "up", "--only", ENGINE, "--json", *words)
        self.engines.append(made)
        return made

    def gone(self, engine: Process) -> None:
        """An engine that was ended on purpose is not missed."""
        self.engines.remove(engine)

    def _start(self, kind: str, *words: str) -> Process:
        made = Process(f"{kind}-{len(self.processes) + 1}", words, self.directory, self.data)
        self.processes.append(made)
        return made

    def begin(self, engines: int) -> None:
        """Start everything."""
        rest = self._start("rest", "up", "--only", REST, "--json")
        ttl = str(self.settings.worker.lease_ttl)
        self._start("worker", "worker", "flow_app:app", "--lease-ttl", ttl, "--json")
        for _ in range(engines):
            self.engine()
        for each in self.processes:
            each.ready()
        for token in (_ASKER, _DECIDER):
            headers = {"authorization": f"Bearer {token}"}
            line = httpx.Client(base_url=f"{rest.address}/api/v1", headers=headers, trust_env=False, timeout=30.0)
            self._lines.append(self._stack.enter_context(line))

    def end(self) -> None:
        """End everything, in any case."""
        self._stack.close()
        for each in self.processes:
            each.end()

    # What people do.

    def define(self, definition: Mapping[str, Any]) -> None:
        """Keep a workflow."""
        self._lines[0].post("/workflows", json={"definition": definition}).raise_for_status()

    def start(self, workflow: str, value: Any = None) -> str:
        """Start a run; its id."""
        answer = self._lines[0].post("/runs", json={"workflow": workflow, "input": value})
        return str(answer.raise_for_status().json()["id"])

    def cancel(self, run: str) -> None:
        """Ask for the end of a run."""
        self._lines[0].post(f"/runs/{run}/cancel").raise_for_status()

    def run(self, run: str) -> dict[str, Any]:
        """A run as it is shown."""
        found: dict[str, Any] = self._lines[0].get(f"/runs/{run}").raise_for_status().json()
        return found

    def timeline(self, run: str) -> list[dict[str, Any]]:
        """What happened to a run, once it was submitted."""
        page = self._lines[0].get(f"/runs/{run}/timeline").raise_for_status().json()
        return [line for line in page["items"] if line["kind"] != "submitted"]

    def decide(self, decisions: Mapping[str, str]) -> None:
        """Decide about everything that waits and belongs to these runs: `approve` or `reject`."""
        page = self._lines[1].get("/approvals", params={"limit": 500}).raise_for_status().json()
        for gate in page["items"]:
            said = decisions.get(gate["job"].partition(":")[0])
            if said is not None:
                answer = self._lines[1].post(f"/approvals/{gate['job'].replace('/', '%2F')}/{said}")
                # 409: its lock is busy, or it is stopped by now; 503: there are no leases. It is asked again.
                assert answer.status_code in (200, 409, 503), answer.text

    def command(self, *words: str) -> str:
        """What `holdfast …` prints; it must succeed."""
        environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
        done = subprocess.run(
            [sys.executable, "-m", "holdfast", *words],
            cwd=self.directory,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def switch(self, risk: str, mode: str) -> None:
        """Switch a risk class as people do, and return when every engine follows."""
        self.command("policy", "set", risk, mode, "--reason", "the test wants it")
        sample = f'holdfast_policy_mode{{mode="{mode}",risk="{risk}"}}'
        until(lambda: all(self.metric(each, sample) == 1 for each in self.engines), f"all to have {risk} {mode}")

    def policy_history(self, risk: str) -> list[dict[str, Any]]:
        """Who switched a class, newest first."""
        page = self._lines[0].get("/policy/history", params={"risk": risk}).raise_for_status().json()
        found: list[dict[str, Any]] = page["items"]
        return found

    # Looking behind it.

    def metric(self, process: Process, sample: str) -> float:
        """The sum of the samples of a process that begin like this."""
        lines = self._lines[0].get(f"{process.probe}/metrics").raise_for_status().text.splitlines()
        found = [line for line in lines if re.match(re.escape(sample) + r"[ {]", line)]
        return sum(float(line.rpartition(" ")[2]) for line in found)

    def metrics(self, sample: str) -> float:
        """The same of all engines together."""
        return sum(self.metric(each, sample) for each in self.engines)

    def query(self, statement: str) -> list[tuple[Any, ...]]:
        """The rows of the plane's own tables that a statement finds. Only for the thread of the test."""
        return self._asked(self.settings.database_url, statement)

    def _asked(self, address: str, statement: str) -> list[tuple[Any, ...]]:
        if address not in self._data:
            self._data[address] = self._stack.enter_context(flow_app.opened(address))
        found: list[tuple[Any, ...]] = self._data[address].execute(statement).fetchall()
        return found

    def left(self) -> list[tuple[Any, ...]]:
        """Messages that were not handled yet: staged, or in the database that is the bus; by subject."""
        staged = self.query("SELECT subject, count(*) FROM plane_outbox GROUP BY subject")
        if staged:
            return staged
        if self.settings.bus is not None:
            return [*on_the_stream(self.settings.bus).items()]
        return self.query("SELECT subject, count(*) FROM plane_message WHERE state < 2 GROUP BY subject")

    def effects(self) -> list[tuple[str, int]]:
        """Every effect that happened: its job, and how often."""
        return [(job, number) for job, number in self._asked(self.data, _EFFECTS)]


@contextmanager
def embedded(directory: Path, *, engines: int = 2) -> Iterator[FlowFleet]:
    """All in one SQLite file, and so many replicas of the engine."""
    places = {"database": f"sqlite:///{directory / 'plane.db'}"}
    with _running(directory, places, f"sqlite:///{directory / 'data.db'}", None, engines) as made:
        yield made


@contextmanager
def on_servers(servers: Servers, directory: Path, *, engines: int = 2) -> Iterator[FlowFleet]:
    """On three servers, the way to Redis through a proxy."""
    with ExitStack() as stack:
        database = stack.enter_context(servers.postgres.database())
        places = {
            "database": database,
            "bus": own_stream(servers.nats),
            "leases": f"redis://{servers.way_to_redis.address}",
        }
        yield stack.enter_context(_running(directory, places, database, servers, engines))


@contextmanager
def _running(
    directory: Path, places: Mapping[str, str], data: str, servers: Servers | None, engines: int
) -> Iterator[FlowFleet]:
    flow_app.furnish(data)
    (directory / "tokens.toml").write_text(
        _token("asker", "operator", _ASKER) + _token("decider", "approver", _DECIDER)
    )
    chosen = {**places, **TIMES, "api.tokens": "tokens.toml"}
    path = directory / "holdfast.toml"
    path.write_text("".join(f"{name} = {json.dumps(value)}\n" for name, value in chosen.items()))
    made = FlowFleet(directory, load(str(path)), data, servers)
    try:
        made.begin(engines)
        yield made
    finally:
        made.end()


def on_the_stream(bus: str) -> dict[str, int]:
    """What is left on a bus outside of the database, by subject. Words to workers that are gone mean nothing."""
    url, _, stream = bus.partition("?stream=")

    async def look() -> dict[str, int]:
        client = await nats.connect(url, connect_timeout=5, allow_reconnect=False)
        try:
            info = await client.jetstream().stream_info(stream, subjects_filter=">")
            return {name: number for name, number in (info.state.subjects or {}).items() if ".stop." not in name}
        finally:
            await client.close()

    return asyncio.run(look())


def _token(name: str, role: str, token: str) -> str:
    digest = hashlib.sha256(token.encode()).hexdigest()
    return f'[[tokens]]\nname = "{name}"\ndigest = "{digest}"\nroles = ["{role}"]\n'
