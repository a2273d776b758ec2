"""Names in backticks in docstrings and comments exist: a module that was renamed leaves no reference to its old name.

A name exists if it occurs in the code of the package: as an identifier, a module, or a word of a literal, of SQL, of
Lua or of a script of the page. Names of other programs are listed here.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from support.source_tree import PACKAGE, modules

OTHERS = {
    *("BaseProtocol", "MappedAsDataclass", "composer", "create_all", "decode_responses", "greenlet", "post_update"),
    *("NO_COLOR", "NORMAL", "lockf", "nak", "nohup", "sync_interval"),
    *("acme_job_lock_wait", "acme_lock_wait_seconds", "holdfast_job_takeover_seconds"),  # names with a prefix
    "pay",  # a function in an example
}
REFERENCE = re.compile(r"`([A-Za-z_][\w.]*?)(?:\(\))?`")
WORD = re.compile(r"\w+")
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def docstrings(module: ast.Module) -> Iterator[ast.Constant]:
    for node in ast.walk(module):
        first = node.body[0] if isinstance(node, DOCUMENTED) and node.body else None
        text = first.value if isinstance(first, ast.Expr) else None
        if isinstance(text, ast.Constant) and isinstance(text.value, str):
            yield text


def tokens(path: Path) -> Iterator[tokenize.TokenInfo]:
    return tokenize.generate_tokens(io.StringIO(path.read_text(encoding="utf-8")).readline)


def names_in(path: Path) -> set[str]:
    """The identifiers of a module, and the words of its literals."""
    module = parsed(path)
    prose = {id(each) for each in docstrings(module)}
    found = {token.string for token in tokens(path) if token.type == tokenize.NAME}
    for node in ast.walk(module):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in prose:
            found.update(WORD.findall(node.value))
    return found


@cache
def known() -> frozenset[str]:
    found = set(OTHERS)
    for path in modules():
        found |= names_in(path)
        found.update(path.relative_to(PACKAGE).with_suffix("").parts)
    for suffix in ("sql", "lua", "js", "html"):
        for path in PACKAGE.glob(f"**/*.{suffix}"):
            found.update(WORD.findall(path.read_text(encoding="utf-8")))
    return frozenset(found)


def unknown_in(path: Path) -> list[str]:
    texts = [(each.lineno, str(each.value)) for each in docstrings(parsed(path))]
    texts += [(token.start[0], token.string) for token in tokens(path) if token.type == tokenize.COMMENT]
    return [
        f"{path.name}:{line}: {name}"
        for line, text in texts
        for name in REFERENCE.findall(text)
        if not known().issuperset(name.split("."))
    ]


def test_every_name_in_backticks_exists() -> None:
    assert [each for path in modules() for each in unknown_in(path)] == []


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ('"""See `sqlite_judge` and `modules`."""\n', ["sqlite_judge"]),
        ("x = 1  # as `stores.sqlite_judge` does\n", ["stores.sqlite_judge"]),
        ('def f():\n    """Calls `sqlite_judge()`; not `two words`."""\n', ["sqlite_judge"]),
        ('x = "see `sqlite_judge`"\n', []),
    ],
)
def test_a_name_that_nothing_has_is_found(text: str, names: list[str], tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(text)
    assert [each.rpartition(" ")[2] for each in unknown_in(tmp_path / "a.py")] == names
