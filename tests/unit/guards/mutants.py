"""The reference guard with one bug each: the usual errors of a first guard.

The kit has to find each by the sentence that it breaks. Importable from child processes.
"""

from __future__ import annotations

import json
import os
import select
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from holdfast.core import failpoints
from holdfast.core.lease.fencing import check_fence
from holdfast.errors import FencedOut
from holdfast.guards import Fenced
from support.guards.reference_guard import FileGuard, State

GAP_S = 0.002


def gap() -> None:
    """The moment in which another writer is faster."""
    select.select([], [], [], GAP_S)


class ChecksWritesOnly(FileGuard):
    def enter(self, lease: Fenced) -> str | None:
        with self.locked():
            state = self.load()
            self.check(state, self.fence_of(lease))
            return state.value


class DemandsAGreaterFence(FileGuard):
    def older(self, fence: int, seen: int) -> bool:
        return fence <= seen


class ComparesAsText(FileGuard):
    def older(self, fence: int, seen: int) -> bool:
        return str(fence) < str(seen)


class ComparesAsFloats(FileGuard):
    def older(self, fence: int, seen: int) -> bool:
        return float(fence) < float(seen)


class KeepsAFloat(FileGuard):
    def save(self, state: State) -> None:
        super().save(State(state.value, None if state.fence is None else int(float(state.fence))))


class Keeps32Bits(FileGuard):
    def save(self, state: State) -> None:
        super().save(State(state.value, None if state.fence is None else state.fence % 2**32))


class ForgetsWhatItDeletes(FileGuard):
    def delete(self, lease: Fenced) -> None:
        super().delete(lease)
        self.path.unlink()


class DeletesUnchecked(FileGuard):
    def delete(self, lease: Fenced) -> None:
        with self.locked():
            self.save(State(None, self.load().fence))


class StampsBeforeItChecks(FileGuard):
    def overwrite(self, lease: Fenced, value: str) -> None:
        fence = self.fence_of(lease)
        with self.locked():
            state = self.load()
            self.save(State(state.value, fence))
            self.check(state, fence)
            self.save(State(value, fence))


class WritesBeforeItChecks(FileGuard):
    def overwrite(self, lease: Fenced, value: str) -> None:
        fence = self.fence_of(lease)
        with self.locked():
            state = self.load()
            self.save(State(value, state.fence))
            self.check(state, fence)
            self.save(State(value, fence))


class ChecksAndWritesInTwoSteps(FileGuard):
    def overwrite(self, lease: Fenced, value: str) -> None:
        fence = self.fence_of(lease)
        with self.locked():
            self.check(self.load(), fence)
        gap()
        with self.locked():
            self.save(State(value, fence))


class ReadsBeforeItRegisters(FileGuard):
    def enter(self, lease: Fenced) -> str | None:
        value = self.load().value
        gap()
        super().enter(lease)
        return value


class RegistersOnlyWhatExists(FileGuard):
    def enter(self, lease: Fenced) -> str | None:
        return super().enter(lease) if self.path.exists() else None


class EntersUnchecked(FileGuard):
    def enter(self, lease: Fenced) -> str | None:
        fence = self.fence_of(lease)
        with self.locked():
            state = self.load()
            self.save(State(state.value, max(fence, -1 if state.fence is None else state.fence)))
            return state.value


class TrustsItsSections(FileGuard):
    def write(self, lease: Fenced, value: str) -> None:
        with self.locked():
            self.save(State(value, self.load().fence))


class NamesTheWrongFence(FileGuard):
    def refusal(self, fence: int, seen: int) -> FencedOut:
        return FencedOut("stale", fence=seen, seen=fence)


class SwallowsTheRefusal(FileGuard):
    def overwrite(self, lease: Fenced, value: str) -> None:
        try:
            super().overwrite(lease, value)
        except FencedOut:
            return


class AsksForTheFenceAgain(FileGuard):
    """Takes a refusal for a fence that is not up to date, and mends that."""

    def overwrite(self, lease: Fenced, value: str) -> None:
        try:
            super().overwrite(lease, value)
        except FencedOut:
            with self.locked():
                self.save(State(self.load().value, self.fence_of(lease)))
            raise


