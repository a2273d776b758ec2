"""The last step before the command: tie its life to ours, restore the signals, and exec it.

Run as a script, by path and without site-packages, so that it costs a few milliseconds and needs nothing. A function
between fork and exec would do the same but is unsafe in a process with threads, which every lease holder has.

Promises (Linux): if `holdfast run` dies in any way, even by SIGKILL, the kernel kills this process. The guardian
handles the process group. Elsewhere the guardian handles both.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1
NOT_FOUND, NOT_EXECUTABLE = 127, 126


def tie_to(parent: int) -> None:
    """Have the kernel kill us when our parent dies; if it has died already, do not start."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(128 + signal.SIGKILL)


def become(command: list[str]) -> int:
    """Execute the command. Returns only if that is impossible, with the conventional exit code of shells."""
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them, and exec keeps ignored signals
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvp(command[0], command)  # noqa: S606 - running what the user asked for is the purpose
    except FileNotFoundError:
        print(f"holdfast: {command[0]}: command not found", file=sys.stderr)
        return NOT_FOUND
    except OSError as error:
        print(f"holdfast: {command[0]}: {error.strerror}", file=sys.stderr)
        return NOT_EXECUTABLE


if __name__ == "__main__":
    tie_to(int(sys.argv[1]))
    sys.exit(become(sys.argv[2:]))
