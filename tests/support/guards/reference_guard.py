"""The plainest guard that keeps the contract: a JSON file for each resource, changed under a file lock.

Importable from child processes.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from holdfast.core import failpoints
from holdfast.core.lease.fencing import check_fence
from holdfast.errors import FencedOut, Unfenced
from holdfast.guards import Fenced


class State(NamedTuple):
    value: str | None
    fence: int | None


class FileGuard:
    """Keeps the contract."""

    def __init__(self, folder: str, resource: str) -> None:
        self.path = Path(folder) / f"{resource}.json"
        self.lock_path = Path(folder) / f"{resource}.lock"

    def enter(self, lease: Fenced) -> str | None:
        fence = self.fence_of(lease)
        with self.locked():
            state = self.load()
            self.check(state, fence)
            self.save(State(state.value, fence))
            return state.value

    def write(self, lease: Fenced, value: str) -> None:
        self.overwrite(lease, value)

    def overwrite(self, lease: Fenced, value: str) -> None:
        fence = self.fence_of(lease)
        with self.locked():
            self.check(self.load(), fence)
            self.save(State(value, fence))

    def delete(self, lease: Fenced) -> None:
        fence = self.fence_of(lease)
        with self.locked():
            self.check(self.load(), fence)
            self.save(State(None, fence))

    def look(self) -> tuple[str | None, int | None]:
        return self.load()

    def close(self) -> None:
        pass

    def fence_of(self, lease: Any) -> int:
        if lease.fence is None:
            raise Unfenced("no fence")
        return check_fence("fence", lease.fence)

    def check(self, state: State, fence: int) -> None:
        if state.fence is not None and self.older(fence, state.fence):
            raise self.refusal(fence, state.fence)

    def older(self, fence: int, seen: int) -> bool:
        return fence < seen

    def refusal(self, fence: int, seen: int) -> FencedOut:
        return FencedOut("stale", fence=fence, seen=seen)

    def load(self) -> State:
        return State(*json.loads(self.path.read_text())) if self.path.exists() else State(None, None)

    def save(self, state: State) -> None:
        new = self.path.with_suffix(".new")
        new.write_text(json.dumps(state))
        failpoints.reach("guard.generation")
        new.replace(self.path)

    @contextmanager
    def locked(self) -> Iterator[None]:
        with self.lock_path.open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield


class AsyncFileGuard:
    """The same, awaited; it lets other tasks in wherever it can."""

    def __init__(self, folder: str, resource: str, guard: type[FileGuard] = FileGuard) -> None:
        self._guard = guard(folder, resource)

    async def enter(self, lease: Fenced) -> str | None:
        await asyncio.sleep(0)
        return self._guard.enter(lease)

    async def write(self, lease: Fenced, value: str) -> None:
        await asyncio.sleep(0)
        self._guard.write(lease, value)

    async def overwrite(self, lease: Fenced, value: str) -> None:
        await asyncio.sleep(0)
        self._guard.overwrite(lease, value)

    async def delete(self, lease: Fenced) -> None:
        await asyncio.sleep(0)
        self._guard.delete(lease)

    async def look(self) -> tuple[str | None, int | None]:
        return self._guard.look()

    async def close(self) -> None:
        self._guard.close()


async def opened_slowly(folder: str, resource: str) -> AsyncFileGuard:
    """A factory that has to be awaited, as one that connects has."""
    await asyncio.sleep(0)
    return AsyncFileGuard(folder, resource)
