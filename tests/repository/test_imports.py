"""Imports follow one direction from package to package; clocks, randomness, threads and event loops stay where allowed.

Promises: a package imports only from itself and from packages that stand above it in `ORDER`. Packages whose decisions
are pure use a short list of the standard library. `EXCEPTIONS` lists what does not fit yet; the list only shrinks.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from support.source_tree import PACKAGE, modules, tree

# From the bottom up. A module belongs to the longest name that fits it; one that fits none is not checked.
ORDER: tuple[str, ...] = (
    *("errors", "types", "core", "flows", "runtime", "stores", "leases", "aio", "", "guards", "observe"),
    *("plane.model", "plane.db.ports", "plane.db", "plane.bus", "plane.locks", "plane.jobs"),
    *("plane.workflows.expressions", "plane.workflows.core", "plane.approvals", "plane.fleet", "plane.loops"),
    *(
        "plane.settings",
        "plane.policy",
        "plane.workflows",
        "plane.parameters",
        "plane.schedules",
        "plane.app",
        "plane.client.request",
        "plane.client.views",
        "plane.worker",
        "plane.scheduler",
    ),
    *("plane.maintenance", "plane.resources", "plane.service", "plane.process", "plane.client", "plane"),
    *("ops", "drills", "web", "testing", "cli", "__main__"),
)
"""`""` is the public package itself: `from holdfast import Lease`."""

# Imports against the order: (importing module, imported module), and why.
EXCEPTIONS: dict[tuple[str, str], str] = {
    (
        "observe.otel.exporters",
        "plane.settings.sections",
    ): "its settings are declared like the other settings of a plane",
    ("observe.otel.push", "plane.settings.sections"): "its settings are declared like the other settings of a plane",
    (
        "plane.approvals.service",
        "plane.workflows.id_reuse",
    ): "a gate is stored as a job of its run, whose id an earlier run may have used",
    (
        "plane.jobs.dead_letters",
        "plane.approvals.rules",
    ): "a dead letter names the requesters that may not approve it again",
    ("plane.settings.settings", "plane.policy.escalation_rules"): "the rules of escalation are a setting; pure values",
}

# SQLite is imported by the packages that are about it, and by these modules.
SQLITE_PACKAGES = ("plane.db.sqlite", "stores.sqlite", "guards", "testing", "drills")
SQLITE_MODULES: dict[str, str] = {
    "plane.db.open": "it opens the database that a URL names",
    "plane.db.statements": "SQLite's own parser finds the end of a trigger",
    "ops.runbooks.collectors.servers": "it tells a locked or full file from other trouble",
    "ops.alerts.rules.causes": "the room that a file needs is a threshold",
    "leases.ownership": "users pass their own connection",
    "cli.lease_stores": "it tells a lease store and a plane apart that are in one file",
}

# What may be imported from outside the package where decisions are pure.
PURE = {
    *("__future__", "abc", "ast", "bisect", "collections", "contextlib", "dataclasses", "datetime", "difflib", "enum"),
    *("fractions", "functools", "hashlib", "heapq", "itertools", "json", "math", "operator", "re", "statistics"),
    *("string", "textwrap", "tomllib", "types", "typing"),
}
PURE_PACKAGES = ("errors", "types", "core", "plane.model", "plane.workflows.core", "plane.workflows.expressions")
PURE_MODULE = "rules"
IMPURE: dict[str, str] = {
    "plane.model.outcome": "inspect, to tell a coroutine from a value",
}
"""Modules of pure packages that are not pure, and why."""

# Modules that bring in the world, and the packages that may name them.
LOOPS_AND_THREADS = {"asyncio", "concurrent", "multiprocessing", "queue", "selectors", "signal", "threading"}
LOOP_AND_THREAD_PACKAGES = {"runtime", "stores", "testing", "cli", "guards", "plane", "drills", "web", "aio", "leases"}
WORLD = {"time", "random", "secrets", "uuid", "os", "socket", "sqlite3", "subprocess", *LOOPS_AND_THREADS}
WALL_CLOCK_CALLS = {"now", "utcnow", "today"}


@dataclass(frozen=True, slots=True)
class Import:
    """One import statement of one module."""

    path: Path
    line: int
    target: str  # the dotted name that is imported

    @property
    def outside(self) -> str | None:
        """The top-level name when it is not ours."""
        head = self.target.partition(".")[0]
        return None if head == "holdfast" else head

    def __str__(self) -> str:
        return f"{self.path.relative_to(PACKAGE.parent).as_posix()}:{self.line} imports {self.target}"


def name_of(path: Path) -> str:
    """The dotted name of a module below the package; empty for the package itself."""
    return ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix("__init__").rstrip(".")


@cache
def module_names() -> frozenset[str]:
    """The names of all modules."""
    return frozenset(name_of(path) for path in modules())


def module_in(target: str) -> str:
    """The module that an imported name is, or is taken from."""
    name = target.removeprefix("holdfast").lstrip(".")
    while name and name not in module_names():
        name = name.rpartition(".")[0]
    return name


def place(module: str) -> int | None:
    """Where in the order a module stands. None: nowhere."""
    fits = [each for each in ORDER if module == each or (each not in {"", "plane"} and module.startswith(f"{each}."))]
    return ORDER.index(max(fits, key=len)) if fits else None


def is_pure(module: str) -> bool:
    """Whether nothing in a module may depend on the world around it."""
    inside = any(module == each or module.startswith(f"{each}.") for each in PURE_PACKAGES)
    return (inside or module.rpartition(".")[2] == PURE_MODULE) and module not in IMPURE


def imports(path: Path) -> Iterator[Import]:
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            yield from (Import(path, node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            # `from holdfast import types` imports a module by name; `from holdfast.types import NS` does not go deeper.
            base = _absolute(path, node)
            yield from (Import(path, node.lineno, f"{base}.{alias.name}") for alias in node.names)


def _absolute(path: Path, node: ast.ImportFrom) -> str:
    if not node.level:
        return node.module or ""
    package = ("holdfast", *path.relative_to(PACKAGE).parent.parts)
    return ".".join([*package[: len(package) - node.level + 1], *([node.module] if node.module else [])])


def against_the_order(found: Import) -> bool:
    if found.outside:
        return False
    importing, imported = name_of(found.path), module_in(found.target)
    here, there = place(importing), place(imported)
    if here is None or there is None or (importing, imported) in EXCEPTIONS:
        return False
    return there > here


def test_no_import_goes_against_the_order() -> None:
    assert [str(each) for path in modules() for each in imports(path) if against_the_order(each)] == []


def test_every_exception_is_still_needed() -> None:
    found = {(name_of(path), module_in(each.target)) for path in modules() for each in imports(path)}
    assert [each for each in EXCEPTIONS if each not in found] == []
    assert [each for each in IMPURE if each not in module_names()] == []


def test_decisions_use_only_pure_parts_of_the_standard_library() -> None:
    wrong = [
        str(each)
        for path in modules()
        if is_pure(name_of(path))
        for each in imports(path)
        if each.outside and each.outside not in PURE
    ]
    assert wrong == []


def test_decisions_and_flows_know_no_clock_no_randomness_no_thread_and_no_loop() -> None:
    wrong = [
        str(each)
        for path in modules()
        if is_pure(name_of(path)) or name_of(path).startswith("flows")
        for each in imports(path)
        if each.outside in WORLD
    ]
    assert wrong == []


def test_decisions_and_flows_never_read_the_wall_clock() -> None:
    wrong = [
        f"{path.relative_to(PACKAGE)}:{node.lineno} {ast.unparse(node)}"
        for path in modules()
        if is_pure(name_of(path)) or name_of(path).startswith("flows")
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in WALL_CLOCK_CALLS
        and ast.unparse(node.func.value).split(".")[-1] in {"datetime", "date"}
    ]
    assert wrong == []


def test_only_the_packages_for_sqlite_import_it() -> None:
    found = {
        (name_of(path), str(each))
        for path in modules()
        if not any(name_of(path) == each or name_of(path).startswith(f"{each}.") for each in SQLITE_PACKAGES)
        for each in imports(path)
        if each.outside == "sqlite3" or module_in(each.target).startswith(("plane.db.sqlite", "stores.sqlite"))
    }
    assert [text for module, text in sorted(found) if module not in SQLITE_MODULES] == []
    assert SQLITE_MODULES.keys() == {module for module, _ in found}


def test_threads_and_loops_stay_in_their_packages() -> None:
    wrong = [
        str(each)
        for path in modules()
        if path.relative_to(PACKAGE).with_suffix("").parts[0] not in LOOP_AND_THREAD_PACKAGES
        for each in imports(path)
        if each.outside in LOOPS_AND_THREADS
    ]
    assert wrong == []


@pytest.mark.parametrize("module", ["holdfast", "holdfast.aio"])
def test_importing_the_package_needs_only_the_standard_library(module: str) -> None:
    """The optional engines and the libraries of the command line are imported when they are needed, not before."""
    code = (
        f"import sys, {module}\n"
        "ours = {'holdfast'}\n"
        "new = {name.partition('.')[0] for name in sys.modules} - set(sys.stdlib_module_names) - ours\n"
        "print(*sorted(name for name in new if getattr(sys.modules.get(name), '__file__', None)))"
    )
    # -S: without site-packages, and so without whatever a .pth file of the environment imports at start-up.
    done = subprocess.run(
        [sys.executable, "-S", "-c", code],
        env={"PYTHONPATH": str(PACKAGE.parent)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "", "")


@pytest.mark.parametrize(
    ("path", "target", "wrong"),
    [
        ("core/backoff.py", "holdfast.runtime.system", True),
        ("core/backoff.py", "holdfast.types.Instant", False),
        ("flows/__init__.py", "holdfast.stores.registry", True),
        ("stores/registry.py", "holdfast.runtime.system", False),
        ("types.py", "holdfast.Locks", True),
        ("guards/sqlite.py", "holdfast.plane", True),
        ("cli/app.py", "holdfast.connect", False),
        ("ops/__init__.py", "holdfast.web.problems", True),
    ],
)
def test_the_order_refuses_and_allows_what_it_should(path: str, target: str, wrong: bool) -> None:
    assert against_the_order(Import(PACKAGE / path, 1, target)) is wrong
