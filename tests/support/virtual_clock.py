"""Clocks for tests: time passes when it is told to, so nothing depends on how busy a machine is."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from holdfast.testing.conformance import AsyncioWorld
from holdfast.testing.sim.environment.loop import run_virtual
from holdfast.types import NS, Instant

T = TypeVar("T")


class VirtualClock:
    """Time that passes when told to."""

    def __init__(self) -> None:
        self.ns = 10**15

    def now(self) -> Instant:
        return Instant(self.ns, self.ns, self.ns + 10**18)

    def advance(self, ns: int) -> None:
        self.ns += ns

    def read(self) -> int:
        return self.ns


class LoopClock:
    """The clock of the loop that is running, real or virtual."""

    def now(self) -> Instant:
        ns = int(asyncio.get_running_loop().time() * NS)
        return Instant(ns, ns, ns + 10**18)


class VirtualLoopWorld(AsyncioWorld):
    """A world of the conformance kit on a loop whose time is virtual."""

    def drive(self, job: Coroutine[Any, Any, T]) -> T:
        return run_virtual(job)
