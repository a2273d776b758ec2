"""From the guarded write to the guarded write: outbox, relay, a real Redis stream, inbox, table."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import redis

import holdfast
from holdfast.errors import FencedOut, LeaseLost
from holdfast.guards.messages import MESSAGE_ID_HEADER, Inbox, InboxStatistics, Outbox, OutboxMessage, Relay, prepare
from holdfast.guards.records import SqliteRecord
from holdfast.guards.sqlite import GuardedTable
from support.servers.redis import RedisServer

pytestmark = pytest.mark.server


class Stream:
    """A bus: one Redis stream. Fields that begin with `h:` are headers."""

    def __init__(self, client: Any, name: str) -> None:
        self._client = client
        self._name = name

    def publish(self, message: OutboxMessage) -> None:
        fields = {f"h:{name}": value for name, value in message.headers.items()}
        self._client.xadd(self._name, {**fields, "body": message.body})

    def messages(self) -> list[tuple[dict[str, str], bytes]]:
        found = self._client.xrange(self._name)
        return [
            (
                {name[2:].decode(): value.decode() for name, value in fields.items() if name[:2] == b"h:"},
                fields[b"body"],
            )
            for _, fields in found
        ]


def database(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=30, isolation_level=None)
    connection.execute(
        "CREATE TABLE IF NOT EXISTS invoices (id INTEGER PRIMARY KEY, total INTEGER, holdfast_fence INTEGER)"
    ).close()
    prepare(connection)
    return connection


@pytest.fixture
def stream(redis_server: RedisServer, tmp_path: Path) -> Iterator[Stream]:
    with redis_server.client() as client:
        yield Stream(client, f"invoices:{tmp_path.name}")


class Consumer:
    """Copies totals into a table of its own: each message once, and never one of an older holder after a newer."""

    def __init__(self, path: Path, record: SqliteRecord) -> None:
        self.connection = database(path)
        self.table = GuardedTable(self.connection, "invoices", key="invoice:{id}")
        self.inbox = Inbox(record, "copies")
        self.handled: set[str] = set()

    def take(self, headers: dict[str, str], body: bytes) -> bool:
        with self.inbox.section(headers) as carried:
            if headers[MESSAGE_ID_HEADER] in self.handled:
                return False
            self.table.upsert(carried, 42, {"total": int(body)})
            self.handled.add(headers[MESSAGE_ID_HEADER])
            return True

    def total(self) -> Any:
        return self.connection.execute("SELECT total, holdfast_fence FROM invoices WHERE id = 42").fetchone()


@pytest.mark.requires("R58", "R69", "R73")
def test_a_write_reaches_the_other_side_once_and_a_stale_one_not_at_all(stream: Stream, tmp_path: Path) -> None:
    path = tmp_path / "producer.db"
    record = SqliteRecord(tmp_path / "fences.db")
    consumer = Consumer(tmp_path / "consumer.db", record)
    with closing(database(path)) as data, closing(consumer.connection), closing(record):
        table, outbox = GuardedTable(data, "invoices", key="invoice:{id}"), Outbox(data)

        def add_to(lease: holdfast.Lease, amount: int) -> None:
            data.execute("BEGIN IMMEDIATE")
            try:
                with table.section(lease, 42) as row:
                    total = (row["total"] if row.exists else 0) + amount
                    row.upsert(total=total)
                outbox.add(lease, "invoices", str(total))
                data.execute("COMMIT")
            except BaseException:
                data.execute("ROLLBACK")
                raise

        with holdfast.connect("memory://end-to-end") as locks:
            lock = locks.lock("invoice:42", ttl=600)
            with lock as first:
                add_to(first, 10)
            with lock as second:
                add_to(second, 5)
                with pytest.raises((FencedOut, LeaseLost)):
                    add_to(first, 100)
            fences = first.fence, second.fence

        outages = (redis.ConnectionError, redis.TimeoutError)
        with Relay(lambda: sqlite3.connect(path), stream.publish, outages=outages) as relay:
            assert relay.run_once() == 2
        # A relay that died before it had marked the first message sends it again.
        data.execute("UPDATE holdfast_guard_outbox SET sent_ms = NULL WHERE id = 1").close()
        with Relay(lambda: sqlite3.connect(path), stream.publish, outages=outages) as relay:
            assert relay.run_once() == 1

        one, two, again = stream.messages()
        assert [body for _, body in (one, two, again)] == [b"10", b"15", b"10"]
        assert one[0] == again[0]
        assert consumer.take(*one)
        assert consumer.take(*two)
        with pytest.raises(FencedOut) as refused:
            consumer.take(*again)
        assert (refused.value.fence, refused.value.seen) == fences
        assert not consumer.take(*two)
        assert consumer.total() == (15, fences[1])
        assert consumer.inbox.statistics() == InboxStatistics(entered=3, refused=1)
        assert consumer.inbox.seen("invoice:42") == fences[1]
