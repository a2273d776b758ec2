"""Locks that last as long as a transaction on the file of the leases: refused, fenced and undone as they should be."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from holdfast.core.ports import LocksInTransaction, Query, TransactionLocks
from holdfast.runtime.run_sync import run_now
from holdfast.stores.memory.store import MemoryStore
from holdfast.stores.sqlite.engine import SqliteEngine, SqliteStore
from holdfast.types import NS, AcquireRequest, Busy, Grant

CALL = 5 * NS


class Writer:
    """A program that writes to the file in which the leases lie."""

    def __init__(self, path: Path) -> None:
        self.connection = sqlite3.connect(path, isolation_level=None, timeout=0)
        self.connection.row_factory = sqlite3.Row

    async def query(self, statement: str, values: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
        return [dict(row) for row in self.connection.execute(statement, values).fetchall()]

    def take(self, moment: TransactionLocks, *keys: str, unheard: bool = False) -> list[int | Busy]:
        """The locks, inside a transaction that stays open."""
        self.connection.execute("BEGIN IMMEDIATE")
        ask: Query = self.query
        return run_now(moment.take(ask, keys, unheard=unheard))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "plane.db"


@pytest.fixture
def store(path: Path) -> Iterator[SqliteStore]:
    engine = SqliteEngine(str(path))
    run_now(engine.blocking.ping(CALL))
    yield engine.blocking
    engine.close()


@pytest.fixture
def moment(store: SqliteStore, path: Path) -> TransactionLocks:
    found = store.within(str(path))
    assert found is not None
    return found


@pytest.fixture
def writer(path: Path, store: SqliteStore) -> Iterator[Writer]:
    opened = Writer(path)
    yield opened
    opened.connection.close()


def grant(store: SqliteStore, key: str, ttl_ns: int = 60 * NS, token: str = "t1") -> Grant | Busy:
    return run_now(store.acquire(AcquireRequest(key, token, "ada@host:1/x", "test", ttl_ns), CALL))


def held(store: SqliteStore, key: str, **how: Any) -> Grant:
    answer = grant(store, key, **how)
    assert isinstance(answer, Grant)
    return answer


@pytest.mark.requires("R1", "R2")
def test_each_has_a_fence_above_every_earlier_one_and_below_every_later_one(
    store: SqliteStore, moment: TransactionLocks, writer: Writer
) -> None:
    before = held(store, "a")
    run_now(store.release("a", "t1", before.claim, 0, CALL))
    fences = writer.take(moment, "a", "b", "c")
    writer.connection.execute("COMMIT")
    assert all(isinstance(fence, int) for fence in fences)
    assert [before.fence, *fences] == sorted([before.fence, *fences])
    assert len(set(fences)) == 3
    assert held(store, "a").fence > max(fence for fence in fences if isinstance(fence, int))


@pytest.mark.requires("R2")
def test_unheard_keys_are_not_searched_and_have_fences_of_the_same_counter(
    store: SqliteStore, moment: TransactionLocks, writer: Writer
) -> None:
    before = held(store, "a")
    seen: list[str] = []
    writer.connection.set_trace_callback(seen.append)
    first, second = writer.take(moment, "b", "c", unheard=True)
    writer.connection.set_trace_callback(None)
    writer.connection.execute("COMMIT")
    assert isinstance(first, int)
    assert isinstance(second, int)
    assert before.fence < first < second < held(store, "d").fence
    assert not any("holdfast_lease" in statement for statement in seen)


@pytest.mark.requires("R3")
def test_one_that_is_held_is_refused_with_its_holder_and_the_others_are_had(
    store: SqliteStore, moment: TransactionLocks, writer: Writer
) -> None:
    lease = held(store, "b")
    first, second, third = writer.take(moment, "a", "b", "c")
    writer.connection.execute("COMMIT")
    assert isinstance(second, Busy)
    assert (second.key, second.owner) == ("b", "ada@host:1/x")
    assert 0 < (second.remaining_ns or 0) <= 60 * NS
    assert isinstance(first, int)
    assert isinstance(third, int)
    assert run_now(store.inspect("b", CALL)) is not None
    assert run_now(store.release("b", "t1", lease.claim, 0, CALL)), "and it is still its holder's"


def test_a_key_is_taken_while_the_transaction_is_open_and_free_when_it_is_over(
    store: SqliteStore, moment: TransactionLocks, writer: Writer
) -> None:
    (fence,) = writer.take(moment, "a")
    with pytest.raises(Exception, match="locked by another writer"):
        run_now(store.acquire(AcquireRequest("a", "t1", "ada", "test", NS), NS // 20))
    assert run_now(store.inspect("a", CALL)) is None, "it is nowhere to be seen"
    writer.connection.execute("COMMIT")
    assert held(store, "a").fence > fence  # type: ignore[operator]  # a number


def test_what_is_undone_was_never_had_and_a_fence_that_was_seen_is_not_given_again_by_chance(
    store: SqliteStore, moment: TransactionLocks, writer: Writer
) -> None:
    before = held(store, "x")
    (fence,) = writer.take(moment, "a")
    writer.connection.execute("ROLLBACK")
    assert isinstance(fence, int)
    assert fence > before.fence
    again = held(store, "a")
    assert again.fence > before.fence, "no process has seen the fence of what was undone, so it may be the same"


def test_the_row_of_one_that_ran_out_or_died_is_removed(
    store: SqliteStore, moment: TransactionLocks, writer: Writer, path: Path
) -> None:
    """A process that was killed holds nothing on this host, whatever its time."""
    program = (
        "import sys, time\n"
        "from holdfast.runtime.run_sync import run_now\n"
        "from holdfast.stores.sqlite.engine import SqliteEngine\n"
        "from holdfast.types import NS, AcquireRequest\n"
        f"store = SqliteEngine({str(path)!r}).blocking\n"
        "run_now(store.acquire(AcquireRequest('dead', 't2', 'bob', 'test', 600 * NS), 5 * NS))\n"
        "print('held', flush=True)\n"
        "time.sleep(600)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[3] / "src")}
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, env=environment) as child:
        try:
            assert child.stdout is not None
            assert child.stdout.readline() == b"held\n"
            assert isinstance(writer.take(moment, "dead")[0], Busy)
            writer.connection.execute("ROLLBACK")
        finally:
            child.send_signal(signal.SIGKILL)
    held(store, "short", ttl_ns=1)
    assert all(isinstance(fence, int) for fence in writer.take(moment, "dead", "short"))
    writer.connection.execute("COMMIT")
    assert writer.connection.execute("SELECT count(*) FROM holdfast_lease").fetchone()[0] == 0


def test_only_the_file_of_the_leases_itself_will_do(
    store: SqliteStore, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert isinstance(store, LocksInTransaction)
    assert store.within(str(tmp_path / "other.db")) is None
    monkeypatch.chdir(tmp_path)
    assert store.within(path.name) is not None
    assert not isinstance(MemoryStore(), LocksInTransaction)
