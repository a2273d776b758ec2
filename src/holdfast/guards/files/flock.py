"""Exclusion between threads and processes by a lock on an open file (`flock`).

Promises: one holder at a time among all who opened the file for themselves, in whatever thread or process; the kernel
takes the lock back when its holder dies. `flock` and not `lockf`: record locks belong to the process, so that they do
not keep two threads apart, and closing any other descriptor of the same file gives them up.

A descriptor that a forked child inherits would keep the lock alive after its holder was killed, so children close
theirs. Does not promise anything between machines: see `stores.sqlite.mounts`. Clock: the wait is on the monotonic
clock.
"""

from __future__ import annotations

import contextlib
import os
import random
import threading
import time
from collections.abc import Iterator
from typing import Final

from holdfast.errors import Misconfigured, Unavailable
from holdfast.types import MS, NS

try:
    import fcntl
except ImportError as error:  # Windows
    raise Misconfigured("guarded files need flock, which this operating system does not have") from error

_PAUSE_MIN_NS: Final = MS // 5
_PAUSE_MAX_NS: Final = 10 * MS

_mutex = threading.RLock()  # a signal handler may fork while its own thread has it
_opened: set[int] = set()


@contextlib.contextmanager
def opened(path: str, flags: int, *, mode: int = 0o666, folder: int | None = None) -> Iterator[int]:
    """A descriptor that is closed at the end of the block, and in every child that is forked meanwhile."""
    with _mutex:
        descriptor = os.open(path, flags | os.O_CLOEXEC, mode, dir_fd=folder)
        _opened.add(descriptor)
    try:
        yield descriptor
    finally:
        with _mutex:
            if descriptor in _opened:  # not so in a child that was forked inside the block
                _opened.discard(descriptor)
                with contextlib.suppress(OSError):  # what had to be safe was synced; nothing is left that could fail
                    os.close(descriptor)


@contextlib.contextmanager
def locked(descriptor: int, deadline_ns: int, what: str) -> Iterator[None]:
    """Hold the lock in the block. `Unavailable` if others have it until the deadline (monotonic); nothing was done."""
    pause_ns = _PAUSE_MIN_NS
    while not _taken(descriptor):
        left_ns = deadline_ns - time.monotonic_ns()
        if left_ns <= 0:
            raise Unavailable(f"{what}: another process is in the middle of a step, or stopped there; nothing was done")
        time.sleep(min(left_ns, pause_ns // 2 + random.randrange(pause_ns)) / NS)  # noqa: S311 - spreads the waiters
        pause_ns = min(2 * pause_ns, _PAUSE_MAX_NS)
    try:
        yield
    finally:
        # Said aloud, and not left to the closing: that would not free it while a child has the descriptor too.
        fcntl.flock(descriptor, fcntl.LOCK_UN)


def _taken(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _after_fork_in_child() -> None:
    for descriptor in _opened:
        with contextlib.suppress(OSError):
            os.close(descriptor)
    _opened.clear()
    _mutex.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_mutex.acquire, after_in_parent=_mutex.release, after_in_child=_after_fork_in_child)
