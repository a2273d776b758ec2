"""The texts of the log are promises: operators search for them. The page has each one, and none that is not said."""

from __future__ import annotations

import ast
import logging
import re
from collections.abc import Iterator
from pathlib import Path

from holdfast.flows.acquire import noun
from holdfast.plane.locks.registry import FAMILIES
from holdfast.runtime import recorder
from support.source_tree import ROOT, modules

PAGE = ROOT / "docs" / "logs.md"
LOGGING = {"log_event": 1, "log_fields": 1, "OutageLog": 2}  # how many texts each takes
ROW = re.compile(r"^\| `(?P<text>[^`]+)` \| (?P<level>\w+) \|", re.MULTILINE)


def texts_of(node: ast.expr, function: ast.AST) -> Iterator[str]:
    """The texts that an argument may be: itself, what its name was given in the function, or one with places in it."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, ast.JoinedStr):
        yield "".join(str(each.value) if isinstance(each, ast.Constant) else "…" for each in node.values)
    elif isinstance(node, ast.Name):
        for each in ast.walk(function):
            if isinstance(each, ast.Assign) and any(isinstance(t, ast.Name) and t.id == node.id for t in each.targets):
                yield from texts_of(each.value, function)


def said_in(path: Path) -> Iterator[tuple[str, str]]:
    """Every text that a module logs, with its level."""
    source = path.read_text(encoding="utf-8")
    if "from holdfast.flows.log import" not in source:
        return
    tree = ast.parse(source)
    functions = [each for each in ast.walk(tree) if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)]
    for function in functions:
        for call in ast.walk(function):
            if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name) or call.func.id not in LOGGING:
                continue
            given = [*call.args]
            if given and isinstance(given[0], ast.Starred) and isinstance(given[0].value, ast.Tuple):
                given = [*given[0].value.elts, *given[1:]]
            first = 1 if call.func.id == "OutageLog" else 2
            named = [each.value for each in call.keywords if each.arg == "level"]
            level = given[1] if first == 2 else (named[0] if named else ast.parse("logging.WARNING").body[0])
            for place, argument in enumerate(given[first : first + LOGGING[call.func.id]]):
                for text in texts_of(argument, function):
                    yield text, "warning" if place else _level(level)  # that a trouble is over is none itself


def _level(node: ast.AST) -> str:
    found = [each.attr for each in ast.walk(node) if isinstance(each, ast.Attribute)]
    return found[0].lower() if found else "varies"


def said() -> set[tuple[str, str]]:
    found = {pair for path in modules() for pair in said_in(path)}
    of_leases = {
        (text.replace("{noun}", "… lock"), logging.getLevelName(level).lower())
        for level, text in recorder._LINES.values()
    }
    return found | of_leases


def test_the_page_has_every_text_of_the_log_with_its_level() -> None:
    page = {(found["text"], found["level"]) for found in ROW.finditer(PAGE.read_text(encoding="utf-8"))}
    ours = said()
    assert len(ours) > 50
    assert sorted(ours - page) == [], "describe it in docs/logs.md"
    assert sorted(page - ours) == [], "nothing logs this any more"


def test_what_stands_before_lock_is_the_name_of_a_family() -> None:
    nouns = {noun(family.name) for family in FAMILIES.values()}
    text = PAGE.read_text(encoding="utf-8")
    assert {each for each in nouns if f"`{each}`" not in text} == set()
