"""Work on several cores: the parts of one task, each in a process of its own, as if all had been done here.

Promises: results come in the order of the parts, and none is missing: a part whose process died
(the system may kill one for its memory) or could not be started is done here. Ctrl-C is for this process alone, and no
process outlives it. What the work raises is raised here.

Does not promise to be quicker: a process takes a fifth of a second to start. The work and its parts must be picklable.
"""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, Future, ProcessPoolExecutor
from typing import TypeVar

Part = TypeVar("Part")
Result = TypeVar("Result")


def cores() -> int:
    """How many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def spread(work: Callable[[Part], Result], parts: Sequence[Part], processes: int) -> Iterator[Result]:
    """The result of each part, in their order, from so many processes. With one process, or one part: from this one."""
    if processes < 2 or len(parts) < 2:
        yield from map(work, parts)
        return
    try:
        # Not by fork: this process may have threads, and a copy of a process with threads may hang.
        context = multiprocessing.get_context("spawn")
        pool = ProcessPoolExecutor(min(processes, len(parts)), context, initializer=_follow_the_parent)
    except (ImportError, NotImplementedError, OSError):  # a system without what processes share: semaphores
        yield from map(work, parts)
        return
    try:
        begun = [_begin(pool, work, part) for part in parts]
        begun.reverse()
        for part in parts:
            future = begun.pop()  # a result is kept no longer than it takes to hand it over
            try:
                result = work(part) if future is None else future.result()
            except BrokenExecutor:
                result = work(part)
            del future
            yield result
    finally:
        pool.shutdown(cancel_futures=True)


def _begin(pool: ProcessPoolExecutor, work: Callable[[Part], Result], part: Part) -> Future[Result] | None:
    try:
        return pool.submit(work, part)
    except (BrokenExecutor, OSError):  # no process could be started: too many of them, or too little memory
        return None


def _follow_the_parent() -> None:
    """In each process. Whether to stop is for its parent to say; but it does not outlive it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_with, args=(parent.sentinel,), daemon=True).start()


def _end_with(sentinel: int) -> None:
    multiprocessing.connection.wait([sentinel])
    os._exit(1)
