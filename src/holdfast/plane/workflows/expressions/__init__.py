"""Expressions such as `${ steps.fetch.output.amount > 100 }`: a small, safe language.

Promises: the same text over the same values always gives the same result. An expression reads nothing but the given
values, and those only as JSON: fields of tables and items of lists, never attributes of objects. Everything is bounded:
its length, depth, steps, numbers and result. It ends in a value, in `BadExpression` (the text is invalid) or in
`ExpressionFailed` (it has no value here), and in nothing else.

Missing values are null: a missing key of a table, an item beyond the end of a list, any field of null. A field of a
text, a number or a flag is a mistake, and fails. False, null, 0, "" and empty values count as false; all others as
true.

A *template* is a JSON value whose texts may contain expressions. A text that is one expression, except for surrounding
spaces, becomes its value, with its type; in a longer text the value is inserted as text. `$${` is a plain `${`. The
keys of tables do not change.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final, TypeAlias

from holdfast.errors import BadExpression, ExpressionFailed
from holdfast.plane.workflows.expressions import parser as syntax
from holdfast.plane.workflows.expressions.builtins import (
    EFFORT_MAX,
    SIZE_MAX,
    VALUE_DEPTH_MAX,
    Budget,
    Unfit,
    Work,
    is_list,
    kind,
    plain,
    text,
)
from holdfast.plane.workflows.expressions.evaluator import ExpressionEvaluation
from holdfast.plane.workflows.expressions.parser import NAMES, Expression

Path: TypeAlias = tuple[str | int, ...]

_OPEN: Final = "${"


def check_expression(text: str, names: Collection[str] = NAMES) -> None:
    """Check that a text, with or without `${ }`, is an expression that reads only these names, or `BadExpression`."""
    unknown = sorted(_read(text).names - set(names))
    if unknown:
        allowed = ", ".join(sorted(names)) or "nothing"
        raise BadExpression(text, f"{unknown[0]} means nothing here; it can read {allowed}", bare(text)[1])


def evaluate(text: str, names: Mapping[str, Any], budget: Budget | None = None) -> Any:
    """The value of an expression, with or without `${ }`: plain JSON. `OverBudget`: the budget is spent."""
    found = _read(text)
    return ExpressionEvaluation(found, names, Work(EFFORT_MAX, budget)).result(Work(SIZE_MAX, budget))


def truth(text: str, names: Mapping[str, Any], budget: Budget | None = None) -> bool:
    """Whether a condition, with or without `${ }`, is true."""
    return bool(evaluate(text, names, budget))


def render(template: Any, names: Mapping[str, Any], budget: Budget | None = None) -> Any:
    """A template with its expressions replaced by their values: plain JSON, of bounded total size."""
    try:
        return _Rendering(names, budget).value(template, 0)
    except Unfit as unfit:
        raise ExpressionFailed(_shown(template), str(unfit)) from None


def names_in(template: Any) -> set[str]:
    """The names that a template reads, such as `input` and `steps`."""
    return {name for each in _expressions(template) for name in each.names}


def steps_in(template: Any) -> set[str]:
    """The steps whose results a template reads."""
    return {name for each in _expressions(template) for name in each.steps}


def inputs_in(template: Any) -> set[str]:
    """The fields of `input` that a template reads."""
    return {name for each in _expressions(template) for name in each.inputs}


def count_in(template: Any) -> int:
    """An upper bound for the number of expressions in a template, without parsing them."""
    return sum(leaf.count(_OPEN) for _, leaf in _leaves(template, ()))


def problems_in(template: Any) -> Iterator[tuple[Path, BadExpression]]:
    """Every invalid expression in a template, with its position."""
    for path, leaf in _leaves(template, ()):
        try:
            _parts(leaf)
        except BadExpression as error:
            yield path, error


def bare(text: str) -> tuple[str, int]:
    """An expression without the `${ }` around it, if there is one; and the number of characters before it."""
    stripped = text.strip()
    if stripped.startswith(_OPEN) and _end(text, begin := text.index(_OPEN)) == len(text.rstrip()) - 1:
        return text[begin + 2 : len(text.rstrip()) - 1], begin + 2
    return text, 0


# Templates.


def _read(text: str) -> Expression:
    inner, lead = bare(text)
    return _moved(text, inner, lead)


def _moved(text: str, inner: str, lead: int) -> Expression:
    """An expression inside a text. Its errors have positions in the whole text."""
    try:
        return syntax.read(inner)
    except BadExpression as error:
        raise BadExpression(text, error.problem, error.position + lead) from None


def _end(text: str, begin: int) -> int:
    """The position of the `}` that ends the `${` at `begin`; -1: none. Braces in texts and of tables do not count."""
    depth, quote, at = 0, "", begin + 2
    while at < len(text):
        character = text[at]
        if quote:
            if character == "\\":
                at += 1
            elif character == quote:
                quote = ""
        elif character in "\"'":
            quote = character
        elif character == "{":
            depth += 1
        elif character == "}":
            if not depth:
                return at
            depth -= 1
        at += 1
    return -1


def _parts(text: str) -> list[str | Expression]:
    """The parts of a text in a template: plain text and expressions."""
    parts: list[str | Expression] = []
    at, plain_text = 0, ""
    while (found := text.find(_OPEN, at)) >= 0:
        if text[max(found - 1, at) : found] == "$":
            plain_text += text[at : found - 1] + _OPEN
            at = found + 2
            continue
        end = _end(text, found)
        if end < 0:
            raise BadExpression(text, "this ${ has no }; write $${ for a plain ${", found)
        if plain_text + text[at:found]:
            parts.append(plain_text + text[at:found])
        parts.append(_moved(text, text[found + 2 : end], found + 2))
        at, plain_text = end + 1, ""
    if plain_text + text[at:] or not parts:
        parts.append(plain_text + text[at:])
    return parts


def _leaves(template: Any, path: Path) -> Iterator[tuple[Path, str]]:
    stack: list[tuple[Path, Any]] = [(path, template)]
    while stack:
        where, value = stack.pop()
        if isinstance(value, str):
            yield where, value
        elif isinstance(value, Mapping):
            stack += [((*where, key), each) for key, each in reversed(list(value.items()))]
        elif is_list(value):
            stack += [((*where, place), each) for place, each in reversed(list(enumerate(value)))]


def _expressions(template: Any) -> Iterator[Expression]:
    for _, leaf in _leaves(template, ()):
        yield from (part for part in _parts(leaf) if isinstance(part, Expression))


class _Rendering:
    """Renders one template. Its total size is bounded, whatever its parts are."""

    def __init__(self, names: Mapping[str, Any], budget: Budget | None = None) -> None:
        self._names = names
        self._work = Work(EFFORT_MAX, budget)
        self._size = Work(SIZE_MAX, budget)

    def value(self, template: Any, depth: int) -> Any:
        """A part of the template, rendered: plain JSON."""
        self._work.items(1)
        if depth > VALUE_DEPTH_MAX:
            raise Unfit(f"is more than {VALUE_DEPTH_MAX} deep")
        if isinstance(template, str) and _OPEN in template:
            return self._text(template)
        if isinstance(template, Mapping):
            plain(dict.fromkeys(template), self._size)  # keys count too, and must be texts
            return {str(key): self.value(each, depth + 1) for key, each in template.items()}
        if is_list(template):
            self._size.characters(2 + len(template))
            return [self.value(each, depth + 1) for each in template]
        return plain(template, self._size)

    def _text(self, template: str) -> Any:
        self._work.characters(len(template))
        self._work.steps(template.count(_OPEN))
        parts = _parts(template)
        around = "".join(part for part in parts if isinstance(part, str))
        expressions = [part for part in parts if isinstance(part, Expression)]
        if len(expressions) == 1 and not around.strip():
            return ExpressionEvaluation(expressions[0], self._names, self._work).result(self._size)
        made = [part if isinstance(part, str) else self._shown(part) for part in parts]
        return plain("".join(made), self._size)

    def _shown(self, part: Expression) -> str:
        """An expression as text. Its size is charged before the whole text is built, so that memory is bounded."""
        shown = text(ExpressionEvaluation(part, self._names, self._work).result(), self._work)
        self._work.characters(len(shown))
        return shown


def _shown(template: Any) -> str:
    return template if isinstance(template, str) else kind(template)
