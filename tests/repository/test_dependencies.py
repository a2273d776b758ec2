"""Dependencies: an extra declares what its modules import, and `make test-lowest` tests the lower bounds."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import lock
from support.source_tree import PACKAGE, ROOT

EXTRAS: dict[str, list[str]] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"][
    "optional-dependencies"
]
# Distributions whose modules have another name; the longest prefix counts.
DISTRIBUTIONS = {
    "nats": "nats-py",
    "opentelemetry": "opentelemetry-api",
    "opentelemetry.exporter": "opentelemetry-exporter-otlp-proto-http",
    "opentelemetry.sdk": "opentelemetry-sdk",
    "yaml": "pyyaml",
}


HOSTS = {"holdfast.testing.pytest_plugin": "pytest"}  # modules that only this distribution itself imports


class Import(NamedTuple):
    """An import of a module of another distribution, or of ours."""

    module: str
    lazy: bool  # in a function: it happens when it is needed


def distribution(module: str) -> str | None:
    """The distribution that a module comes with; None if it is of the standard library or ours."""
    top = module.partition(".")[0]
    if top in sys.stdlib_module_names or top == "holdfast":
        return None
    named = [prefix for prefix in DISTRIBUTIONS if f"{module}.".startswith(f"{prefix}.")]
    return DISTRIBUTIONS[max(named, key=len)] if named else top.replace("_", "-")


def declared(extra: str) -> set[str]:
    """The distributions that an extra asks for by name, also through another extra."""
    found: set[str] = set()
    for requirement in EXTRAS[extra]:
        if requirement.startswith("holdfast["):
            for other in requirement.removeprefix("holdfast[").rstrip("]").split(","):
                found |= declared(other)
        else:
            found.add(lock.requirement_name(requirement))
    return found


def imports(tree: ast.AST, *, lazy: bool = False) -> Iterator[Import]:
    """The imports of a file. Those for the type checker alone do not count."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            yield from (Import(each.name, lazy) for each in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports are not used"
            assert node.module is not None
            yield Import(node.module, lazy)
            yield from (Import(f"{node.module}.{each.name}", lazy) for each in node.names)
        elif not (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)):
            yield from imports(node, lazy=lazy or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda))


@cache
def modules() -> dict[str, frozenset[Import]]:
    """Every module of the package, and what it imports."""
    return {module_name(path): frozenset(imports(ast.parse(path.read_bytes()))) for path in PACKAGE.glob("**/*.py")}


def module_name(path: Path) -> str:
    """The dotted name of a file of the package."""
    return ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")


def loaded_with(module: str) -> set[str]:
    """The distributions that have to be there for a module to be imported."""
    seen: set[str] = set()
    waiting, found = [module], set[str]()
    while waiting:
        name = waiting.pop()
        if name in seen or name not in modules():
            continue
        seen.add(name)
        waiting += [name.rpartition(".")[0]]  # its package comes first
        for each in modules()[name]:
            if not each.lazy:
                waiting += [each.module, each.module.rpartition(".")[0]]
                found |= {distribution(each.module) or ""}
    return found - {""}


def test_every_import_of_the_package_is_declared_by_an_extra() -> None:
    known = set().union(*map(declared, EXTRAS))
    strange = {
        f"{name} imports {each.module}"
        for name, found in modules().items()
        for each in found
        if (needed := distribution(each.module)) is not None and needed not in known | {HOSTS.get(name)}
    }
    assert not strange


def test_every_declared_dependency_is_imported() -> None:
    imported = {distribution(each.module) for found in modules().values() for each in found}
    by_entry_point = {"opentelemetry-exporter-otlp-proto-http"}
    data = {"tzdata"}  # read by zoneinfo
    assert set().union(*map(declared, EXTRAS)) - imported - by_entry_point - data == set()


def test_each_module_can_be_imported_with_one_extra() -> None:
    """A module of the shell may need `cli` besides."""
    alone = [declared(extra) for extra in EXTRAS if extra != "all"]
    wrong: dict[str, list[str]] = {}
    for module in modules():
        needed = loaded_with(module) - {HOSTS.get(module)}
        if module.startswith("holdfast.cli"):
            needed -= declared("cli")
        if not any(needed <= each for each in alone):
            wrong[module] = sorted(needed)
    assert not wrong, "no single extra declares what these need"


def test_imports_are_found_where_they_are() -> None:
    source = """
import h11
if TYPE_CHECKING:
    import numpy
try:
    from opentelemetry.sdk.metrics import Meter
except ImportError:
    pass
def later():
    import yaml
class Held:
    import psycopg_pool
"""
    found = {(distribution(each.module), each.lazy) for each in imports(ast.parse(source))}
    assert found == {("h11", False), ("opentelemetry-sdk", False), ("pyyaml", True), ("psycopg-pool", False)}


def pinned(name: str) -> dict[str, str]:
    """The version of each distribution in a lock file."""
    return {each: pin.partition("==")[2].split()[0] for each, pin in lock.pins(name).items()}


def test_the_lowest_environment_has_each_lower_bound() -> None:
    """`make test-lowest` tests what pyproject.toml promises, not something newer."""
    versions = pinned("lowest")
    wrong = {
        requirement: versions[lock.requirement_name(requirement)]
        for extra in EXTRAS.values()
        for requirement in extra
        if not requirement.startswith("holdfast[")
        and (bound := re.search(r">=([0-9.]+)", requirement)) is not None
        and not f"{versions[lock.requirement_name(requirement)]}.".startswith(f"{bound[1]}.")
    }
    assert not wrong, "run `make lock`, or raise the bound to the lowest version that can be installed"


def test_every_dependency_has_a_lower_bound() -> None:
    without = [each for extra in EXTRAS.values() for each in extra if not re.search(r">=|^holdfast\[", each)]
    assert without == []


def test_the_tools_of_the_lowest_environment_are_those_of_the_tests() -> None:
    _, tools = lock.declared()
    lowest, newest = pinned("lowest"), pinned("dev")
    assert tools & lowest.keys()
    assert {each: lowest[each] for each in tools & lowest.keys()} == {
        each: newest[each] for each in tools & lowest.keys()
    }


def test_the_quickstart_lists_every_extra() -> None:
    text = (ROOT / "docs" / "quickstart.md").read_text(encoding="utf-8")
    table = text.partition("## Extras")[2].partition("\n## ")[0]
    assert set(re.findall(r"^\| `([a-z-]+)` \|", table, re.MULTILINE)) == set(EXTRAS)
