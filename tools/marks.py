"""What the marks of the tests say, read without importing them: `@pytest.mark.requires("R4")` and the like.

Marks count on functions, classes, modules and parameters. Their ids are written out, so that whoever reads the test, or
this program, need not run anything. A test that is skipped or expected to fail proves nothing.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

Marked = tuple[str, tuple[str, ...]]


class BadMarker(Exception):
    """A marker that cannot be read, or that names what does not exist."""


def marked(root: Path, mark: str) -> Iterator[Marked]:
    """Every test with that mark, as `tests/…/test_it.py::test_name`, and the ids that its marks name."""
    for path in sorted((root / "tests").glob("**/test_*.py")):
        name = path.relative_to(root).as_posix()
        text = path.read_text(encoding="utf-8")
        if f"mark.{mark}(" not in text:
            continue  # parsing is what takes the time
        tree = ast.parse(text, name)
        yield from _from_body(tree.body, name, _module_marks(tree, name, mark), mark)


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
    """What the markers of one place say: which ids, and whether the test never runs to a pass."""

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


def _mark_name(node: ast.AST) -> str | None:
    """The marker's name in `pytest.mark.<name>`, else None."""
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Attribute) and node.value.attr == "mark":
        return node.attr
    return None
