"""The lock registry: every lock of the plane is declared, the declaration is sound, and nothing goes around it.

A test reads the code of plane, cli and web, and fails on a lock that is taken in any other way than from a declared
family. It refuses unknown sources: a lock that is taken from another object must be listed here, with a reason.
"""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holdfast.core.backoff import check_against
from holdfast.errors import BadInput
from holdfast.plane.locks import registry as families
from holdfast.plane.locks.registry import FAMILIES, LockFamily, Release, Scope
from holdfast.plane.settings.inventory import COLUMNS, inventory, markdown
from holdfast.plane.settings.settings import ReconcilerSettings, Settings, WorkerSettings
from holdfast.types import NS
from support.source_tree import PACKAGE, shown

ROOMS = ("plane", "cli", "web")
TAKING = {"lock", "risky", "hold", "leader", "exclusive", "acquire_token", "acquire_fenced_token"}
CONSTANTS = {name for name, value in vars(families).items() if isinstance(value, LockFamily)}

# Where locks are taken that are not the plane's own, and whose they are.
OTHERS: dict[str, str] = {
    "cli/commands/run.py": "`holdfast run` takes the lock that its user names",
}

# Calls that have the name of one that takes a lock, and are none, or lead to one that is looked at where it is taken.
CALLED_SO: dict[tuple[str, str], str] = {
    ("plane/jobs/updates.py", "counting.hold"): "rows of the database, for the length of a transaction",
}
DECLARATION = "plane/locks/registry.py"


def undeclared(source: str) -> Iterator[tuple[int, str]]:
    """Line and text of every call that takes a lock from something that is not a declared family."""
    tree = ast.parse(source)
    known = _bound(tree, _names_a_family, annotated="LockFamily")
    keys = _bound(tree, lambda value, _: _is_key_of_a_family(value, known))
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or node.func.attr not in TAKING:
            continue
        by_key = bool(node.args) and (_is_key_of_a_family(node.args[0], known) or ast.unparse(node.args[0]) in keys)
        if not by_key and not _is_a_family(node.func.value, known):
            yield node.lineno, ast.unparse(node)[:100]


def _is_a_family(value: ast.expr, known: set[str]) -> bool:
    """`SCHEDULER_JOB`, `families.SCHEDULER_JOB`, or a name that is bound to one."""
    named = value.attr if isinstance(value, ast.Attribute) else value.id if isinstance(value, ast.Name) else ""
    return named in CONSTANTS or ast.unparse(value) in known


def _is_key_of_a_family(value: ast.expr, known: set[str]) -> bool:
    """`family.key(…)`."""
    called = value.func if isinstance(value, ast.Call) else None
    return isinstance(called, ast.Attribute) and called.attr == "key" and _is_a_family(called.value, known)


def _names_a_family(value: ast.expr, known: set[str]) -> bool:
    """An expression that can only be a family."""
    if isinstance(value, ast.IfExp):
        return _names_a_family(value.body, known) and _names_a_family(value.orelse, known)
    if isinstance(value, ast.Call) and ast.unparse(value.func) in {"replace", "dataclasses.replace"}:
        return bool(value.args) and _names_a_family(value.args[0], known)
    return _is_a_family(value, known)


def _bound(tree: ast.Module, fits: Callable[[ast.expr, set[str]], bool], annotated: str = "") -> set[str]:
    """Names whose every binding in the module fits, or is annotated so; `self.x` for what a dataclass calls x."""
    good: set[str] = set()
    bad: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.arg | ast.AnnAssign) and node.annotation is not None:
            name = node.arg if isinstance(node, ast.arg) else ast.unparse(node.target)
            said = bool(annotated) and ast.unparse(node.annotation).strip("'\"").endswith(annotated)
            (good if said else bad).update({name, f"self.{name}"} if said else {name})
    assigned = [node for node in ast.walk(tree) if isinstance(node, ast.Assign)]
    for _ in range(2):  # a name may be bound to one that is bound further down
        for node in assigned:
            if fits(node.value, good):
                good.update(map(ast.unparse, node.targets))
    bad.update(ast.unparse(target) for node in assigned if not fits(node.value, good) for target in node.targets)
    return good - bad


