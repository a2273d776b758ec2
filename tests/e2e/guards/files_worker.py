"""A process that writes a guarded file and is killed, or kills itself, on the way.

python files_worker.py die FOLDER POINT STEP      takes STEP under fence 2, and is killed at POINT
python files_worker.py fork FOLDER                forks inside a step, and is killed there; the child lives on
python files_worker.py write FOLDER               writes forever, under one rising fence after the other
"""

from __future__ import annotations

import os
import signal
import sys
import time

from holdfast.core import failpoints
from holdfast.errors import FencedOut
from holdfast.guards import CarriedFence
from holdfast.guards.files import GuardedFiles

NAME, KEY = "x", "invoice:42"
BLOCKS = 3000


def composed(fence: int) -> bytes:
    """Content that shows under which fence it was written, and whether it is whole."""
    return b"%020d" % fence * BLOCKS


def fence_of(data: bytes) -> int:
    """The fence that content was written under. Fails if it is not whole."""
    assert len(data) == 20 * BLOCKS, f"{len(data)} bytes"
    fence = int(data[:20])
    assert data == composed(fence)
    return fence


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def take(folder: str, step: str, fence: int) -> None:
    files = GuardedFiles(folder, timeout=30)
    lease = CarriedFence(KEY, fence)
    if step == "section":
        with files.section(lease, NAME) as file:
            file.replace(composed(fence))
    elif step == "section delete":
        with files.section(lease, NAME) as file:
            file.delete()
    elif step == "delete":
        files.delete(lease, NAME)
    else:
        files.write(lease, NAME, composed(fence))


def fork_and_die() -> None:
    """The child inherits whatever is open, says so, and waits until its input ends."""
    if os.fork() == 0:
        os.write(1, b"ready\n")
        os.read(0, 1)
        os._exit(0)
    die()


def write_for_ever(folder: str) -> None:
    files = GuardedFiles(folder, timeout=30)
    while True:
        lease = CarriedFence(KEY, time.monotonic_ns())
        try:
            with files.section(lease, NAME) as file:
                if file.data is not None:
                    fence_of(file.data)
                file.replace(composed(lease.fence))
        except FencedOut:
            continue


def main() -> None:
    verb, folder, *rest = sys.argv[1:]
    if verb == "die":
        point, step = rest
        with failpoints.armed(f"guard.{point}", die):
            take(folder, step, 2)
        sys.exit(f"{point} was not reached by {step}")
    if verb == "fork":
        with failpoints.armed("guard.reserved", fork_and_die):
            take(folder, "write", 2)
    if verb == "write":
        write_for_ever(folder)


if __name__ == "__main__":
    main()
