"""Wake-ups of the SQLite store, between processes and threads. A waiter that is not woken would sleep for an hour."""

from __future__ import annotations

import contextlib
import os
import resource
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holdfast.errors import Unavailable
from holdfast.runtime.run_sync import run_now
from holdfast.stores.sqlite import colors
from holdfast.stores.sqlite.engine import SqliteEngine, SqliteStore
from holdfast.types import MS, Grant
from support.load.sqlite_processes import CALL, PATIENCE, QUEUE, Other, acquire, ask, in_a_child, rows, until, waiters

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="proof of death and abstract sockets are Linux's")


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "leases.db")


@pytest.fixture
def store(path: str) -> Iterator[SqliteStore]:
    store = SqliteEngine(path).blocking
    yield store
    run_now(store.close())


Start = Callable[[str], Other]


@pytest.fixture
def start(path: str) -> Iterator[Start]:
    others: list[Other] = []

    def begin(script: str) -> Other:
        others.append(Other(path, script))
        return others[-1]

    yield begin
    for other in others:
        if other.process.poll() is None:
            other.process.kill()
        other.end()


_WAIT = """
assert not isinstance(asked('theirs'), Grant)
watch = run_now(store.watch('k'))
assert not isinstance(asked('theirs'), Grant)
say('waits')
say(run_now(watch.wait(LONG)), type(asked('theirs')).__name__)
run_now(watch.close())
say(run_now(store.release('k', 'theirs', None, 0, CALL)))
"""


@pytest.mark.parametrize("forced", [False, True], ids=["release", "force_release"])
def test_a_release_wakes_a_waiter_in_another_process(start: Start, store: SqliteStore, forced: bool) -> None:
    acquire(store, ask("ours"))
    other = start(_WAIT)
    assert other.hears() == "waits"
    assert waiters(store) == 1
    if forced:
        assert run_now(store.force_release("k", "operator", "test", CALL)) is not None
    else:
        assert run_now(store.release("k", "ours", None, 0, CALL))
    assert [other.hears(), other.hears()] == ["True Grant", "True"]  # it would have slept for an hour


def test_releases_pass_from_waiter_to_waiter_until_all_had_their_turn(start: Start, store: SqliteStore) -> None:
    acquire(store, ask("ours"))
    others = [start(_WAIT.replace("'theirs'", f"'theirs{number}'")) for number in range(3)]
    assert [other.hears() for other in others] == ["waits"] * 3
    assert waiters(store) == 3
    run_now(store.release("k", "ours", None, 0, CALL))
    assert [[other.hears(), other.hears()] for other in others] == [["True Grant", "True"]] * 3
    assert [other.end() for other in others] == [0] * 3
    assert rows(store, "holdfast_listener") == 0


def test_a_fair_release_wakes_the_head_of_the_queue_and_leaving_it_wakes_the_next(
    start: Start, store: SqliteStore
) -> None:
    acquire(store, ask("holder"))
    early = run_now(store.watch("k"))  # listens longest, but has no ticket
    head = start(
        QUEUE
        + "say(run_now(watch.wait(LONG)))\nrun_now(watch.close())\nrun_now(store.leave('k', 'x', CALL)); say('left')"
    )
    assert head.hears() == "waits"
    run_now(store.release("k", "holder", None, 0, CALL))
    assert head.hears() == "True"
    assert head.hears() == "left"
    assert run_now(early.wait(CALL)), "the place that became free was not passed on"
    assert not run_now(early.wait(0)), "one hint, not one from the release as well"
    run_now(early.close())


def test_a_waiter_that_does_not_look_at_its_hints_does_not_hold_up_a_release(store: SqliteStore, path: str) -> None:
    holder = SqliteEngine(path).blocking
    deaf, keen = run_now(store.watch("k")), run_now(store.watch("k"))
    for turn in range(int(Path("/proc/sys/net/unix/max_dgram_qlen").read_text()) + 5):  # more than a socket takes
        assert isinstance(acquire(holder, ask(f"t{turn}")), Grant)
        assert run_now(holder.release("k", f"t{turn}", None, 0, CALL))
    assert run_now(keen.wait(CALL)), "the hints that the first one did not take should have gone to the second"
    for watch in (deaf, keen):
        run_now(watch.close())
    run_now(holder.close())


def test_a_waiter_that_gives_up_hands_on_the_hint_it_has_not_read(store: SqliteStore, path: str) -> None:
    holder = SqliteEngine(path).blocking
    first, second = run_now(store.watch("k")), run_now(store.watch("k"))
    acquire(holder, ask("ours"))
    assert run_now(holder.release("k", "ours", None, 0, CALL))
    assert not run_now(second.wait(0))
    run_now(first.close())
    assert run_now(second.wait(CALL))
    run_now(second.close())
    run_now(holder.close())


def test_a_wait_that_outlasts_its_registration_renews_it(
    store: SqliteStore, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(colors, "_REFRESH_NS", 5 * MS)
    holder = SqliteEngine(path).blocking
    acquire(holder, ask("ours"))
    woken: list[bool] = []

    def listen() -> None:
        watch = run_now(store.watch("k"))
        woken.append(run_now(watch.wait(CALL)))
        run_now(watch.close())

    waiter = threading.Thread(target=listen)
    waiter.start()
    until(lambda: waiters(holder) == 1)
    holder.leases.file.run(lambda each: each.execute("DELETE FROM holdfast_listener"), CALL)  # as a sweep would
    until(lambda: waiters(holder) == 1)
    run_now(holder.release("k", "ours", None, 0, CALL))
    waiter.join(PATIENCE)
    assert woken == [True]
    run_now(holder.close())


def test_without_a_socket_to_spare_a_watch_is_unavailable_and_nothing_else_is(store: SqliteStore) -> None:
    run_now(store.ping(CALL))

    def starve() -> object:
        hoard = []
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
        run_now(store.ping(CALL))
        with contextlib.suppress(OSError):
            while True:
                hoard.append(os.dup(0))
        try:
            run_now(store.watch("k"))
        except Unavailable:
            return type(acquire(store, ask("t"))).__name__
        return None

    assert in_a_child(starve) == "'Grant'"


def test_a_killed_waiter_does_not_swallow_a_wake_up(start: Start, store: SqliteStore) -> None:
    acquire(store, ask("holder"))
    head = start(QUEUE + "sys.stdin.readline()")
    assert head.hears() == "waits"
    watch = run_now(store.watch("k"))
    head.process.kill()
    head.process.wait()
    assert run_now(store.release("k", "holder", None, 0, CALL))
    assert run_now(watch.wait(CALL)), "the hint went to the dead"
    assert rows(store, "holdfast_listener") == 1, "the dead one should have been forgotten"
    run_now(watch.close())
    assert rows(store, "holdfast_listener") == 0
