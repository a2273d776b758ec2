"""Parses the text of an expression to a tree, and reports errors with positions. Pure.

The language is a small part of Python's. Syntax that is not on the lists below is refused, so later additions to Python
do not become part of it. Promises: any text gives a tree or `BadExpression` and nothing else, quickly and without a
warning; a tree has at most `NODES_MAX` nodes and is at most `DEPTH_MAX` deep; all names that it reads are known.

The text is split into tokens first. That excludes Python syntax that is surprising (prefixed and adjacent strings,
look-alike letters, comments), and allows Python keywords as keys: `input.from` is a field.
"""

from __future__ import annotations

import ast
import difflib
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, NoReturn

from holdfast.errors import BadExpression

TEXT_MAX: Final = 4_000
NODES_MAX: Final = 500
WORDS_MAX: Final = 2 * NODES_MAX
DEPTH_MAX: Final = 64
WHOLE_MAX: Final = 2**63 - 1
READ_MAX: Final = 512  # cached expressions; one with the most nodes takes 120 kB

NAMES: Final = frozenset({"input", "steps", "item", "index", "run", "result", "error"})
CONSTANTS: Final = {"true": True, "false": False, "null": None}
_ONE: Final = ("len", "sum", "abs", "text", "number", "whole", "flag", "lower", "upper", "keys", "values")
FUNCTIONS: Final = {  # minimal and maximal number of arguments
    **dict.fromkeys(_ONE, (1, 1)),
    **dict.fromkeys(("min", "max"), (1, 50)),
    **dict.fromkeys(("round", "split", "join"), (1, 2)),
    **dict.fromkeys(("contains", "default"), (2, 2)),
    "range": (1, 3),
}

_WORD: Final = re.compile(
    r"""
    (?P<space>[ ]+)
  | (?P<text>"(?:[^"\\\x00-\x1f]|\\(?:["'\\nrt]|u[0-9a-fA-F]{4}))*"
           | '(?:[^'\\\x00-\x1f]|\\(?:["'\\nrt]|u[0-9a-fA-F]{4}))*')
  | (?P<number>[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?(?![A-Za-z0-9_.]))
  | (?P<name>[A-Za-z_][A-Za-z0-9_]*)
  | (?P<mark>//|[<>=!]=|[-+*/%<>()\[\]{},:.])
    """,
    re.VERBOSE,
)
_BLANK: Final = {ord(each): " " for each in "\t\n\r\f\v"}
_HINTS: Final = {
    "=": "compare with ==",
    "&": "write and",
    "|": "write or",
    "!": "write not, or !=",
    "^": "there is no such operator",
    "?": "a missing key is null; use default(x, y)",
    "$": "an expression inside an expression needs no ${ }",
    "#": "there are no comments",
    ";": "write one expression",
    "`": 'write texts as "…"',
    "\\": 'in texts, write \\\\, \\", \\n, \\r, \\t or \\u0000',
}
# Python's keywords; its parser would refuse them as keys.
_PYTHON: Final = frozenset(
    {
        *("False", "None", "True", "and", "as", "assert", "async", "await", "break", "class", "continue", "def"),
        *("del", "elif", "else", "except", "finally", "for", "from", "global", "if", "import", "in", "is"),
        *("lambda", "nonlocal", "not", "or", "pass", "raise", "return", "try", "while", "with", "yield"),
    }
)
_STEPS: Final = 'steps wants the name of a step: steps.fetch, or steps["fetch"]'
HALF: Final = re.compile("[\ud800-\udfff]")  # of a character; such a text cannot be stored

_ALLOWED: Final = (
    *(ast.Constant, ast.Name, ast.Attribute, ast.Subscript, ast.Slice, ast.Call, ast.List, ast.Dict, ast.ListComp),
    *(ast.comprehension, ast.BoolOp, ast.BinOp, ast.UnaryOp, ast.Compare, ast.IfExp, ast.Load, ast.Store),
    *(ast.And, ast.Or, ast.Not, ast.USub, ast.UAdd, ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod),
    *(ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.In, ast.NotIn),
)
_REFUSED: Final = {
    ast.Pow: "there is no **",
    ast.Is: "there is no `is`; compare with ==",
    ast.IsNot: "there is no `is not`; compare with !=",
    ast.Tuple: "there are no tuples; write a list: [a, b]",
    ast.Set: "there are no sets; write a list: [a, b]",
    ast.DictComp: "a table cannot be made like this; only lists can: [… for x in …]",
    ast.SetComp: "write [… for x in …]",
    ast.GeneratorExp: "write [… for x in …]",
    ast.Lambda: "no function can be made here",
    ast.Starred: "there is no *",
    ast.keyword: "arguments have no names here",
}


