"""What the names that operators meet begin with: the keys of a plane's locks and the metrics of its processes.

Both are `holdfast` unless settings choose another word. A key begins with it before its first colon, a metric before
its first underscore. Everything is declared under the default; `NamePrefixes.spelled` spells a text of ours (a rule, a
query, a command to type) as the settings want it.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from holdfast.errors import BadInput

DEFAULT: Final = "holdfast"
CHARS_MAX: Final = 32

_KEYS: Final = re.compile(r"[A-Za-z][A-Za-z0-9._-]*")
_METRICS: Final = re.compile(r"[A-Za-z][A-Za-z0-9]*(?:_[A-Za-z0-9]+)*")
_TAKEN: Final = frozenset({"alerts", "go", "otel", "process", "prometheus", "python", "scrape", "target", "up"})
_OURS: Final = re.compile(
    r'"(?:[^"\\]|\\.)*"'  # what stands between quotes is data, such as the value of a label
    rf"|(?<![A-Za-z0-9_])(?P<metric>{DEFAULT}_)(?=[a-z])|(?<![A-Za-z0-9_:./-])(?P<key>{DEFAULT}:)(?![/ ])"
)


def check_key_prefix(field: str, prefix: object) -> str:
    """What keys may begin with, or `BadInput`. It has no colon, so that the rest of a key can be told from it."""
    found = _checked(field, prefix)
    if ":" in found:
        raise BadInput(field, f"{found!r} contains a colon", "give the word before the first colon, such as acme")
    if not _KEYS.fullmatch(found):
        fix = "begin with a letter and use letters, digits, . _ and - only"
        raise BadInput(field, f"{found!r} cannot begin the keys of locks", fix)
    return found


def check_metric_prefix(field: str, prefix: object) -> str:
    """What the names of metrics may begin with, in Prometheus and OpenTelemetry alike, or `BadInput`."""
    found = _checked(field, prefix)
    if not _METRICS.fullmatch(found):
        fix = "begin with a letter, use letters, digits and single underscores, and end without one: acme, not acme_"
        raise BadInput(field, f"{found!r} cannot begin the names of metrics", fix)
    if found.lower() in _TAKEN:
        raise BadInput(field, f"{found!r} begins metrics that are not Holdfast's", "give a word of your own")
    return found


class NamePrefixes(NamedTuple):
    """The words in effect."""

    keys: str = DEFAULT
    metrics: str = DEFAULT

    def spelled(self, text: str) -> str:
        """A text of ours that names keys and metrics as they are declared, with these words. Do it once."""
        return _OURS.sub(self._spelled, text)

    def _spelled(self, found: re.Match[str]) -> str:
        if found["metric"]:
            return f"{self.metrics}_"
        return f"{self.keys}:" if found["key"] else found[0]


def _checked(field: str, prefix: object) -> str:
    if not isinstance(prefix, str):
        raise BadInput(field, f"{type(prefix).__name__} is not a word", "give text such as acme")
    if not prefix:
        raise BadInput(field, "is empty", f"give a word such as acme, or leave it out for {DEFAULT}")
    if len(prefix) > CHARS_MAX:
        raise BadInput(field, f"has {len(prefix)} characters", f"use at most {CHARS_MAX}")
    return prefix
