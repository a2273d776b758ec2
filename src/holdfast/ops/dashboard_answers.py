"""What a Prometheus answers to the queries of the dashboard, over a stretch of time that ends now, by its own clock.

Answers are not trusted: what does not have the shape of one is `Misconfigured`. Limits on time and size are those of
`bounded_http`.
"""

from __future__ import annotations

import json
import math
import re
import urllib.parse
from collections.abc import Mapping
from typing import Any, Final, NamedTuple, TypeAlias

from holdfast.core.names import DEFAULT
from holdfast.errors import BadInput, Misconfigured
from holdfast.ops.bounded_http import ask, check_url
from holdfast.ops.dashboard_queries import Query, any_of, filled

POINTS: Final = 150
RANGE_MIN_S: Final = 10.0
RANGE_MAX_S: Final = 31 * 86_400.0
RATE_MIN_S: Final = 60.0  # four scrapes, 15 s apart, as Grafana has it

_Found: TypeAlias = tuple[Mapping[str, str], list[tuple[float, float]]]
_PLACE: Final = re.compile(r"\{\{(\w+)\}\}")


class Line(NamedTuple):
    """One series of a query, with its name filled in. A single point: what it is now."""

    name: str
    at: tuple[float, ...]
    values: tuple[float, ...]


class Answers:
    """One Prometheus, and the time that is looked at."""

    def __init__(self, url: str, shown: float, token: str | None = None, prefix: str = DEFAULT) -> None:
        """`shown`: seconds up to now. Asks for the time, and whether there is anything of ours."""
        if not RANGE_MIN_S <= shown <= RANGE_MAX_S:
            raise BadInput("range", f"{shown:g} s cannot be drawn", f"use {RANGE_MIN_S:g} to {RANGE_MAX_S:g}")
        self._base = check_url("prometheus", url).rstrip("/")
        self._token = token
        self.shown = shown
        self.step = max(1.0, shown / POINTS)
        self.end = self._ask("query", query="time()")[0][1][0][1]
        self._jobs = any_of(
            labels["job"] for labels, _ in self._ask("query", query=f"count by (job) ({prefix}_locks_held)")
        )
        if not self._jobs:
            raise Misconfigured(
                f"{self._base} knows no metrics of Holdfast; does it scrape the processes, and do their metrics begin "
                f"with {prefix}_ (names.metrics)?"
            )

    def now(self, query: Query) -> list[Line]:
        """What a query is at the end."""
        return [_line(query, each) for each in self._ask("query", query=self._filled(query), time=self.end)]

    def over_time(self, query: Query) -> list[Line]:
        """What a query was over the whole time."""
        limits = {"start": self.end - self.shown, "end": self.end, "step": self.step}
        return [_line(query, each) for each in self._ask("query_range", query=self._filled(query), **limits)]

    def _filled(self, query: Query) -> str:
        rate = max(RATE_MIN_S, 2 * self.step)
        return filled(query.expression, rate_interval=f"{rate:.0f}s", shown=f"{self.shown:.0f}s", job=self._jobs)

    def _ask(self, what: str, **parameters: object) -> list[_Found]:
        said = ask(f"{self._base}/api/v1/{what}?{urllib.parse.urlencode(parameters)}", token=self._token)
        try:
            data = json.loads(said)["data"]
            found = data["result"]
            if data["resultType"] == "scalar":
                return [({}, _points([found]))]
            return [(dict(each["metric"]), _points(each.get("values") or [each["value"]])) for each in found]
        except (ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            raise Misconfigured(f"{self._base} does not answer as a Prometheus does: {type(error).__name__}") from None


def _points(pairs: list[Any]) -> list[tuple[float, float]]:
    return [(float(at), float(value)) for at, value in pairs]


def _line(query: Query, found: _Found) -> Line:
    labels, points = found
    name = _PLACE.sub(lambda place: labels.get(place[1], ""), query.legend)
    return Line(name, tuple(at for at, _ in points), tuple(value for _, value in points))


def finite(lines: list[Line]) -> list[Line]:
    """Those that have a number at all: quantiles of nothing are none."""
    return [line for line in lines if any(map(math.isfinite, line.values))]
