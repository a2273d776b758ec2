"""`sys.exit` in a callback or an observer of the user ends that call, and no thread of the lease runtime."""

from __future__ import annotations

import sys
import threading
from functools import partial

from holdfast.core.history.events import EventKind, Record
from holdfast.runtime.system import SystemClock
from holdfast.runtime.thread_runtime import THREADS_MAX, CallbackThreads
from holdfast.runtime.timer_thread import TimerThread
from support.harness.leases import LIMIT_S


def test_callbacks_that_exit_do_not_use_up_the_threads_of_those_that_follow() -> None:
    threads = CallbackThreads()
    for _ in range(THREADS_MAX + 1):
        called = threading.Event()
        threads.submit(partial(_exit_after, called))
        assert called.wait(LIMIT_S)


def _exit_after(called: threading.Event) -> None:
    called.set()
    sys.exit("a callback gives up")


def test_a_thread_of_the_keeper_survives_an_observer_that_exits() -> None:
    seen: list[Record] = []
    again = threading.Event()

    async def act(records: list[Record]) -> None:
        seen.extend(records)
        if len(seen) == 1:
            sys.exit("an observer gives up")
        again.set()

    clock = SystemClock()
    ticker = TimerThread("test", clock, act)
    ticker.put(Record(EventKind.RELEASED, 0, "k", "default", "me"), clock.now().mono)
    assert again.wait(LIMIT_S)
    assert ticker.crashes == 1
    ticker.stop(10**9)
