"""Concurrent relays, in processes of their own, which are killed and stopped: the order of each key is kept."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from e2e.guards.relay_worker import connector
from holdfast.guards.outbox import Outbox, prepare
from support.fixtures.guards import carried
from support.polling import pauses
from support.servers.postgres import PostgresExecutable, PostgresServer, postgres_executables

WORKER = Path(__file__).with_name("relay_worker.py")
TESTS = Path(__file__).parent.parent.parent
LIMIT_S = 90.0
KEYS, EACH, RELAYS, KILLS = 5, 24, 3, 6

NEWEST = [pytest.param(each, id=str(each), marks=pytest.mark.server) for each in postgres_executables()[-1:]]


@pytest.fixture(params=["sqlite", *NEWEST])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    with ExitStack() as stack:
        if isinstance(request.param, PostgresExecutable):
            servers: Callable[[PostgresExecutable], PostgresServer] = request.getfixturevalue("_postgres_servers")
            yield stack.enter_context(servers(request.param).database())
        else:
            path = str(tmp_path / "app.db")
            with closing(sqlite3.connect(path)) as connection:
                connection.execute("PRAGMA journal_mode = WAL")
            yield path


@contextmanager
def relay(database: str, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A relay that is at work, and is killed at the end."""
    paths = os.pathsep.join([str(TESTS.parent / "src"), str(TESTS)])
    process = subprocess.Popen(
        [sys.executable, str(WORKER), database, str(log)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": paths},
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        yield process
    finally:
        process.kill()
        process.communicate(timeout=LIMIT_S)


def add(connection: Any, key: str, number: int) -> None:
    """One message in a transaction of its own; the fence rises with every third."""
    if isinstance(connection, psycopg.Connection):
        with connection.transaction():
            Outbox(connection).add(carried(number // 3, key), "notes", str(number))
    else:
        connection.execute("BEGIN IMMEDIATE")
        Outbox(connection).add(carried(number // 3, key), "notes", str(number))
        connection.execute("COMMIT")


def lines(log: Path) -> list[list[str]]:
    return [line.split() for line in log.read_text().splitlines()] if log.exists() else []


def until(condition: Callable[[], object], what: str) -> None:
    limit, pause = time.monotonic() + LIMIT_S, pauses()
    while not condition():
        assert time.monotonic() < limit, f"{what}: did not come true"
        time.sleep(next(pause))


def check_order(log: Path) -> dict[str, list[int]]:
    """Within a key: nothing is left out, nothing comes after what is newer, and a repetition has the same id."""
    sent: dict[str, list[int]] = defaultdict(list)
    ids: dict[tuple[str, str], str] = {}
    for key, fence, number, message_id, _ in lines(log):
        assert ids.setdefault((key, number), message_id) == message_id
        assert int(fence) == int(number) // 3
        sent[key].append(int(number))
    for key, numbers in sent.items():
        assert numbers == sorted(numbers), f"{key} was sent in the wrong order: {numbers}"
        assert sorted(set(numbers)) == list(range(max(numbers) + 1)), f"{key} has a gap: {numbers}"
    return sent


@pytest.mark.requires("R58")
def test_relays_that_are_killed_at_any_moment_leave_out_nothing_and_keep_the_order_of_each_key(
    database: str, tmp_path: Path
) -> None:
    log, chance = tmp_path / "bus", random.Random(11)
    connection = connector(database)()
    with closing(connection), ExitStack() as stack:
        if isinstance(connection, sqlite3.Connection):
            connection.isolation_level = None
        else:
            connection.autocommit = True
        prepare(connection)
        running = [stack.enter_context(relay(database, log)) for _ in range(RELAYS)]
        work = [(f"note:{key}", number) for number in range(EACH) for key in range(KEYS)]
        kills = set(chance.sample(range(10, len(work)), KILLS))
        for step, (key, number) in enumerate(work):
            add(connection, key, number)
            if step in kills:
                victim = chance.choice(running)
                victim.kill()
                running[running.index(victim)] = stack.enter_context(relay(database, log))
        until(lambda: len({(key, number) for key, _, number, *_ in lines(log)}) == len(work), "everything is sent")
    sent = check_order(log)
    assert {key: max(numbers) for key, numbers in sent.items()} == {f"note:{key}": EACH - 1 for key in range(KEYS)}


@pytest.mark.requires("R73")
def test_a_relay_that_is_stopped_in_the_middle_is_not_overtaken_on_its_key(database: str, tmp_path: Path) -> None:
    """A stopped relay still holds its messages: no other sends a later message of that key meanwhile."""
    log = tmp_path / "bus"
    connection = connector(database)()
    with closing(connection), relay(database, log) as first, relay(database, log) as second:
        if isinstance(connection, sqlite3.Connection):
            connection.isolation_level = None
        else:
            connection.autocommit = True
        prepare(connection)
        for number in range(60):
            add(connection, f"note:{number % 3}", number // 3)
            if number == 20:
                first.send_signal(signal.SIGSTOP)
        check_order(log)
        first.send_signal(signal.SIGCONT)
        until(lambda: len({(key, number) for key, _, number, *_ in lines(log)}) == 60, "everything is sent")
        assert second.poll() is None
    check_order(log)
