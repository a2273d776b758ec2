"""PromQL queries of the dashboard, written from the table of metrics: an undeclared name or label is an error.

Every query has the matchers that the reader of the dashboard has chosen (`$job`, `$instance`, and `$family` if the
metric has it). Rates use `$__rate_interval`, which Grafana computes from the scrape interval. Counters of processes are
summed; values that every process reports alike (`most`) are not.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from holdfast.observe.metrics.table import TABLE, Metric, MetricKind
from holdfast.plane.locks.registry import FAMILIES, Scope

QUANTILES: Final = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
CHOSEN: Final = 'job=~"$job", instance=~"$instance"'
VARIABLES: Final = ("job", "instance", "family")
EVERYTHING: Final = ".*"
FAMILY: Final = 'family=~"$family"'

_METRICS: Final[dict[str, Metric]] = {each.bare: each for each in TABLE}


class PanelQuery(NamedTuple):
    """One series, or several, of a panel."""

    expression: str
    legend: str = ""  # {{label}} stands for its value; empty: a single series, which the title describes


def series(name: str, *matchers: str, suffix: str = "") -> str:
    """The series of a metric, named without our prefix, with the matchers that the reader has chosen."""
    metric = _METRICS[name]
    for matcher in matchers:
        _check(metric, re.split(r"[=!]", matcher)[0])
    named = any(matcher.startswith("family=") for matcher in matchers)
    family = (FAMILY,) if "family" in metric.labels and not named else ()
    return f"{metric.name}{suffix}{{{', '.join((CHOSEN, *family, *matchers))}}}"


def total(name: str, *by: str, where: str = "") -> str:
    """The sum of a gauge over all processes."""
    return _over("sum", name, by, series(name, *_some(where)))


def most(name: str, *by: str, where: str = "") -> str:
    """The maximum over all processes: the worst value, or one that all processes report alike."""
    return _over("max", name, by, series(name, *_some(where)))


def rate(name: str, *by: str, where: str = "") -> str:
    """The rate per second, over all processes."""
    _counted(name)
    return _over("sum", name, by, f"rate({series(name, *_some(where))}[$__rate_interval])")


def within_range(name: str, *by: str, where: str = "") -> str:
    """The increase over the time range of the dashboard."""
    _counted(name)
    return f"round({_over('sum', name, by, f'increase({series(name, *_some(where))}[$__range])')})"


def fano(name: str, by: str) -> str:
    """The Fano factor over equal groups of a counter, summed over all processes; over five minutes, to have enough."""
    _counted(name)
    groups = _over("sum", name, (by,), f"increase({series(name)}[5m])")
    return f"stdvar({groups}) / avg({groups})"


def quantile(share: float, name: str, *by: str, where: str = "") -> str:
    """A quantile of a histogram, over all processes."""
    if _METRICS[name].kind is not MetricKind.HISTOGRAM:
        raise ValueError(f"{name} is no histogram")
    rates = f"rate({series(name, *_some(where), suffix='_bucket')}[$__rate_interval])"
    return f"histogram_quantile({share:g}, {_over('sum', name, ('le', *by), rates)})"


def quantiles(name: str, *by: str, where: str = "") -> tuple[PanelQuery, ...]:
    """The three quantiles that on-call engineers know, each with its labels."""
    labels = "".join(f" {{{{{label}}}}}" for label in by)
    return tuple(PanelQuery(quantile(share, name, *by, where=where), f"{p}{labels}") for p, share in QUANTILES.items())


def by_family(values: Mapping[str, float]) -> str:
    """A number for each family, from the settings, as a divisor for a metric."""
    return " or ".join(
        f'label_replace(vector({number:g}), "family", "{family}", "", "")' for family, number in values.items()
    )


def zero_if_none(expression: str) -> str:
    """0 if an expression returns nothing: for counts, where nothing found is good news."""
    return f"({expression}) or vector(0)"


def filled(expression: str, *, rate_interval: str, shown: str, **chosen: str) -> str:
    """An expression as Grafana sends it: all jobs, instances and families unless `chosen` names one."""
    values = {"__rate_interval": rate_interval, "__range": shown, **dict.fromkeys(VARIABLES, EVERYTHING), **chosen}
    for name, value in values.items():
        expression = expression.replace(f"${name}", value)
    return expression


def any_of(names: Iterable[str]) -> str:
    """Several values of a variable, as Grafana writes them into a query."""
    return "|".join(re.escape(name).replace("\\", "\\\\") for name in names)


def items_only() -> str:
    """Excludes the locks of loops: every process that does not lead a loop waits for its lock forever, by design."""
    loops = any_of(family.name for family in FAMILIES.values() if family.scope is Scope.LOOP)
    return f'family!~"{loops}"'


def _over(how: str, name: str, by: tuple[str, ...], inner: str) -> str:
    for label in by:
        _check(_METRICS[name], label)
    return f"{how} by ({', '.join(by)}) ({inner})" if by else f"{how}({inner})"


def _some(where: str) -> tuple[str, ...]:
    return (where,) if where else ()


def _counted(name: str) -> None:
    if _METRICS[name].kind is not MetricKind.COUNTER:
        raise ValueError(f"{name} is no counter")


def _check(metric: Metric, label: str) -> None:
    own = {"le"} if metric.kind is MetricKind.HISTOGRAM else set()
    if label not in {*metric.labels, *own, "job", "instance"}:
        raise ValueError(f"{metric.name} has no label {label}")
