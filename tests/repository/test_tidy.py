"""The habits of the house, checked: short functions, honest names, reasons beside exceptions, nothing left over."""

from __future__ import annotations

import ast
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.source_tree import CODE, PACKAGE, ROOT, modules, naming, python_files, shown, text_files, tree

FUNCTION_LINES_MAX = 70
EMPTY_NAMES = {"utils", "util", "helpers", "helper", "common", "manager", "misc", "base"}
REASON_CHARS_MIN = 6

# Public names that several classes have on purpose, and why.
SHARED_NAMES: dict[str, str] = {
    "Check": "one in the test kit for stores, one in that for guards",
    "Finding": "one of the diagnosis of a store, one of a runbook",
    "GuardedTable": "one for each database, imported from its module",
    "Lost": "the loss of a lease; in tests, the loss of a request",
    "Report": "one in each test kit, one of the installation of guards",
}

THIS_FILE = Path(__file__).resolve()

# Tests wait for conditions. The few that must let real time pass say here why.
SLEEPING_TESTS: dict[str, str] = {}

# Words that have no place in the repository, and why.
UNWELCOME: dict[str, str] = {
    r"\b(TODO|FIXME|XXX|HACK)\b": "finish it, or write an issue",
    r"(?<![\w.])/(home|root|Users|work)/\w": "a path of one machine",
    r"\b(pypi\.org|pythonhosted\.org|npmjs\.(com|org)|--(extra-)?index-url|--find-links)\b": "an address of a registry",
    r"(?i)\bcordum": "the name of another system",
    r"\b(DESIGN|REQUIREMENTS|STYLE)\.md\b": "a file that is not in the repository",
    r"<{7} |>{7} |^={7}$": "a merge conflict",
}

ADDRESSES_OF_REGISTRIES_MAY_BE_NAMED_BY = {"tools/lock.py"}  # it passes the option that keeps them out


def listed(findings: list[str], advice: str = "") -> str:
    """Every finding on a line of its own, in full: the message of a failure is the list of what to do."""
    return "\n".join([advice, *findings])


