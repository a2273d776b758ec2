"""Tuning data from a Prometheus: the whole fleet over a window, such as the last seven days.

It queries bucket counts, not quantiles: `increase` over the window, summed over processes. Quantiles are then estimated
as `histogram_quantile` does, and the number of observations is known, without which a quantile is worthless. Gauges are
queried at their maximum (`max_over_time`).

Responses are not trusted: status, shape and every number are checked. Limits on time and size are those of
`ops.http_client`; Prometheus gets the same timeout.
"""

from __future__ import annotations

import json
import re
import urllib.parse
from collections.abc import Iterator, Mapping
from typing import Any, Final

from holdfast.core.name_prefixes import DEFAULT, NamePrefixes
from holdfast.errors import BadInput, Misconfigured
from holdfast.ops.http_client import TIMEOUT_S, ask, check_url
from holdfast.ops.tuning.evidence import TuningData
from holdfast.ops.tuning.metrics import CLASSES, HOLD, LEFT, LOST, PAUSES, RENEWALS, TAIL, TICK, Sample, gather

_LABELS: Final[Mapping[str, tuple[str, ...]]] = {
    HOLD: ("family",),
    LEFT: ("family",),
    RENEWALS: ("outcome",),
    **{metric: (label,) for metric, (_, label) in CLASSES.items()},
}
_WINDOW: Final = re.compile(r"(?:[0-9]{1,6}(?:ms|[smhdwy]))+")
_LABEL: Final = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")


def queries(window: str, match: Mapping[str, str] | None = None, prefix: str = DEFAULT) -> dict[str, str]:
    """The queries, by the name of the sample that the answer becomes."""
    names = NamePrefixes(metrics=prefix)
    chosen = "{" + ", ".join(f'{name}="{value}"' for name, value in match.items()) + "}" if match else ""
    asked = {
        f"{metric}_bucket": f"sum by (le, {', '.join(labels)}) (increase({metric}_bucket{chosen}[{window}]))"
        for metric, labels in _LABELS.items()
    }
    for gauge in (TAIL, *PAUSES):
        asked[gauge] = f"max(max_over_time({gauge}{chosen}[{window}]))"
    asked[TICK] = f"max by (loop) (max_over_time({TICK}{chosen}[{window}]))"
    asked[LOST] = f"sum by (family, reason) (increase({LOST}{chosen}[{window}]))"
    return {name: names.spelled(query) for name, query in asked.items()}


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
    asked = queries(window, match, prefix)
    samples = [sample for name, query in asked.items() for sample in _answer(base, name, query, token)]
    if not samples:
        raise Misconfigured(
            f"{base} has no metrics of Holdfast in the last {window}; check whether it scrapes the processes, and "
            f"whether their metrics begin with {prefix}_ (names.metrics)"
        )
    return gather(samples, f"the last {window}, {base}")


def _answer(base: str, name: str, query: str, token: str | None) -> Iterator[Sample]:
    asked = urllib.parse.urlencode({"query": query, "timeout": f"{TIMEOUT_S:g}s"})
    try:
        said: Any = json.loads(ask(f"{base}/api/v1/query?{asked}", token=token))
        if said["status"] != "success":
            raise Misconfigured(f"{base} refused a query: {str(said.get('error'))[:200]}")
        result = said["data"]["result"]
        found = [Sample(name, _labels(each["metric"]), float(each["value"][1])) for each in result]
    except (ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError):
        raise Misconfigured(f"{base} does not answer as a Prometheus does; check the address") from None
    yield from found


def _labels(found: Any) -> dict[str, str]:
    return {str(name): str(value) for name, value in found.items()}
