"""Fence records in Postgres: the contract in both colors, and the troubles of a server."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from holdfast.errors import BackendError, BadInput, Misconfigured, Unavailable
from holdfast.guards.postgres_records import AsyncPostgresRecord, PostgresRecord
from support.guards.record_contract import Opened, RecordContract


class TestInPostgres(RecordContract):
    @pytest.fixture
    def open_record(self, postgres: Callable[..., Opened], postgres_url: str) -> Callable[[], Opened]:
        return lambda: postgres(postgres_url)


@pytest.fixture(params=[PostgresRecord, AsyncPostgresRecord], ids=["blocking", "awaited"])
def postgres(request: pytest.FixtureRequest) -> Iterator[Callable[..., Opened]]:
    opened: list[Opened] = []

    def make(url: str, **settings: Any) -> Opened:
        runner = asyncio.Runner() if request.param is AsyncPostgresRecord else None
        opened.append(Opened(request.param(url, **settings), runner))
        return opened[-1]

    yield make
    for each in opened:
        each.close()


def test_postgres_is_durable_whatever_the_default_of_the_database(
    postgres: Callable[..., Opened], postgres_url: str
) -> None:
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        name = connection.info.dbname
        connection.execute(f'ALTER DATABASE "{name}" SET synchronous_commit = off')
    record = postgres(postgres_url)
    assert _synchronous(record, "on")
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(f'ALTER DATABASE "{name}" SET synchronous_commit = remote_apply')
    record = postgres(postgres_url)
    assert _synchronous(record, "remote_apply")


def _synchronous(record: Opened, level: str) -> bool:
    asked = record.record._ledger.ask("SELECT (current_setting('synchronous_commit') = %s)::int", (level,))
    return bool(record._drive(asked))


def test_postgres_gives_up_on_a_row_that_stays_locked_and_notes_nothing(
    postgres: Callable[..., Opened], postgres_url: str
) -> None:
    record = postgres(postgres_url, timeout=0.1)
    record.note("http", "a", 1)
    with psycopg.connect(postgres_url) as other:
        other.execute("SELECT * FROM holdfast_guard_fence FOR UPDATE")
        with pytest.raises(Unavailable, match="nothing was noted"):
            record.note("http", "a", 2)
        other.rollback()
    assert record.seen("http", "a") == 1
    assert record.note("http", "a", 2) == 2


def test_a_connection_that_was_ended_meanwhile_is_replaced(postgres: Callable[..., Opened], postgres_url: str) -> None:
    record = postgres(postgres_url)
    record.note("http", "a", 1)
    with psycopg.connect(postgres_url, autocommit=True) as other:
        ended = other.execute(
            "SELECT count(pg_terminate_backend(pid, 10000)) FROM pg_stat_activity "
            "WHERE application_name = 'holdfast-record' AND datname = current_database()"
        ).fetchone()
        assert ended == (1,)
    assert record.note("http", "a", 2) == 2


def test_a_role_that_may_not_make_the_ledger_is_told_so(postgres: Callable[..., Opened], postgres_url: str) -> None:
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("REVOKE ALL ON SCHEMA public FROM PUBLIC")
        name = f"reader_{os.urandom(4).hex()}"
        connection.execute(f"CREATE ROLE {name}")
        connection.execute(f"GRANT {name} TO CURRENT_USER")
        record = postgres(f"{postgres_url}{'&' if '?' in postgres_url else '?'}options=-crole%3D{name}")
        with pytest.raises(Misconfigured):
            record.note("http", "a", 1)
        connection.execute(f"DROP ROLE {name}")


def test_a_server_that_is_not_there_is_unavailable(postgres: Callable[..., Opened], tmp_path: Path) -> None:
    record = postgres(f"postgresql:///x?host={tmp_path}")
    with pytest.raises(Unavailable):
        record.note("http", "a", 1)


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"url": ""}, "url"),
        ({"url": None}, "url"),
        ({"url": "postgresql://u:s3cret@[h"}, "url"),
        ({"timeout": 0}, "timeout"),
        ({"connections": 0}, "connections"),
        ({"connections": True}, "connections"),
    ],
)
def test_settings_of_a_postgres_record_that_cannot_be_right_are_refused(settings: dict[str, Any], field: str) -> None:
    for kind in (PostgresRecord, AsyncPostgresRecord):
        with pytest.raises(BadInput) as refused:
            kind(**({"url": "postgresql://host/name"} | settings))
        assert refused.value.field == field
        assert "s3cret" not in str(refused.value)


@pytest.mark.asyncio
async def test_more_questions_than_connections_wait_for_their_turn(postgres_url: str) -> None:
    async with AsyncPostgresRecord(postgres_url, connections=2) as record:
        answers = await asyncio.gather(*(record.note("http", "a", fence) for fence in range(40)))
        assert max(answers) == 39
        assert len(record._ledger._idle) <= 2


@pytest.mark.asyncio
async def test_a_question_that_is_cancelled_does_not_spoil_the_next(postgres_url: str) -> None:
    async with AsyncPostgresRecord(postgres_url, connections=1) as record:
        await record.note("http", "a", 1)
        async with await psycopg.AsyncConnection.connect(postgres_url) as other:
            await other.execute("SELECT * FROM holdfast_guard_fence FOR UPDATE")
            waiting = asyncio.ensure_future(record.note("http", "a", 2))
            while not await _is_waiting(postgres_url):
                pass
            waiting.cancel()
            with pytest.raises((asyncio.CancelledError, BackendError)):
                await waiting
            await other.rollback()
        assert await record.note("http", "a", 3) == 3


async def _is_waiting(url: str) -> bool:
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        found = await connection.execute(
            "SELECT 1 FROM pg_stat_activity WHERE application_name = 'holdfast-record' AND wait_event_type = 'Lock' "
            "AND datname = current_database()"
        )
        return await found.fetchone() is not None
