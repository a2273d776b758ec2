"""Scenarios about leases are written once and played in both colors; a few belong to one color only."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import pytest

from holdfast.leases.lease_base import HeldLease
from support.harness.leases import Stage


@pytest.fixture(params=["blocking", "asyncio"])
def stage(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    """A stage in each color. Whatever a scenario opened is closed after it, and only then are its leases dropped."""
    yield from _set(Stage(request.param), monkeypatch)


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    """The blocking stage, for what only threads can do."""
    yield from _set(Stage("blocking"), monkeypatch)


@pytest.fixture
def tasks(monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    """The asyncio stage, for what only tasks can do."""
    yield from _set(Stage("asyncio"), monkeypatch)


def _set(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    begin = HeldLease.__init__

    def kept(lease: HeldLease, *args: Any, **kwargs: Any) -> None:
        begin(lease, *args, **kwargs)
        stage.leases.append(lease)

    monkeypatch.setattr(HeldLease, "__init__", kept)
    yield stage
    stage.tidy()


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """A coroutine test that requests a stage is a scenario: the stage plays it in its own color."""
    stages = [each for each in pyfuncitem.funcargs.values() if isinstance(each, Stage)]
    if not stages or not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    wanted = pyfuncitem._fixtureinfo.argnames
    stages[0].play(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in wanted}))
    return True
