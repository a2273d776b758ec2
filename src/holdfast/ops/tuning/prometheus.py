"""Tuning data from a Prometheus: the whole fleet over a window, such as the last seven days.

It queries bucket counts, not quantiles: `increase` over the window, summed over processes. Quantiles are then estimated
as `histogram_quantile` does, and the number of observations is known, without which a quantile is worthless. Gauges are
queried at their maximum (`max_over_time`). Outages of the lease store are left out (`tuning.outages`): then each part
of the window between them is queried, and the parts are added.

Responses are not trusted: status, shape and every number are checked. Limits on time and size are those of
`ops.http_client`; Prometheus gets the same timeout.
"""

from __future__ import annotations

import json
import re
import time
import urllib.parse
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from holdfast.core.name_prefixes import DEFAULT, NamePrefixes
from holdfast.errors import BadInput, Misconfigured
from holdfast.ops.http_client import TIMEOUT_S, ask, check_url
from holdfast.ops.tuning.evidence import TuningData
from holdfast.ops.tuning.metrics import CLASSES, HOLD, LEFT, LOST, NAMES, PAUSES, RENEWALS, TAIL, TICK, Sample, gather
from holdfast.ops.tuning.outages import WindowSpan, clean_spans, outages_of, told

_LABELS: Final[Mapping[str, tuple[str, ...]]] = {
    HOLD: ("family",),
    LEFT: ("family",),
    RENEWALS: ("outcome",),
    **{metric: (label,) for metric, (_, label) in CLASSES.items()},
}
_DOWN: Final = NAMES["leases", "breaker_open"]
_UP: Final = NAMES["dependency", "up"]
_UNITS_S: Final = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800, "y": 31_536_000}
_STEPS: Final = 2000
_STEP_MIN_S: Final = 60.0
"""Outages are found in steps of a share of the window, and no shorter than a usual scrape interval."""
_WINDOW: Final = re.compile(r"(?:[0-9]{1,6}(?:ms|[smhdwy]))+")
_LABEL: Final = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")


def queries(window: str, match: Mapping[str, str] | None = None, prefix: str = DEFAULT) -> dict[str, str]:
    """The queries, by the name of the sample that the answer becomes."""
    names = NamePrefixes(metrics=prefix)
    chosen = _selector(match or {})
    asked = {
        f"{metric}_bucket": f"sum by (le, {', '.join(labels)}) (increase({metric}_bucket{chosen}[{window}]))"
        for metric, labels in _LABELS.items()
    }
    for gauge in (TAIL, *PAUSES):
        asked[gauge] = f"max(max_over_time({gauge}{chosen}[{window}]))"
    asked[TICK] = f"max by (loop) (max_over_time({TICK}{chosen}[{window}]))"
    asked[LOST] = f"sum by (family, reason) (increase({LOST}{chosen}[{window}]))"
    return {name: names.spelled(query) for name, query in asked.items()}


def _selector(match: Mapping[str, str]) -> str:
    return "{" + ", ".join(f'{name}="{value}"' for name, value in match.items()) + "}" if match else ""


def outage_query(step: float, match: Mapping[str, str] | None = None, prefix: str = DEFAULT) -> str:
    """Whether the lease store was down in the last `step` seconds, for one process with leases or for all: above 0."""
    length = f"[{step:.0f}s]"
    up = _selector({**(match or {}), "dependency": "leases"})
    down = f"max(max_over_time({_DOWN}{_selector(match or {})}{length}))"
    silent = f"1 - max(min_over_time({_UP}{up}{length}))"
    query = f"({down} or vector(0)) + (({silent}) or vector(0))"
    return NamePrefixes(metrics=prefix).spelled(query)


def seconds_of(window: str) -> float:
    """A Prometheus duration in seconds."""
    return sum(int(number) * _UNITS_S[unit] for number, unit in re.findall(r"([0-9]+)(ms|[smhdwy])", window))


def ask_prometheus(
    url: str,
    window: str = "7d",
    *,
    match: Mapping[str, str] | None = None,
    token: str | None = None,
    prefix: str = DEFAULT,
) -> TuningData:
    """The data of the window. `match`: labels that tell this plane from others, such as `plane="blue"`."""
    base = check_url("prometheus", url).rstrip("/")
    window = f"{window}s" if window.isascii() and window.isdecimal() else window  # seconds, as everywhere
    if not _WINDOW.fullmatch(window):
        raise BadInput("window", f"{window!r} is not a duration", "use the Prometheus format: 7d, 12h, 30m")
    for name, value in (match or {}).items():
        if not _LABEL.fullmatch(name) or not value.isprintable() or set(value) & {'"', "\\"}:
            raise BadInput("match", f"{name}={value!r:.60} is no label with a value", "use a form such as plane=blue")
    now, length = time.time(), seconds_of(window)
    whole, step = WindowSpan(now - length, now), max(_STEP_MIN_S, length / _STEPS)
    outages = _outages(base, outage_query(step, match, prefix), whole, step, token)
    spans = clean_spans(whole, outages, step)
    samples = [
        sample
        for each in (spans if outages else ()) or (whole,)
        for name, query in queries(f"{max(1.0, each.seconds):.0f}s", match, prefix).items()
        for sample in _answer(base, name, query, token, each.end if outages else None)
    ]
    if not samples:
        raise Misconfigured(
            f"{base} has no metrics of Holdfast in the last {window}; check whether it scrapes the processes, and "
            f"whether their metrics begin with {prefix}_ (names.metrics)"
        )
    found = gather(samples, f"the last {window}, {base}")
    if outages and spans:
        found.remarks.append(told(outages, whole))
    elif outages:
        found.remarks.append("the lease store was down in the whole window: these numbers are those of an outage")
    return found


def _outages(base: str, query: str, window: WindowSpan, step: float, token: str | None) -> list[WindowSpan]:
    """The outages of the lease store in the window."""
    said = {"start": f"{window.start:.3f}", "end": f"{window.end:.3f}", "step": f"{step:.3f}"}
    with _shaped(base):
        result = _asked(base, "query_range", {"query": query, **said}, token)
        points = [(float(at), float(value)) for each in result for at, value in each["values"]]
        return outages_of(((at, value) for at, value in points if value == value), step)


def _answer(base: str, name: str, query: str, token: str | None, at: float | None = None) -> Iterator[Sample]:
    moment = {} if at is None else {"time": f"{at:.3f}"}
    with _shaped(base):
        result = _asked(base, "query", {"query": query, **moment}, token)
        found = [Sample(name, _labels(each["metric"]), float(each["value"][1])) for each in result]
    yield from found


def _asked(base: str, path: str, said: Mapping[str, str], token: str | None) -> Any:
    words = urllib.parse.urlencode({**said, "timeout": f"{TIMEOUT_S:g}s"})
    answer: Any = json.loads(ask(f"{base}/api/v1/{path}?{words}", token=token))
    if answer["status"] != "success":
        raise Misconfigured(f"{base} refused a query: {str(answer.get('error'))[:200]}")
    return answer["data"]["result"]


@contextmanager
def _shaped(base: str) -> Iterator[None]:
    """What is read inside has the form of an answer of Prometheus."""
    try:
        yield
    except (ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError):
        raise Misconfigured(f"{base} does not answer as a Prometheus does; check the address") from None


def _labels(found: Any) -> dict[str, str]:
    return {str(name): str(value) for name, value in found.items()}
