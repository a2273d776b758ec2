"""The metrics of `/metrics`: of the process and its server, and with the API of the plane's jobs and runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sized
from dataclasses import dataclass, field
from typing import Protocol

from holdfast.core.metric_reading import Reading, Value
from holdfast.observe import prometheus
from holdfast.plane.process.health import ProcessHealth
from holdfast.web.middleware.rate_limit import Rates


class Connections(Sized, Protocol):
    """The open connections of a server, and the number of closed ones by reason."""

    closed: Counter[str]


@dataclass(slots=True)
class Answers:
    """Counts of responses by method and status, and of requests over the rate limit."""

    counts: Counter[tuple[str, int]] = field(default_factory=Counter)
    rates: Rates | None = None
    connections: Connections | None = None

    def reading(self) -> Reading:
        """As a reading for metrics."""
        values: dict[str, Value] = {"answers": dict(sorted(self.counts.items()))}
        if self.rates is not None:
            values |= {"limited": self.rates.limited, "callers": len(self.rates)}
        if self.connections is not None:
            values |= {"connections": len(self.connections), "closed": dict(sorted(self.connections.closed.items()))}
        return Reading("http", values)


async def text(process_health: ProcessHealth, answers: Answers, accept: str, *, jobs: bool) -> tuple[bytes, str]:
    """The text of a scrape and its content type, as the scraper accepts it.

    `jobs`: also report the jobs, runs and workers of the whole plane, with database queries.
    """
    asked = await process_health.asked(jobs=jobs)
    readings = [*process_health.readings(), answers.reading(), *asked]
    return prometheus.rendered(readings, accept, process_health.service.parts.names.metrics)
