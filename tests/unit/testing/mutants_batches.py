"""Stores that are right when they are asked for one key, and wrong when they are asked for many."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.stores.memory.store import MemoryStore
from holdfast.types import AcquireRequest, Busy, Grant, Renewal


class ReleasesManyWithoutCompare(MemoryStore):
    """Compares one by one, and not when there are many."""

    async def release_many(self, grants: Sequence[Grant], timeout_ns: int) -> list[bool | None]:
        entries = self.table._state.entries
        return [
            self.table.release(each.key, entries[each.key].token if each.key in entries else each.token, 0)
            for each in grants
        ]


class GivesManyTheFirstAnswer(MemoryStore):
    """All or nothing: every key gets the result of the first."""

    async def acquire_many(self, asks: Sequence[AcquireRequest], timeout_ns: int) -> list[Grant | Busy]:
        first, *rest = [self.table.acquire(ask) for ask in asks]
        if isinstance(first, Grant):
            return [first, *(Grant(ask.key, ask.token, first.fence, "") for ask in asks[1:])]
        return [first, *(Busy(ask.key, first.owner, first.remaining_ns) for ask, _ in zip(asks[1:], rest, strict=True))]


class ForgetsTheFenceOfMany(MemoryStore):
    """Counts those that are asked for together from one on."""

    async def acquire_many(self, asks: Sequence[AcquireRequest], timeout_ns: int) -> list[Grant | Busy]:
        answers: list[Grant | Busy] = []
        for number, answer in enumerate([self.table.acquire(ask) for ask in asks], 1):
            answers.append(answer if isinstance(answer, Busy) else answer._replace(fence=number))
        return answers


class RenewsInReverse(MemoryStore):
    """Answers a batch in another order than it was asked."""

    async def renew_many(self, renewals: Sequence[Renewal], timeout_ns: int) -> list[bool | None]:
        return self.table.renew(list(reversed(renewals)))
