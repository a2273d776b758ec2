"""Tools for tests of locks, jobs and stores, for users as well as for Holdfast itself.

`run`, `run_async` and `context` run job functions in unit tests (`jobs`). `conformance` is the contract of a store as
an executable kit. Nothing here is imported by the rest of the package.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.testing.jobs import context, run, run_async

__all__ = ["context", "run", "run_async"]


def __getattr__(name: str) -> Any:
    """Import what needs the plane when it is used: the kit of stores needs the standard library alone."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from holdfast.testing import jobs

    return getattr(jobs, name)
