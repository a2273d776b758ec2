"""Network faults between a process and its store: occasionally the link is cut, silent or slow for a moment.

Promises: one fault at a time, each for `FAULT_S` at most. When the block ends, all links work again. A seed determines
the faults.

Clock: monotonic, for durations.
"""

from __future__ import annotations

import random
import sqlite3
import threading
from collections.abc import Sequence
from contextlib import suppress
from types import TracebackType
from typing import Final, Self

from holdfast.drills.env.stores import ProxyLink, StoreLink

CALM_S: Final = (2.0, 6.0)
FAULT_S: Final = (0.1, 1.0)
SLOW_S: Final = 0.05
_JOIN_S: Final = 30.0


class NetworkFaults:
    """Faults on some links, for the duration of a block."""

    def __init__(self, ways: Sequence[StoreLink], seed: int) -> None:
        self._ways = ways
        self._chance = random.Random(f"weather:{seed}")  # noqa: S311 - when faults come; guards nothing
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._blow, name="drill-weather", daemon=True)
        self.faults = 0

    def _blow(self) -> None:
        while not self._over.wait(self._chance.uniform(*CALM_S)):
            way = self._chance.choice(self._ways)
            slow = isinstance(way, ProxyLink) and self._chance.random() < 0.3
            try:
                with suppress(sqlite3.Error):  # another process has locked the file, which is a fault as well
                    if slow:
                        way.delay(SLOW_S)
                    else:
                        way.cut()
                self.faults += 1
                self._over.wait(self._chance.uniform(*FAULT_S))
            finally:
                if slow:
                    way.delay(0.0)
                way.mend()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join(_JOIN_S)
