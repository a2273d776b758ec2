"""Fence records: the highest fence of each resource, kept for all who share the record. Each in its own color."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import sqlite3
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import BadInput, Misconfigured, Timeout, Unavailable
from holdfast.guards.postgres_records import AsyncPostgresRecord, PostgresRecord
from holdfast.guards.records import FenceRecord, SqliteRecord, ThreadedRecord, check_record, off_the_loop
from holdfast.runtime.run_sync import run_now
from support.guards.record_contract import Opened, RecordContract


class TestInSqlite(RecordContract):
    @pytest.fixture(params=["blocking", "threaded"])
    def open_record(self, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[], Opened]]:
        opened: list[Opened] = []

        def make() -> Opened:
            plain = SqliteRecord(tmp_path / "fences.db")
            threaded = request.param == "threaded"
            opened.append(Opened(ThreadedRecord(plain), asyncio.Runner()) if threaded else Opened(plain, None))
            return opened[-1]

        yield make
        for each in opened:
            each.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.parametrize("threaded", [True, False])
def test_a_forked_child_opens_the_record_for_itself(tmp_path: Path, threaded: bool) -> None:
    plain = SqliteRecord(tmp_path / "fences.db")
    record: Any = ThreadedRecord(plain) if threaded else plain
    drive = asyncio.run if threaded else run_now
    drive(record.note("http", "a", 1))
    inherited = plain._mine()
    child = os.fork()
    if child == 0:
        with contextlib.suppress(BaseException):
            noted = drive(record.note("http", "a", 2))
            shared = inherited is not None and plain._mine() is inherited
            os._exit(1 if shared else 10 + noted)
        os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 12
    assert drive(record.note("http", "a", 1)) == 2
    record.close()


# SQLite


@pytest.mark.parametrize("path", ["", ":memory:", None, 7, b"fences.db"])
def test_a_record_needs_a_file(path: Any) -> None:
    with pytest.raises(BadInput) as refused:
        SqliteRecord(path)
    assert refused.value.field == "path"


def test_a_file_that_is_no_database_is_misconfigured_and_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "fences.db"
    path.write_bytes(b"no database " * 500)
    with pytest.raises(Misconfigured):
        run_now(SqliteRecord(path).note("http", "a", 1))
    assert path.read_bytes() == b"no database " * 500


def test_a_folder_that_does_not_exist_is_misconfigured(tmp_path: Path) -> None:
    with pytest.raises(Misconfigured):
        run_now(SqliteRecord(tmp_path / "nowhere" / "fences.db").note("http", "a", 1))


def test_a_record_may_live_in_a_file_with_other_tables(tmp_path: Path) -> None:
    with contextlib.closing(sqlite3.connect(tmp_path / "app.db")) as connection:
        connection.execute("CREATE TABLE invoices (id INTEGER PRIMARY KEY)")
        record = SqliteRecord(tmp_path / "app.db")
        run_now(record.note("http", "a", 1))
        assert connection.execute("SELECT fence FROM holdfast_guard_fence").fetchall() == [(1,)]
        record.close()


def test_the_connection_of_a_thread_is_closed_with_it_or_with_the_record(tmp_path: Path) -> None:
    records = [SqliteRecord(tmp_path / "fences.db")]
    opened: list[sqlite3.Connection] = []

    def work() -> None:
        run_now(records[0].note("http", "a", 1))
        opened.append(records[0]._connection())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    work()
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        opened[0].execute("SELECT 1")
    assert opened[1].execute("SELECT 1").fetchone() == (1,)
    records.clear()
    gc.collect()
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        opened[1].execute("SELECT 1")


def test_what_is_noted_is_on_disk_before_it_is_answered(tmp_path: Path) -> None:
    record = SqliteRecord(tmp_path / "fences.db")
    run_now(record.note("http", "a", 1))
    assert record._connection().execute("PRAGMA synchronous").fetchone() == (2,)  # FULL
    record.close()


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield
        other.execute("ROLLBACK")


def test_a_file_that_stays_locked_is_unavailable_and_nothing_is_noted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.guards.records.BUSY_TIMEOUT_S", 0.01)
    record = SqliteRecord(tmp_path / "fences.db")
    run_now(record.note("http", "a", 1))
    with _locked(tmp_path / "fences.db"), pytest.raises(Unavailable, match="nothing was noted"):
        run_now(record.note("http", "a", 2))
    assert run_now(record.seen("http", "a")) == 1
    record.close()


# On an event loop


@pytest.mark.asyncio
async def test_an_event_loop_goes_on_while_a_blocking_record_waits(tmp_path: Path) -> None:
    record = ThreadedRecord(SqliteRecord(tmp_path / "fences.db"))
    await record.note("http", "a", 1)
    with _locked(tmp_path / "fences.db"):
        waiting = asyncio.ensure_future(record.note("http", "a", 2))
        for _ in range(100):
            await asyncio.sleep(0)
        assert not waiting.done()
    assert await waiting == 2
    record.close()


@pytest.mark.asyncio
async def test_a_question_that_was_cancelled_in_the_queue_is_not_asked(tmp_path: Path) -> None:
    record = ThreadedRecord(SqliteRecord(tmp_path / "fences.db"))
    await record.note("http", "a", 1)
    with _locked(tmp_path / "fences.db"):
        first = asyncio.ensure_future(record.note("http", "a", 2))
        second = asyncio.ensure_future(record.note("http", "a", 3))
        await asyncio.sleep(0)
        second.cancel()
        with pytest.raises(asyncio.CancelledError):
            await second
    assert await first == 2
    assert await record.seen("http", "a") == 2
    record.close()


@pytest.mark.asyncio
async def test_a_question_that_takes_too_long_may_have_been_answered_yet(tmp_path: Path) -> None:
    plain = SqliteRecord(tmp_path / "fences.db")
    assert await plain.note("http", "a", 1) == 1
    plain.close()
    record = ThreadedRecord(plain, timeout=0.05)
    with _locked(tmp_path / "fences.db"), pytest.raises(Timeout):
        await record.note("http", "a", 2)
    record.close()  # waits for the thread
    assert await plain.seen("http", "a") == 2
    plain.close()


@pytest.mark.asyncio
async def test_trouble_of_the_record_arrives_as_it_is(tmp_path: Path) -> None:
    record = ThreadedRecord(SqliteRecord(tmp_path / "nowhere" / "fences.db"))
    with pytest.raises(Misconfigured):
        await record.note("http", "a", 1)
    record.close()


def test_only_records_that_block_are_asked_on_a_thread(tmp_path: Path) -> None:
    blocking = SqliteRecord(tmp_path / "fences.db")
    threaded = off_the_loop(blocking)
    assert isinstance(threaded, ThreadedRecord)
    assert off_the_loop(threaded) is threaded


@pytest.mark.parametrize("thing", [None, 7, "fences.db", SqliteRecord, object()])
def test_what_does_not_remember_fences_is_refused(thing: Any) -> None:
    with pytest.raises(BadInput):
        check_record(thing)
    with pytest.raises(BadInput):
        ThreadedRecord(thing)


def test_all_records_are_records(tmp_path: Path) -> None:
    records: list[FenceRecord] = [
        SqliteRecord(tmp_path / "fences.db"),
        ThreadedRecord(SqliteRecord(tmp_path / "fences.db")),
        PostgresRecord("postgresql://host/name"),
        AsyncPostgresRecord("postgresql://host/name"),
    ]
    assert [bool(getattr(each, "blocking", None)) for each in records] == [True, False, True, False]
