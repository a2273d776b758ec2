"""Another process that takes one lock again and again, and notes when it certainly had it.

Run as `python exclusive_worker.py URL FILE TTL`. Each line is `FENCE NANOSECONDS`, on the monotonic clock of the host,
read at a moment at which the lease was held: after the grant, and before a check that found it held.
"""

from __future__ import annotations

import os
import sys
import threading
import time

import holdfast


def main(url: str, path: str, ttl: float) -> None:
    """Go on until the process is ended."""
    end = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def note(fence: int, at_ns: int) -> None:
        os.write(end, b"%d %d\n" % (fence, at_ns))

    pause = threading.Event()
    with holdfast.connect(url, service="exclusive") as locks:
        print("ready", flush=True)
        while True:
            try:
                lease = locks.lock("one", ttl=ttl).acquire()
            except holdfast.BackendError:
                pause.wait(0.01)
                continue
            note(lease.fence, time.monotonic_ns())
            for _ in range(3):
                before_ns = time.monotonic_ns()
                if not lease.held:
                    break
                note(lease.fence, before_ns)
                pause.wait(0.002)
            lease.release()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], float(sys.argv[3]))
