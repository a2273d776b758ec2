"""Evaluates the tree of an expression over a set of values. Pure; see `expressions` for meaning and promises.

Every node costs a step, and creating or comparing texts and lists costs their items and characters (`builtins`).
Parsing the text costs its length. A value that does not fit is `ExpressionFailed` with the position of the smallest
part that failed.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Final, NoReturn

from holdfast.errors import ExpressionFailed
from holdfast.plane.workflows.expressions.builtins import (
    EFFORT_MAX,
    Unfit,
    Work,
    call,
    checked_number,
    is_list,
    is_number,
    kind,
    plain,
    same,
    within,
)
from holdfast.plane.workflows.expressions.parser import CONSTANTS, NAMES, Expression

_OPERATORS: Final[Mapping[type[ast.operator], tuple[str, Callable[[Any, Any], Any]]]] = {
    ast.Add: ("+", operator.add),
    ast.Sub: ("-", operator.sub),
    ast.Mult: ("*", operator.mul),
    ast.Div: ("/", operator.truediv),
    ast.FloorDiv: ("//", operator.floordiv),
    ast.Mod: ("%", operator.mod),
}
_ORDERS: Final[Mapping[type[ast.cmpop], Callable[[Any, Any], Any]]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}


class ExpressionEvaluation:
    """One expression over one set of values."""

    def __init__(self, expression: Expression, names: Mapping[str, Any], work: Work | None = None) -> None:
        self._expression = expression
        self._names = names
        self._own: dict[str, Any] = {}  # loop variables
        self._work = Work(EFFORT_MAX) if work is None else work

    def result(self, size: Work | None = None) -> Any:
        """Its value, as plain JSON. Expressions of one template share their limits."""
        tree = self._expression.tree
        try:
            self._work.items(len(self._expression.text))
            value = self._value(tree)
            return plain(value, Work(budget=self._work.budget) if size is None else size)
        except Unfit as unfit:
            self._fail(tree, str(unfit))

    def _value(self, node: ast.expr) -> Any:
        try:
            self._work.steps()
            return self._FORMS[type(node)](self, node)
        except Unfit as unfit:
            self._fail(node, str(unfit))

    def _fail(self, node: ast.expr, problem: str) -> NoReturn:
        raise ExpressionFailed(self._expression.text, problem, self._expression.position(node))

    def _constant(self, node: ast.Constant) -> Any:
        return node.value

    def _name(self, node: ast.Name) -> Any:
        if node.id in CONSTANTS:
            return CONSTANTS[node.id]
        source = self._own if node.id not in NAMES else self._names
        if node.id not in source:
            raise Unfit(f"there is no {node.id} here")
        return source[node.id]

    def _attribute(self, node: ast.Attribute) -> Any:
        return self._field(self._value(node.value), node.attr)

    def _subscript(self, node: ast.Subscript) -> Any:
        value = self._value(node.value)
        if isinstance(node.slice, ast.Slice):
            return self._part(value, node.slice)
        key = self._value(node.slice)
        if isinstance(key, str) or not is_list(value):
            return self._field(value, key)
        if not isinstance(key, int) or isinstance(key, bool):
            raise Unfit(f"an item of a list has a whole number, not {kind(key)}")
        return value[key] if -len(value) <= key < len(value) else None

    def _field(self, value: Any, key: Any) -> Any:
        if value is None:
            return None
        if not isinstance(value, Mapping):
            raise Unfit(f"{kind(value)} has no field {key[:40] if isinstance(key, str) else kind(key)}")
        if not isinstance(key, str):
            raise Unfit(f"a field of a table has a text for a name, not {kind(key)}")
        return value.get(key)

    def _part(self, value: Any, part: ast.Slice) -> Any:
        ends = [None if each is None else self._value(each) for each in (part.lower, part.upper)]
        if any(each is not None and (not isinstance(each, int) or isinstance(each, bool)) for each in ends):
            raise Unfit("a part has whole numbers for its ends")
        if value is None:
            return None
        if not isinstance(value, str) and not is_list(value):
            raise Unfit(f"{kind(value)} has no parts")
        self._work.characters(len(range(*slice(*ends).indices(len(value)))))
        return value[slice(*ends)]

    def _call(self, node: ast.Call) -> Any:
        arguments = [self._value(each) for each in node.args]
        return call(node.func.id, arguments, self._work)  # type: ignore[attr-defined]  # a name, as the parser checked

    def _list(self, node: ast.List) -> Any:
        return [self._value(each) for each in node.elts]

    def _table(self, node: ast.Dict) -> Any:
        made: dict[str, Any] = {}
        for key, value in zip(node.keys, node.values, strict=True):
            name = None if key is None else self._value(key)
            if not isinstance(name, str):
                raise Unfit(f"the key of a table is a text, not {kind(name)}")
            made[name] = self._value(value)
        return made

    def _loop(self, node: ast.ListComp) -> Any:
        made: list[Any] = []
        before = dict(self._own)
        self._around(node, 0, made)
        self._own = before
        return made

    def _around(self, node: ast.ListComp, level: int, made: list[Any]) -> None:
        if level == len(node.generators):
            made.append(self._value(node.elt))
            return
        loop = node.generators[level]
        items = self._value(loop.iter)
        if not is_list(items):
            raise Unfit(f"for … in wants a list, not {kind(items)}")
        for item in items:
            self._work.steps()
            self._own[loop.target.id] = item  # type: ignore[attr-defined]  # a name, as the parser checked
            if all(self._value(each) for each in loop.ifs):
                self._around(node, level + 1, made)

    def _logic(self, node: ast.BoolOp) -> Any:
        value = None
        for each in node.values:
            value = self._value(each)
            if bool(value) is isinstance(node.op, ast.Or):
                break
        return value

    def _unary(self, node: ast.UnaryOp) -> Any:
        value = self._value(node.operand)
        if isinstance(node.op, ast.Not):
            return not value
        if not is_number(value):
            raise Unfit(f"{kind(value)} has no sign")
        return checked_number(-value if isinstance(node.op, ast.USub) else value)

    def _binary(self, node: ast.BinOp) -> Any:
        one, other = self._value(node.left), self._value(node.right)
        sign, operation = _OPERATORS[type(node.op)]
        if is_number(one) and is_number(other):
            try:
                return checked_number(operation(checked_number(one), checked_number(other)))
            except ZeroDivisionError:
                raise Unfit("divides by zero") from None
            except OverflowError:
                raise Unfit("gives too large a number") from None
        joined = isinstance(one, str) and isinstance(other, str), is_list(one) and is_list(other)
        if sign != "+" or not any(joined):
            raise Unfit(f"{kind(one)} {sign} {kind(other)} means nothing")
        self._work.characters(len(one) + len(other))
        return one + other if joined[0] else [*one, *other]

    def _compared(self, node: ast.Compare) -> Any:
        one = self._value(node.left)
        for sign, side in zip(node.ops, node.comparators, strict=True):
            other = self._value(side)
            if not self._holds(sign, one, other):
                return False
            one = other
        return True

    def _holds(self, sign: ast.cmpop, one: Any, other: Any) -> bool:
        if isinstance(sign, ast.Eq | ast.NotEq):
            return same(one, other, self._work) is isinstance(sign, ast.Eq)
        if isinstance(sign, ast.In | ast.NotIn):
            return within(one, other, self._work) is isinstance(sign, ast.In)
        if (is_number(one) and is_number(other)) or (isinstance(one, str) and isinstance(other, str)):
            self._work.characters(min(len(one), len(other)) if isinstance(one, str) else 1)
            return bool(_ORDERS[type(sign)](one, other))
        raise Unfit(f"{kind(one)} cannot be compared with {kind(other)}")

    def _choice(self, node: ast.IfExp) -> Any:
        return self._value(node.body if self._value(node.test) else node.orelse)

    _FORMS: ClassVar[Mapping[type[ast.expr], Callable[[ExpressionEvaluation, Any], Any]]] = {
        ast.Constant: _constant,
        ast.Name: _name,
        ast.Attribute: _attribute,
        ast.Subscript: _subscript,
        ast.Call: _call,
        ast.List: _list,
        ast.Dict: _table,
        ast.ListComp: _loop,
        ast.BoolOp: _logic,
        ast.UnaryOp: _unary,
        ast.BinOp: _binary,
        ast.Compare: _compared,
        ast.IfExp: _choice,
    }
