"""What `/metrics` answers: what the process and its server count, and where the API runs the plane's jobs and runs."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from dataclasses import dataclass, field
from typing import Final

from holdfast.core.reading import Reading, Value
from holdfast.errors import HoldfastError
from holdfast.flows.saying import say
from holdfast.observe import prometheus
from holdfast.plane.service import Caller
from holdfast.plane.vitals import Vitals
from holdfast.web.rates import Rates

COUNT_LIMIT_S: Final = 2.0

_EVERYONE: Final = Caller("metrics")
_log: Final = logging.getLogger("holdfast.web")


@dataclass(slots=True)
class Answers:
    """What one server has answered, by method and status; and who asks too often."""

    counts: Counter[tuple[str, int]] = field(default_factory=Counter)
    rates: Rates | None = None

    def reading(self) -> Reading:
        """The same, for metrics."""
        values: dict[str, Value] = {"answers": dict(sorted(self.counts.items()))}
        if self.rates is not None:
            values |= {"limited": self.rates.limited, "callers": len(self.rates)}
        return Reading("http", values)


async def text(vitals: Vitals, answers: Answers, accept: str, *, jobs: bool) -> tuple[bytes, str]:
    """The text of a scrape and its content type, as the scraper accepts it.

    `jobs`: count the live jobs and runs of the plane too, which asks the database.
    """
    live = await _live(vitals) if jobs else []
    return prometheus.rendered([*vitals.readings(), answers.reading(), *live], accept)


async def _live(vitals: Vitals) -> list[Reading]:
    """When the database does not answer, what is counted here matters most: it is told without the jobs and runs."""
    jobs: Value = None
    runs: Value = None
    try:
        async with asyncio.timeout(COUNT_LIMIT_S):
            jobs = await vitals.service.counts(_EVERYONE, finished=False)
            if vitals.service.parts.flows is not None:
                runs = await vitals.service.flows.store.counts()
    except (HoldfastError, TimeoutError, OSError) as error:
        say(_log, logging.WARNING, "the jobs and runs could not be counted", error)
    return [Reading("jobs", {"live": jobs}), Reading("runs", {"live": runs})]
