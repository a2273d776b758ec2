"""PromQL expressions of alert rules, written from the table of metrics: an undeclared metric is an error.

Values of all processes of a plane are summed. Every series has the matchers of the plan (`match`), so that one
Prometheus can watch several planes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from holdfast.observe.metrics.table import TABLE, Metric, MetricKind
from holdfast.ops.alerts.model import lasting
from holdfast.types import NS

SCRAPED: Final = frozenset({"job", "instance"})  # labels that Prometheus adds to every series
PROCESS: Final = ("job", "instance")
REMEMBERED_S: Final = 3600.0  # a series that was missing for less than this does not count as new

_METRICS: Final[Mapping[str, Metric]] = {each.bare: each for each in TABLE}


@dataclass(frozen=True, slots=True)
class Queries:
    """Writes expressions for one plane."""

    match: Mapping[str, str] = field(default_factory=dict)

    def series(self, name: str, *matchers: str, suffix: str = "") -> str:
        """The series of a metric, named without our prefix; `matchers` such as `family="approval"`."""
        metric = _METRICS[name]
        for matcher in matchers:
            _check(metric, re.split(r"[=!]", matcher, maxsplit=1)[0])
        return f"{metric.name}{suffix}{self.braces(*matchers)}"

    def recorded(self, name: str, *matchers: str) -> str:
        """A series that one of our recording rules has computed."""
        return f"{name}{self.braces(*matchers)}"

    def braces(self, *matchers: str) -> str:
        """Matchers, with those of the plane."""
        all_of = [*(f'{name}="{value}"' for name, value in self.match.items()), *matchers]
        return f"{{{', '.join(all_of)}}}" if all_of else ""

    def rate(self, name: str, window_s: float, *matchers: str, by: Iterable[str] = (), suffix: str = "") -> str:
        """The rate per second, over all processes."""
        _counted(name, suffix)
        inner = f"rate({self.series(name, *matchers, suffix=suffix)}[{lasting(window_s)}])"
        return total(inner, by)

    def increase(self, name: str, window_s: float, *matchers: str, by: Iterable[str] = (), suffix: str = "") -> str:
        """The increase in a window, over all processes."""
        _counted(name, suffix)
        inner = f"increase({self.series(name, *matchers, suffix=suffix)}[{lasting(window_s)}])"
        return total(inner, by)

    def happened(self, name: str, window_s: float, *matchers: str, by: Iterable[str] = ()) -> str:
        """An event that should never happen: one is enough, and none is missed.

        A rate cannot see counts from before the first scrape of a process, so a new series counts in full.
        """
        window, series = lasting(window_s), self.series(name, *matchers)
        _counted(name)
        before = f"last_over_time({series}[{lasting(REMEMBERED_S)}] offset {window})"
        rose = f"{total(f'increase({series}[{window}])', by)} > 0"
        return f"({rose}) or ({total(f'{series} unless {before}', by)} > 0)"

    def quantile(self, share: float, name: str, window_s: float, *matchers: str, by: Iterable[str] = ()) -> str:
        """A quantile of a histogram, over all processes."""
        rates = self.rate(name, window_s, *matchers, by=(*by, "le"), suffix="_bucket")
        return f"histogram_quantile({share:g}, {rates})"

    def share_within(self, bound_ns: int, name: str, window_s: float, *matchers: str, by: Iterable[str]) -> str:
        """The share of a histogram's observations up to a bucket bound. Counted, not estimated."""
        text = f"{bound_ns / NS:g}"
        # Prometheus 3 writes whole numbers with a decimal point, older versions as they were exposed.
        bound = 'le=~"' + any_of([text]) + ("" if "." in text else r"(\\.0)?") + '"'
        within = self.rate(name, window_s, *matchers, bound, by=by, suffix="_bucket")
        return f"{within} / {self.rate(name, window_s, *matchers, by=by, suffix='_count')}"


def total(inner: str, by: Iterable[str] = ()) -> str:
    """The sum, by labels."""
    kept = tuple(by)
    return f"sum by ({', '.join(kept)}) ({inner})" if kept else f"sum({inner})"


def any_of(names: Iterable[str]) -> str:
    """A pattern that matches exactly these names, for use inside quotes."""
    return "|".join(name.replace(".", r"\\.") for name in names)


def or_none(expression: str) -> str:
    """0 if an expression returns nothing: a comparison with nothing would be silent."""
    return f"({expression} or vector(0))"


def _counted(name: str, suffix: str = "") -> None:
    if _METRICS[name].kind is not (MetricKind.HISTOGRAM if suffix else MetricKind.COUNTER):
        raise ValueError(f"{name}{suffix} is not counted")


def _check(metric: Metric, label: str) -> None:
    own = {"le"} if metric.kind is MetricKind.HISTOGRAM else set()
    if label not in {*metric.labels, *own, *SCRAPED}:
        raise ValueError(f"{metric.name} has no label {label}")
