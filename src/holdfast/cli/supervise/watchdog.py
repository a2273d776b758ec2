"""A process beside `holdfast run` that ends the command when `holdfast run` no longer can.

Run as a script, by path and without site-packages. It reads a pipe from `holdfast run`: `group N` names the process
group, `until NS` is the validity of the lease, `done` is the normal end. Promises that the group is killed when the
pipe closes without `done` (the lease holder died, so the store may grant the key immediately), and when the time is
over without a later one (the holder is stopped or starved, and cannot renew). Does not promise anything about processes
that have left the group.

Clock: the boot-time clock, which counts suspend and is the same in both processes; else the monotonic one.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import time

STOPPED = "its lease expired while `holdfast run` was stopped or could not run"
DIED = "`holdfast run` died, and its lease is no longer renewed"

_CLOCK: int = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
_LOOK_NS = 1_000_000_000  # how often to check the clock: a suspended host does not count towards a timeout


def now_ns() -> int:
    """The time on the common clock of both processes."""
    return time.clock_gettime_ns(_CLOCK)


def watch(pipe: int) -> str | None:
    """Read the pipe until something is wrong. Returns the problem, or None at the normal end."""
    rest = b""
    while True:  # ends with `done`, the end of the pipe, or the time
        left = _until - now_ns()
        if left <= 0:
            return STOPPED
        if not select.select([pipe], [], [], min(left, _LOOK_NS) / 1e9)[0]:
            continue
        read = os.read(pipe, 4096)
        if not read:
            return DIED
        *lines, rest = (rest + read).split(b"\n")
        for line in lines:
            if line == b"done":
                return None
            _obey(line.decode())


_group = 0
_until = 1 << 62


def _obey(line: str) -> None:
    global _group, _until  # noqa: PLW0603 - the whole state of a process of two numbers
    word, _, number = line.partition(" ")
    if word == "group":
        _group = int(number)
    elif word == "until":
        _until = int(number)


def main() -> None:
    """Watch, and end the group if necessary."""
    wrong = watch(0)
    if wrong is None or not _group:
        return
    try:
        os.killpg(_group, signal.SIGKILL)
    except ProcessLookupError:
        return
    with contextlib.suppress(OSError):
        print(f"holdfast: the command was ended: {wrong}", file=sys.stderr)


if __name__ == "__main__":
    main()
