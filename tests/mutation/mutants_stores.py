"""Bugs in stores and resources as the simulator knows them: what the server of leases, or of the data, gets wrong."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from holdfast.core.history.events import EventKind, Record
from holdfast.core.lease.fencing import Count
from holdfast.stores.memory.table import MemoryTable, _State
from holdfast.testing.sim.environment.store import LeaseServer, SimStore
from holdfast.testing.sim.worlds.resource import FencedResource
from holdfast.types import AcquireRequest, Busy, Grant, Instant, Renewal
from mutation.detectors import broken
from mutation.mutant import MutantGroup

group = MutantGroup()
keep = group.keep

FOREVER_NS = 10**18


@keep(
    "many: release by key",
    where="stores/memory/table.py",
    found_by=broken(19, "C8", text="released by someone who did not own it"),
    attacks=("R1", "R4", "R19"),
)
def release_without_compare(patch: pytest.MonkeyPatch) -> None:
    """Any release frees the key, even that of a client that has lost it to another."""

    release = MemoryTable.release

    def by_key(self: MemoryTable, key: str, token: str, keep_ns: int) -> bool:
        entry = self._state.entries.get(key)
        return release(self, key, token if entry is None else entry.token, keep_ns)

    patch.setattr(MemoryTable, "release", by_key)


@keep(
    "many: the counter outside the script",
    where="testing/sim/environment/store.py",
    found_by=broken(22, "C2", "C3"),
    attacks=("R47",),
)
def fence_from_a_second_round_trip(patch: pytest.MonkeyPatch) -> None:
    """The key is granted by one request and the fence counted by the next, in another order."""

    acquire = SimStore.acquire

    def grant(self: LeaseServer, ask: AcquireRequest) -> Grant | Busy:
        return self.table.acquire(ask)

    def number(self: LeaseServer, ask: AcquireRequest, granted_ns: int) -> int:
        fence = self.fences[ask.key, ask.token] = self.table._next_fence(self.clock.now(), ask.token)
        self._note(Record(EventKind.HANDED, granted_ns, ask.key, owner=ask.owner, fence=fence))
        return fence

    async def acquire_then_number(self: SimStore, ask: AcquireRequest, timeout_ns: int) -> Grant | Busy:
        answer = await acquire(self, ask, timeout_ns)
        if isinstance(answer, Grant):
            now = self._network.loop.now_ns
            fence = await self.call("number", ask.key, lambda: number(self._server, ask, now), timeout_ns)
            return answer._replace(fence=fence)
        return answer

    patch.setattr(LeaseServer, "acquire", grant)
    patch.setattr(SimStore, "acquire", acquire_then_number)


@keep(
    "many: the counter evicted, or lost in a restart",
    where="stores/memory/table.py",
    found_by=broken(33, "C1", "C3"),
    attacks=("R47",),
)
def fence_from_a_counter_that_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    """Fences are counted from one again when the store comes back empty."""

    def count(self: MemoryTable, now: Instant, secret: str) -> int:
        self._state.count = Count(self._state.count.fence + 1)
        return self._state.count.fence

    patch.setattr(MemoryTable, "_next_fence", count)


@keep(
    "many: the failover epoch ignored", where="stores/memory/table.py", found_by=broken(9, "C1", "C3"), attacks=("R47",)
)
def the_epoch_is_ignored_after_a_failover(patch: pytest.MonkeyPatch) -> None:
    """The counter survives restarts, but goes back when a replica that lagged behind takes over."""

    def count(self: MemoryTable, now: Instant, secret: str) -> int:
        self._state.count = Count(self._state.count.fence + 1)
        return self._state.count.fence

    def forget(self: MemoryTable) -> None:
        self._state = _State(count=self._state.count)

    patch.setattr(MemoryTable, "_next_fence", count)
    patch.setattr(MemoryTable, "forget", forget)


@keep(
    "Holdfast itself, as its page of guarantees admitted",
    where="core/lease/fencing.py",
    found_by=broken(212, "C1", text="was given out twice"),
    attacks=("R47",),
)
def a_failover_gives_out_the_same_fence(patch: pytest.MonkeyPatch) -> None:
    """While the clock is behind the counter, fences are counted one by one: a lagging replica repeats them."""
    patch.setattr(Count, "next", lambda self, now, secret: Count(max(now, self.fence + 1), now))


@keep(
    "many: renew without an owner check",
    where="stores/memory/table.py",
    found_by=broken(17, "C8", text="renewed by someone who did not own it"),
    attacks=("R7",),
)
def expired_lease_renewed(patch: pytest.MonkeyPatch) -> None:
    """The store renews any lease of that key, for any client and however late."""

    def renew(self: MemoryTable, renewal: Any, now: Instant) -> bool:
        entry = self._state.entries.get(renewal.key)
        if entry is None:
            return False
        self._state.entries[renewal.key] = replace(entry, expires_ns=now.boot + renewal.ttl_ns)
        return True

    patch.setattr(MemoryTable, "_renew", renew)


@keep(
    "many: the fence on the write only",
    where="testing/sim/worlds/resource.py",
    found_by=broken(67, "C6"),
    attacks=("R47", "R65"),
)
def fence_checked_on_writes_only(patch: pytest.MonkeyPatch) -> None:
    """A read does not register the fence of the reader: the classic lost update."""

    def read(self: FencedResource, owner: str, fence: int) -> int:
        return self._version

    patch.setattr(FencedResource, "_read", read)


@keep("many: strictly greater", where="testing/sim/worlds/resource.py", found_by=broken(5, "C7"), attacks=("R47",))
def fence_must_be_strictly_greater(patch: pytest.MonkeyPatch) -> None:
    """The resource refuses the second write of the same grant."""

    patch.setattr(FencedResource, "accepts", lambda self, fence: fence > self._seen)


@keep("etcd #11456", where="stores/memory/table.py", found_by=broken(19, "C4"))
def a_lease_that_runs_while_its_asker_waits(patch: pytest.MonkeyPatch) -> None:
    """The time of a lease begins when its client is enqueued, so it may be over by the time it is granted."""
    acquire = MemoryTable.acquire
    came: dict[tuple[int, str], int] = {}

    def since_it_came(self: MemoryTable, ask: AcquireRequest) -> Grant | Busy:
        now = self._clock.now()
        first = came.setdefault((id(self), ask.token), now.boot)
        answer = acquire(self, ask)
        if isinstance(answer, Grant):
            entry = self._state.entries[ask.key]
            self._state.entries[ask.key] = replace(entry, expires_ns=first + ask.ttl_ns)
        return answer

    patch.setattr(MemoryTable, "acquire", since_it_came)


@keep("etcd #14019", where="testing/sim/environment/store.py", found_by=broken(19, "C11"))
def a_restart_loses_track_of_the_leases(patch: pytest.MonkeyPatch) -> None:
    """After a restart the keys are there and their expiry is not: what a dead holder left is never free again."""
    hang_up = LeaseServer.hang_up

    def restarted(self: LeaseServer) -> None:
        hang_up(self)
        state = self.table._state
        state.entries = {key: replace(entry, expires_ns=FOREVER_NS) for key, entry in state.entries.items()}

    patch.setattr(LeaseServer, "hang_up", restarted)


@keep("reinhardt #1476", where="testing/sim/environment/store.py", found_by=broken(6, "C4"), attacks=("R7",))
def extending_is_releasing_and_taking_again(patch: pytest.MonkeyPatch) -> None:
    """A renewal releases the key and acquires it again; another client may acquire it in between."""

    def give_back(server: LeaseServer, each: Renewal) -> object:
        entry = server.table._live(each.key, server.clock.now())
        return server.table._state.entries.pop(each.key) if entry is not None and entry.owned_by(each.token) else None

    def take_again(server: LeaseServer, each: Renewal, entry: Any) -> bool:
        now = server.clock.now()
        if server.table._live(each.key, now) is not None:
            return False
        server.table._state.entries[each.key] = replace(entry, expires_ns=now.boot + each.ttl_ns)
        return True

    async def renew_many(self: SimStore, renewals: Sequence[Renewal], timeout_ns: int) -> list[bool | None]:
        return [await renew(self, each, timeout_ns) for each in renewals]

    async def renew(self: SimStore, each: Renewal, timeout_ns: int) -> bool:
        server, sent = self._server, self._network.loop.now_ns
        entry = await self.call("release", each.key, lambda: give_back(server, each), timeout_ns)
        if entry is None:
            return False
        taken: bool = await self.call("acquire", each.key, lambda: take_again(server, each, entry), timeout_ns)
        if taken:
            self.sent_ns[each.key, each.token] = sent
        return taken

    patch.setattr(SimStore, "renew_many", renew_many)


@keep(
    "many: a non-atomic extend",
    where="testing/sim/environment/store.py",
    found_by=broken(0, "C8", text="renewed by someone who did not own it"),
    attacks=("R7",),
)
def extending_in_two_steps(patch: pytest.MonkeyPatch) -> None:
    """A renewal reads the holder, and sets the expiry in a second request, even for another holder."""

    def extend(self: LeaseServer, each: Renewal) -> bool:
        entry = self.table._state.entries.get(each.key)
        if entry is None:
            return False
        self.table._state.entries[each.key] = replace(entry, expires_ns=self.clock.now().boot + each.ttl_ns)
        self.record(EventKind.EXTENDED, each.key, self.fences.get((each.key, each.token)))
        return True

    def owns(server: LeaseServer, each: Renewal) -> bool:
        entry = server.table._live(each.key, server.clock.now())
        return entry is not None and entry.owned_by(each.token)

    async def renew_many(self: SimStore, renewals: Sequence[Renewal], timeout_ns: int) -> list[bool | None]:
        return [await renew(self, each, timeout_ns) for each in renewals]

    async def renew(self: SimStore, each: Renewal, timeout_ns: int) -> bool:
        server, sent = self._server, self._network.loop.now_ns
        if not await self.call("look", each.key, lambda: owns(server, each), timeout_ns):
            return False
        done: bool = await self.call("extend", each.key, lambda: extend(server, each), timeout_ns)
        if done:
            self.sent_ns[each.key, each.token] = sent
        return done

    patch.setattr(SimStore, "renew_many", renew_many)


@keep("RedBeat (mozilla telemetry-analysis-service #417)", where="stores/memory/table.py", found_by=broken(16, "C11"))
def a_lock_without_expiry(patch: pytest.MonkeyPatch) -> None:
    """The key is taken without a time to live, so the lock of a dead process is never free again."""
    acquire = MemoryTable.acquire

    def held(self: MemoryTable, renewal: Renewal, now: Instant) -> bool:
        entry = self._live(renewal.key, now)
        return entry is not None and entry.owned_by(renewal.token)

    patch.setattr(MemoryTable, "acquire", lambda self, ask: acquire(self, ask._replace(ttl_ns=FOREVER_NS)))
    patch.setattr(MemoryTable, "_renew", held)
