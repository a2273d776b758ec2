"""Planted bugs. Each is a mistake that somebody has made in a real lock; the simulation must find every one of them.

A mutant is applied with pytest's `monkeypatch`, so nothing of it is left behind.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from holdfast.aio.lease import AnyLease
from holdfast.core import lease as table
from holdfast.core.history import Kind, Record
from holdfast.core.timing import Timing
from holdfast.flows import acquiring, releasing
from holdfast.flows.releasing import Released
from holdfast.runtime.tenure import Tenure
from holdfast.stores.memory_table import MemoryTable
from holdfast.testing.simresource import FencedResource
from holdfast.testing.simstore import LeaseServer, SimStore
from holdfast.types import Ask, Busy, Grant, Instant

Patch = Callable[[pytest.MonkeyPatch], None]


def ttl_counted_from_the_reply(patch: pytest.MonkeyPatch) -> None:
    ask_once, answered = acquiring.try_once, Tenure.answered

    async def try_once(ports: Any, *rest: Any) -> tuple[Grant | Busy, Instant]:
        answer, _ = await ask_once(ports, *rest)
        return answer, ports.clock.now()

    patch.setattr(acquiring, "try_once", try_once)
    patch.setattr(Tenure, "answered", lambda self, answer, sent, now: answered(self, answer, now, now))


def not_owned_counted_as_a_strike(patch: pytest.MonkeyPatch) -> None:
    answered = Tenure.answered
    patch.setattr(Tenure, "answered", lambda self, answer, sent, now: answered(self, answer or None, sent, now))


def release_without_compare(patch: pytest.MonkeyPatch) -> None:
    release = MemoryTable.release

    def by_key(self: MemoryTable, key: str, token: str, keep_ns: int) -> bool:
        entry = self._state.entries.get(key)
        return release(self, key, token if entry is None else entry.token, keep_ns)

    patch.setattr(MemoryTable, "release", by_key)


def fence_from_a_second_round_trip(patch: pytest.MonkeyPatch) -> None:
    acquire = SimStore.acquire

    def grant(self: LeaseServer, ask: Ask) -> Grant | Busy:
        return self.table.acquire(ask)

    def number(self: LeaseServer, ask: Ask, granted_ns: int) -> int:
        fence = self.fences[ask.key, ask.token] = self.table._next_fence(self.clock.now())
        self._note(Record(Kind.HANDED, granted_ns, ask.key, owner=ask.owner, fence=fence))
        return fence

    async def acquire_then_number(self: SimStore, ask: Ask, timeout_ns: int) -> Grant | Busy:
        answer = await acquire(self, ask, timeout_ns)
        if isinstance(answer, Grant):
            now = self._network.loop.now_ns
            fence = await self.call("number", ask.key, lambda: number(self._server, ask, now), timeout_ns)
            return answer._replace(fence=fence)
        return answer

    patch.setattr(LeaseServer, "acquire", grant)
    patch.setattr(SimStore, "acquire", acquire_then_number)


def loss_judged_by_the_timer_alone(patch: pytest.MonkeyPatch) -> None:
    """Right until the process is paused: then the holder acts before the alarm has run."""

    def ensure_held(self: AnyLease, min_remaining: float = 0) -> None:
        standing = self._tenure.recorded
        if not standing.live:
            raise self._lost_error(standing)

    patch.setattr(AnyLease, "ensure_held", ensure_held)


def suspend_not_counted(patch: pytest.MonkeyPatch) -> None:
    def by_the_monotonic_clock(since: Instant, now: Instant) -> int:
        return now.mono - since.mono

    patch.setattr(table, "elapsed_ns", by_the_monotonic_clock)
    patch.setattr(acquiring, "elapsed_ns", by_the_monotonic_clock)


def no_room_for_drift(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Timing, "valid_ns", lambda self: self.ttl_ns)
    patch.setattr(Timing, "loss_age_ns", lambda self, tail_ns=0: self.ttl_ns)


def fence_from_a_counter_that_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    def count(self: MemoryTable, now: Instant) -> int:
        self._state.fence += 1
        return self._state.fence

    patch.setattr(MemoryTable, "_next_fence", count)


def lost_lease_released_all_the_same(patch: pytest.MonkeyPatch) -> None:
    async def release(self: AnyLease, *_: object) -> Released:
        tenure = self._tenure
        tenure.end(table.Event.RELEASED)
        if self._place is not None:
            self._place.leave()
        if tenure.grant is None:
            return Released.YES
        return await releasing.release(self._ports, tenure.wish, tenure.grant, tenure.recorded.granted)

    patch.setattr(AnyLease, "_release", release)


def retry_under_a_token_that_is_being_given_back(patch: pytest.MonkeyPatch) -> None:
    """Found by the simulation in this package itself, at seed 60: the late clean-up released the new grant."""

    class Stubborn(acquiring._Contest):
        __slots__ = ()

        def __setattr__(self, name: str, value: object) -> None:
            if name != "token" or not hasattr(self, "token"):
                super().__setattr__(name, value)

    patch.setattr(acquiring, "_Contest", Stubborn)


def expired_lease_renewed(patch: pytest.MonkeyPatch) -> None:
    """The store renews whatever has the key's name, whoever asks."""

    def renew(self: MemoryTable, renewal: Any, now: Instant) -> bool:
        entry = self._state.entries.get(renewal.key)
        if entry is None:
            return False
        self._state.entries[renewal.key] = replace(entry, expires_ns=now.boot + renewal.ttl_ns)
        return True

    patch.setattr(MemoryTable, "_renew", renew)


def fence_checked_on_writes_only(patch: pytest.MonkeyPatch) -> None:
    """The guard of a resource that does not register the fence of a reader: the classic lost update."""

    def read(self: FencedResource, owner: str, fence: int) -> int:
        return self._version

    patch.setattr(FencedResource, "_read", read)


def fence_must_be_strictly_greater(patch: pytest.MonkeyPatch) -> None:
    """The guard of a resource that refuses the second write of the same grant."""
    patch.setattr(FencedResource, "accepts", lambda self, fence: fence > self._seen)


# Mutant -> the rules of which at least one must catch it.
MUTANTS: dict[Patch, set[str]] = {
    ttl_counted_from_the_reply: {"C4", "C10"},
    not_owned_counted_as_a_strike: {"C4", "C8", "C10"},
    release_without_compare: {"C8"},
    fence_from_a_second_round_trip: {"C2", "C3"},
    loss_judged_by_the_timer_alone: {"C10"},
    suspend_not_counted: {"C4", "C10"},
    no_room_for_drift: {"C4"},
    fence_from_a_counter_that_is_forgotten: {"C1", "C3"},
    lost_lease_released_all_the_same: {"C8"},
    retry_under_a_token_that_is_being_given_back: {"C4"},
    expired_lease_renewed: {"C8"},
    fence_checked_on_writes_only: {"C6"},
    fence_must_be_strictly_greater: {"C7"},
}
