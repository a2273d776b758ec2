"""Drives a flow to its end in synchronous code.

A flow awaits ports and nothing else. Blocking ports never suspend, so one push runs the whole coroutine in the caller's
own thread and stack, with real tracebacks and 1 to 2 microseconds of mechanism. A flow that does suspend here was given
an asyncio port by mistake; that is a bug of ours, and it raises rather than hangs.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def run_now(flow: Coroutine[Any, Any, T]) -> T:
    """Run the flow here and now and return its result."""
    try:
        flow.send(None)
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]  # StopIteration is not generic; a coroutine's value is a T
    flow.close()
    raise RuntimeError("a flow suspended in synchronous code: one of its ports is not blocking")
