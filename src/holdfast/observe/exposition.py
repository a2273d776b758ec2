"""Samples as Prometheus text (version 0.0.4). Counts nothing, decides nothing."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Final

from holdfast.observe.metrics import Metric, Sample

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


def rendered(samples: Iterable[Sample]) -> str:
    """The text, with the samples of one name together, as the format demands."""
    families: dict[Metric, list[Sample]] = {}
    for sample in samples:
        families.setdefault(sample.metric, []).append(sample)
    lines: list[str] = []
    for metric, members in families.items():
        lines += [f"# HELP {metric.name} {_escaped(metric.help)}", f"# TYPE {metric.name} {metric.kind}"]
        lines += [f"{metric.name}{_labels(each.labels)} {_number(each.value)}" for each in members]
    return "\n".join(lines) + "\n"


def _labels(labels: Mapping[str, str]) -> str:
    inside = ",".join(f'{name}="{_escaped(value, quotes=True)}"' for name, value in labels.items())
    return f"{{{inside}}}" if inside else ""


def _escaped(text: str, *, quotes: bool = False) -> str:
    plain = text.replace("\\", "\\\\").replace("\n", "\\n")
    return plain.replace('"', '\\"') if quotes else plain


def _number(value: float) -> str:
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"
    return str(int(value)) if value == int(value) else repr(value)
