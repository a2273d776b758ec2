"""The plane's SQLite file between real processes: killed ones, concurrent ones, and listeners across them."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from holdfast.plane.db.ports import Tx
from holdfast.plane.db.sqlite.database import SqliteDatabase
from holdfast.types import NS
from support.fixtures.databases import THINGS, insert, numbers

pytestmark = pytest.mark.asyncio

LONG = 60 * NS

_PREAMBLE = """
import asyncio, sys
from functools import partial
from holdfast.plane.db.sqlite.database import SqliteDatabase
database = SqliteDatabase(sys.argv[1], busy_timeout_ns=60_000_000_000)
def say(*words):
    print(*words, flush=True)
async def insert(tx, number, channel=None):
    await tx.query("INSERT INTO thing (id) VALUES (:id)", {"id": number})
    if channel:
        tx.notify(channel)
"""

_WRITE_FOR_EVER = """
async def writer(first):
    number = first
    while True:
        await database.write(partial(insert, number=number))
        say(number)
        number += 20
async def main():
    await asyncio.gather(*(writer(n) for n in range(20)))
asyncio.run(main())
"""

_WRITE_SOME = """
async def main():
    first = int(sys.argv[2])
    await asyncio.gather(*(database.write(partial(insert, number=first + n)) for n in range(300)))
    for n in range(300, 330):
        await database.write(partial(insert, number=first + n))
    say(database.statistics()["commits"])
    await database.close()
asyncio.run(main())
"""

_RING_WHEN_TOLD = """
async def main():
    loop = asyncio.get_running_loop()
    number = 0
    say("ready")
    while (channel := (await loop.run_in_executor(None, sys.stdin.readline)).strip()):
        number += 1
        await database.write(partial(insert, number=number, channel=channel))
    await database.close()
asyncio.run(main())
"""

_WAIT = """
async def main():
    listener = database.listen("a")
    assert await listener.wait(60_000_000_000)  # it is enrolled
    say("waits")
    say(await listener.wait(60_000_000_000))
    await database.close()
asyncio.run(main())
"""


class Child:
    """Another process at the same file, which says what it did line by line."""

    def __init__(self, path: str, script: str, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-W", "error", "-c", _PREAMBLE + script, path, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.input, self.output = self.process.stdin, self.process.stdout

    async def line(self) -> str:
        return (await asyncio.to_thread(self.output.readline)).strip()

    def tell(self, text: str) -> None:
        self.input.write(f"{text}\n")
        self.input.flush()

    def end(self) -> int:
        self.input.close()
        code = self.process.wait(60)
        self.output.close()
        return code


Start = Callable[..., Child]


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "plane.db")


@pytest.fixture
def start(path: str) -> Iterator[Start]:
    children: list[Child] = []

    def begin(script: str, *arguments: str) -> Child:
        children.append(Child(path, script, *arguments))
        return children[-1]

    yield begin
    for child in children:
        if child.process.poll() is None:
            child.process.kill()
        if not child.output.closed:
            child.end()


async def opened(path: str) -> SqliteDatabase:
    database = SqliteDatabase(path, busy_timeout_ns=LONG)
    await database.write(lambda tx: tx.query(THINGS))
    return database


async def test_every_acknowledged_write_survives_kill_minus_9(path: str, start: Start) -> None:
    database = await opened(path)
    for round_ in range(3):
        await database.write(lambda tx: tx.query("DELETE FROM thing"))
        child = start(_WRITE_FOR_EVER)
        acknowledged = {int(await child.line()) for _ in range(200 + 37 * round_)}
        os.kill(child.process.pid, signal.SIGKILL)
        rest = (await asyncio.to_thread(child.output.read)).split("\n")
        acknowledged |= {int(each) for each in rest[:-1]}  # the last line may be cut off
        assert child.end() == -signal.SIGKILL

        found = set(await numbers(database))
        assert acknowledged <= found
        # What was never acknowledged is at most the last work of each of the twenty writers.
        assert len(found - acknowledged) <= 20
    assert await database.read(lambda tx: tx.query("PRAGMA integrity_check")) == [{"integrity_check": "ok"}]
    await database.close()


async def test_processes_that_write_at_once_lose_nothing(path: str, start: Start) -> None:
    database = await opened(path)
    children = [start(_WRITE_SOME, str(1000 * n)) for n in (1, 2)]
    own = [database.write(partial(insert, number=n)) for n in range(330)]
    await asyncio.gather(*own)
    commits = [int(await child.line()) for child in children]

    assert [child.end() for child in children] == [0, 0]
    assert await numbers(database) == [base + n for base in (0, 1000, 2000) for n in range(330)]
    assert all(each < 330 for each in commits)  # those that waited together shared theirs
    await database.close()


async def test_a_ring_in_one_process_is_heard_in_another(path: str, start: Start) -> None:
    database = await opened(path)
    child = start(_RING_WHEN_TOLD)
    listener, other = database.listen("a"), database.listen("b")
    assert await child.line() == "ready"
    for each in (listener, other):
        assert await each.wait(LONG) is True  # it is enrolled

    for _ in range(5):
        child.tell("a")
        assert await listener.wait(LONG) is True
    child.tell("b")
    assert await other.wait(LONG) is True
    assert await listener.wait(0) is False
    child.tell("")
    assert child.end() == 0
    await database.close()


async def test_a_killed_listener_is_forgotten_and_others_are_still_told(path: str, start: Start) -> None:
    database = await opened(path)
    killed, waiting = start(_WAIT), start(_WAIT)
    assert [await killed.line(), await waiting.line()] == ["waits", "waits"]
    killed.process.kill()
    killed.end()

    async def notify(tx: Tx) -> None:
        await insert(tx, 1)
        tx.notify("a")

    await database.write(notify)

    assert await waiting.line() == "True"
    assert waiting.end() == 0
    await database.write(lambda tx: insert(tx, 2))

    async def again(tx: Tx) -> None:
        tx.notify("b")

    await database.write(again)
    assert await database.read(lambda tx: tx.query("SELECT count(*) AS n FROM plane_listener")) == [{"n": 0}]
    await database.close()
