"""JSON that somebody wrote, read or refused. Pure.

Promises: whatever the text is, the answer is a value or `NotJson` with what is wrong, and no other error. What is read
means one thing: a name that stands twice in an object is refused, at any depth, because one of its two values would be
lost without a word; so are NaN and infinities, which JSON does not have. Where such a thing stands is said.

The standard library takes the last of two values, reads NaN, and answers a number of five thousand digits and brackets
within brackets with errors of the interpreter.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import Any, Final, NamedTuple, TypeAlias

from holdfast.core.json_size import DEPTH_MAX, TOO_DEEP

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
