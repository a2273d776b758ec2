"""Two colors, one surface: the same names, parameters, defaults and sentences in `holdfast` and `holdfast.aio`."""

from __future__ import annotations

import inspect
import re
from typing import Any

import pytest

import holdfast
from holdfast import LockSettings, aio

TWINS = ["Locks", "Lock", "Lease", "DegradedLease", "Leader", "Lost", "connect"]

# What only one color has, and why.
OWN: dict[str, str] = {
    "Locks.ports": "a plain attribute of the blocking Locks, which needs no loop",
    "Locks.runtime": "an asynchronous Locks belongs to the loop that uses it first",
    "Locks.__enter__": "with",
    "Locks.__exit__": "with",
    "Locks.__aenter__": "async with",
    "Locks.__aexit__": "async with",
    "Lock.__enter__": "with",
    "Lock.__exit__": "with",
    "Lock.__aenter__": "async with",
    "Lock.__aexit__": "async with",
    **{f"{lease}.__{each}__": "with" for lease in ("Lease", "DegradedLease") for each in ("enter", "exit")},
    **{f"{lease}.__{each}__": "async with" for lease in ("Lease", "DegradedLease") for each in ("aenter", "aexit")},
    "Leader.__enter__": "with",
    "Leader.__exit__": "with",
    "Leader.__aenter__": "async with",
    "Leader.__aexit__": "async with",
}

# Sentences that differ because the colors do: what a task is here, a thread is there.
OWN_WORDS = {"Locks", "Locks.exclusive", "Locks.ports", "Locks.runtime"}

NEVER_AWAITED = {
    "lock",
    "leader",
    "exclusive",
    "measurements",
    "statistics",
    "health",
    "open_manager",
    "reconnection",
    "usable",
}


def members(cls: type) -> dict[str, Any]:
    """Everything public, and the protocols of `with`, that a class has, wherever it comes from."""
    special = {"__enter__", "__exit__", "__aenter__", "__aexit__"}
    return {
        name: inspect.getattr_static(cls, name)
        for name in dir(cls)
        if not name.startswith("_") or (name in special and hasattr(cls, name))
    }


def words(doc: str | None) -> str:
    """A docstring with what is a thread in one color and a task in the other made equal."""
    text = inspect.cleandoc(doc or "")
    text = re.sub(r"\b(threads|tasks)\b", "threads-or-tasks", text)
    return re.sub(r"\basync with\b", "with", text)


def test_both_namespaces_have_the_same_names() -> None:
    assert sorted(aio.__all__) == sorted(TWINS)
    assert set(TWINS) <= set(holdfast.__all__)


@pytest.mark.parametrize("name", [each for each in TWINS if each != "connect"])
def test_twin_classes_have_the_same_members(name: str) -> None:
    ours, theirs = members(getattr(holdfast, name)), members(getattr(aio, name))
    differ = {f"{name}.{each}" for each in ours.keys() ^ theirs.keys()}
    assert differ <= OWN.keys()
    for each in ours.keys() & theirs.keys():
        assert isinstance(ours[each], property) == isinstance(theirs[each], property), each


@pytest.mark.parametrize("name", TWINS)
def test_twins_take_the_same_parameters_with_the_same_defaults(name: str) -> None:
    ours, theirs = getattr(holdfast, name), getattr(aio, name)
    if name == "connect":
        assert _parameters(ours) == _parameters(theirs)
        return
    common = members(ours).keys() & members(theirs).keys()
    for each in sorted(common):
        one, other = inspect.getattr_static(ours, each), inspect.getattr_static(theirs, each)
        if inspect.isfunction(one):
            assert _parameters(one) == _parameters(other), f"{name}.{each}"


def _parameters(function: Any) -> list[tuple[str, Any, Any]]:
    return [(each.name, each.kind, each.default) for each in inspect.signature(function).parameters.values()]


@pytest.mark.parametrize("name", TWINS)
def test_twins_are_described_by_the_same_sentences(name: str) -> None:
    ours, theirs = getattr(holdfast, name), getattr(aio, name)
    pairs = [(name, ours.__doc__, theirs.__doc__)]
    if name != "connect":
        common = members(ours).keys() & members(theirs).keys()
        pairs += [(f"{name}.{each}", members(ours)[each].__doc__, members(theirs)[each].__doc__) for each in common]
    for where, one, other in pairs:
        assert one, f"{where} says nothing"
        assert other, f"{where} says nothing"
        if where in OWN_WORDS:
            assert words(one).splitlines()[0][:40] == words(other).splitlines()[0][:40], where
        else:
            assert words(one) == words(other), where


@pytest.mark.parametrize("name", [each for each in TWINS if each != "connect"])
def test_what_waits_in_one_colour_is_awaited_in_the_other(name: str) -> None:
    """Nothing is a coroutine in the blocking color; whatever talks to a store or waits is one in the other."""
    for each, value in members(getattr(holdfast, name)).items():
        assert not inspect.iscoroutinefunction(value), each
    local = {"is_set", "remaining", "ensure_held", "progress", "let_run_out", "hand_over", "condition"} | NEVER_AWAITED
    for each, value in members(getattr(aio, name)).items():
        if inspect.isfunction(value):
            assert inspect.iscoroutinefunction(value) == (each not in local), each


def test_every_setting_is_explained_with_its_default() -> None:
    described = dict(re.findall(r"^(\w+): (.+)$", inspect.getdoc(LockSettings) or "", re.MULTILINE))
    assert described.keys() == LockSettings.__annotations__.keys()


@pytest.mark.parametrize("name", ["Locks", "Lock", "Lease", "DegradedLease", "Leader", "Lost"])
def test_instances_of_both_colours_show_themselves_alike(name: str) -> None:
    assert ("__repr__" in vars(getattr(holdfast, name))) == ("__repr__" in vars(getattr(aio, name)))