def _files() -> list[Path]:
    return [path for room in ROOMS for path in sorted((PACKAGE / room).glob("**/*.py"))]


@pytest.mark.requires("R70")
def test_no_lock_is_taken_that_is_not_declared() -> None:
    exempt = {PACKAGE / name for name in (*OTHERS, DECLARATION)}
    found = [
        f"{shown(path)}:{line} {text}"
        for path in _files()
        if path not in exempt
        for line, text in undeclared(path.read_text(encoding="utf-8"))
        if (str(path.relative_to(PACKAGE)), text.partition("(")[0]) not in CALLED_SO
    ]
    assert not found, "\n".join(["declare a family in plane/locks/registry.py and take the lock from it:", *found])


def test_every_exemption_is_still_needed() -> None:
    unused = [name for name in OTHERS if not list(undeclared((PACKAGE / name).read_text(encoding="utf-8")))]
    unused += [
        f"{name}: {call}"
        for name, call in CALLED_SO
        if not any(text.startswith(f"{call}(") for _, text in undeclared((PACKAGE / name).read_text(encoding="utf-8")))
    ]
    assert not unused


@pytest.mark.requires("R70")
def test_no_key_is_written_by_hand() -> None:
    patterns = {family.pattern for family in FAMILIES.values()}
    found = [
        f"{shown(path)}:{node.lineno} {node.value}"
        for path in _files()
        if path != PACKAGE / DECLARATION
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and _is_key(node.value)
        if node.value not in patterns
    ]
    assert not found, "\n".join(["take keys from plane/locks/registry.py:", *found])


def _is_key(text: str) -> bool:
    return text.startswith("holdfast:") and " " not in text and len(text) > len("holdfast:")


@pytest.mark.parametrize(
    ("source", "taken"),
    [
        ("async with locks.lock('x', ttl=3): pass", True),
        ("await self._locks.hold('x', ttl=3)", True),
        ("locks.leader('x')", True),
        ("@locks.exclusive('x')\ndef f(): pass", True),
        ("await locks.acquire_token('x', 3)", True),
        ("family.risky(locks, risk='low', run='1')", True),
        ("family = replace(WORKFLOW_RUN, ttl=3)\nfamily.risky(locks, risk='low', run='1')", False),
        ("family = pick()\nfamily.lock(locks)", True),
        ("family = SCHEDULER_JOB\nfamily = pick()\nfamily.lock(locks)", True),
        ("family = SCHEDULER_JOB if now else other\nfamily.lock(locks)", True),
        ("def f(family: Locks): family.lock(locks)", True),
        ("SCHEDULER_JOB.lock(locks, job='42')", False),
        ("families.WORKER_JOB.lock(locks, job='42')", False),
        ("family = replace(SCHEDULER_JOB, ttl=3)\nfamily.lock(locks)", False),
        ("family = SCHEDULER_JOB if now else WORKER_JOB\nfamily.lock(locks)", False),
        ("def f(family: LockFamily): family.lock(locks)", False),
        ("class A:\n family: LockFamily\n def f(self): self.family.lock(locks)", False),
        ("class A:\n def __init__(self, f: LockFamily): self._f = f\n def g(self): self._f.lock(locks)", False),
        ("await locks.hold(RECONCILER.key(), ttl=3)", False),
        ("key = RECONCILER.key()\nawait locks.hold(key, ttl=3)", False),
        ("key = RECONCILER.key()\nkey = 'x'\nawait locks.hold(key, ttl=3)", True),
        ("await locks.hold(other.key(), ttl=3)", True),
        ("with mutex.acquire(): pass", False),
    ],
)
def test_the_reader_of_code_sees_what_it_should(source: str, taken: bool) -> None:
    assert bool(list(undeclared(source))) is taken


