"""What can be stopped as a whole in the simulation: a host, or one of its threads.

Every task and timer belongs to the domain of the code that started it. A stopped domain is a process under SIGSTOP:
time continues and its code does not. One that is never resumed has crashed.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections import deque
from typing import Protocol


class Resuming(Protocol):
    """The loop, as far as a domain needs it."""

    def readmit(self, handles: deque[asyncio.Handle]) -> None:
        """Make handles ready again."""


class Domain:
    """Something whose code can be stopped as a whole: a host, or one of its threads (then its parent is the host)."""

    __slots__ = ("_deferred", "name", "parent", "stops")

    def __init__(self, name: str, parent: Domain | None = None) -> None:
        self.name = name
        self.parent = parent
        self.stops = 0
        self._deferred: deque[asyncio.Handle] = deque()

    def __repr__(self) -> str:
        return f"<Domain {self.name}>"

    @property
    def stopped(self) -> bool:
        """Whether its code does not run now."""
        return self.stops > 0 or (self.parent is not None and self.parent.stopped)

    def stop(self) -> None:
        """Stop its code. Stops count: as many resumes are needed."""
        self.stops += 1

    def resume(self, loop: Resuming) -> None:
        """Let its code run again; what became ready meanwhile runs now, in order."""
        self.stops -= 1
        if self.stops == 0:
            loop.readmit(self._deferred)
            self._deferred = deque()

    def defer(self, handle: asyncio.Handle) -> bool:
        """Keep a handle for later if the domain is stopped."""
        domain: Domain | None = self
        while domain is not None:
            if domain.stops > 0:
                domain._deferred.append(handle)  # noqa: SLF001 - another object of this very class
                return True
            domain = domain.parent
        return False

    def context(self) -> contextvars.Context:
        """A context in which new tasks and timers belong to this domain."""
        context = contextvars.copy_context()
        context.run(DOMAIN.set, self)
        return context


DOMAIN: contextvars.ContextVar[Domain | None] = contextvars.ContextVar("holdfast_domain", default=None)
