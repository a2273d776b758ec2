"""What a worker asks about an attempt before it runs it, and says when it gives it back.

`plane.attempts.Attempts` answers from the database. Asking is part of running an attempt, and fails as that does; a
word on giving back is not worth more than a moment, because the message goes back in any case.

Most attempts are not asked about: the message has come at once, and for the first time. Whether it has waited is told
by two clocks, the scheduler's and the worker's, and so by none where those disagree by about as much as it has waited.
It is also told by two fences: that of the job's lock when it was handed out, and that of the lease under which it is to
be run. Both come from the lease store, which counts them by its own clock.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final, Protocol

from holdfast.core.lease.fence_clock import apart
from holdfast.errors import BackendError, Timeout
from holdfast.flows.log import say
from holdfast.plane.attempts import Look
from holdfast.plane.model.assignment import Order
from holdfast.types import MS

EXCUSE_S: Final = 1.0
LATE_NS: Final = 500 * MS
"""Whoever has waited for longer may have been cancelled or taken back; one that found a free place has not waited."""

_log: Final = logging.getLogger("holdfast.plane.worker")


class Currency(Protocol):
    """Knows which attempts are still wanted, and which of their runs were lost."""

    async def look(self, name: tuple[str, int, int], fence: int, now_ns: int, sent: int | None = None) -> Look:
        """Whether the attempt may still be run, and whether workers have died that ran it."""
        ...

    async def given_back(self, name: tuple[str, int, int], now_ns: int) -> None:
        """A run of the attempt, that was begun, is given back by a worker that has not died."""
        ...


def waited(order: Order, fence: int) -> bool:
    """Whether an attempt has waited for its lease, by the clock of the lease store. Such a lease has this fence."""
    return order.fence is not None and apart(order.fence, fence, LATE_NS)


async def excuse(currency: Currency, name: tuple[str, int, int], now_ns: int) -> None:
    """Say that a run is given back, so that it does not count as lost. If that cannot be said, it does."""
    limit = asyncio.timeout(EXCUSE_S)
    try:
        async with limit:
            await currency.given_back(name, now_ns)
    except (BackendError, TimeoutError) as raised:
        error = Timeout(f"no answer within {EXCUSE_S:g} s") if limit.expired() else raised  # a store is slow: no riddle
        text = "a run that is given back could not be excused, and may be taken for one that was lost"
        say(_log, logging.WARNING, text, error, job=name[0], attempt=name[2])
