"""A bus among real processes that are killed: nothing that was committed is lost, and nothing is stuck."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from holdfast.types import MS
from support.faults.freeze import freeze
from support.fixtures.buses import (
    GROUP,
    PATIENCE_S,
    SUBJECT,
    Buses,
    Recorder,
    arguments,
    eventually,
    everywhere,
    how,
    message,
)
from support.fleet import bus_child

pytestmark = [pytest.mark.asyncio, everywhere]

CHILD = Path(bus_child.__file__)


@asynccontextmanager
async def child(buses: Buses, what: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """A process that is certainly over at the end."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(CHILD), *arguments(buses, what), stdout=asyncio.subprocess.PIPE
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def line(process: asyncio.subprocess.Process) -> str:
    assert process.stdout is not None
    async with asyncio.timeout(PATIENCE_S):
        return (await process.stdout.readline()).decode().strip()


async def test_the_message_of_a_killed_consumer_is_delivered_again_after_the_ack_wait(buses: Buses) -> None:
    bus = await buses.bus()
    got = Recorder()
    await bus.publish([message("1")])
    async with child(buses, "hang") as process:
        assert await line(process) == "took 1 1"
        async with bus.consume(how(ack_wait_ns=500 * MS), got):
            await bus.publish([message("2")])
            process.kill()  # it has the first, and perhaps took the second too
            await process.wait()
            await got.until(2)

    assert sorted(got.ids) == ["1", "2"]
    assert {each.message.id: each.deliveries for each in got.got}["1"] == 2
    assert {each.failures for each in got.got} == {0}

    async def none() -> bool:
        return await bus.pending(SUBJECT, GROUP) == 0

    await eventually(none)


async def test_the_message_of_a_paused_consumer_is_delivered_again_after_the_ack_wait(buses: Buses) -> None:
    bus = await buses.bus()
    got = Recorder()
    await bus.publish([message("1")])
    async with child(buses, "hang") as process:
        assert await line(process) == "took 1 1"
        freeze(process.pid, buses.database_url)
        async with bus.consume(how(ack_wait_ns=500 * MS), got):
            await got.until(1)
        process.send_signal(signal.SIGCONT)

    assert [(each.message.id, each.deliveries) for each in got.got] == [("1", 2)]


async def test_what_was_committed_is_delivered_although_its_process_died_at_once(buses: Buses) -> None:
    async with child(buses, "stage") as process:
        assert await process.wait() == -signal.SIGKILL
    bus, database = await buses.open()
    got = Recorder()

    if not buses.embedded:
        rows = await database.read(lambda tx: tx.query("SELECT id FROM plane_outbox"))
        assert [row["id"] for row in rows] == ["1"]
    async with bus.consume(how(), got):
        await got.until(1)

    assert got.ids == ["1"]
