"""A crowd on one key: each takes the lock until it has had its turns, and writes down what it did.

Run as `python crowd.py URL TABLE FOLDER COUNT TURNS`. The processes are forked before anything of a store is opened,
and begin together: a crowd of interpreters that start one by one is none until the last of them is there. Each turn is
one line of a history in the folder: fence, when it began and ended on the machine's monotonic clock, and whether the
guarded write was accepted.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from pathlib import Path

import holdfast
from support.load.worker import guarded_write


def contend(url: str, table: str, history: Path, turns: int) -> None:
    """Be one of the crowd."""
    with holdfast.connect(url, service="crowd") as locks, history.open("w", buffering=1, encoding="utf-8") as file:
        lock = locks.lock("k", ttl=10)
        while turns:
            try:
                lease = lock.acquire(timeout=1)
            except holdfast.LockBusy:
                continue
            except holdfast.BackendError as error:
                print(f"store error: {error}", file=sys.stderr)
                continue
            began = time.monotonic_ns()
            accepted = guarded_write(table, lease.fence, str(history))
            ended = time.monotonic_ns()
            held = lease.held
            released = lease.release()
            line = {"fence": lease.fence, "began": began, "ended": ended, "accepted": accepted}
            file.write(json.dumps({**line, "held": held, "released": released}) + "\n")
            turns -= 1


def main() -> None:
    """Gather a crowd, let it go, and fail if one of it did."""
    url, table, folder, count, turns = sys.argv[1:]
    gate, opened = os.pipe()
    crowd: list[int] = []
    for number in range(int(count)):
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                os.close(opened)
                os.read(gate, 1)  # the end of the file, when all other ends are closed
                contend(url, table, Path(folder) / f"{number}.jsonl", int(turns))
                status = 0
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(status)
        crowd.append(pid)
    os.close(opened)
    codes = [os.waitpid(pid, 0)[1] for pid in crowd]
    sys.exit(any(codes))


if __name__ == "__main__":
    main()
