"""One SQLite file between real processes and threads: exclusion, crashes and proof of death."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from holdfast.runtime.run_sync import run_now
from holdfast.stores.sqlite import liveness
from holdfast.stores.sqlite.engine import SqliteEngine, SqliteStore
from holdfast.types import Busy, Grant
from support.load.sqlite_processes import CALL, PATIENCE, QUEUE, Other, acquire, ask, rows

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


# Exclusion.

_CONTEND = """
counter = sys.argv[1] + ".counter"
for turn in range(60):
    token, watch = f"{os.getpid()}-{turn}", None
    while not isinstance(answer := asked(token), Grant):
        if watch is None:
            watch = run_now(store.watch("k"))
        else:
            run_now(watch.wait(NS))
    if watch is not None:
        run_now(watch.close())
    with open(counter) as before:
        number = int(before.read())
    with open(counter, "w") as after:
        after.write(str(number + 1))
    say(json.dumps([answer.fence, number]))
    assert run_now(store.release("k", token, None, 0, CALL))
"""


def test_processes_exclude_each_other_and_their_fences_tell_the_order(start: Start, path: str) -> None:
    Path(path + ".counter").write_text("0")
    others = [start(_CONTEND) for _ in range(4)]
    seen: list[tuple[int, int]] = []
    for other in others:
        seen += [tuple(json.loads(other.hears())) for _ in range(60)]
    assert [other.end() for other in others] == [0] * 4
    # Reading and writing the counter is safe only under exclusion, and the fences must rise as the counter did.
    assert [number for _, number in sorted(seen)] == list(range(240))
    assert Path(path + ".counter").read_text() == "240"


def test_threads_exclude_each_other_through_one_store(store: SqliteStore) -> None:
    inside, order, faults = 0, [], []

    def contend(name: str) -> None:
        nonlocal inside
        try:
            for turn in range(40):
                token = f"{name}-{turn}"
                while not isinstance(answer := acquire(store, ask(token)), Grant):
                    time.sleep(0)
                inside += 1
                if inside != 1:
                    faults.append(f"{inside} inside")
                order.append(answer.fence)
                inside -= 1
                if not run_now(store.release("k", token, None, 0, CALL)):
                    faults.append("release refused")
        except BaseException as error:
            faults.append(repr(error))

    threads = [threading.Thread(target=contend, args=(f"t{number}",)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert faults == []
    assert len(order) == 320
    assert order == sorted(order)


def test_of_many_concurrent_threads_exactly_one_is_granted(store: SqliteStore) -> None:
    barrier = threading.Barrier(12)
    answers: list[Grant | Busy] = []

    def race(token: str) -> None:
        for key in ("a", "b", "c"):
            barrier.wait(PATIENCE)
            answers.append(acquire(store, ask(token, key)))

    threads = [threading.Thread(target=race, args=(f"t{number}",)) for number in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert sorted(answer.key for answer in answers if isinstance(answer, Grant)) == ["a", "b", "c"]
    assert len(answers) == 36


# Death.

_RENEW = """
from holdfast.types import Renewal
say(run_now(store.renew_many([Renewal('k', 'theirs', '', LONG)], CALL)))
"""
_HOLD = "say(type(asked('theirs')).__name__)\nsys.stdin.readline()\n"


def test_the_lease_of_a_killed_process_is_free_long_before_its_ttl(start: Start, store: SqliteStore) -> None:
    other = start(_HOLD)
    assert other.hears() == "Grant"
    assert isinstance(acquire(store, ask("ours")), Busy)
    other.process.send_signal(signal.SIGSTOP)
    assert isinstance(acquire(store, ask("ours")), Busy)  # stopped is not dead
    other.process.kill()
    os.waitid(os.P_PID, other.process.pid, os.WEXITED | os.WNOWAIT)  # a zombie now: not reaped
    assert run_now(store.inspect("k", CALL)) is None
    first = acquire(store, ask("ours"))
    assert isinstance(first, Grant)
    other.end()
    assert run_now(store.release("k", "theirs", None, 0, CALL)) is False
    assert acquire(store, ask("ours")) == first


def test_a_process_that_ends_without_releasing_is_reclaimed_but_a_kept_key_is_not(
    start: Start, store: SqliteStore
) -> None:
    other = start("asked('a', 'left'); asked('b', 'kept'); run_now(store.release('kept', 'b', None, LONG, CALL))")
    assert other.end() == 0
    assert isinstance(acquire(store, ask("ours", "left")), Grant)
    assert isinstance(acquire(store, ask("ours", "kept")), Busy)


def test_a_detached_lease_outlives_the_process_that_asked_for_it_and_the_one_that_renewed_it(
    start: Start, store: SqliteStore
) -> None:
    other = start("run_now(store.acquire(AcquireRequest('k', 'theirs', 'o', 'f', LONG, detached=True), CALL))")
    assert other.end() == 0
    assert isinstance(acquire(store, ask("ours")), Busy)
    renewer = start(_RENEW)
    assert renewer.hears() == "[True]"
    assert renewer.end() == 0
    assert isinstance(acquire(store, ask("ours")), Busy)
    assert run_now(store.release("k", "theirs", None, 0, CALL)) is True


def test_a_lease_that_is_handed_on_ends_with_the_process_that_renews_it(start: Start, store: SqliteStore) -> None:
    first = start(_HOLD)
    assert first.hears() == "Grant"
    second = start(_RENEW + "sys.stdin.readline()\n")
    assert second.hears() == "[True]"
    first.process.kill()
    first.process.wait()
    assert isinstance(acquire(store, ask("ours")), Busy)
    second.process.kill()
    second.process.wait()
    assert isinstance(acquire(store, ask("ours")), Grant)


def test_a_killed_waiter_does_not_hold_up_the_queue(start: Start, store: SqliteStore) -> None:
    acquire(store, ask("holder"))
    head = start(QUEUE + "sys.stdin.readline()")
    assert head.hears() == "waits"
    answer = acquire(store, ask("ours", ticket="ours"))
    assert isinstance(answer, Busy)
    assert answer.ahead == 1
    head.process.kill()
    head.process.wait()
    assert run_now(store.release("k", "holder", None, 0, CALL))
    assert isinstance(acquire(store, ask("ours", ticket="ours")), Grant)
    assert rows(store, "holdfast_ticket") == 0


def test_nothing_is_reclaimed_on_less_than_proof() -> None:
    host = liveness.this_host()
    child = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
    started = liveness._stat(child.pid)
    assert started is not None
    alive = f"{host.pids}/{child.pid}/{started[1]}"
    assert not host.gone(alive)
    assert not host.gone(host.process)
    assert host.gone(f"{host.pids}/{child.pid}/{int(started[1]) + 1}"), "the pid is another process's now"
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert host.gone(alive), "a zombie runs nothing any more"
    child.communicate()
    assert host.gone(alive)
    rest = alive.split("/", 1)[1]
    for unknown in ("", "nonsense", f"{host.boot}:1/{rest}", f"other:1/{rest}", f"{host.pids}/x/1", f"{host.pids}/1"):
        assert not host.gone(unknown), unknown
    assert not replace(host, pids="").gone(alive)
    assert not host.gone(f"{host.pids}/1/{(liveness._stat(1) or ('', '0'))[1]}"), "there is always a first process"
