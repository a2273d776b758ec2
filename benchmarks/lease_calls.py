"""`python -m benchmarks.lease_calls`: what one uncontended acquire and release costs in calls, not in time.

Counts with `sys.setprofile` on the memory store, in the thread of the caller. Unlike a time, the number is the same on
every machine, so a test can limit it. Prints five numbers, or one line of JSON with `--json`:

    python_calls    calls of Python functions
    c_calls         calls of built-in functions and methods
    clock_reads     readings of the clock (`Clock.now`, one `Instant` each) by the lease library
    store_reads     readings of the clock by the memory store; other stores judge expiry by the clock of their server
    system_clocks   calls of the system's clock functions; each reading makes three of them

Does not count other threads: the renewer does nothing while a lease is young.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
from collections import Counter
from collections.abc import Callable
from types import FrameType

import holdfast
from holdfast.runtime.system import SystemClock

WARM_UP = 20
_NOW = SystemClock.now.__code__


def count(work: Callable[[], object]) -> dict[str, int]:
    """Count the calls that a piece of work makes in this thread."""
    counts = Counter({"python_calls": 0, "c_calls": 0, "clock_reads": 0, "store_reads": 0, "system_clocks": 0})

    def profile(frame: FrameType, event: str, called: object) -> None:
        if event == "call":
            counts["python_calls"] += 1
            if frame.f_code is _NOW:
                caller = frame.f_back.f_globals["__name__"] if frame.f_back else ""
                counts["store_reads" if caller.startswith("holdfast.stores") else "clock_reads"] += 1
        elif event == "c_call" and called is not sys.setprofile:
            counts["c_calls"] += 1
            counts["system_clocks"] += getattr(called, "__module__", None) == "time"

    gc.disable()  # a collection would be counted
    sys.setprofile(profile)
    try:
        work()
    finally:
        sys.setprofile(None)
        gc.enable()
    counts["python_calls"] -= 1  # that of the work itself
    return dict(counts)


def acquire_and_release() -> dict[str, int]:
    """The cost of `lock.acquire()` and `lease.release()` when no other caller wants the lock."""
    with holdfast.connect("memory://") as locks:
        lock = locks.lock("invoice:42")

        def cycle() -> None:
            lock.acquire().release()

        for _ in range(WARM_UP):
            cycle()
        return count(cycle)


def main() -> None:
    """Print the numbers."""
    arguments = argparse.ArgumentParser(prog="python -m benchmarks.lease_calls", description=__doc__)
    arguments.add_argument("--json", action="store_true", help="print one line of JSON")
    counts = acquire_and_release()
    if arguments.parse_args().json:
        print(json.dumps(counts))
        return
    for name, number in counts.items():
        print(f"{name.replace('_', ' '):14} {number:4}")


if __name__ == "__main__":
    main()
