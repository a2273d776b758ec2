"""The outbox: a message that lives and dies with the transaction that wrote the data, under a fence that is checked."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

import holdfast
from holdfast.core import failpoints
from holdfast.core.lease.fencing import FENCE_MAX
from holdfast.errors import BadInput, FencedOut, LeaseLost, Misconfigured, Unfenced
from holdfast.guards import GuardStatistics
from holdfast.guards.aio import outbox as aio_outbox
from holdfast.guards.aio.relay import Relay as AioRelay
from holdfast.guards.messages import carried_in
from holdfast.guards.outbox import Outbox, OutboxMessage, prepare
from holdfast.guards.settings import sql
from holdfast.guards.sqlite import GuardedTable
from support.fixtures.guards import carried
from support.fixtures.outbox import Bus, Stage

A, B = carried(1), carried(2)


@pytest.fixture
def stage(outbox_stage: Stage) -> Stage:
    return outbox_stage


@pytest.mark.requires("R58")
def test_a_message_is_there_when_the_transaction_is_committed_and_gone_when_it_is_not(stage: Stage) -> None:
    with pytest.raises(ZeroDivisionError), stage.transaction() as outbox:
        outbox.add(A, "invoices", b"never")
        raise ZeroDivisionError
    assert stage.stored() == ([], [])
    with stage.transaction() as outbox:
        sent = outbox.add(A, "invoices", b"paid", {"trace": "abc"})
    bus = Bus()
    with stage.relay(bus) as relay:
        assert relay.run_once() == 1
    [message] = bus.got
    assert message == OutboxMessage(
        sent,
        "invoice:42",
        1,
        "invoices",
        {"trace": "abc", "Holdfast-Key": "invoice:42", "Holdfast-Fence": "1", "Holdfast-Message-Id": sent},
        b"paid",
    )
    assert carried_in(message.headers) == A
    assert b"paid" not in repr(message).encode()


@pytest.mark.requires("R58", "R65")
def test_a_stale_holder_cannot_publish(stage: Stage) -> None:
    stage.add(A, "first")
    stage.add(B, "second")
    stage.add(B, "third")
    before = stage.stored()
    with stage.transaction() as outbox:
        with pytest.raises(FencedOut) as refused:
            outbox.add(A, "invoices", "stale")
        assert outbox.statistics() == GuardStatistics(refused=1)
    assert (refused.value.fence, refused.value.seen, refused.value.key) == (1, 2, "invoice:42")
    assert stage.stored() == before
    with stage.transaction() as outbox:
        outbox.add(carried(1, "invoice:43"), "invoices", "of another lock")


@pytest.mark.requires("R69", "R71")
def test_entering_keeps_older_holders_from_publishing(stage: Stage) -> None:
    outbox = Outbox(stage.connection)
    outbox.enter(B)
    assert outbox.seen("invoice:42") == 2
    with stage.transaction() as inside, pytest.raises(FencedOut):
        inside.add(A, "invoices", "stale")
    with pytest.raises(FencedOut):
        outbox.enter(A)
    assert outbox.statistics() == GuardStatistics(entered=1, refused=1)


def test_a_registration_is_rolled_back_with_its_transaction(stage: Stage) -> None:
    with pytest.raises(ZeroDivisionError), stage.transaction() as outbox:
        outbox.add(B, "invoices", "never")
        raise ZeroDivisionError
    assert Outbox(stage.connection).seen("invoice:42") is None
    stage.add(A, "first")


def test_a_message_outside_a_transaction_is_refused(stage: Stage) -> None:
    with pytest.raises(BadInput, match="has no transaction open"):
        Outbox(stage.connection).add(A, "invoices", "alone")
    assert stage.stored() == ([], [])


@pytest.mark.requires("R58")
def test_the_message_and_the_guarded_write_stand_or_fall_together(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "app.db")) as connection:
        connection.execute("CREATE TABLE invoices (id INTEGER PRIMARY KEY, total INTEGER, holdfast_fence INTEGER)")
        prepare(connection)
        connection.commit()
        table, outbox = GuardedTable(connection, "invoices"), Outbox(connection)
        with connection:
            connection.execute("INSERT INTO invoices (id, total) VALUES (42, 1)")
            with table.section(B, 42) as row:
                row.update(total=2)
            outbox.add(B, "invoices", "2")
        with pytest.raises(FencedOut), connection:
            connection.execute("UPDATE invoices SET total = 7 WHERE id = 42")
            outbox.add(A, "invoices", "7")
        assert connection.execute("SELECT total, holdfast_fence FROM invoices").fetchall() == [(2, 2)]
        assert connection.execute("SELECT count(*) FROM holdfast_guard_outbox").fetchone() == (1,)


def test_a_lost_lease_publishes_nothing(stage: Stage, lease: holdfast.Lease) -> None:
    stage.add(lease, "held")
    lease.release()
    with stage.transaction() as outbox:
        with pytest.raises(LeaseLost):
            outbox.add(lease, "invoices", "late")
        outbox.enter(carried(lease.fence + 1))
        with pytest.raises(FencedOut):
            outbox.add(lease, "invoices", "later")
        assert outbox.statistics() == GuardStatistics(entered=1, lost=1, refused=1)


def test_a_degraded_lease_publishes_nothing(stage: Stage, degraded: holdfast.DegradedLease) -> None:
    with stage.transaction() as outbox, pytest.raises(Unfenced):
        outbox.add(degraded, "invoices", "x")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given", "field"),
    [
        (("", b""), "topic"),
        (("line\n", b""), "topic"),
        (("x" * 513, b""), "topic"),
        ((7, b""), "topic"),
        (("x", None), "body"),
        (("x", {"a": 1}), "body"),
        (("x", "\ud800"), "body"),
        (("x", b"", {"x": 1}), "headers"),
        (("x", b"", [("x", "y")]), "headers"),
        (("x", b"", {"holdfast-fence": "9"}), "headers"),
        (("x", b"", {"Holdfast-Message-Id": "9"}), "headers"),
    ],
)
def test_what_cannot_be_a_message_is_refused(stage: Stage, given: Any, field: str) -> None:
    with stage.transaction() as outbox:
        with pytest.raises(BadInput) as refused:
            outbox.add(A, *given)
        assert refused.value.field == field
    assert stage.stored() == ([], [])


@pytest.mark.parametrize("fence", [0, 2**53 + 1, FENCE_MAX])
@pytest.mark.parametrize("body", [b"", bytes(range(256)), "häuſer 🙂 \0"])
def test_fences_and_bodies_come_out_as_they_went_in(stage: Stage, fence: int, body: bytes | str) -> None:
    headers = {"zero": "a\0b", "wide": "漢字 🙂", "quote": "'\";--"}
    with stage.transaction() as outbox:
        outbox.add(carried(fence, "schlüssel:ü%, 🙂"), "thema.ü", body, headers)
    bus = Bus()
    with stage.relay(bus) as relay:
        relay.run_once()
    [message] = bus.got
    assert (message.fence, message.topic) == (fence, "thema.ü")
    assert message.body == (body.encode() if isinstance(body, str) else body)
    assert {name: message.headers[name] for name in headers} == headers
    assert carried_in(message.headers) == carried(fence, "schlüssel:ü%, 🙂")


def test_preparing_twice_changes_nothing_and_keeps_what_is_there(stage: Stage) -> None:
    stage.add(A, "kept")
    before = stage.stored()
    prepare(stage.connection)
    with stage.transaction():
        prepare(stage.connection)
    assert stage.stored() == before


def test_an_outbox_that_was_never_prepared_says_so(stage: Stage) -> None:
    stage.execute("DROP TABLE holdfast_guard_outbox")
    with pytest.raises(Misconfigured, match="prepare"), stage.transaction() as outbox:
        outbox.add(A, "invoices", "x")
    with stage.relay(Bus()) as relay, pytest.raises(Misconfigured, match="prepare"):
        relay.run_once()
    prepare(stage.connection)
    stage.add(A, "x")
    assert len(stage.stored()[0]) == 1


@pytest.mark.parametrize("point", ["guard.reserved", "guard.written"])
def test_who_dies_in_the_middle_leaves_nothing_behind(stage: Stage, point: str) -> None:
    def die() -> None:
        raise KeyboardInterrupt

    with failpoints.armed(point, die), pytest.raises(KeyboardInterrupt):
        stage.add(A, "half")
    assert stage.stored() == ([], [])


@pytest.mark.parametrize("wrong", [None, "app.db", object()])
def test_what_is_not_a_connection_is_refused(wrong: Any) -> None:
    for use in (Outbox, prepare, aio_outbox.Outbox):
        with pytest.raises(BadInput) as refused:
            use(wrong)
        assert refused.value.field == "connection"


def test_the_row_factory_of_the_caller_does_not_matter(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "app.db", isolation_level=None)) as connection:
        connection.row_factory = lambda cursor, row: 1 / 0
        prepare(connection)
        connection.execute("BEGIN")
        Outbox(connection).add(A, "x", "")
        connection.execute("COMMIT")
        connection.row_factory = None
        assert connection.execute("SELECT fence FROM holdfast_guard_outbox").fetchall() == [(1,)]


# Only Postgres: concurrent writers, and the asyncio variant.


@pytest.fixture
def prepared_url(postgres_url: str) -> Iterator[str]:
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        prepare(connection)
        yield postgres_url


def test_messages_of_one_key_are_numbered_in_the_order_of_their_commits(prepared_url: str) -> None:
    """Two concurrent transactions under one lock: the second waits for the first, and those of other locks do not."""
    with psycopg.connect(prepared_url) as one, psycopg.connect(prepared_url, autocommit=True) as other:
        other.execute("SET lock_timeout = '50ms'")
        with one.transaction():
            Outbox(one).add(A, "invoices", "first")
            with pytest.raises(psycopg.errors.LockNotAvailable), other.transaction():
                Outbox(other).add(B, "invoices", "second")
            with other.transaction():
                Outbox(other).add(carried(1, "invoice:43"), "invoices", "of another lock")
        rows = other.execute("SELECT key FROM holdfast_guard_outbox ORDER BY id").fetchall()
        assert rows == [("invoice:42",), ("invoice:43",)]


@pytest.mark.asyncio
async def test_an_awaited_outbox_commits_rolls_back_and_refuses(prepared_url: str) -> None:
    async with await psycopg.AsyncConnection.connect(prepared_url, autocommit=True) as connection:
        await aio_outbox.prepare(connection)
        outbox = aio_outbox.Outbox(connection)
        with pytest.raises(BadInput, match="no transaction open"):
            await outbox.add(A, "invoices", "alone")
        with pytest.raises(ZeroDivisionError):
            async with connection.transaction():
                await outbox.add(A, "invoices", "never")
                raise ZeroDivisionError
        async with connection.transaction():
            first = await outbox.add(B, "invoices", "one")
            second = await outbox.add(B, "invoices", "two", {"trace": "x"})
            with pytest.raises(FencedOut):
                await outbox.add(A, "invoices", "stale")
        await outbox.enter(B)
        assert await outbox.seen("invoice:42") == 2
        assert outbox.statistics() == GuardStatistics(accepted=3, refused=1, entered=1)

    got: list[OutboxMessage] = []

    async def publish(message: OutboxMessage) -> None:
        got.append(message)

    async with AioRelay(lambda: psycopg.AsyncConnection.connect(prepared_url), publish) as relay:
        assert await relay.run_once() == 2
        assert await relay.run_once() == 0
        assert [(each.id, each.body) for each in got] == [(first, b"one"), (second, b"two")]
        assert relay.statistics().sent == 2


def test_the_ledger_is_the_one_that_other_guards_use(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "app.db", isolation_level=None)) as connection:
        connection.execute(sql("ledger_sqlite"))
        prepare(connection)
        names = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        assert names == {"holdfast_guard_outbox", "holdfast_guard_fence", "sqlite_sequence"}