@dataclass(frozen=True, slots=True)
class Expression:
    """A parsed expression."""

    text: str
    tree: ast.expr
    names: frozenset[str]  # that it reads
    steps: frozenset[str]  # the steps whose results it reads
    inputs: frozenset[str]  # the fields of `input` that it reads

    def position(self, node: ast.AST) -> int:
        """The position of a node, in characters of the text."""
        line = self.text.translate(_BLANK).lstrip(" ")
        column = len(line.encode()[: getattr(node, "col_offset", 0)].decode(errors="ignore"))
        return len(self.text) - len(line) + column


def suggestion(name: str, known: Iterable[str]) -> str:
    """`did you mean …?` with a space before it, or nothing."""
    near = difflib.get_close_matches(name[:100], sorted(known), n=1, cutoff=0.6)
    return f"; did you mean {near[0]}?" if near else ""


@lru_cache(maxsize=READ_MAX)
def read(text: str) -> Expression:
    """The expression in a text, or `BadExpression`."""
    if len(text) > TEXT_MAX:
        raise BadExpression(text, f"is {len(text)} characters long, and {TEXT_MAX} is the most", TEXT_MAX)
    line = text.translate(_BLANK).lstrip(" ")
    lead = len(text) - len(line)
    if not line:
        raise BadExpression(text, "is empty", 0)
    if half := HALF.search(text):
        raise BadExpression(text, "has half a character", half.start())
    masked, keys = _words(text, line, lead)
    try:
        tree = ast.parse(masked, mode="eval").body
    except SyntaxError as error:
        offset = error.offset or 0
        ends = not 0 < offset <= len(line.rstrip())  # the parser expected more
        at = len(text.rstrip()) if ends else lead + offset - 1
        problem = "ends too early" if ends else "cannot be understood from here on"
        raise BadExpression(text, problem, at) from None
    except (ValueError, RecursionError, MemoryError):  # raised by the parser for texts that are nested too deeply
        raise BadExpression(text, "is nested too deeply", lead) from None
    reading = _Reading(text, line, lead, keys)
    reading.walk(tree)
    return Expression(text, tree, frozenset(reading.names), frozenset(reading.steps), frozenset(reading.inputs))


def _words(text: str, line: str, lead: int) -> tuple[str, dict[int, str]]:
    """The line with every key that is a Python keyword masked, and those keys by their end positions."""
    masked: list[str] = []
    keys: dict[int, str] = {}
    at, before = 0, ""
    while at < len(line):
        if len(masked) > WORDS_MAX:
            raise BadExpression(text, "is too large", lead + at)  # before the parser spends time on it
        found = _WORD.match(line, at)
        if found is None:
            raise BadExpression(text, _stray(line[at]), lead + at)
        kind, word, at = str(found.lastgroup), found[0], found.end()
        if kind == "text" and before == "text":
            raise BadExpression(text, "two texts stand side by side; join them with +", lead + found.start())
        if kind == "text" and before in {"name", "key"} and line[found.start() - 1] != " ":
            raise BadExpression(text, "a text has no prefix", lead + found.start())
        if kind == "name" and "__" in word:
            raise BadExpression(text, f"{word[:40]} is no name", lead + found.start())
        if kind == "name" and before == ".":
            kind = "key"
            if word in _PYTHON:
                keys[at], word = word, "_" * len(word)
        masked.append(word)
        if kind != "space":
            before = word if kind == "mark" else kind
    return "".join(masked), keys


def _stray(character: str) -> str:
    if character in "\"'":
        return "the text that begins here does not end, or has a \\ that means nothing"
    if character.isdigit():
        return "is not a number"
    hint = _HINTS.get(character, "use plain letters, digits and operators")
    return f"{character!r} means nothing here; {hint}"