def functions(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    return (node for node in ast.walk(tree(path)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def comments(path: Path) -> Iterator[tuple[int, str]]:
    with tokenize.open(path) as file:
        for token in tokenize.generate_tokens(file.readline):
            if token.type == tokenize.COMMENT:
                yield token.start[0], token.string


def test_functions_fit_on_a_screen() -> None:
    """Bodies count; a long list of declared options is a table, not a function that does too much."""
    wrong = [
        f"{shown(path)}:{node.lineno} {node.name}"
        for path in python_files()
        if len(path.read_text(encoding="utf-8").splitlines()) > FUNCTION_LINES_MAX
        for node in functions(path)
        if (node.end_lineno or node.lineno) - node.body[0].lineno >= FUNCTION_LINES_MAX
    ]
    assert not wrong, listed(wrong)


def test_files_are_named_after_a_noun_that_says_something() -> None:
    wrong = [shown(path) for path in python_files() if EMPTY_NAMES & {path.stem, path.parent.name}]
    assert not wrong, listed(wrong)


def test_public_classes_have_names_of_their_own() -> None:
    """Except twins (a class of `aio`, and its blocking counterpart) and what is private to the engine of one store."""
    found: dict[str, list[str]] = {}
    for path in modules():
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_") and node.name not in SHARED_NAMES:
                found.setdefault(node.name, []).append(path.relative_to(PACKAGE).as_posix())
    for name, paths in found.items():
        found[name] = [path for path in paths if "aio" not in path.split("/") and not path.startswith("stores/")]
    wrong = [f"{name}: {', '.join(paths)}" for name, paths in found.items() if len(paths) > 1]
    assert not wrong, listed(wrong)


def test_modules_open_with_what_they_promise() -> None:
    wrong = [
        shown(path)
        for path in python_files()
        if path.stat().st_size and not path.read_text(encoding="utf-8").startswith('"""')  # most: need no parsing
        if not ast.get_docstring(tree(path))
    ]
    assert not wrong, listed(wrong)


def test_only_the_shell_and_the_tools_print() -> None:
    wrong = [
        f"{shown(path)}:{node.lineno}"
        for path in naming(modules(), "print(")
        if path.relative_to(PACKAGE).parts[0] not in {"cli", "__main__.py"} and not _is_command(path)
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
    ]
    assert not wrong, listed(wrong)


def _is_command(path: Path) -> bool:
    """A module that is run with `python -m` may print from there."""
    return '__name__ == "__main__"' in path.read_text(encoding="utf-8")


def test_what_catches_everything_raises_it_again_or_says_why_not() -> None:
    wrong = []
    for path in sorted({each for word in ("Exception", "except:") for each in naming(modules(), word)}):
        handlers = [node for node in ast.walk(tree(path)) if isinstance(node, ast.ExceptHandler)]
        broad = [node for node in handlers if _catches_everything(node) and not _raises(node)]
        notes = dict(comments(path)) if broad else {}
        for node in broad:
            reason = notes.get(node.lineno) or notes.get(node.lineno + 1) or ""
            if len(re.sub(r"# (noqa: [A-Z0-9, ]+)?( - )?", "", reason)) < REASON_CHARS_MIN:
                wrong.append(f"{shown(path)}:{node.lineno}")
    assert not wrong, listed(wrong, "say in a comment beside it why nothing may get out of here")


def _catches_everything(handler: ast.ExceptHandler) -> bool:
    if handler.type is None:
        return True
    named = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return any(isinstance(each, ast.Name) and each.id in {"Exception", "BaseException"} for each in named)


def _raises(handler: ast.ExceptHandler) -> bool:
    return any(isinstance(node, ast.Raise) for statement in handler.body for node in ast.walk(statement))


def test_whoever_silences_a_checker_says_why() -> None:
    """Form: `# noqa: RULE - reason` and `# type: ignore[rule]  # reason`. Tests may be wrong on purpose."""
    wrong = [
        f"{shown(path)}:{line} {text}"
        for word in ("noqa", "type: ignore")
        for path in naming(python_files(), word)
        if not path.is_relative_to(ROOT / "tests")
        for line, text in comments(path)
        if _silences_without_reason(text)
    ]
    assert not wrong, listed(wrong)


def _silences_without_reason(comment: str) -> bool:
    if "noqa" in comment:
        found = re.search(r"#\s*(ruff: )?noqa: [A-Z0-9, ]+ - (?P<reason>.+)", comment)
    elif "type: ignore" in comment:
        found = re.search(r"#\s*type: ignore\[[\w, -]+\]\s*(#|-)\s*(?P<reason>.+)", comment)
    else:
        return False
    return found is None or len(found["reason"]) < REASON_CHARS_MIN


def test_tests_wait_for_conditions_and_do_not_sleep() -> None:
    """A pause between two looks at a condition (inside `while condition:`) is waiting; anything else is sleeping."""
    wrong = [
        f"{shown(path)}:{node.lineno}"
        for path in naming(sorted((ROOT / "tests").glob("**/*.py")), "time.sleep")
        if shown(path) not in SLEEPING_TESTS
        for node in _sleeps(tree(path))
    ]
    assert not wrong, listed(wrong)


def _sleeps(root: ast.AST) -> list[ast.Call]:
    looking = {
        inner
        for loop in ast.walk(root)
        if isinstance(loop, ast.While) and not isinstance(loop.test, ast.Constant)
        for inner in ast.walk(loop)
    }
    calls = (node for node in ast.walk(root) if isinstance(node, ast.Call) and node not in looking)
    return [node for node in calls if ast.unparse(node.func) == "time.sleep"]


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("time.sleep(1)", 1),
        ("while True:\n    time.sleep(1)", 1),
        ("for _ in range(3):\n    time.sleep(1)", 1),
        ("while not ready():\n    time.sleep(0.01)", 0),
    ],
)
def test_sleeping_is_told_apart_from_waiting(text: str, count: int) -> None:
    assert len(_sleeps(ast.parse(text))) == count


def test_every_test_asserts_something() -> None:
    """Directly, or by calling a function of the tests that does."""
    found = [(path, node) for path in sorted((ROOT / "tests").glob("**/*.py")) for node in functions(path)]
    asserting = {node.name for _, node in found if _asserts(node, set())}
    wrong = [
        f"{shown(path)}::{node.name}"
        for path, node in found
        if path.name.startswith("test_") and node.name.startswith("test_") and node.name not in asserting
        if not _asserts(node, asserting)
    ]
    assert not wrong, listed(wrong)


def _asserts(function: ast.FunctionDef | ast.AsyncFunctionDef, asserting: set[str]) -> bool:
    verbs = {"assert", "check", "expect", "raises", "warns", "verify", "prove", "must"}
    for node in ast.walk(function):
        if isinstance(node, ast.Assert):
            return True
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func).rpartition(".")[2]
            if called in asserting or verbs & set(called.split("_")):
                return True
    return False


@pytest.mark.parametrize(("pattern", "reason"), UNWELCOME.items(), ids=list(UNWELCOME.values()))
def test_nothing_unwelcome_is_left_lying_about(pattern: str, reason: str) -> None:
    search = re.compile(pattern, re.MULTILINE)
    found = [
        f"{shown(path)}: {match[0]!r}"
        for path in text_files()
        if path.resolve() != THIS_FILE and not _may_name(path, reason)
        for match in search.finditer(path.read_text(encoding="utf-8"))
    ]
    assert not found, listed(found, reason)


def _may_name(path: Path, reason: str) -> bool:
    return reason == "an address of a registry" and shown(path) in ADDRESSES_OF_REGISTRIES_MAY_BE_NAMED_BY


def test_scripts_and_statements_begin_with_their_contract() -> None:
    wrong = []
    for path in sorted(each for room in CODE for each in (ROOT / room).glob("**/*") if each.suffix in {".lua", ".sql"}):
        header: list[str] = []
        for line in path.read_text(encoding="utf-8").splitlines():
            if not line.startswith("--"):
                break
            header.append(line.lstrip("- "))
        if len(" ".join(header)) < 15:
            wrong.append(shown(path))
    assert not wrong, listed(wrong)


@pytest.mark.parametrize(
    ("comment", "silent"),
    [
        ("# noqa: BLE001", True),
        ("# noqa", True),
        ("# noqa: BLE001 - a callback of the user may raise anything", False),
        ("# type: ignore", True),
        ("# type: ignore[arg-type]", True),
        ("# type: ignore[arg-type]  # the enum refuses what it is not", False),
        ("# an ordinary comment", False),
    ],
)
def test_a_silencer_needs_a_rule_and_a_reason(comment: str, silent: bool) -> None:
    assert _silences_without_reason(comment) is silent
