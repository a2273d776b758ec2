"""What takes part in a benchmark: Holdfast, a peer, or a bare client of the same engine (the raw limit).

A contender is only a name and a way to connect. Its module is imported when it is measured, so that a peer which is not
installed is left out with a line that says so, and the rest still runs.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

TTL_S = 30  # of every lock that is not about renewal: long enough never to matter


class Role(StrEnum):
    """The side of a ratio that a contender is on."""

    OURS = "ours"
    PEER = "peer"
    RAW = "raw"


class Cycle(Protocol):
    """One lock in the hands of one thread, acquired and released in turn."""

    def acquire(self) -> object:
        """Wait for the lock."""
        ...

    def release(self) -> object:
        """Give it back."""
        ...


class AsyncCycle(Protocol):
    """One lock in the hands of one task."""

    async def acquire(self) -> object:
        """Wait for the lock."""
        ...

    async def release(self) -> object:
        """Give it back."""
        ...


@dataclass(frozen=True, slots=True)
class Place:
    """Where contenders meet: a server on loopback, and a directory for files."""

    host: str
    port: int
    directory: Path

    @property
    def url(self) -> str:
        """The server, as Holdfast names it."""
        return f"redis://{self.host}:{self.port}"


Make: TypeAlias = Callable[[str], Cycle]
AsyncMake: TypeAlias = Callable[[str], AsyncCycle]
Connect: TypeAlias = Callable[[Place], AbstractContextManager[Make]]
AsyncConnect: TypeAlias = Callable[[Place], AbstractAsyncContextManager[AsyncMake]]
CountLost: TypeAlias = Callable[[], int]
Keep: TypeAlias = Callable[[Place, int, float], AbstractContextManager[CountLost]]

C = TypeVar("C")


@dataclass(frozen=True, slots=True)
class Contender(Generic[C]):
    """A participant of a scenario. `connect` returns the client that the scenario starts with."""

    name: str
    role: Role
    needs: str  # the module without which it cannot take part
    connect: C
    most: int | None = None  # it is left out of anything larger
    note: str = ""

    def left_out(self, size: int) -> str | None:
        """Why it cannot take part, or None."""
        if importlib.util.find_spec(self.needs) is None:
            return f"{self.needs} is not installed"
        if self.most is not None and size > self.most:
            return f"not measured above {self.most}: {self.note}"
        return None


def module(name: str) -> Any:
    """A peer's module. Untyped on purpose: what is checked must not depend on which peers are installed."""
    return importlib.import_module(name)
