"""How many bytes a value takes as JSON, how deep it is, and whether it can be stored at all. Pure.

What a run hands on (a payload, a message, an input, an output) is measured where it is made, so that a value that no
store will take fails the step that made it, and not the step that stores it.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final

VALUE_BYTES_MAX: Final = 1_000_000  # of one value that is handed on
RUN_BYTES_MAX: Final = 8_000_000  # of all that a run keeps: the outputs of its steps and the items of its fan-outs

DEPTH_MAX: Final = 100  # of lists and objects within each other; who reads them again often stops at a few hundred
WRAPPED_MAX: Final = DEPTH_MAX + 20  # of what a value is put into: a message, a document, a page of an answer

READ_DEPTH_MAX: Final = 1000  # of a text that is read at all, so that the answer can name the field
TOO_DEEP: Final = "is nested too deeply"
PARTS_MAX: Final = 100_000  # lists, objects and members of objects in one text
VALUES_MAX: Final = 600_000  # and values: more than the longest value that is handed on can have

# A string whose end is missing goes on to the end of the text. Possessive, so that no text takes more than one pass.
_STRING: Final = r'"(?:[^"\\]++|\\.)*+"?'
_BRACKET: Final = re.compile(_STRING + r"|[\[\]{}]", re.DOTALL)
_MARK: Final = re.compile(_STRING + r"|[\[\]{}:,]", re.DOTALL)
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
    if unstorable(text):
        raise Unstorable("contains a zero character or half a surrogate pair")
    size = len(text.encode())
    if size > most:
        raise Unstorable(f"takes {size} bytes, and there is room for {max(most, 0)}")
    if deeper(text):
        raise Unstorable(f"is nested deeper than {DEPTH_MAX} levels")
    return size


def unstorable(text: str) -> bool:
    """Whether a value has a zero character or half a surrogate pair in it, which no database takes.

    `text` is its JSON with all other characters as they are, so that half a pair is seen as one.
    """
    if "\\u0000" in text and _ZERO.search(text) is not None:
        return True
    return not text.isascii() and _HALF_PAIR.search(text) is not None


def deeper(text: str, most: int = DEPTH_MAX) -> bool:
    """Whether the value of a JSON text has more levels of lists and objects within each other than `most`."""
    if text.count("[") + text.count("{") <= most:  # nearly always, and much quicker than to scan
        return False
    depth = 0
    for found in _BRACKET.finditer(text):
        mark = found[0]
        if mark in "[{":
            depth += 1
            if depth > most:
                return True
        elif mark in "]}":
            depth -= 1
    return False


def too_complex(text: str) -> str | None:
    """Why the value of a JSON text takes too long to read and check, whatever its size; None: it does not.

    Python needs microseconds for each list, object and member, and does nothing else meanwhile: four megabytes of empty
    lists are seconds. Characters inside of strings do not count. Takes time in proportion to the text.
    """
    if _counted(text, "[{:") <= PARTS_MAX and _counted(text, "[{:,") <= VALUES_MAX:
        return None
    parts = values = depth = 0
    for found in _MARK.finditer(text):
        mark = found[0]
        if mark[0] == '"':
            continue
        if mark in "]}":
            depth -= 1
            continue
        values += 1
        parts += mark != ","
        depth += mark in "[{"
        if depth > READ_DEPTH_MAX:
            return TOO_DEEP
        if parts > PARTS_MAX:
            return f"has more than {PARTS_MAX} lists, objects and members"
        if values > VALUES_MAX:
            return f"has more than {VALUES_MAX} values"
    return None


def _counted(text: str, marks: str) -> int:
    return sum(map(text.count, marks))
