"""How many bytes a value takes as JSON, how deep it is, and whether it can be stored at all. Pure.

What a run hands on (a payload, a message, an input, an output) is measured where it is made, so that a value that no
store will take fails the step that made it, and not whoever stores it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final

VALUE_BYTES_MAX: Final = 1_000_000  # of one value that is handed on
RUN_BYTES_MAX: Final = 8_000_000  # of all that a run keeps: the outputs of its steps and the items of its fan-outs

DEPTH_MAX: Final = 100  # of lists and objects within each other; who reads them again often stops at a few hundred
WRAPPED_MAX: Final = DEPTH_MAX + 20  # of what a value is put into: a message, a document, a page of an answer

# JSON writes a zero character as \u0000, and a backslash as two: it is an escape only behind an even number of them.
_ZERO: Final = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")
_HALF_PAIR: Final = re.compile("[\ud800-\udfff]")


class Unstorable(ValueError):
    """A value cannot be stored."""


def json_size(value: Any, most: int = VALUE_BYTES_MAX) -> int:
    """Its size in bytes, or `Unstorable`."""
    try:
        text = json.dumps(value, allow_nan=False, separators=(",", ":"), ensure_ascii=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise Unstorable(f"cannot be written as JSON ({error})") from None
    if deeper(value, text):
        raise Unstorable(f"is nested deeper than {DEPTH_MAX} levels")
    if unstorable(text):
        raise Unstorable("contains a zero character or half a surrogate pair")
    size = len(text.encode())
    if size > most:
        raise Unstorable(f"takes {size} bytes, and there is room for {max(most, 0)}")
    return size


def unstorable(text: str) -> bool:
    """Whether a value has a zero character or half a surrogate pair in it, which no database takes.

    `text` is its JSON with all other characters as they are, so that half a pair is seen as one.
    """
    if "\\u0000" in text and _ZERO.search(text) is not None:
        return True
    return not text.isascii() and _HALF_PAIR.search(text) is not None


def deeper(value: Any, text: str, most: int = DEPTH_MAX) -> bool:
    """Whether a value, whose JSON is given too, has more levels of lists and objects within each other than `most`."""
    if text.count("[") + text.count("{") <= most:  # nearly always, and much quicker than to look
        return False
    level = [value]
    for _ in range(most):
        within = (each.values() if isinstance(each, Mapping) else each for each in level if _holds(each))
        level = [part for parts in within for part in parts if _holds(part)]
        if not level:
            return False
    return True


def _holds(value: Any) -> bool:
    return isinstance(value, Mapping | list | tuple)