@pytest.mark.requires("R70")
@pytest.mark.parametrize("family", FAMILIES.values(), ids=lambda family: family.name)
def test_a_family_is_used_where_it_says(family: LockFamily) -> None:
    """In the module that it names, or in one of the plane's that this module imports."""
    constant = next(name for name in CONSTANTS if getattr(families, name) is family)
    spec = importlib.util.find_spec(family.used_by)
    assert spec is not None, f"there is no {family.used_by}"
    assert spec.origin is not None
    source = Path(spec.origin).read_text(encoding="utf-8")
    below = [
        path.read_text(encoding="utf-8")
        for path in sorted((PACKAGE / "plane").glob("**/*.py"))
        if path != PACKAGE / DECLARATION
        and f"{'.'.join(path.relative_to(PACKAGE.parent).with_suffix('').parts)} import" in source
    ]
    assert any(constant in text for text in (source, *below))


@pytest.mark.parametrize("family", FAMILIES.values(), ids=lambda family: family.name)
def test_a_family_is_sound(family: LockFamily) -> None:
    assert FAMILIES[family.name] is family
    assert family.pattern.startswith("holdfast:")
    assert (family.scope is Scope.ITEM) is bool(family.places)
    assert (family.per_interval is not None) is (family.scope is Scope.LOOP)
    assert family.release is (Release.EXPLICIT if family.scope is Scope.ITEM else Release.SHUTDOWN)
    if family.retry is not None:
        check_against(family.retry, round(family.ttl * NS))


def test_no_two_families_share_a_key_but_those_that_must_exclude_each_other() -> None:
    """A decision about a job and a handler of that job take one lock, with times of their own."""
    filled = [family.key(**dict.fromkeys(family.places, "1")) for family in FAMILIES.values()]
    shared = families.APPROVAL.key(job="1")
    assert shared == families.SCHEDULER_JOB.key(job="1")
    filled.remove(shared)
    assert len(set(filled)) == len(filled)


@pytest.mark.requires("R50", "R122")
def test_the_job_lock_has_the_times_that_operators_know() -> None:
    job = families.SCHEDULER_JOB
    assert (job.ttl, job.renew_every, job.acquire_timeout) == (60.0, 20.0, 2.0)


@pytest.mark.requires("R51")
def test_the_lock_of_a_loop_lasts_two_of_its_intervals() -> None:
    assert families.RECONCILER.ttl_for(30) == 60.0
    assert families.RECONCILER.ttl_for(2.5) == 5.0
    assert families.SCHEDULER_JOB.ttl_for(2.5) == 60.0


@pytest.mark.parametrize("ids", [{}, {"jobs": "1"}, {"job": "1", "more": "2"}])
def test_a_key_needs_exactly_its_ids(ids: dict[str, str]) -> None:
    with pytest.raises(BadInput, match="give job"):
        families.SCHEDULER_JOB.key(**ids)


@pytest.mark.requires("R54", "R70")
def test_the_inventory_tells_locks_of_items_from_locks_of_loops() -> None:
    lines = {line.family: line for line in inventory()}
    assert set(lines) == set(FAMILIES)
    items = {name for name, line in lines.items() if line.scope is Scope.ITEM}
    assert items == {"scheduler.job", "worker.job", "workflow.run", "approval"}
    job = lines["scheduler.job"].as_dict()
    assert job["key"] == "holdfast:scheduler:job:{job}"
    assert (job["scope"], job["release"], job["ttl"], job["renew_every"]) == ("per item", "explicit", 60.0, 20.0)


@pytest.mark.requires("R46", "R54", "R70")
def test_the_inventory_shows_the_settings_in_effect() -> None:
    chosen = Settings(reconciler=ReconcilerSettings(2.0, "rotating"), worker=WorkerSettings(lease_ttl=12.0))
    lines = {line.family: line for line in inventory(chosen)}
    held = lines["reconciler"]
    assert (held.ttl, held.renew_every, held.release) == (4.0, None, Release.EXPIRY)
    assert (lines["worker.job"].ttl, lines["worker.job"].renew_every) == (12.0, 4.0)


def test_the_inventory_is_a_table_with_all_its_columns() -> None:
    head, rule, *rows = markdown(inventory()).splitlines()
    assert head == f"| {' | '.join(COLUMNS)} |"
    assert set(rule) <= set("|- ")
    assert len(rows) == len(FAMILIES)
    assert all(row.count("|") == len(COLUMNS) + 1 for row in rows)
