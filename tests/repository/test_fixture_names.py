"""Fixtures that several files share have one meaning: no two modules give the same name to different ones."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator

from support.source_tree import ROOT, shown, tree


def fixtures() -> Iterator[tuple[str, str]]:
    """The name of every shared fixture, and the file that it is in."""
    for path in sorted((ROOT / "tests").glob("support/fixtures/*.py")):
        for node in tree(path).body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and any(
                "fixture" in ast.unparse(decorator) for decorator in node.decorator_list
            ):
                yield node.name, shown(path)


def test_shared_fixtures_have_names_of_their_own() -> None:
    found: dict[str, list[str]] = defaultdict(list)
    for name, path in fixtures():
        found[name].append(path)
    assert found
    assert {name: paths for name, paths in found.items() if len(paths) > 1} == {}
