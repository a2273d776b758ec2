"""What a part of a process counts, in one form, for metrics, a console or a report."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, TypeAlias

from holdfast.core.histogram import Histogram

Number: TypeAlias = int | float
Value: TypeAlias = Number | Histogram | Mapping[Any, Number] | Mapping[Any, Histogram] | None


class Reading(NamedTuple):
    """The present values of one source. A field that is None, or not there, is not known.

    A field that is kept by kind (outcomes, states, topics) is a mapping of those, or of several together (a tuple).
    """

    source: str
    values: Mapping[str, Value]
    labels: Mapping[str, str] = {}
