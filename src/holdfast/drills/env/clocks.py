"""Clocks that a drill moves: only those of a server or of workers that it has started itself.

A small library (`clock_shim.c`) is compiled on demand and preloaded into the process. It adds the offsets in a shared
file to the wall clock and to the boot-time clock. So a clock jumps at the moment at which two numbers are written, in a
process that keeps running unaware.

Promises: no clock of the host is touched, so this needs no privileges. It works on Linux, for programs that ask libc
for the time: `proven` tests whether a server does.
"""

from __future__ import annotations

import ctypes
import mmap
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.resources import as_file, files
from pathlib import Path
from types import TracebackType
from typing import Final, NamedTuple, Self

from holdfast.core.history.events import Record
from holdfast.drills.env.redis_server import RedisServer
from holdfast.errors import Misconfigured
from holdfast.types import NS

_SOURCE: Final = files("holdfast.drills.env") / "clock_shim.c"
_VARIABLE: Final = "HOLDFAST_DRILL_CLOCK"
_COMPILE_S: Final = 60.0
_PROBE_S: Final = 1_000_000
_NOTICED_S: Final = 5.0
_NEAR_S: Final = 2.0  # the server answers in whole seconds
_LOOK_S: Final = 0.01
_Pair = ctypes.c_int64 * 2


class Offsets:
    """The shared file. Each number is read and written in one step."""

    def __init__(self, path: Path) -> None:
        """Open the file; create it with zero offsets if it is missing."""
        if not path.exists():
            path.write_bytes(bytes(ctypes.sizeof(_Pair)))
        with path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), ctypes.sizeof(_Pair))
        self._pair = _Pair.from_buffer(self._memory)

    @property
    def wall_ns(self) -> int:
        """The offset of the wall clock."""
        return self._pair[0]

    @wall_ns.setter
    def wall_ns(self, offset_ns: int) -> None:
        self._pair[0] = offset_ns

    @property
    def boot_ns(self) -> int:
        """The offset of the boot-time clock."""
        return self._pair[1]

    @boot_ns.setter
    def boot_ns(self, offset_ns: int) -> None:
        self._pair[1] = offset_ns

    def true_now_ns(self) -> int:
        """The unmoved wall clock, for a process whose own clock is moved by this file."""
        while True:  # ends when no clock moves between two readings
            offset_ns = self.wall_ns
            told_ns = time.time_ns()
            if offset_ns == self.wall_ns:
                return told_ns - offset_ns

    def close(self) -> None:
        """Release the memory. Other processes with the file keep its offsets."""
        del self._pair
        self._memory.close()


class Epoch(NamedTuple):
    """The offset of a wall clock from a point in true time."""

    from_ns: int
    offset_ns: int
    slept: bool = False  # not set: the time passed while its host was suspended


class MovedClocks:
    """The moved clocks of some processes; records each move."""

    def __init__(self, path: Path, library: Path) -> None:
        self.path = path
        self._library = library
        self._offsets = Offsets(path)
        self.epochs = [Epoch(0, 0)]

    @property
    def environment(self) -> Mapping[str, str]:
        """The environment with which a process must be started so that its clocks can be moved."""
        return {"LD_PRELOAD": str(self._library), _VARIABLE: str(self.path)}

    def jump(self, seconds: float) -> int:
        """Set the wall clock forward or back by so much. Returns the true time of the jump."""
        offset_ns = self._offsets.wall_ns + round(seconds * NS)
        at_ns = time.time_ns()
        self._offsets.wall_ns = offset_ns
        self.epochs.append(Epoch(at_ns, offset_ns))
        return at_ns

    def told_s(self) -> float:
        """The time that a process with this clock sees now."""
        return time.time() + self._offsets.wall_ns / NS

    def slept(self, seconds: float) -> int:
        """Let time pass as for a suspended host: on the boot-time and the wall clock only. Returns the true time."""
        at_ns = time.time_ns()
        self._offsets.boot_ns += round(seconds * NS)
        self._offsets.wall_ns += round(seconds * NS)
        self.epochs.append(Epoch(at_ns, self._offsets.wall_ns, slept=True))
        return at_ns

    def corrected(self, record: Record) -> Record:
        """A record of a process with this clock, with its times converted to true time."""
        return replace(
            record,
            at_ns=true_ns(record.at_ns, self.epochs),
            began_ns=None if record.began_ns is None else true_ns(record.began_ns, self.epochs),
            until_ns=None if record.until_ns is None else true_ns(record.until_ns, self.epochs),
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._offsets.close()


def true_ns(told_ns: int, epochs: Sequence[Epoch]) -> int:
    """The true time of a reading of a moved clock.

    Each epoch showed its own range of times, and the nearest range is the right one. That is certain if jumps are far
    longer than the time between them. A deadline is computed from a reading, so it may lie after its range. If the
    clock was set in between, the deadline is the time of the jump; if the host was suspended, it passed during the
    suspension.
    """
    found: list[tuple[int, int]] = []  # the distance, and the resulting time
    for epoch, following in zip(epochs, [*epochs[1:], None], strict=True):
        meant_ns = told_ns - epoch.offset_ns
        beyond_ns = 0 if following is None else max(0, meant_ns - following.from_ns)
        away_ns = max(epoch.from_ns - meant_ns, beyond_ns, 0)
        if following is not None and following.slept:
            meant_ns = min(meant_ns, following.from_ns)
        found.append((away_ns, meant_ns))
    return min(found)[1]


def built(directory: Path) -> Path:
    """Compile the library into a directory. `Misconfigured` names what is missing."""
    if not sys.platform.startswith("linux"):
        raise Misconfigured("clocks of other processes can be moved on Linux only; run this drill there")
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        raise Misconfigured("this drill compiles a small C library, and gcc is missing: install gcc")
    library = directory / "clock_shim.so"
    with as_file(_SOURCE) as source:
        words = [compiler, "-O2", "-shared", "-fPIC", "-o", str(library), str(source)]
        done = subprocess.run(words, capture_output=True, text=True, timeout=_COMPILE_S, check=False)  # noqa: S603 - the compiler of this host, and our own source
    if done.returncode != 0:
        told = (done.stderr.strip().splitlines() or ["no reason was given"])[0]
        raise Misconfigured(
            f"{compiler} cannot compile a small C library ({told}); install gcc and the headers of libc"
        )
    return library


def jump(server: RedisServer, moved: MovedClocks, seconds: float) -> int:
    """Set the clock of a server and wait until its answers show it. Returns the true time of the jump.

    Valkey 9 reads the wall clock a few times per second, and counts in between. `Misconfigured`: it never shows.
    """
    at_ns = moved.jump(seconds)
    limit_s = time.monotonic() + _NOTICED_S
    while abs(server.clock_s() - moved.told_s()) > _NEAR_S:
        if time.monotonic() > limit_s:
            raise Misconfigured("the clock of this Redis server cannot be moved: it does not ask libc for the time")
        time.sleep(_LOOK_S)
    return at_ns


def proven(server: RedisServer, moved: MovedClocks) -> None:
    """Check that the clock of a server really moves, and reset it; `Misconfigured` if it does not."""
    jump(server, moved, _PROBE_S)
    jump(server, moved, -_PROBE_S)
    del moved.epochs[1:]
