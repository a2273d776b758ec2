"""JSON and TOML of users: parsed strictly, and limited in size and depth. Pure.

Promises: whatever the text is, the result is a value, or `NotJson` or `NotToml` with the problem, and no other error.
The parsers of the standard library answer a number of five thousand digits, and deeply nested brackets, with errors of
the interpreter.

JSON: a name that occurs twice in an object is refused at any depth, because one of its two values would be lost. So are
NaN and infinities, which JSON does not have. The error names the field. `json_size` measures a value (a payload, a
message, an input, an output) where it is made. So a value that no store takes fails the step that made it, and not the
step that stores it.

TOML: a whole number has at most 64 bits, as TOML demands of its readers, so that it can be shown, compared and stored.
Tables and lists are at most `TOML_DEPTH_MAX` deep, so that code can walk through them.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections import Counter
from typing import Any, Final, NamedTuple, TypeAlias

VALUE_BYTES_MAX: Final = 1_000_000  # of one value that is handed on
RUN_BYTES_MAX: Final = 8_000_000  # of all that a run keeps: the outputs of its steps and the items of its fan-outs

DEPTH_MAX: Final = 100  # of lists and objects within each other; who reads them again often stops at a few hundred
WRAPPED_MAX: Final = DEPTH_MAX + 20  # of what a value is put into: a message, a document, a page of an answer

READ_DEPTH_MAX: Final = 1000  # of a text that is read at all, so that the answer can name the field
TOO_DEEP: Final = "is nested too deeply"
PARTS_MAX: Final = 100_000  # lists, objects and members of objects in one text
VALUES_MAX: Final = 600_000  # and values: more than the longest value that is handed on can have

# A string whose end is missing continues to the end of the text. Possessive, so that no text takes more than one pass.
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


TOML_DEPTH_MAX: Final = 50
_WHOLE_MAX: Final = 2**63 - 1


class NotToml(ValueError):
    """A text is no TOML; `str()` says why, and where if that is known."""


def toml_of(text: str) -> dict[str, Any]:
    """The table that a text is, or `NotToml`."""
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise NotToml(str(error)) from None
    except ValueError:  # of `int`, which reads no more than some thousand digits
        raise NotToml("has a number of too many digits") from None
    except RecursionError:
        raise NotToml(f"is nested too deeply, use at most {TOML_DEPTH_MAX} levels") from None
    _check(table)
    return table


def _check(table: dict[str, Any]) -> None:
    level: list[Any] = [table]
    for _ in range(TOML_DEPTH_MAX):
        inside = [one for each in level for one in (each.values() if isinstance(each, dict) else each)]
        if any(isinstance(each, int) and not -_WHOLE_MAX - 1 <= each <= _WHOLE_MAX for each in inside):
            raise NotToml("has a whole number that does not fit into 64 bits")
        level = [each for each in inside if isinstance(each, dict | list)]
        if not level:
            return
    raise NotToml(f"is nested too deeply, use at most {TOML_DEPTH_MAX} levels")


_TOO_DEEP: Final = (TOO_DEEP, f"use at most {DEPTH_MAX} levels of lists and objects within each other")
_TOO_MANY_DIGITS: Final = ("has a number of too many digits", "use a shorter one, or a text")

_Way: TypeAlias = "tuple[_Way, str | int] | None"  # from a value to the whole of which it is a part


class NotJson(ValueError):
    """A text is no JSON. `field`: what is wrong in it, as in `labels.team`; empty: the text as a whole."""

    def __init__(self, problem: str, fix: str, field: str = "") -> None:
        super().__init__(f"{field} {problem}".lstrip())
        self.problem, self.fix, self.field = problem, fix, field


class _Odd(NamedTuple):
    """Stands where a value would, if it were one."""

    name: str  # what is odd inside; empty: the value itself
    problem: str
    fix: str


def json_of(text: str) -> Any:
    """The value that a text is, or `NotJson`."""
    odd: list[_Odd] = []

    def table(pairs: list[tuple[str, Any]]) -> Any:
        made = dict(pairs)
        if len(made) == len(pairs):
            return made
        name, times = Counter(name for name, _ in pairs).most_common(1)[0]
        odd.append(_Odd(name, f"is given {times} times", "give it once"))
        return odd[-1]

    def constant(word: str) -> _Odd:
        odd.append(_Odd("", f"is {word}, which is not a number in JSON", "give a number, or null"))
        return odd[-1]

    try:
        value = json.loads(text, object_pairs_hook=table, parse_constant=constant)
    except json.JSONDecodeError as error:
        raise NotJson(f"is not JSON ({error})", "write it as JSON; a text needs its quotes") from None
    except ValueError:  # of `int`, which reads no more than some thousand digits
        raise NotJson(*_TOO_MANY_DIGITS) from None
    except RecursionError:
        raise NotJson(*_TOO_DEEP) from None
    if odd:
        way, found = _first(value)
        raise NotJson(found.problem, found.fix, _dotted(way if not found.name else (way, found.name)))
    return value


def _first(value: Any) -> tuple[_Way, _Odd]:
    """The first odd thing, and the way to it. One is always in sight: what hides another is itself odd."""
    left: list[tuple[_Way, Any]] = [(None, value)]
    while True:
        way, each = left.pop()
        if isinstance(each, _Odd):
            return way, each
        inside = each.items() if isinstance(each, dict) else enumerate(each)
        held = [((way, name), part) for name, part in inside if isinstance(part, dict | list | _Odd)]
        left += reversed(held)


def _dotted(way: _Way) -> str:
    parts: list[str] = []
    while way is not None:
        way, name = way
        parts.append(str(name))
    return ".".join(reversed(parts))
