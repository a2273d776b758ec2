"""A fleet for incidents: a plane and its workers as processes, on real servers.

What an incident looks like is read with `holdfast why --json`, as the engineer on call would.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import httpx

from support.cli.planes import Up
from support.cli.sessions import LIMIT_S, Done, Shell, until

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

FUNCTIONS: Final = """
import os, signal, time
from holdfast.plane import App, Fatal

app = App("works")
other = App("other")

@app.job("quick")
async def quick(payload):
    return payload

@app.job("hang", max_concurrency=64)
def hang(payload, *, ctx):
    if not payload:
        return "done"
    while True:
        time.sleep(0.1)

@app.job("nap")
def nap(payload, *, ctx):
    ctx.cancelled.wait(payload)

@app.job("die")
def die(payload):
    os.kill(os.getpid(), signal.SIGKILL)

@app.job("fail")
def fail(payload):
    raise Fatal("the invoice has no address")

@other.job("elsewhere")
async def elsewhere(payload):
    return payload
"""

SERVING: Final = "api,scheduler,snapshot,reconciler,replayer,cleanup,engine,runs,delays"


class Incident:
    """A fleet in a directory, with its processes."""

    def __init__(self, directory: Path, *, database: str, leases: str = "", bus: str = "") -> None:
        self.shell = Shell(directory)
        settings = SETTINGS.format(
            database=database,
            leases=f'leases = "{leases}"' if leases else "",
            bus=f'bus = "{bus}"' if bus else "",
        )
        (directory / "holdfast.toml").write_text(settings)
        (directory / "works.py").write_text(FUNCTIONS)
        self.plane: Up | None = None
        self.workers: list[subprocess.Popen[bytes]] = []

    def start(self, *, workers: int = 1, slots: int = 4) -> None:
        """Start the plane and its workers, and wait until a job has succeeded."""
        self.plane = Up(self.shell, "--only", SERVING)
        for _ in range(workers):
            self.work(slots=slots)
        if workers:
            self.finish("quick")

    def work(self, app: str = "works:app", *, slots: int = 4, env: Mapping[str, str] | None = None) -> int:
        """Start a worker; its pid."""
        words = [sys.executable, "-m", "holdfast", "worker", app, "--concurrency", str(slots)]
        with (self.shell.directory / f"worker-{len(self.workers)}.log").open("wb") as log:
            child = subprocess.Popen(
                words,
                cwd=self.shell.directory,
                env=self.shell.environment(**(env or {})),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        self.workers.append(child)
        return child.pid

    def submit(self, topic: str, payload: object = None, tenant: str = "default") -> str:
        """Submit a job; its id."""
        assert self.plane is not None
        body = {"topic": topic, "payload": payload, "tenant": tenant}
        answer = httpx.post(f"{self.plane.address}/api/v1/jobs", json=body, timeout=LIMIT_S)
        assert answer.status_code == 201, answer.text
        return str(answer.json()["id"])

    def finish(self, topic: str, payload: object = None) -> None:
        """Submit a job and wait for its end."""
        job = self.submit(topic, payload)

        def over() -> bool:
            assert all(each.poll() is None for each in self.workers), self.log()
            return self.state(job) == "SUCCEEDED"

        until(over, f"the end of {topic}")

    def log(self) -> str:
        """What the last worker has printed."""
        return (self.shell.directory / f"worker-{len(self.workers) - 1}.log").read_text()

    def state(self, job: str) -> str:
        """The state of a job."""
        return str(self.shell.run("jobs", "show", job, "--json").json["job"]["state"])

    def why(self, *more: str) -> dict[str, Any]:
        """What `holdfast why` reports."""
        done: Done = self.shell.run("why", "--json", *more)
        assert done.code in {0, 1, 3}, done
        found: dict[str, Any] = done.json
        return found

    def top(self) -> str:
        """The name of the first finding."""
        return str(self.why()["findings"][0]["rule"])

    def names(self, rule: str, sentence: str = "") -> dict[str, Any]:
        """Wait until a finding is the first one, and has this in its sentence; the finding."""
        seen: list[dict[str, Any]] = []

        def it() -> bool:
            seen[:] = self.why()["findings"]
            return seen[0]["rule"] == rule and sentence in seen[0]["sentence"]

        try:
            until(it, f"the finding {rule!r}")
        except AssertionError as error:
            told = "\n".join(f"{each['rule']}: {each['sentence']}" for each in seen)
            raise AssertionError(f"{rule!r} is not the first finding:\n{told}") from error
        return seen[0]

    def close(self) -> None:
        """End all processes."""
        for child in self.workers:
            if child.poll() is None:
                os.kill(child.pid, 18)  # a stopped process cannot end
                child.kill()
            child.wait()
        if self.plane is not None:
            self.plane.end(9)
        self.shell.close()
