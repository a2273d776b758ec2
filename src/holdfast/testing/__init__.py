"""Tools for tests of locks, jobs and stores, for users as well as for Holdfast itself.

`run`, `run_async` and `context` run job functions in unit tests (`jobs`). `rehearse` shows which steps of a workflow
would run (`rehearsal`). `MovableClock` lets leases expire without waiting (`clock`). `pytest_plugin` has fixtures.
`conformance` is the contract of a store as an executable kit. Nothing here is imported by the rest of the package.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from holdfast.testing.clock import MovableClock
    from holdfast.testing.jobs import context, run, run_async
    from holdfast.testing.rehearsal import Rehearsal, attempts, rehearse

__all__ = ["MovableClock", "Rehearsal", "attempts", "context", "rehearse", "run", "run_async"]

_MODULES: Final = {
    "MovableClock": "clock",
    **dict.fromkeys(("context", "run", "run_async"), "jobs"),
    **dict.fromkeys(("Rehearsal", "attempts", "rehearse"), "rehearsal"),
}


def __getattr__(name: str) -> Any:
    """Import what needs the plane when it is used: the kit of stores needs the standard library alone."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"holdfast.testing.{_MODULES[name]}"), name)
