"""Loops in real processes on leases in a SQLite file: the leader is killed or stopped, and another takes over."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from holdfast.plane.db.migrations import prepare
from holdfast.plane.db.sqlite.database import SqliteDatabase
from holdfast.plane.loops.cadence import Mode
from holdfast.plane.maintenance.worker_snapshot import Snapshot, Snapshots
from holdfast.runtime.system import SystemClock

pytestmark = pytest.mark.asyncio

_PROGRAM = """
import asyncio, sys
import holdfast.aio
from holdfast.errors import FencedOut
from holdfast.plane.locks.registry import SNAPSHOT_WRITER
from holdfast.plane.loops.loop import Loop
from holdfast.plane.maintenance.worker_snapshot import Snapshots, SnapshotWriter
from holdfast.plane.db.sqlite.database import SqliteDatabase
from holdfast.plane.fleet.registry import Workers
from holdfast.runtime.system import SystemClock

async def main():
    database, clock = SqliteDatabase(sys.argv[1]), SystemClock()
    locks = holdfast.aio.connect(f"sqlite:///{sys.argv[2]}")
    writer = SnapshotWriter(Workers(database, clock), Snapshots(database, clock), locks, clock)

    async def tick(tick):
        try:
            await writer.tick(tick)
            print("wrote", tick.fence, flush=True)
        except FencedOut:
            print("refused", tick.fence, flush=True)
            raise

    async with Loop("snapshot", SNAPSHOT_WRITER, 1.0, tick, locks=locks, mode=sys.argv[3], at_once=True) as loop:
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
    print("ended", loop.statistics().lost, flush=True)
    await locks.close()
    await database.close()

asyncio.run(main())
"""


@dataclass
class Child:
    """One replica, and what it has said."""

    process: asyncio.subprocess.Process
    said: list[tuple[str, int]] = field(default_factory=list)
    reading: asyncio.Task[None] | None = None

    async def read(self) -> None:
        stream = self.process.stdout
        assert stream is not None
        while line := (await stream.readline()).split():
            self.said.append((line[0].decode(), int(line[1])))

    @property
    def fences(self) -> list[int]:
        return [fence for word, fence in self.said if word == "wrote"]

    def send(self, number: signal.Signals) -> None:
        os.kill(self.process.pid, number)


@dataclass
class Company:
    """Replicas of the snapshot writer at one place."""

    folder: Path
    mode: Mode
    children: list[Child] = field(default_factory=list)

    async def start(self) -> Child:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            _PROGRAM,
            str(self.folder / "plane.db"),
            str(self.folder / "leases.db"),
            self.mode,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        child = Child(process)
        child.reading = asyncio.create_task(child.read())
        self.children.append(child)
        return child

    async def until_writes_after(self, fence: int, *not_by: Child, limit_s: float = 60) -> Child:
        """The child that has written under a newer fence than this one."""
        async with asyncio.timeout(limit_s):
            while True:
                for child in self.children:
                    if child not in not_by and any(each > fence for each in child.fences):
                        return child
                await asyncio.sleep(0.005)


@asynccontextmanager
async def company(folder: Path, mode: Mode) -> AsyncIterator[Company]:
    database = SqliteDatabase(str(folder / "plane.db"))
    await prepare(database)
    await database.close()
    made = Company(folder, mode)
    try:
        yield made
    finally:
        for child in made.children:
            if child.process.returncode is None:
                child.send(signal.SIGCONT)
                assert child.process.stdin is not None
                child.process.stdin.close()
            await child.process.wait()
            if child.reading is not None:
                await child.reading


async def latest(folder: Path) -> Snapshot:
    database = SqliteDatabase(str(folder / "plane.db"))
    try:
        found = await Snapshots(database, SystemClock()).latest()
    finally:
        await database.close()
    assert found is not None
    return found


async def put_to_sleep(replicas: Company, child: Child) -> None:
    """Stop a leader for long enough that another leads.

    Not in the middle of a transaction, which would lock the file for all: then it is woken, and stopped again.
    """
    for _ in range(10):
        said = len(child.said)
        async with asyncio.timeout(60):
            while len(child.said) == said:  # noqa: ASYNC110 - it is another process that speaks
                await asyncio.sleep(0.005)
        child.send(signal.SIGSTOP)
        try:
            await replicas.until_writes_after(child.fences[-1], child, limit_s=10)
        except TimeoutError:
            child.send(signal.SIGCONT)
        else:
            return
    raise AssertionError("no process took over")


@pytest.mark.parametrize("mode", Mode)
async def test_after_kill_9_of_the_leader_another_process_ticks_under_a_newer_fence(tmp_path: Path, mode: Mode) -> None:
    async with company(tmp_path, mode) as replicas:
        for _ in range(3):
            await replicas.start()
        await replicas.until_writes_after(0)
        writer = (await latest(tmp_path)).writer
        (leader,) = (child for child in replicas.children if f":{child.process.pid}/" in writer)
        leader.send(signal.SIGKILL)
        await leader.process.wait()
        assert leader.reading is not None
        await leader.reading
        fence = max(child.fences[-1] for child in replicas.children if child.fences)
        successor = await replicas.until_writes_after(fence, leader)
        assert (await latest(tmp_path)).fence == max(successor.fences)
        assert f":{successor.process.pid}/" in (await latest(tmp_path)).writer


async def test_a_leader_that_slept_through_its_lease_writes_no_snapshot_when_it_wakes(tmp_path: Path) -> None:
    """W3, W29: it notices that, and storage would refuse it if it did not."""
    async with company(tmp_path, Mode.STICKY) as replicas:
        sleeper = await replicas.start()
        await replicas.until_writes_after(0)
        other = await replicas.start()
        await put_to_sleep(replicas, sleeper)
        written = len(sleeper.fences)
        sleeper.send(signal.SIGCONT)
        assert sleeper.process.stdin is not None
        sleeper.process.stdin.write(b"\n")  # end, after one more turn of whatever it does
        await sleeper.process.wait()
        assert sleeper.reading is not None
        await sleeper.reading
        # What it had said before it was stopped may arrive late; nothing that it wrote afterwards was accepted.
        assert len(sleeper.fences) <= written + 1
        assert (await latest(tmp_path)).fence == max(other.fences)
        word, losses = sleeper.said[-1]
        assert word == "ended"
        assert losses >= 1
