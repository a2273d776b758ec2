"""The values of expressions, which are those of JSON, and the functions that they can call. Pure.

Promises: everything is bounded. `Work` is charged for each operation of an evaluation before it happens, and ends the
evaluation with `Unfit` if it becomes too much. No number leaves 64 bits or becomes infinite. Results are plain JSON. A
flag is not a number here, and 1 is not true.

**Costs.** The unit is one item that Python code visits, about half a microsecond: a value that is copied, compared,
converted to text or iterated over. A node of the expression tree costs `STEP`. Characters that compiled code copies or
compares are charged separately; `CHARACTERS` of them cost one unit. One evaluation has `COST_MAX` units. All
evaluations of one advance of a run also share a `Budget`, so the cost of an advance is bounded whatever its expressions
are.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from holdfast.plane.workflows.expressions.parser import FUNCTIONS, HALF, WHOLE_MAX

STEP: Final = 5  # units for one node of the tree
STEPS_MAX: Final = 20_000  # of one evaluation
COST_MAX: Final = STEP * STEPS_MAX  # units of one evaluation: about 50 milliseconds
CHARACTERS: Final = 100  # of them cost one unit
COMPARISONS: Final = 3_000  # of single characters cost one unit, in a search that restarts at every character
SHORT: Final = 2_500  # characters; CPython searches shorter texts like that, and …
SHORT_PART: Final = 100  # … texts of up to `MIDDLING` characters for shorter parts; all others in linear time
MIDDLING: Final = 30_000
SIZE_MAX: Final = 1_000_000  # characters of a result as JSON, about
EFFORT_MAX: Final = 4 * SIZE_MAX  # characters that are created and compared for it
FLAG_CHARS_MAX: Final = 100  # of a text that may be a flag
VALUE_DEPTH_MAX: Final = 100
RANGE_MAX: Final = 10_000

_YES: Final = frozenset({"true", "yes", "on", "1"})
_NO: Final = frozenset({"false", "no", "off", "0", ""})


class Unfit(Exception):
    """A value cannot be used like this; the evaluation adds the position."""


class OverBudget(Exception):
    """The evaluations of one advance cost more than its budget. This does not mean that the expression is invalid."""


class Budget:
    """The cost limit of all evaluations of one advance: `OverBudget` beyond `most` units; None: unlimited."""

    __slots__ = ("most", "spent")

    def __init__(self, most: int | None = None) -> None:
        self.most = most
        self.spent = 0

    def charge(self, units: int) -> None:
        """Charge an evaluation."""
        self.spent += units
        if self.most is not None and self.spent > self.most:
            raise OverBudget(f"the expressions of one advance cost more than {self.most} units")


class Work:
    """The remaining limits of one evaluation, and the budget that it shares with others."""

    __slots__ = ("_characters", "_units", "budget")

    def __init__(self, characters: int = SIZE_MAX, budget: Budget | None = None, units: int = COST_MAX) -> None:
        self._units = units
        self._characters = characters
        self.budget = budget

    def steps(self, count: int = 1) -> None:
        """Charge this many nodes, or raise `Unfit`."""
        self.items(STEP * count)

    def items(self, count: int) -> None:
        """Charge this many items that Python code visits, or raise `Unfit`."""
        self._units -= count
        if self.budget is not None:
            self.budget.charge(count)
        if self._units < 0:
            raise Unfit(f"takes more than {STEPS_MAX} steps")

    def characters(self, count: int) -> None:
        """Charge this many characters that compiled code copies or compares, or raise `Unfit`."""
        self._characters -= count
        if self._characters < 0:
            raise Unfit("is too large")
        if count >= CHARACTERS:
            self.items(count // CHARACTERS)


# Values.


def kind(value: object) -> str:
    """The name of its type in the language."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "a flag"
    if isinstance(value, int | float):
        return "a number"
    if isinstance(value, str):
        return "a text"
    if isinstance(value, Mapping):
        return "a table"
    return "a list" if is_list(value) else "no JSON value"


