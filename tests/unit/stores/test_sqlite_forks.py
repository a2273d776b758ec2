"""A SQLite store across `fork`: the child gets its own connection, and neither side harms the other."""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.runtime.run_sync import run_now
from holdfast.stores.sqlite.engine import SqliteEngine, SqliteStore
from holdfast.types import Busy, Grant
from support.load.sqlite_processes import CALL, PATIENCE, acquire, ask, in_a_child

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="proof of death and abstract sockets are Linux's")


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "leases.db")


@pytest.fixture
def store(path: str) -> Iterator[SqliteStore]:
    store = SqliteEngine(path).blocking
    yield store
    run_now(store.close())


@pytest.mark.parametrize("hooks", [True, False], ids=["os.fork", "fork from C"])
def test_parent_and_child_exclude_each_other_after_a_fork(store: SqliteStore, hooks: bool) -> None:
    fork = os.fork if hooks else ctypes.PyDLL(None).fork
    first = acquire(store, ask("parents"))
    watch = run_now(store.watch("other"))  # a socket and a connection that the child must not use

    def child() -> object:
        busy = isinstance(acquire(store, ask("childs")), Busy)
        grant = acquire(store, ask("childs", "own"))
        run_now(run_now(store.watch("k")).close())
        renewed = run_now(store.release("own", "childs", None, 0, CALL))
        run_now(store.close())
        return busy, isinstance(grant, Grant), renewed

    assert in_a_child(child, fork) == "(True, True, True)"
    assert acquire(store, ask("parents")) == first
    assert run_now(store.release("k", "parents", None, 0, CALL))
    run_now(watch.close())
    assert store.leases.file.run(lambda each: each.execute("PRAGMA integrity_check").fetchall(), CALL) == [("ok",)]


def test_a_fork_in_the_middle_of_calls_from_other_threads_leaves_both_sides_working(store: SqliteStore) -> None:
    stop = threading.Event()
    faults: list[str] = []

    def busy_thread(name: str) -> None:
        try:
            while not stop.is_set():
                assert isinstance(acquire(store, ask(name, name)), Grant)
                assert run_now(store.release(name, name, None, 0, CALL))
        except BaseException as error:
            faults.append(repr(error))

    threads = [threading.Thread(target=busy_thread, args=(f"t{number}",)) for number in range(3)]
    for thread in threads:
        thread.start()
    try:
        answers = [in_a_child(lambda: isinstance(acquire(store, ask("childs", "own")), Grant)) for _ in range(10)]
    finally:
        stop.set()
        for thread in threads:
            thread.join(PATIENCE)
    assert faults == []
    assert answers == ["True"] * 10  # each child died with its lease, and the next one got it immediately


def test_a_child_made_in_the_middle_of_a_call_by_c_code_refuses_to_go_on(store: SqliteStore) -> None:
    run_now(store.ping(CALL))

    def fork_inside(_connection: object) -> str:
        return in_a_child(lambda: acquire(store, ask("childs")), ctypes.PyDLL(None).fork)

    assert store.leases.file.run(fork_inside, CALL).startswith(
        "Misconfigured: this process was forked in the middle of a call"
    )
    assert isinstance(acquire(store, ask("parents")), Grant)
