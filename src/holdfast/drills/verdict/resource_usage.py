"""What a process uses now: memory, objects, threads, tasks, file descriptors and connections, as it sees itself.

Promises: a look costs about a millisecond and keeps nothing. Memory is what the kernel counts as resident. Objects are
the interpreter's small allocations: they show a leak that resident memory hides, because an interpreter keeps pages
that it has used for the next time; and they come back to the same number when everything was given back. The heap is
what the C library has given out: larger objects, and all that SQLite, hiredis and OpenSSL have. It tells a leak outside
of the interpreter from a heap that is only full of holes, which to the kernel look the same.

Does not promise figures where there is no `/proc`: resident memory, files and connections are 0 there; nor the heap
where the C library is not glibc 2.33 or newer: 0 too. What a thread has freed and keeps for its next request (some
200 KiB at most) counts as given out.

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
    """One look at a process. The order of the fields is that of the lines in which samples travel."""

    at_ns: int
    resident: int  # bytes
    objects: int
    threads: int
    tasks: int
    files: int
    connections: int
    heap: int = 0  # bytes


class Samples:
    """Many looks, kept as bare numbers: they are no objects, and so do not look like the leak that is looked for."""

    def __init__(self) -> None:
        self._numbers: array[int] = array("q")

    def look(self, *, settled: bool = False) -> None:
        """Take one more."""
        self._numbers.extend(usage(settled=settled))

    def rows(self) -> list[list[int]]:
        """All of them, as they travel."""
        wide = len(Usage._fields)
        return [list(self._numbers[at : at + wide]) for at in range(0, len(self._numbers), wide)]


def usage(*, settled: bool = False) -> Usage:
    """What this process uses now. `settled`: after the garbage is collected."""
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
    """Resident memory in bytes; 0 where the system does not say."""
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
    except (OSError, AttributeError, TypeError):  # another C library, or an old one; TypeError is what Windows says
        return None
    ask.restype = _MallocState
    ask.argtypes = ()
    return ask


_ask_malloc: Final = _malloc_state()


def heap() -> int:
    """Bytes that the C library has given out and not got back; 0 where it does not say."""
    if _ask_malloc is None:
        return 0
    state = _ask_malloc()
    return state.uordblks + state.hblkhd


def _open_files() -> tuple[int, int]:
    """How many descriptors are open, and how many of them are sockets.

    Not with `pathlib`, which makes each name known to the whole interpreter: its table of names, for which there are
    new ones with each look, was made larger by half a MiB after some 400 looks, and that was all that grew.
    """
    files = connections = 0
    with suppress(OSError):
        for each in os.listdir(_FILES):  # noqa: PTH208 - names that are not remembered
            with suppress(OSError):  # it was closed meanwhile; the listing itself had one
                target = os.readlink(f"{_FILES}/{each}")  # noqa: PTH115 - the same
                connections += target.startswith("socket:")
                files += 1
    return files, connections