def is_number(value: object) -> bool:
    """Whether it is a number. A flag is not."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def is_list(value: object) -> bool:
    """Whether it is a list or a tuple."""
    return isinstance(value, list | tuple)


def checked_number(value: Any) -> Any:
    """The number, if it is within bounds."""
    if isinstance(value, int):
        if abs(value) > WHOLE_MAX:
            raise Unfit("gives too large a number")
    elif not math.isfinite(value):
        raise Unfit("gives a number that is not finite")
    return value


def plain(value: Any, work: Work, depth: int = 0) -> Any:
    """A copy that is JSON and nothing else, at most `SIZE_MAX` characters and `VALUE_DEPTH_MAX` deep."""
    work.items(1)
    if value is None or isinstance(value, bool):
        work.characters(4)
        return value
    if isinstance(value, str):
        work.characters(len(value) + 2)
        if not value.isascii() and HALF.search(value):
            raise Unfit("gives a text with half a character")
        return str(value)
    if isinstance(value, int):
        work.characters(value.bit_length() // 3 + 1)
        return int(value)
    if isinstance(value, float):
        work.characters(8)
        return checked_number(float(value))
    if depth >= VALUE_DEPTH_MAX:
        raise Unfit(f"gives a value that is more than {VALUE_DEPTH_MAX} deep")
    work.items(1)
    if is_list(value):
        work.characters(2 + len(value))
        return [plain(each, work, depth + 1) for each in value]
    if isinstance(value, Mapping):
        work.characters(2 + 4 * len(value))
        if not all(isinstance(key, str) for key in value):
            raise Unfit("gives a table whose keys are not texts")
        work.characters(sum(map(len, value)))
        return {str(key): plain(each, work, depth + 1) for key, each in value.items()}
    raise Unfit(f"gives {kind(value)}")


def same(one: Any, other: Any, work: Work) -> bool:
    """Whether two values are equal as JSON. Compared without recursion, and every comparison is charged."""
    pairs = [(one, other)]
    while pairs:
        work.steps()
        a, b = pairs.pop()
        if kind(a) != kind(b):
            return False
        if is_list(a):
            if len(a) != len(b):
                return False
            work.items(len(a))
            pairs += zip(a, b, strict=True)
        elif isinstance(a, Mapping):
            if len(a) != len(b):
                return False
            work.items(2 * len(a))
            if a.keys() != b.keys():
                return False
            pairs += [(a[key], b[key]) for key in a]
        else:
            if isinstance(a, str):
                work.characters(min(len(a), len(b)))
            if a != b:
                return False
    return True


def within(value: Any, container: Any, work: Work) -> bool:
    """Whether a list contains the value, a table the key, or a text the part."""
    if isinstance(container, str) and isinstance(value, str):
        _charge_search(value, container, work)
        return value in container
    if is_list(container):
        return any(same(value, each, work) for each in container)
    if isinstance(container, Mapping) and isinstance(value, str):
        return value in container
    if container is None:
        return False
    raise Unfit(f"{kind(value)} cannot be in {kind(container)}")


def _charge_search(part: str, whole: str, work: Work) -> None:
    """Charge a search for a part of a text. In short texts it may compare the whole part at every character."""
    work.characters(len(whole))
    if len(whole) < SHORT or (len(part) < SHORT_PART and len(whole) < MIDDLING):
        work.items(len(part) * max(len(whole) - len(part), 0) // COMPARISONS)


def text(value: Any, work: Work) -> str:
    """The value as text: a text unchanged, other values as JSON."""
    if isinstance(value, str):
        return value
    return json.dumps(plain(value, work), ensure_ascii=False, separators=(", ", ": "))


# The functions. Each takes its arguments from the tree; their number was checked by the parser.


def _sized(value: Any) -> int:
    if value is None:
        return 0
    if isinstance(value, str | Mapping) or is_list(value):
        return len(value)
    raise Unfit(f"{kind(value)} has no length")


def _items(value: Any, work: Work) -> Sequence[Any]:
    if not is_list(value):
        raise Unfit(f"wants a list, not {kind(value)}")
    work.steps(len(value))
    return value  # type: ignore[no-any-return]  # a list or tuple, as checked


def _numbers(value: Any, work: Work) -> Sequence[Any]:
    items = _items(value, work)
    for each in items:
        if not is_number(each):
            raise Unfit(f"wants numbers, not {kind(each)}")
    return items


def _sum(work: Work, value: Any) -> Any:
    total: Any = 0
    for each in _numbers(value, work):
        total = checked_number(total + each)
    return total


def _extreme(choose: Callable[[Sequence[Any]], Any]) -> Callable[..., Any]:
    def function(work: Work, *given: Any) -> Any:
        items = _items(given[0] if len(given) == 1 else given, work)
        if not items:
            return None
        texts = all(isinstance(each, str) for each in items)
        if not texts and not all(map(is_number, items)):
            raise Unfit("wants numbers, or texts, and not both")
        if texts:
            work.characters(sum(map(len, items)))  # each is compared, possibly to its end
        return choose(items)

    return function


def _number_of(value: Any) -> Any:
    if is_number(value):
        return checked_number(value)
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, str) and len(value) <= 100 and "_" not in value:
        try:
            found = float(value)
            exact = value.strip().lstrip("+-").isdecimal()
            return checked_number(int(value) if exact else found)
        except ValueError:
            pass
    raise Unfit(f"{_brief(value)} is not a number")


def _whole(value: Any) -> int:
    return int(checked_number(math.trunc(_number_of(value))))


def _flag(value: Any) -> bool:
    if not isinstance(value, str):
        return bool(value)
    word = value.strip().lower() if len(value) <= FLAG_CHARS_MAX else "?"
    if word not in _YES | _NO:
        raise Unfit(f"{_brief(value)} is neither true nor false")
    return word in _YES


def _round(value: Any, digits: Any = 0) -> Any:
    if not is_number(value) or not isinstance(digits, int) or isinstance(digits, bool) or not 0 <= digits <= 15:
        raise Unfit("wants a number, and how many digits to keep (0 to 15)")
    if isinstance(value, int):
        return value
    return checked_number(round(value, digits) if digits else round(value))


def _abs(value: Any) -> Any:
    if not is_number(value):
        raise Unfit(f"wants a number, not {kind(value)}")
    return checked_number(abs(value))


def _cased(change: Callable[[str], str]) -> Callable[..., Any]:
    def function(work: Work, value: Any) -> str:
        words = _texted(value)
        work.characters(3 * len(words))  # a letter may become three
        return change(words)

    return function


def _split(work: Work, value: Any, mark: Any = None) -> list[str]:
    words = _texted(value)
    if mark is not None and not (isinstance(mark, str) and mark):
        raise Unfit("wants a text to split at")
    work.characters(2 * len(words))
    if mark is None:
        work.items(len(words) // 2 + 1)
    else:
        for _ in ("counted", "split"):
            _charge_search(mark, words, work)
        work.items(words.count(mark) + 1)
    return words.split(mark)


def _join(work: Work, value: Any, mark: Any = "") -> str:
    parts = [text(each, work) for each in _items(value, work)]
    work.characters(sum(map(len, parts)) + len(parts) * len(_texted(mark)))
    return _texted(mark).join(parts)


def _keys(work: Work, value: Any) -> list[str]:
    return list(_tabled(value, work))


def _values(work: Work, value: Any) -> list[Any]:
    return list(_tabled(value, work).values())


def _range(work: Work, *given: Any) -> list[int]:
    if not all(isinstance(each, int) and not isinstance(each, bool) for each in given) or given[2:] == (0,):
        raise Unfit("wants whole numbers, and a step that is not 0")
    if any(abs(each) > WHOLE_MAX for each in given) or len(found := range(*given)) > RANGE_MAX:
        raise Unfit(f"gives more than {RANGE_MAX} numbers")
    work.steps(len(found))
    return list(found)


def _texted(value: Any) -> str:
    if not isinstance(value, str):
        raise Unfit(f"wants a text, not {kind(value)}")
    return value


def _tabled(value: Any, work: Work) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise Unfit(f"wants a table, not {kind(value)}")
    work.steps(len(value))
    return value


def _brief(value: Any) -> str:
    return f"{value[:40]!r}" if isinstance(value, str) else kind(value)


_PLAIN: Final[Mapping[str, Callable[..., Any]]] = {  # constant cost
    "len": _sized,
    "round": _round,
    "abs": _abs,
    "number": _number_of,
    "whole": _whole,
    "flag": _flag,
    "default": lambda value, other: other if value is None else value,
}
_COUNTED: Final[Mapping[str, Callable[..., Any]]] = {
    "min": _extreme(min),
    "max": _extreme(max),
    "sum": _sum,
    "text": lambda work, value: text(value, work),
    "lower": _cased(str.lower),
    "upper": _cased(str.upper),
    "split": _split,
    "join": _join,
    "contains": lambda work, container, value: within(value, container, work),
    "keys": _keys,
    "values": _values,
    "range": _range,
}

if {*_PLAIN, *_COUNTED} != FUNCTIONS.keys():  # they are declared in two places
    raise RuntimeError(f"functions without implementation or declaration: {FUNCTIONS.keys() ^ {*_PLAIN, *_COUNTED}}")


def call(name: str, arguments: Sequence[Any], work: Work) -> Any:
    """The result of a function."""
    if name in _PLAIN:
        return _PLAIN[name](*arguments)
    return _COUNTED[name](work, *arguments)
