"""Fixtures for pytest, which finds this module by the entry point of the package.

- `holdfast_locks`: blocking locks on a memory store of their own.
- `holdfast_clock`: a `MovableClock`, with `locks()` and `aio_locks()`.
- `holdfast_context`: the context of a job; `holdfast_context.blocking` is the one of a `def`.
- `holdfast_plane`: starts a plane with an app on a temporary file: `client = holdfast_plane(app)`.

Promises: importing this module imports neither the plane nor a driver; a fixture imports what it needs. Everything that
a fixture opens is closed at the end of the test. Clock: that of the host, or of `holdfast_clock`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from holdfast import Locks
    from holdfast.plane import App, BlockingClient
    from holdfast.testing.clock import MovableClock
    from holdfast.testing.jobs import TestContext


@pytest.fixture
def holdfast_locks() -> Iterator[Locks]:
    """Blocking locks on a memory store of their own."""
    import holdfast

    with holdfast.connect("memory://", service="test") as locks:
        yield locks


@pytest.fixture
def holdfast_clock() -> MovableClock:
    """A clock that the test moves, with locks that follow it."""
    from holdfast.testing.clock import MovableClock

    return MovableClock()


@pytest.fixture
def holdfast_context() -> Iterator[TestContext]:
    """The context of a job, with a lease in memory. For tests without an event loop; others use `testing.context`."""
    from holdfast.testing.background import in_background
    from holdfast.testing.jobs import context

    with in_background(context) as made:
        yield made


@pytest.fixture
def holdfast_plane(tmp_path: Path) -> Iterator[Callable[[App], BlockingClient]]:
    """Start a plane with an app on a temporary file, and return a blocking client of it. It ends with the test."""
    from holdfast.testing.embedded_plane import embedded_plane

    with ExitStack() as stack:
        started = 0

        def start(app: App) -> BlockingClient:
            nonlocal started
            started += 1
            return stack.enter_context(embedded_plane(app, tmp_path / f"plane-{started}.db"))

        yield start