class TakesAnythingForANumber(FileGuard):
    def fence_of(self, lease: Any) -> int:
        return int(lease.fence)


class TakesANumberForALease(FileGuard):
    def fence_of(self, lease: Any) -> int:
        return check_fence("fence", lease if isinstance(lease, int) else lease.fence)


class TakesNoFenceForTheNewest(FileGuard):
    def fence_of(self, lease: Any) -> int:
        seen = self.load().fence
        return (0 if seen is None else seen) if lease.fence is None else check_fence("fence", lease.fence)


class TakesZeroForNothing(FileGuard):
    def save(self, state: State) -> None:
        super().save(State(state.value, state.fence or None))


class RemembersInMemory(FileGuard):
    seen: int | None = None

    def load(self) -> State:
        return State(super().load().value, self.seen)

    def save(self, state: State) -> None:
        self.seen = state.fence
        super().save(state)


class SharesOneFence(FileGuard):
    def load(self) -> State:
        common = self.path.with_name("fence")
        return State(super().load().value, int(common.read_text()) if common.exists() else None)

    def save(self, state: State) -> None:
        self.path.with_name("fence").write_text(str(state.fence))
        super().save(state)


class IgnoresWhatTheSameFenceWritesAgain(FileGuard):
    def overwrite(self, lease: Fenced, value: str) -> None:
        if self.load().value is None or self.load().fence != lease.fence:
            super().overwrite(lease, value)


class StripsValues(FileGuard):
    def save(self, state: State) -> None:
        super().save(State(state.value and state.value.strip(), state.fence))


class TakesEmptyForAbsent(FileGuard):
    def save(self, state: State) -> None:
        super().save(State(state.value or None, state.fence))


class WritesTheValueFirst(FileGuard):
    """Marks the moment between its two steps, so that a drill can find it."""

    def overwrite(self, lease: Fenced, value: str) -> None:
        fence = self.fence_of(lease)
        with self.locked():
            state = self.load()
            self.check(state, fence)
            self.save(State(value, state.fence))
            failpoints.reach("guard.written")
            self.save(State(value, fence))


class WritesTheValueFirstInSilence(FileGuard):
    """The same in a guard that knows nothing of failpoints."""

    def overwrite(self, lease: Fenced, value: str) -> None:
        fence = self.fence_of(lease)
        with self.locked():
            state = self.load()
            self.check(state, fence)
            self.save(State(value, state.fence))
            for _ in range(4):
                gap()
            self.save(State(value, fence))


class DeletesTheMemoryFirst(FileGuard):
    def delete(self, lease: Fenced) -> None:
        fence = self.fence_of(lease)
        with self.locked():
            self.check(self.load(), fence)
            self.path.unlink()
            failpoints.reach("guard.reserved")
            self.save(State(None, fence))


class TearsValues(FileGuard):
    """Writes in place, in pieces."""

    def save(self, state: State) -> None:
        text = json.dumps(state)
        with self.path.open("w") as file:
            file.write(text[:100])
            file.flush()
            gap()
            file.write(text[100:])

    def load(self) -> State:
        try:
            return super().load()
        except ValueError:
            return State(self.path.read_text(), None)


class AcknowledgesBeforeItWrites(FileGuard):
    """Collects a few writes in memory, and writes the last of them."""

    def __init__(self, folder: str, resource: str) -> None:
        super().__init__(folder, resource)
        self.pending: list[tuple[Any, str]] = []

    def enter(self, lease: Fenced) -> str | None:
        self.close()
        return super().enter(lease)

    def overwrite(self, lease: Fenced, value: str) -> None:
        with self.locked():
            self.check(self.load(), self.fence_of(lease))
        self.pending.append((lease, value))
        if len(self.pending) == 4:
            self.close()

    def look(self) -> tuple[str | None, int | None]:
        self.close()
        return super().look()

    def close(self) -> None:
        if self.pending:
            super().overwrite(*self.pending[-1])
            self.pending.clear()


class LeavesItsLockBehind(FileGuard):
    @contextmanager
    def locked(self) -> Iterator[None]:
        while True:
            try:
                os.close(os.open(self.lock_path, os.O_CREAT | os.O_EXCL))
                break
            except FileExistsError:
                gap()
        try:
            yield
        finally:
            self.lock_path.unlink()
