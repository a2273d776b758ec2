"""The kit is only worth something if a store that is wrong fails it. Each mutant must be found, by name."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.ports import LISTEN_NS, Capabilities, Store, Watch
from holdfast.stores.memory.store import CAPABILITIES, MemoryStore, MemoryTable
from holdfast.testing.conformance import (
    CHECKS,
    AsyncioWorld,
    BlockingWorld,
    Claim,
    Nonconforming,
    Unproven,
    Violation,
    check_store,
    checks_for,
    proofs,
    run_check,
)
from holdfast.testing.conformance.check import expect_no_token
from holdfast.testing.conformance.environment import GRACE_S
from holdfast.testing.conformance.names import TAILS
from holdfast.types import MS, NS, AcquireRequest, AuditRecord, Busy, Grant, Guarantee, Holding, Renewal, check_key
from support.virtual_clock import LoopClock, VirtualClock, VirtualLoopWorld
from unit.testing.mutants_batches import (
    ForgetsTheFenceOfMany,
    GivesManyTheFirstAnswer,
    ReleasesManyWithoutCompare,
    RenewsInReverse,
)

T = TypeVar("T")


class ReleasesWithoutCompare(MemoryStore):
    """Deletes the key for any client: the classic bug, A frees B's lock."""

    async def release(self, key: str, token: str, claim: str | None, keep_ns: int, timeout_ns: int) -> bool:
        entry = self.table._state.entries.get(key)
        return self.table.release(key, entry.token if entry else token, keep_ns)


class RenewsWithoutCompare(MemoryStore):
    """Extends whatever lease there is."""

    async def renew_many(self, renewals: Sequence[Renewal], timeout_ns: int) -> list[bool | None]:
        entries = self.table._state.entries
        return self.table.renew(
            [each._replace(token=entries[each.key].token) if each.key in entries else each for each in renewals]
        )


class RenewsTheExpired(MemoryStore):
    """Brings an expired lease back to life, as if no client could have taken it meanwhile."""

    async def renew_many(self, renewals: Sequence[Renewal], timeout_ns: int) -> list[bool | None]:
        for each in renewals:
            entry = self.table._state.entries.get(each.key)
            if entry is not None and entry.token == each.token:
                now_ns = self.table._clock.now().boot
                self.table._state.entries[each.key] = replace(entry, expires_ns=now_ns + each.ttl_ns)
        return self.table.renew(renewals)


class ForgetsTheFenceOnRelease(MemoryStore):
    """Counts fences per lease and loses the count with it."""

    async def acquire(self, ask: AcquireRequest, timeout_ns: int) -> Grant | Busy:
        answer = self.table.acquire(ask)
        if isinstance(answer, Busy):
            return answer
        entry = self.table._state.entries[ask.key]
        self.table._state.entries[ask.key] = replace(entry, fence=1)
        return answer._replace(fence=1)


class GivesTheSameFenceAfterExpiry(MemoryStore):
    """Raises the fence on release only, so a takeover after expiry gets the fence of the one it took over from."""

    async def acquire(self, ask: AcquireRequest, timeout_ns: int) -> Grant | Busy:
        before = self.table._state.entries.get(ask.key)
        answer = self.table.acquire(ask)
        if isinstance(answer, Busy) or before is None:
            return answer
        entry = self.table._state.entries[ask.key]
        self.table._state.entries[ask.key] = replace(entry, fence=before.fence)
        return answer._replace(fence=before.fence)


class FenceFromASecondStep(MemoryStore):
    """A repeated ask gets a new fence: the grant is not idempotent."""

    async def acquire(self, ask: AcquireRequest, timeout_ns: int) -> Grant | Busy:
        answer = self.table.acquire(ask)
        if isinstance(answer, Busy):
            return answer
        with self.table._mutex:
            return answer._replace(fence=self.table._next_fence(self.table._clock.now(), ask.token))


class TellsTheTokenToTheRefused(MemoryStore):
    """Shows the raw value of the key, owner and token, to every client that finds it busy."""

    async def acquire(self, ask: AcquireRequest, timeout_ns: int) -> Grant | Busy:
        answer = self.table.acquire(ask)
        if isinstance(answer, Grant):
            return answer
        entry = self.table._state.entries.get(ask.key)
        return answer._replace(owner=f"{entry.owner} {entry.token}") if entry else answer


