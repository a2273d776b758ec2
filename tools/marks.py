"""The marks of the tests, read without importing them: `@pytest.mark.requires("R4")` and the like.

Marks count on functions, classes and parameters, and on modules where the caller allows it. Their ids are written out,
so that a reader of the test, or this program, need not run anything. A test that is always skipped or expected to fail
is no claimant. A marked test that checks nothing, and a skip without a reason, are errors.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

Marked = tuple[str, tuple[str, ...]]

_OUTCOMES = {"skip", "skipif", "xfail"}


class BadMarker(Exception):
    """A marker that cannot be read, or that claims what it cannot prove."""


def marked(root: Path, mark: str, *, whole_modules: bool = True) -> Iterator[Marked]:
    """Every test with that mark, as `tests/…/test_it.py::test_name`, and the ids that its marks name."""
    for path in sorted((root / "tests").glob("**/test_*.py")):
        name = path.relative_to(root).as_posix()
        text = path.read_text(encoding="utf-8")
        if f"mark.{mark}(" not in text:
            continue  # parsing is what takes the time
        tree = ast.parse(text, name)
        inherited = _module_marks(tree, name, mark)
        if inherited.ids and not whole_modules:
            raise BadMarker(
                f"{name} marks the whole module with {' '.join(inherited.ids)}; mark the tests that prove it"
            )
        yield from _from_body(tree.body, name, inherited, mark)


def unexplained_skips(root: Path) -> Iterator[str]:
    """Every place in the tests that skips, or expects to fail, without a reason, as `tests/…/test_it.py:12`."""
    for path in sorted((root / "tests").glob("**/*.py")):
        text = path.read_text(encoding="utf-8")
        if any(word in text for word in ("mark.skip", "mark.xfail", "pytest.skip(", "pytest.xfail(")):
            tree = ast.parse(text)
            called = {node.func for node in ast.walk(tree) if isinstance(node, ast.Call)}
            for node in ast.walk(tree):
                if _skips_silently(node) or (node not in called and _mark_name(node) in _OUTCOMES):
                    yield f"{path.relative_to(root).as_posix()}:{getattr(node, 'lineno', 0)}"


def is_empty(body: Sequence[ast.stmt]) -> bool:
    """Whether nothing in the statements can fail: no call, no `raise`, no assertion about anything but constants."""
    return not any(_can_fail(node) for statement in body for node in ast.walk(statement))


def _can_fail(node: ast.AST) -> bool:
    if isinstance(node, ast.Assert):
        return any(isinstance(each, ast.Name) for each in ast.walk(node.test))
    return isinstance(node, ast.Call | ast.Raise)


def literal_ids(arguments: list[ast.expr], where: str) -> list[str]:
    """The ids that are written out there, or `BadMarker`."""
    ids: list[str] = []
    for argument in arguments:
        if not (isinstance(argument, ast.Constant) and isinstance(argument.value, str)):
            raise BadMarker(f"{where} computes the ids of its mark; write them out, so that they can be read")
        ids.append(argument.value)
    return ids


@dataclass(frozen=True, slots=True)
class _Marks:
    """The markers of one function, class or module: the ids, and whether the test never runs to a pass."""

    ids: tuple[str, ...] = ()
    void: bool = False

    def plus(self, other: _Marks) -> _Marks:
        """Both together, as pytest combines the markers of module, class and function."""
        return _Marks(self.ids + other.ids, self.void or other.void)


def _from_body(body: list[ast.stmt], name: str, inherited: _Marks, mark: str) -> Iterator[Marked]:
    for node in body:
        if isinstance(node, ast.ClassDef) and node.name.startswith("Test"):
            marks = inherited.plus(_read(node.decorator_list, f"{name}::{node.name}", mark))
            yield from _from_body(node.body, f"{name}::{node.name}", marks, mark)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
            proof = f"{name}::{node.name}"
            marks = inherited.plus(_read(node.decorator_list, proof, mark))
            if marks.ids and is_empty(node.body):
                raise BadMarker(f"{proof} claims to prove {' '.join(marks.ids)}, and checks nothing")
            if marks.ids and not marks.void:
                yield proof, marks.ids


def _module_marks(tree: ast.Module, name: str, mark: str) -> _Marks:
    marks = _Marks()
    for node in tree.body:
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == "pytestmark" for t in node.targets):
            marks = marks.plus(_read([node.value], name, mark))
    return marks


def _read(expressions: list[ast.expr], where: str, mark: str) -> _Marks:
    ids: list[str] = []
    void = False
    for node in (inner for outer in expressions for inner in ast.walk(outer)):
        if isinstance(node, ast.Call) and _mark_name(node.func) == mark:
            ids += literal_ids(node.args, where)
        void = void or _mark_name(node) in {"skip", "xfail"}
    return _Marks(tuple(ids), void)


def _skips_silently(node: ast.AST) -> bool:
    """A call of a mark that skips, or of `pytest.skip` or `pytest.xfail`, without a reason."""
    if not isinstance(node, ast.Call):
        return False
    called = node.func
    name = _mark_name(called)
    if name is None and isinstance(called, ast.Attribute) and isinstance(called.value, ast.Name):
        name = called.attr if called.value.id == "pytest" and called.attr in {"skip", "xfail"} else None
    if name not in _OUTCOMES:
        return False
    first = node.args[:1] if name == "skip" or not _mark_name(called) else []  # of the others it is the condition
    reasons = [*first, *(each.value for each in node.keywords if each.arg in {"reason", "msg"})]
    return not any(not isinstance(each, ast.Constant) or each.value for each in reasons)


def _mark_name(node: ast.AST) -> str | None:
    """The marker's name in `pytest.mark.<name>`, else None."""
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Attribute) and node.value.attr == "mark":
        return node.attr
    return None
