"""Processes that start while a store is away wait for it, say so, serve what they can, and begin when it answers."""

from __future__ import annotations

import json
import signal
import subprocess
import urllib.request

import pytest

from e2e.cli.test_probes import asked
from support.cli.planes import furnish
from support.cli.sessions import Shell, until
from support.servers.nats import nats_executables, start_nats
from support.servers.postgres import PostgresServer
from support.servers.redis import free_port, redis_executables, start_redis

SECRET = "s3cret-w0rd"
WAITS = "a store does not answer; the process waits for it"
WITHOUT = "a store does not answer; the process starts without it"


class Starting:
    """A process that may have to wait, and its log."""

    def __init__(self, shell: Shell, *words: str, port_flag: str) -> None:
        port = free_port()
        self.address = f"http://127.0.0.1:{port}"
        self.log = shell.directory / f"{port}.log"
        self.process: subprocess.Popen[str] = shell.start_into(self.log, *words, port_flag, str(port))

    def parts(self) -> dict[str, str]:
        """What keeps it from working; nothing: it works."""
        try:
            status, text = asked(f"{self.address}/readyz")
        except OSError:
            return {"process": "does not listen yet"}
        parts: dict[str, str] = json.loads(text)["parts"]
        wrong = {name: answer for name, answer in parts.items() if answer != "ok"}
        assert (status == 200) == (not wrong)
        return wrong

    def waits(self, *names: str) -> None:
        """Return when it is up, not ready, and says that these stores are missing."""
        until(lambda: set(names) <= set(self.parts()), f"a process that waits for {names}")
        assert asked(f"{self.address}/healthz") == (200, '{"status":"alive"}')
        assert self.process.poll() is None

    def ready(self) -> None:
        """Return when nothing keeps it from working."""
        until(lambda: not self.parts(), "a process that is ready")

    def end(self) -> int:
        """Tell it to end, and wait for that."""
        self.process.terminate()
        return self.process.wait(60)


def submit(address: str) -> int:
    request = urllib.request.Request(f"{address}/api/v1/jobs", b'{"topic": "double", "payload": 2}', method="POST")
    request.add_header("Content-Type", "application/json")
    with urllib.request.urlopen(request, timeout=30) as answer:
        return int(answer.status)


def test_every_process_waits_for_the_database_and_begins_when_it_answers(
    shell: Shell, own_postgres: PostgresServer
) -> None:
    furnish(shell)
    database = own_postgres.url()
    own_postgres.stop()
    places = ("--database", database, "--leases", "sqlite:///leases.db")
    api = Starting(shell, "up", "--only", "api", *places, port_flag="--port")
    scheduler = Starting(shell, "up", "--only", "scheduler,replayer", *places, port_flag="--probe-port")
    worker = Starting(shell, "worker", "works:app", *places, port_flag="--probe-port")
    processes = (api, scheduler, worker)
    for each in processes:
        each.waits("database")
    assert scheduler.parts()["scheduler"] == worker.parts()["worker"] == "starting"
    assert asked(f"{api.address}/")[0] == asked(f"{api.address}/openapi.json")[0] == 200, "it serves what it can"
    status, text = asked(f"{api.address}/api/v1/jobs")
    assert (status, json.loads(text)["code"]) == (503, "not-ready")
    assert json.loads(text)["detail"] == "not ready: the process waits for its database"

    own_postgres.start()
    for each in processes:
        each.ready()
    done = shell.run("jobs", "submit", "double", "--payload", "2", "--follow", *places)
    assert done.code == 0, done.err
    for each in processes:
        assert each.end() == 0
        log = each.log.read_text()
        assert WAITS in log
        assert "store=database" in log
        assert "Traceback" not in log


def test_an_api_needs_neither_leases_nor_bus_to_start_and_takes_jobs(shell: Shell) -> None:
    furnish(shell)
    with start_redis(redis_executables()[-1]) as redis, start_nats(nats_executables()[-1]) as nats:
        places = ("--leases", redis.url, "--bus", nats.url)
        redis.stop()
        nats.stop()
        api = Starting(shell, "up", "--only", "api", *places, port_flag="--port")
        api.waits("leases", "bus")
        until(lambda: "process" not in api.parts() and WITHOUT in api.log.read_text(), "an API that has begun")
        assert submit(api.address) == 201
        worker = Starting(shell, "worker", "works:app", *places, port_flag="--probe-port")
        worker.waits("leases", "bus", "worker")
        redis.start()
        nats.start()
        api.ready()
        worker.ready()
        assert (worker.end(), api.end()) == (0, 0)


@pytest.mark.parametrize("words", [("up",), ("worker", "works:app")], ids=" ".join)
def test_what_waiting_cannot_cure_ends_the_start_immediately(shell: Shell, words: tuple[str, ...]) -> None:
    furnish(shell)
    with start_redis(redis_executables()[-1]) as redis:
        redis.cli("CONFIG", "SET", "requirepass", "right")
        done = shell.run(*words, "--leases", redis.url)
    assert (done.code, done.out) == (78, "")


@pytest.mark.parametrize("words", [("up", "--port", "0"), ("worker", "works:app")], ids=" ".join)
@pytest.mark.parametrize(
    ("flag", "place", "shown"),
    [
        ("--database", "postgresql://me:{}@127.0.0.1:1/db", "postgresql://me:***@127.0.0.1:1/db"),
        ("--bus", "nats://me:{}@127.0.0.1:1", "nats://me:***@127.0.0.1:1"),
        ("--leases", "redis://me:{}@127.0.0.1:1/0", "127.0.0.1:1"),
    ],
)
def test_the_log_names_the_missing_store_without_its_password_and_a_signal_ends_the_wait(
    shell: Shell, words: tuple[str, ...], flag: str, place: str, shown: str
) -> None:
    furnish(shell)
    log = shell.directory / "start.log"
    leases = () if flag == "--leases" else ("--leases", "sqlite:///leases.db")
    process = shell.start_into(log, *words, flag, place.format(SECRET), *leases)
    until(lambda: WAITS in log.read_text() or process.poll() is not None, "a process that says what it waits for")
    process.terminate()
    assert process.wait(60) == 128 + signal.SIGTERM
    text = log.read_text()
    assert shown in text
    assert SECRET not in text
    assert "Traceback" not in text
