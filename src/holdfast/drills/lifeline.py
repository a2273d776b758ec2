"""Ties the life of a process to whoever started it.

Promises (Linux): when the parent dies in any way, also by SIGKILL, the kernel kills this process, also while it is
stopped. Elsewhere nothing is promised here, and a process has to notice by other means.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal

_PR_SET_PDEATHSIG = 1


def tie_to(parent: int) -> None:
    """Have the kernel kill us when our parent dies; and if it has died already, end. 0: whoever our parent is."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if parent and os.getppid() != parent:
        os._exit(128 + signal.SIGKILL)