class _Reading:
    """Walks a tree, refuses syntax that is not allowed, and records the names that are read."""

    def __init__(self, text: str, line: str, lead: int, keys: dict[int, str]) -> None:
        self._text, self._line, self._lead, self._keys = text, line.encode("utf-8", "replace"), lead, keys
        self.names: set[str] = set()
        self.steps: set[str] = set()
        self.inputs: set[str] = set()
        self._keyed: set[int] = set()  # positions where `steps` has the name of a step

    def walk(self, tree: ast.expr) -> None:
        """Visit every node, with an explicit stack: the tree may be deeper than Python's recursion limit."""
        stack: list[tuple[ast.AST, int, frozenset[str]]] = [(tree, 1, frozenset())]
        seen = 0
        while stack:
            node, depth, own = stack.pop()
            seen += 1
            if depth > DEPTH_MAX or seen > NODES_MAX:
                self._refuse(tree, "is too large or nested too deeply")
            if not isinstance(node, _ALLOWED):
                self._refuse(node, _REFUSED.get(type(node), "this cannot be written here"))
            if isinstance(node, ast.ListComp):
                own |= self._loop(node)
            self._look(node, own)
            stack += [(child, depth + 1, own) for child in self._children(node)]

    def _children(self, node: ast.AST) -> list[ast.AST]:
        if isinstance(node, ast.Call):  # the name of a function is not a value
            return [*node.args, *node.keywords]
        return [each for each in ast.iter_child_nodes(node) if not isinstance(each, ast.expr_context)]

    def _look(self, node: ast.AST, own: frozenset[str]) -> None:
        if isinstance(node, ast.Constant):
            self._constant(node)
        elif isinstance(node, ast.Attribute):
            node.attr = self._keys.get(self._characters(node.end_col_offset or 0), node.attr)
            self._step(node.value, node.attr)
        elif isinstance(node, ast.Subscript):
            key = node.slice
            self._step(node.value, key.value if isinstance(key, ast.Constant) else None)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            self._name(node, own)
        elif isinstance(node, ast.Call):
            self._call(node)
        elif isinstance(node, ast.Slice) and node.step is not None:
            self._refuse(node, "a part of a list is [from:to]")
        elif isinstance(node, ast.Dict) and None in node.keys:
            self._refuse(node, "there is no **")

    def _constant(self, node: ast.Constant) -> None:
        value = node.value
        if value is None or isinstance(value, bool):
            return
        if isinstance(value, int) and value <= WHOLE_MAX:
            return
        if isinstance(value, float) and math.isfinite(value):
            return
        if isinstance(value, str) and HALF.search(value) is None:
            return
        self._refuse(node, "is too large a number" if isinstance(value, int | float) else "this is no JSON value")

    def _name(self, node: ast.Name, own: frozenset[str]) -> None:
        name = node.id
        if name in own or name in CONSTANTS:
            return
        if name in FUNCTIONS:
            self._refuse(node, f"{name} is a function; write {name}(…)")
        if name not in NAMES:
            self._refuse(node, f"there is no {name[:40]}{suggestion(name, {*NAMES, *CONSTANTS, *own})}")
        if name == "steps" and id(node) not in self._keyed:
            self._refuse(node, _STEPS)
        self.names.add(name)

    def _step(self, value: ast.expr, key: object) -> None:
        """The steps must be readable from the text alone: they determine the order of steps."""
        if isinstance(value, ast.Name) and value.id == "steps":
            if not isinstance(key, str):
                self._refuse(value, _STEPS)
            self.steps.add(key)
            self._keyed.add(id(value))
        elif isinstance(value, ast.Name) and value.id == "input" and isinstance(key, str):
            self.inputs.add(key)

    def _call(self, node: ast.Call) -> None:
        if not isinstance(node.func, ast.Name):
            self._refuse(node, "only functions can be called; values have none")
        name = node.func.id
        if name not in FUNCTIONS:
            self._refuse(node, f"there is no function {name[:40]}{suggestion(name, FUNCTIONS)}")
        low, high = FUNCTIONS[name]
        if not low <= len(node.args) <= high:
            wanted = str(low) if low == high else f"{low} to {high}"
            self._refuse(node, f"{name} takes {wanted} arguments, not {len(node.args)}")

    def _loop(self, node: ast.ListComp) -> frozenset[str]:
        own = set()
        for each in node.generators:
            if each.is_async or not isinstance(each.target, ast.Name):
                self._refuse(node, "write [… for x in …]")
            name = each.target.id
            if name in NAMES or name in FUNCTIONS or name in CONSTANTS:
                self._refuse(each.target, f"{name} means something already; choose another name")
            own.add(name)
        return frozenset(own)

    def _characters(self, column: int) -> int:
        return len(self._line[:column].decode("utf-8", "ignore"))

    def _refuse(self, node: ast.AST, problem: str) -> NoReturn:
        at = self._lead + self._characters(getattr(node, "col_offset", 0))
        raise BadExpression(self._text, problem, at)
