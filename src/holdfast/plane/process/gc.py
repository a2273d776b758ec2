"""How often a process of ours looks for garbage that refers to itself.

The interpreter looks whenever a few hundred more objects have been made than dropped. A plane makes thousands for a
wave of jobs and drops them all a moment later, without cycles; looking at them in between finds nothing and took a
tenth of its time. So a process that is ours looks less often. What that costs is memory: of what is lost in a cycle,
some thousands of objects are kept a little longer.
"""

from __future__ import annotations

import gc
from typing import Final

PATIENCE: Final = 10_000


def collect_patiently() -> None:
    """Look for garbage after so many new objects. To be called before code of others is loaded, which may choose again.

    Nothing is changed where less is done already: an interpreter that was told to look more rarely, or not at all.
    """
    first, *others = gc.get_threshold()
    if gc.isenabled() and 0 < first < PATIENCE:
        gc.set_threshold(PATIENCE, *others)
