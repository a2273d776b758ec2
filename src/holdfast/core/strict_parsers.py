"""JSON and TOML of users, parsed strictly: a value, or an error that names the problem. Pure.

Promises: whatever the text is, the answer is a value, or `NotJson` or `NotToml` with the problem, and no other error.
The parsers of the standard library answer a number of five thousand digits, and deeply nested brackets, with errors of
the interpreter.

JSON: a name that occurs twice in an object is refused at any depth, because one of its two values would be lost. So are
NaN and infinities, which JSON does not have. The error names the field.

TOML: a whole number has at most 64 bits, as TOML demands of its readers, so that it can be shown, compared and stored.
Tables and lists are at most `TOML_DEPTH_MAX` deep, so that code can walk through them.
"""

from __future__ import annotations

import json
import tomllib
from collections import Counter
from typing import Any, Final, NamedTuple, TypeAlias

from holdfast.core.json_size import DEPTH_MAX, TOO_DEEP

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
