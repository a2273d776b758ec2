"""The end of a large process: the operating system frees its memory, without a last garbage collection.

Promises: after everything is closed and reported, the interpreter does not traverse all loaded objects again. That took
half a second of the grace period on a busy machine, and freed nothing that matters.
"""

from __future__ import annotations

import atexit
import gc


def leave_quickly() -> None:
    """Let this process end without a last garbage collection. Call it when all work is done."""
    atexit.register(_no_more)


def _no_more() -> None:
    gc.disable()
    gc.freeze()
