"""Pauses between two checks of a condition that another process or a server changes.

A check opens a connection or reads a whole log. At a fixed short pause such checks take the CPU time that the processes
under test need. These pauses grow: a condition that holds soon is seen soon, and a long wait costs little.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

FIRST_S: Final = 0.005
LONGEST_S: Final = 0.05


def pauses() -> Iterator[float]:
    """Seconds to pause before the next check."""
    pause = FIRST_S
    while True:
        yield pause
        pause = min(1.5 * pause, LONGEST_S)
