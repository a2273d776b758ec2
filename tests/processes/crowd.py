"""One of a crowd on one key: takes the lock again and again until told to stop, and writes down what it did.

Run as `python crowd.py URL TABLE HISTORY SECONDS`. Each turn is one line of the history: fence, when it began and ended
on the machine's monotonic clock, and whether the guarded write was accepted.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import holdfast
from processes.worker import guarded_write


def main() -> None:
    """Contend until the time is over."""
    url, table, history, seconds = sys.argv[1:]
    until = time.monotonic() + float(seconds)
    with holdfast.connect(url, service="crowd") as locks, Path(history).open("w", encoding="utf-8") as file:
        lock = locks.lock("k", ttl=10)
        while time.monotonic() < until:
            try:
                lease = lock.acquire(timeout=1)
            except holdfast.LockBusy:
                continue
            except holdfast.BackendError as error:
                print(f"store error: {error}", file=sys.stderr)
                continue
            began = time.monotonic_ns()
            accepted = guarded_write(table, lease.fence, history)
            ended = time.monotonic_ns()
            held = lease.held
            released = lease.release()
            line = {"fence": lease.fence, "began": began, "ended": ended, "accepted": accepted}
            file.write(json.dumps({**line, "held": held, "released": released}) + "\n")


if __name__ == "__main__":
    main()
