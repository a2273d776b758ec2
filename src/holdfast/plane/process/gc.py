"""Collects garbage less often in a process of the plane.

The interpreter collects whenever a few hundred more objects were created than dropped. A plane creates thousands for a
batch of jobs and drops them a moment later, without cycles; a collection in between finds nothing and took a tenth of
its time. The price is memory: some thousands of objects in cycles are kept a little longer.
"""

from __future__ import annotations

import gc
from typing import Final

THRESHOLD: Final = 10_000


def collect_patiently() -> None:
    """Collect after so many new objects. Call it before an app is loaded, which may choose its own threshold.

    Does nothing if garbage collection is already off or less frequent.
    """
    first, *others = gc.get_threshold()
    if gc.isenabled() and 0 < first < THRESHOLD:
        gc.set_threshold(THRESHOLD, *others)
