"""The current resource usage of a process: memory, objects, threads, tasks, file descriptors and connections.

Promises: a sample costs about a millisecond and keeps nothing. Resident memory is that of the kernel. Objects are the
interpreter's small allocations: they show a leak that resident memory hides, because an interpreter keeps used pages;
and their number returns to its old value when everything is released. The heap is the memory allocated by the C
library: larger objects, and everything of SQLite, hiredis and OpenSSL. It distinguishes a leak outside of the
interpreter from a fragmented heap, which look the same to the kernel.

Does not promise values without `/proc`: resident memory, files and connections are 0 there. Nor the heap without glibc
2.33 or newer: it is 0 as well. Memory that a thread has freed and keeps for its next request (some 200 KiB at most)
counts as allocated.

Clock: monotonic, the same for all processes of a host.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import os
import sys
import threading
import time
from array import array
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

MIB: Final = 1024 * 1024
_PAGE: Final = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096
_STATM: Final = Path("/proc/self/statm")
_FILES: Final = "/proc/self/fd"
_MALLOC_STATE: Final = (
    *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
    *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
)


class Usage(NamedTuple):
    """One sample of a process. The order of the fields is that of the transferred rows."""

    at_ns: int
    resident: int  # bytes
    objects: int
    threads: int
    tasks: int
    files: int
    connections: int
    heap: int = 0  # bytes


class UsageSamples:
    """Many samples, stored as numbers instead of objects, so that they do not look like a leak."""

    def __init__(self) -> None:
        self._numbers: array[int] = array("q")

    def sample(self, *, settled: bool = False) -> None:
        """Take one more sample."""
        self._numbers.extend(usage(settled=settled))

    def rows(self) -> list[list[int]]:
        """All samples as rows for transfer."""
        wide = len(Usage._fields)
        return [list(self._numbers[at : at + wide]) for at in range(0, len(self._numbers), wide)]


def usage(*, settled: bool = False) -> Usage:
    """The current usage of this process. `settled`: after a garbage collection."""
    if settled:
        gc.collect()
    files, connections = _open_files()
    tasks = 0
    with suppress(RuntimeError):  # no event loop runs here
        tasks = len(asyncio.all_tasks())
    return Usage(
        time.monotonic_ns(),
        resident(),
        sys.getallocatedblocks(),
        threading.active_count(),
        tasks,
        files,
        connections,
        heap(),
    )


def resident() -> int:
    """Resident memory in bytes; 0 if the system does not report it."""
    try:
        return int(_STATM.read_bytes().split()[1]) * _PAGE
    except OSError:
        return 0


class _MallocState(ctypes.Structure):
    """The answer of `mallinfo2`, as <malloc.h> has it."""

    _fields_ = tuple((name, ctypes.c_size_t) for name in _MALLOC_STATE)
    hblkhd: int  # bytes in blocks that have a mapping of their own
    uordblks: int  # bytes given out of all arenas


def _malloc_state() -> Callable[[], _MallocState] | None:
    try:
        ask = ctypes.CDLL(None).mallinfo2
    except (OSError, AttributeError, TypeError):  # another or an old C library; TypeError on Windows
        return None
    ask.restype = _MallocState
    ask.argtypes = ()
    return ask


_ask_malloc: Final = _malloc_state()


def heap() -> int:
    """Bytes allocated by the C library; 0 if it does not report them."""
    if _ask_malloc is None:
        return 0
    state = _ask_malloc()
    return state.uordblks + state.hblkhd


def _open_files() -> tuple[int, int]:
    """The number of open descriptors, and of sockets among them.

    Not with `pathlib`, which interns each name in the interpreter: its table of interned names grew by half a MiB
    after some 400 samples, and that was the only growth.
    """
    files = connections = 0
    with suppress(OSError):
        for each in os.listdir(_FILES):  # noqa: PTH208 - names that are not remembered
            with suppress(OSError):  # it was closed meanwhile; the listing itself had one
                target = os.readlink(f"{_FILES}/{each}")  # noqa: PTH115 - the same
                connections += target.startswith("socket:")
                files += 1
    return files, connections
