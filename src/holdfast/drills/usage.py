"""What a process uses now: memory, objects, threads, tasks, file descriptors and connections, as it sees itself.

Promises: a look costs about a millisecond and keeps nothing. Memory is what the kernel counts as resident. Objects are
the interpreter's small allocations: they show a leak that resident memory hides, because an interpreter keeps pages
that it has used for the next time; and they come back to the same number when everything was given back.

Does not promise figures where there is no `/proc`: resident memory, files and connections are 0 there.

Clock: monotonic, the same for all processes of a host.
"""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import threading
import time
from array import array
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

MIB: Final = 1024 * 1024
_PAGE: Final = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096
_FILES: Final = Path("/proc/self/fd")


class Usage(NamedTuple):
    """One look at a process. The order of the fields is that of the lines in which samples travel."""

    at_ns: int
    resident: int  # bytes
    objects: int
    threads: int
    tasks: int
    files: int
    connections: int


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
    )


def resident() -> int:
    """Resident memory in bytes; 0 where the system does not say."""
    try:
        return int(Path("/proc/self/statm").read_bytes().split()[1]) * _PAGE
    except OSError:
        return 0


def _open_files() -> tuple[int, int]:
    """How many descriptors are open, and how many of them are sockets."""
    files = connections = 0
    with suppress(OSError):
        for each in _FILES.iterdir():
            with suppress(OSError):  # it was closed meanwhile; the listing itself had one
                connections += str(each.readlink()).startswith("socket:")
                files += 1
    return files, connections
