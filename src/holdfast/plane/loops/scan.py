"""A scan of rows for a loop: in pages, a few rows concurrently, continued from tick to tick.

Promises: every row is handled once before any is handled again, however many there are. A tick reads a bounded number
of pages, and stops between two groups of rows if it must. A row whose handler raises is logged, counted and skipped, so
that it cannot delay the others. A store failure ends the scan, which continues there in the next tick.

Clock: none.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeAlias

from holdfast.errors import BackendError, Closed
from holdfast.flows.log import log_event
from holdfast.plane.db.ports import Row
from holdfast.plane.loops.loop import Tick
from holdfast.plane.model.paging import BEFORE_ALL, Place

BATCH: Final = 200  # rows in a page
BATCHES: Final = 100  # pages in a tick
AT_ONCE: Final = 16  # rows that are handled together

_log: Final = logging.getLogger("holdfast.plane.loops")

Page: TypeAlias = Callable[[Place, int], Awaitable[Sequence[Row]]]
"""Rows after a position, at most so many, in their order."""


class Scan:
    """One scan. It keeps its position in memory; another leader starts from the beginning."""

    def __init__(
        self,
        name: str,
        page: Page,
        ordered_by: str,
        *,
        batch: int = BATCH,
        batches: int = BATCHES,
        at_once: int = AT_ONCE,
    ) -> None:
        """`ordered_by` is the column that, with `id`, is the position of a row."""
        self.name = name
        self.errors = 0
        self.after = BEFORE_ALL
        self._page = page
        self._ordered_by = ordered_by
        self._batch = batch
        self._batches = batches
        self._at_once = at_once

    async def walk(self, tick: Tick, handle: Callable[[Row], Awaitable[None]]) -> int:
        """Continue from the last position, to the end or for the pages of one tick. Returns the number of rows."""
        handled = 0
        for _ in range(self._batches):
            if not tick.more():
                break
            rows = await self._page(self.after, self._batch)
            for first in range(0, len(rows), self._at_once):
                if first and not tick.more():
                    return handled
                group = rows[first : first + self._at_once]
                await self._handle(group, handle)
                handled += len(group)
                self.after = Place(group[-1][self._ordered_by], group[-1]["id"])
            if len(rows) < self._batch:
                self.after = BEFORE_ALL
                break
        return handled

    async def _handle(self, rows: Sequence[Row], handle: Callable[[Row], Awaitable[None]]) -> None:
        ends = await asyncio.gather(*(handle(row) for row in rows), return_exceptions=True)
        for row, error in zip(rows, ends, strict=True):
            if isinstance(error, Exception) and not isinstance(error, BackendError | Closed):
                self.errors += 1
                log_event(_log, logging.ERROR, "a job was passed over", error, scan=self.name, job=row["id"])
        for error in ends:
            if isinstance(error, BaseException) and (
                isinstance(error, BackendError | Closed) or not isinstance(error, Exception)
            ):
                raise error