class FingerprintOfTheTokenItself(MemoryStore):
    """Shortens the token instead of hashing it."""

    async def inspect(self, key: str, timeout_ns: int) -> Holding | None:
        holding = self.table.inspect(key)
        entry = self.table._state.entries.get(key)
        return replace(holding, fingerprint=entry.token[:8]) if holding and entry else holding


class _Deaf:
    """Hears only what happens while it waits."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch

    async def wait(self, timeout_ns: int) -> bool:
        await self._watch.wait(0)
        return await self._watch.wait(min(timeout_ns, 20 * MS))

    async def close(self) -> None:
        await self._watch.close()


class MissesTheWakeUpBeforeTheWait(MemoryStore):
    """Begins to listen when the wait begins, and so misses a release just before it."""

    async def watch(self, key: str, timeout_ns: int = LISTEN_NS) -> Watch:
        return _Deaf(await super().watch(key, timeout_ns))


class ExpiresEarly(MemoryStore):
    """Counts a lease shorter than it was granted."""

    async def acquire(self, ask: AcquireRequest, timeout_ns: int) -> Grant | Busy:
        return self.table.acquire(ask._replace(ttl_ns=ask.ttl_ns // 2))


class NeverExpires(MemoryStore):
    """Sets the key and forgets the expiry."""

    async def acquire(self, ask: AcquireRequest, timeout_ns: int) -> Grant | Busy:
        return self.table.acquire(ask._replace(ttl_ns=10**6 * NS))


class FoldsCase(MemoryStore):
    """Compares names without case, as some databases do."""

    async def acquire(self, ask: AcquireRequest, timeout_ns: int) -> Grant | Busy:
        answer = self.table.acquire(ask._replace(key=ask.key.lower()))
        return answer._replace(key=ask.key)


class PrefixIsAPattern(MemoryStore):
    """Hands the prefix to a pattern match without escaping it."""

    async def holdings(self, prefix: str, limit: int, timeout_ns: int, after: str = "") -> list[Holding]:
        head = prefix.split("*", maxsplit=1)[0].split("?", maxsplit=1)[0]
        return self.table.holdings(head, limit, after)


class BreaksWithoutARecord(MemoryStore):
    """A forced release that leaves no trace."""

    async def audit(self, limit: int, timeout_ns: int) -> list[AuditRecord]:
        return []


class LetsTheQueueBeJumped(MemoryStore):
    """Grants a free key to the first request, regardless of the queue."""

    async def acquire(self, ask: AcquireRequest, timeout_ns: int) -> Grant | Busy:
        answer = self.table.acquire(ask)
        if isinstance(answer, Busy) and answer.owner is None:
            return self.table.acquire(ask._replace(ticket=None))
        return answer


class DeadTicketsBlock(MemoryStore):
    """A ticket without a lease: a waiter that died wedges the queue."""

    async def acquire(self, ask: AcquireRequest, timeout_ns: int) -> Grant | Busy:
        return self.table.acquire(ask._replace(ticket_ttl_ns=10**6 * NS))


class ClosedForGood(MemoryStore):
    """Cannot be used after a close."""

    _closed = False

    async def acquire(self, ask: AcquireRequest, timeout_ns: int) -> Grant | Busy:
        if self._closed:
            raise RuntimeError("closed")
        return await super().acquire(ask, timeout_ns)

    async def close(self) -> None:
        self._closed = True


PLANTED: list[tuple[type[MemoryStore], str]] = [
    (ReleasesWithoutCompare, "a stale owner can neither release nor renew the new owners lease"),
    (ReleasesWithoutCompare, "a release with another token changes nothing"),
    (RenewsWithoutCompare, "a renewal with another token is refused and changes nothing"),
    (RenewsTheExpired, "an expired lease cannot be renewed"),
    (ReleasesManyWithoutCompare, "of many releases only those of the token take effect"),
    (GivesManyTheFirstAnswer, "of many keys only those that are held are busy"),
    (GivesManyTheFirstAnswer, "many free keys are granted in the order of the asking"),
    (ForgetsTheFenceOfMany, "keys that are asked for together have fences above all earlier ones"),
    (RenewsInReverse, "a batch of renewals is answered one by one and in order"),
    (ForgetsTheFenceOnRelease, "fences rise from grant to grant on every connection"),
    (GivesTheSameFenceAfterExpiry, "a fence rises when a lease expires"),
    (FenceFromASecondStep, "a repeated ask gets the same grant again"),
    (TellsTheTokenToTheRefused, "no view gives away a token"),
    (FingerprintOfTheTokenItself, "no view gives away a token"),
    (MissesTheWakeUpBeforeTheWait, "a release between watch and wait is not missed"),
    (ExpiresEarly, "an expired key is given to the next and not before its time"),
    (NeverExpires, "an expired key is given to the next and not before its time"),
    (FoldsCase, "keys of every kind are locks of their own"),
    (PrefixIsAPattern, "a prefix is plain text and not a pattern"),
    (BreaksWithoutARecord, "a forced release leaves a complete record that every connection sees"),
    (LetsTheQueueBeJumped, "tickets are served in the order of their arrival"),
    (DeadTicketsBlock, "a ticket that expired does not hold up the queue"),
    (ClosedForGood, "a closed store can be closed again and used again"),
]


def virtual_world(make: Callable[[MemoryTable], Store]) -> BlockingWorld:
    clock = VirtualClock()
    table = MemoryTable(clock)
    return BlockingWorld(lambda: make(table), sleep=clock.advance, now=clock.read, patience_ns=2 * NS)


@pytest.mark.parametrize(
    ("store_class", "sentence"), [pytest.param(*case, id=f"{case[0].__name__}-{case[1]}") for case in PLANTED]
)
def test_a_planted_bug_is_found_by_the_sentence_it_breaks(store_class: type[MemoryStore], sentence: str) -> None:
    check = next(each for each in CHECKS if each.name == sentence)
    with pytest.raises((Violation, RuntimeError)):
        run_check(check, virtual_world(store_class))
    run_check(check, virtual_world(MemoryStore))


def test_replaced_time_hardly_passes_while_somebody_is_awake_and_at_once_when_everybody_sleeps() -> None:
    """A thread that the machine delays between two steps does not lose its lease to a sleeper in virtual time."""
    world = virtual_world(MemoryStore)
    began, asleep = world.now_ns(), threading.Event()

    async def polls() -> int:
        for _ in range(400):
            asleep.set()
            await world.sleep(5 * MS)
        return world.now_ns()

    async def is_held_up() -> int:
        assert asleep.wait(30)
        started = time.monotonic()
        sum(range(10**6))  # long enough for the interpreter to let the other one run
        passed = world.now_ns() - began
        assert passed <= 5 * MS * ((time.monotonic() - started) / GRACE_S + 2)
        await world.sleep(10 * NS)
        return world.now_ns() - began - passed

    woke, slept = world.drive(world.together([polls(), is_held_up()]))
    assert (woke - began, slept) == (2 * NS, 10 * NS)
    now = world.now_ns()
    assert world.drive(world.together([polls()])) == [now + 2 * NS]
    world.drive(world.sleep(NS))
    assert world.now_ns() == now + 3 * NS


@pytest.mark.parametrize("asynchronous", [False, True], ids=["blocking", "asyncio"])
def test_the_whole_kit_lists_every_sentence_that_a_store_breaks(asynchronous: bool) -> None:
    table = MemoryTable()
    with pytest.raises(Nonconforming) as caught:
        check_store(
            lambda: ReleasesWithoutCompare(table, asynchronous=asynchronous),
            asynchronous=asynchronous,
            short_ttl_ns=20 * MS,
            patience_ns=2 * NS,
        )
    names = {name for name, _ in caught.value.broken}
    assert "a release with another token changes nothing" in names
    assert "a free key is granted to the asker" not in names
    assert all(name in str(caught.value) for name in names)


def test_the_whole_kit_passes_the_memory_store_in_virtual_time_without_waiting() -> None:
    for check in checks_for(CAPABILITIES):
        run_check(check, virtual_world(MemoryStore))


def test_the_whole_kit_passes_the_asyncio_memory_store_on_a_virtual_loop() -> None:
    for check in checks_for(CAPABILITIES):
        opener = partial(MemoryStore, MemoryTable(LoopClock()), asynchronous=True)
        run_check(check, VirtualLoopWorld(opener))


def test_a_store_that_claims_less_is_asked_less() -> None:
    least = Capabilities("x", Guarantee.EFFICIENCY_ONLY, wakeups=False, fair=False, durable=False, shared=False)
    assert {check.claim for check in checks_for(least)} == {Claim.EXCLUSIVE}
    assert {check.claim for check in checks_for(CAPABILITIES)} == {
        Claim.EXCLUSIVE,
        Claim.FENCED,
        Claim.WAKEUPS,
        Claim.FAIR,
        Claim.MANY,
    }


def test_for_every_claim_a_store_is_planted_that_breaks_it_and_no_sentence_stands_twice() -> None:
    claims = {check.name: check.claim for check in CHECKS}
    assert len(claims) == len(CHECKS)
    below = {Claim.SHARED, Claim.DURABLE}  # broken in another process, and by a restart
    assert {claims[sentence] for _, sentence in PLANTED} == set(Claim) - below


class _SaysShared(MemoryStore):
    @property
    def capabilities(self) -> Capabilities:
        return replace(CAPABILITIES, shared=True)


def test_a_claim_that_this_world_cannot_try_is_reported_as_unproven_and_not_as_proven() -> None:
    table = MemoryTable()
    report = check_store(lambda: _SaysShared(table), short_ttl_ns=20 * MS)
    assert [name for name, _ in report.unproven] == proofs()[Claim.SHARED]
    assert not set(report.proven) & set(proofs()[Claim.SHARED])


def test_a_store_that_claims_to_be_shared_and_is_not_is_found_by_another_process() -> None:
    table = MemoryTable()
    check = next(each for each in CHECKS if each.claim is Claim.SHARED)
    with pytest.raises(Unproven):
        run_check(check, BlockingWorld(lambda: _SaysShared(table)))
    with pytest.raises(Violation, match="another process"):
        run_check(check, BlockingWorld(lambda: _SaysShared(table), elsewhere="memory://somewhere"))


def test_a_store_that_claims_to_be_durable_and_forgets_is_found_by_a_restart() -> None:
    table = MemoryTable()
    check = next(each for each in CHECKS if each.claim is Claim.DURABLE)
    run_check(check, BlockingWorld(lambda: MemoryStore(table)))
    with pytest.raises(Violation):
        run_check(check, BlockingWorld(lambda: MemoryStore(table), restart=table.forget))


def test_an_asyncio_store_in_a_blocking_world_is_refused_and_does_not_hang() -> None:
    class Suspends(MemoryStore):
        async def ping(self, timeout_ns: int) -> None:
            await asyncio.sleep(0)

    table = MemoryTable()
    check = next(each for each in CHECKS if each.name == "a store answers a ping")
    with pytest.raises(RuntimeError, match="suspended"):
        run_check(check, BlockingWorld(lambda: Suspends(table)))
    run_check(check, AsyncioWorld(lambda: Suspends(table)))


def test_every_awkward_name_of_the_kit_is_a_name_that_holdfast_accepts() -> None:
    assert len(set(TAILS)) == len(TAILS)
    for tail in TAILS:
        assert check_key("name", "k" + tail) == "k" + tail


@given(st.text("0123456789abcdef", min_size=32, max_size=32), st.integers(0, 24))
def test_any_eight_characters_of_a_token_are_seen_in_what_is_shown(token: str, start: int) -> None:
    with pytest.raises(Violation):
        expect_no_token({"owner": f"svc-{token[start : start + 8].upper()}"}, token, "a view")
    expect_no_token("svc@host:1/xyz", token, "a view")


def test_the_kit_needs_no_test_runner() -> None:
    import holdfast.testing.conformance as kit

    for path in Path(kit.__file__).parent.glob("[!_]*.py"):
        assert "pytest" not in path.read_text()
