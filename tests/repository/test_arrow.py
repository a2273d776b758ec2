"""The imports of the package point one way, and the world (clocks, chance, threads, loops) stays in its rooms."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from repository.source import PACKAGE, modules, tree

# Which rooms a room may import from, besides itself. A top-level module that is not named here is part of the facade.
_FOUNDATION = {"errors", "types", "core", "ports", "flows"}
_BUILT = {*_FOUNDATION, "runtime", "stores", "facade"}
ALLOWED: dict[str, set[str]] = {
    "errors": set(),
    "types": {"errors"},
    "core": {"errors", "types"},
    "ports": {"errors", "types", "core"},
    "flows": {"errors", "types", "core", "ports"},
    "runtime": _FOUNDATION,
    "stores": _FOUNDATION,
    "facade": {*_FOUNDATION, "runtime", "stores"},
    "guards": _BUILT,
    "plane": {*_BUILT, "guards"},
    "observe": {*_BUILT, "guards", "plane"},
    "ops": {*_BUILT, "guards", "plane", "observe"},
    "drills": {*_BUILT, "guards", "plane", "observe", "ops"},
    "cli": {*_BUILT, "guards", "plane", "observe", "ops", "drills", "web", "testing"},
    "web": {*_BUILT, "guards", "plane", "observe", "ops"},
    "testing": {*_BUILT, "guards", "plane", "observe", "ops"},
}

# Single modules that a room may import although the arrow does not point there, and why.
EXCEPTIONS: dict[tuple[str, str], str] = {
    ("stores", "holdfast.runtime.system"): "the clock and the entropy that a store uses when none is passed in",
    ("stores", "holdfast.runtime.mutex"): "a mutex that a signal handler may enter again",
    ("stores", "holdfast.runtime.wakeup"): "a wake-up that an interrupt cannot leave locked",
    ("stores", "holdfast.runtime.driving"): "a quorum of blocking stores asks each on a thread of its own",
    ("stores", "holdfast.runtime.disk"): "the directory of the default file is made for good, like any other",
    ("stores", "holdfast.runtime.private_files"): "a lease file is created like any other file with secrets",
}

# The rooms of decisions may use these parts of the standard library and nothing else from outside the package.
PURE = {
    *(
        "__future__",
        "abc",
        "ast",
        "bisect",
        "collections",
        "contextlib",
        "dataclasses",
        "datetime",
        "difflib",
        "enum",
        "fractions",
        "functools",
        "hashlib",
    ),
    *("heapq", "itertools", "json", "math", "operator", "re", "statistics", "string", "textwrap", "types", "typing"),
}
PURE_ROOMS = {"errors", "types", "core"}
COLOUR_FREE_ROOMS = {*PURE_ROOMS, "ports", "flows"}

# Modules that bring in the world, and where they may be named.
LOOPS_AND_THREADS = {"asyncio", "concurrent", "multiprocessing", "queue", "selectors", "signal", "threading"}
LOOP_AND_THREAD_ROOMS = {"runtime", "stores", "testing", "cli", "guards", "plane", "drills", "web"}
LOOP_AND_THREAD_ROOMS |= {"aio"}  # the awaited facade
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


def room_of(parts: tuple[str, ...]) -> str:
    """The room of a module path below the package, given as its parts without suffix."""
    head = parts[0] if parts else "__init__"
    if head == "__main__":
        return "cli"
    return head if head in ALLOWED else "facade"


def room(path: Path) -> str:
    return room_of(path.relative_to(PACKAGE).with_suffix("").parts)


def imports(path: Path) -> Iterator[Import]:
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            yield from (Import(path, node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = _absolute(path, node)
            # `from holdfast import types` imports a room by name; `from holdfast.types import NS` does not go deeper.
            yield from (Import(path, node.lineno, f"{base}.{alias.name}") for alias in node.names)


def _absolute(path: Path, node: ast.ImportFrom) -> str:
    if not node.level:
        return node.module or ""
    package = ("holdfast", *path.relative_to(PACKAGE).parent.parts)
    return ".".join([*package[: len(package) - node.level + 1], *([node.module] if node.module else [])])


def against_the_arrow(found: Import) -> bool:
    if found.outside:
        return False
    if any(found.target.startswith(f"{allowed}.") for room_, allowed in EXCEPTIONS if room_ == room(found.path)):
        return False
    target = room_of(tuple(found.target.split(".")[1:]))
    return target != room(found.path) and target not in ALLOWED[room(found.path)]


def test_no_import_points_against_the_arrow() -> None:
    assert [str(each) for path in modules() for each in imports(path) if against_the_arrow(each)] == []


def test_decisions_use_only_pure_parts_of_the_standard_library() -> None:
    wrong = [
        str(each)
        for path in modules()
        if room(path) in PURE_ROOMS
        for each in imports(path)
        if each.outside and each.outside not in PURE
    ]
    assert wrong == []


def test_decisions_and_flows_know_no_clock_no_chance_no_thread_and_no_loop() -> None:
    wrong = [
        str(each)
        for path in modules()
        if room(path) in COLOUR_FREE_ROOMS
        for each in imports(path)
        if each.outside in WORLD
    ]
    assert wrong == []


def test_decisions_and_flows_never_ask_what_time_it_is() -> None:
    wrong = [
        f"{path.relative_to(PACKAGE)}:{node.lineno} {ast.unparse(node)}"
        for path in modules()
        if room(path) in COLOUR_FREE_ROOMS
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in WALL_CLOCK_CALLS
        and ast.unparse(node.func.value).split(".")[-1] in {"datetime", "date"}
    ]
    assert wrong == []


def test_threads_and_loops_stay_in_their_rooms() -> None:
    wrong = [
        str(each)
        for path in modules()
        if path.relative_to(PACKAGE).with_suffix("").parts[0] not in LOOP_AND_THREAD_ROOMS
        for each in imports(path)
        if each.outside in LOOPS_AND_THREADS
    ]
    assert wrong == []


@pytest.mark.parametrize("module", ["holdfast", "holdfast.aio"])
def test_importing_the_package_needs_only_the_standard_library(module: str) -> None:
    """The optional engines and the shell's libraries are imported when they are asked for, not before."""
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
        ("core/lease.py", "holdfast.runtime.system", True),
        ("core/lease.py", "holdfast.ports.Store", True),
        ("core/lease.py", "holdfast.types.Instant", False),
        ("flows/acquiring.py", "holdfast.stores.redis", True),
        ("stores/redis.py", "holdfast.runtime.threads", True),
        ("locks.py", "holdfast.stores.registry", False),
        ("locks.py", "holdfast.cli.app", True),
        ("types.py", "holdfast.Locks", True),
        ("cli/app.py", "holdfast.connect", False),
        ("testing/world.py", "holdfast.flows.acquiring", False),
    ],
)
def test_the_arrow_refuses_and_allows_what_it_should(path: str, target: str, wrong: bool) -> None:
    assert against_the_arrow(Import(PACKAGE / path, 1, target)) is wrong
