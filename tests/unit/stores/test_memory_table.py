"""The table behind the memory store: its clock, its fences, forgetting and restoring, and all of it against a model."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from holdfast.stores.memory.store import CAPABILITIES, MemoryEngine, MemoryTable
from holdfast.stores.memory.table import AUDIT_MAX
from holdfast.types import NS, AcquireRequest, Busy, Grant, Instant, Renewal

LONG = 60 * NS


class ManualClock:
    def __init__(self, wall_ns: int = 1_700_000_000 * NS) -> None:
        self.mono = self.boot = 5 * NS
        self.wall = wall_ns

    def now(self) -> Instant:
        return Instant(self.mono, self.boot, self.wall)

    def advance(self, ns: int) -> None:
        self.mono += ns
        self.boot += ns
        self.wall += ns


def ask(key: str = "k", token: str = "t" * 32, ttl_ns: int = LONG, ticket: str | None = None) -> AcquireRequest:
    return AcquireRequest(key, token, f"owner-of-{token[:4]}", "family", ttl_ns, ticket, LONG if ticket else 0)


def granted(answer: Grant | Busy) -> Grant:
    assert isinstance(answer, Grant)
    return answer


def refused(answer: Grant | Busy) -> Busy:
    assert isinstance(answer, Busy)
    return answer


# The table and its clock.


def test_an_empty_table_is_what_a_new_engine_has() -> None:
    assert MemoryTable().holdings("", 10) == []
    assert MemoryEngine().capabilities == CAPABILITIES


def test_a_lease_lives_until_its_last_nanosecond_and_not_a_nanosecond_longer() -> None:
    clock = ManualClock()
    table = MemoryTable(clock)
    granted(table.acquire(ask(ttl_ns=100)))
    clock.advance(99)
    assert refused(table.acquire(ask(token="u" * 32))).remaining_ns == 1
    clock.advance(1)
    granted(table.acquire(ask(token="u" * 32)))


def test_expiry_counts_the_time_of_a_suspended_host_and_ignores_the_wall_clock() -> None:
    clock = ManualClock()
    table = MemoryTable(clock)
    granted(table.acquire(ask(ttl_ns=NS)))
    clock.wall += 3600 * NS
    refused(table.acquire(ask(token="u" * 32)))
    clock.boot += NS  # suspended: the monotonic clock stood still
    granted(table.acquire(ask(token="u" * 32)))


def test_a_fence_is_wall_time_in_microseconds_at_the_least_and_rises_when_that_stands_still() -> None:
    clock = ManualClock()
    table = MemoryTable(clock)
    fences = [granted(table.acquire(ask(key=f"k{number}"))).fence for number in range(3)]
    floor = clock.wall // 1000
    assert fences == [floor, floor + 1, floor + 2]


def test_a_fence_does_not_go_back_with_the_wall_clock() -> None:
    clock = ManualClock()
    table = MemoryTable(clock)
    first = granted(table.acquire(ask("a"))).fence
    clock.wall -= 3600 * NS
    second = granted(table.acquire(ask("b"))).fence
    assert first < second
    clock.advance(4 * NS)
    assert granted(table.acquire(ask("c"))).fence == second + 3_000_000  # at the pace of the clock, and not one by one


def test_two_copies_of_a_table_with_a_clock_that_was_set_back_never_grant_the_same_fence() -> None:
    """A replica that missed the last grants, and its primary: both count on from what they have in common."""
    clock = ManualClock()
    table = MemoryTable(clock)
    granted(table.acquire(ask("first")))
    snapshot = table.snapshot()
    clock.wall -= 3600 * NS
    lost = [granted(table.acquire(ask(f"k{n}", f"{n:032x}"))).fence for n in range(20)]
    table.restore(snapshot)
    again = [granted(table.acquire(ask(f"k{n}", f"{n + 20:032x}"))).fence for n in range(20)]
    assert not set(lost) & set(again)


def test_a_copy_that_knows_how_late_it_is_grants_higher_fences_than_the_one_that_was_lost() -> None:
    clock = ManualClock()
    table = MemoryTable(clock)
    granted(table.acquire(ask("first")))
    clock.wall -= 3600 * NS
    granted(table.acquire(ask("second")))
    snapshot = table.snapshot()
    lost = []
    for number in range(20):
        clock.advance(1_000_000)
        lost.append(granted(table.acquire(ask(f"k{number}"))).fence)
    clock.advance(1_000_000)
    table.restore(snapshot)
    assert granted(table.acquire(ask("third"))).fence > max(lost)


def test_a_table_that_forgot_everything_still_grants_higher_fences() -> None:
    clock = ManualClock()
    table = MemoryTable(clock)
    before = granted(table.acquire(ask())).fence
    table.force_release("k", "op", "why")
    refused_ticket = ask(token="w" * 32, ticket="w")
    granted(table.acquire(ask(token="u" * 32)))
    refused(table.acquire(refused_ticket))
    clock.advance(1_000_000)
    table.forget()
    assert table.inspect("k") is None
    assert table.audit(10) == []
    assert granted(table.acquire(ask(token="v" * 32, ticket="v"))).fence > before + 2


def test_a_restored_snapshot_brings_back_what_was_known_then_and_is_not_changed_by_what_comes_after() -> None:
    clock = ManualClock()
    table = MemoryTable(clock)
    old = granted(table.acquire(ask()))
    snapshot = table.snapshot()
    assert table.release("k", old.token, 0)
    newer = granted(table.acquire(ask("other", token="o" * 32)))
    for _ in range(2):  # the same snapshot can be restored again
        clock.advance(1_000_000)
        table.restore(snapshot)
        holding = table.inspect("k")
        assert holding is not None
        assert holding.fence == old.fence
        assert table.inspect("other") is None
        after = granted(table.acquire(ask("third", token="3" * 32)))
        assert after.fence > newer.fence


@pytest.mark.threat("X15")
def test_expired_keys_and_dead_queues_do_not_pile_up() -> None:
    clock = ManualClock()
    table = MemoryTable(clock)
    for number in range(5_000):
        granted(table.acquire(ask(f"k{number}", ttl_ns=10)))
        refused(table.acquire(AcquireRequest(f"k{number}", "w" * 32, "o", "f", 10, "ticket", 10)))
        clock.advance(10)
    assert len(table._state.entries) + len(table._state.queues) <= 600


def test_living_keys_survive_the_sweep() -> None:
    table = MemoryTable(ManualClock())
    for number in range(2_000):
        granted(table.acquire(ask(f"k{number:04}")))
    assert [each.key for each in table.holdings("", 9_999)] == [f"k{number:04}" for number in range(2_000)]


def test_the_audit_log_keeps_the_newest_records() -> None:
    table = MemoryTable(ManualClock())
    for number in range(AUDIT_MAX + 5):
        granted(table.acquire(ask()))
        table.force_release("k", "op", str(number))
    records = table.audit(AUDIT_MAX * 2)
    assert len(records) == AUDIT_MAX
    assert records[0].reason == str(AUDIT_MAX + 4)
    assert records[-1].reason == "5"


def test_a_late_renewal_or_release_does_not_change_the_time_a_key_is_kept() -> None:
    clock = ManualClock()
    table = MemoryTable(clock)
    grant = granted(table.acquire(ask()))
    assert table.release("k", grant.token, 5 * NS)
    assert table.renew([Renewal("k", grant.token, "", LONG)]) == [False]
    assert not table.release("k", grant.token, 0)
    assert refused(table.acquire(ask())).remaining_ns == 5 * NS
    clock.advance(5 * NS)
    granted(table.acquire(ask()))


def test_leaving_the_head_of_the_queue_of_a_free_key_wakes_those_behind() -> None:
    table = MemoryTable(ManualClock())
    grant = granted(table.acquire(ask()))
    refused(table.acquire(ask(token="a" * 32, ticket="a")))
    refused(table.acquire(ask(token="b" * 32, ticket="b")))
    woken: list[str] = []
    table.listen("k", lambda: woken.append("b"))
    table.leave("k", "a")
    assert woken == []  # the key is held: no waiter could have it
    refused(table.acquire(ask(token="a" * 32, ticket="a")))
    table.leave("k", "b")
    assert table.release("k", grant.token, 0)
    woken.clear()
    table.leave("k", "unknown")
    assert woken == []
    table.leave("k", "a")
    assert woken == ["b"]


# Against a model.


class Model(RuleBasedStateMachine):
    """The table beside the simplest thing that could be right: who holds what until when, and the highest fence."""

    asks = Bundle("asks")

    def __init__(self) -> None:
        super().__init__()
        self.clock = ManualClock()
        self.table = MemoryTable(self.clock)
        self.held: dict[str, tuple[str, int, int]] = {}  # key -> token, until, fence
        self.top = 0
        self.count = 0

    def _holder(self, key: str) -> str | None:
        token, until, _ = self.held.get(key, ("", 0, 0))
        return token if until > self.clock.boot else None

    @rule(target=asks, key=st.sampled_from("abc"), ttl_ns=st.integers(1, 50))
    def new_asker(self, key: str, ttl_ns: int) -> AcquireRequest:
        self.count += 1
        return ask(key, f"{self.count:032x}", ttl_ns)

    @rule(asked=asks)
    def acquire(self, asked: AcquireRequest) -> None:
        answer = self.table.acquire(asked)
        holder = self._holder(asked.key)
        if holder is None:
            assert granted(answer).fence > self.top
            self.top = granted(answer).fence
        elif holder == asked.token:
            assert granted(answer).fence == self.held[asked.key][2]
        else:
            assert refused(answer).remaining_ns == self.held[asked.key][1] - self.clock.boot
            return
        self.held[asked.key] = (asked.token, self.clock.boot + asked.ttl_ns, granted(answer).fence)

    @rule(asked=asks, ttl_ns=st.integers(1, 50))
    def renew(self, asked: AcquireRequest, ttl_ns: int) -> None:
        ours = self._holder(asked.key) == asked.token
        assert self.table.renew([Renewal(asked.key, asked.token, "", ttl_ns)]) == [ours]
        if ours:
            self.held[asked.key] = (asked.token, self.clock.boot + ttl_ns, self.held[asked.key][2])

    @rule(asked=consumes(asks), keep_ns=st.sampled_from([0, 0, 7]))
    def release(self, asked: AcquireRequest, keep_ns: int) -> None:
        ours = self._holder(asked.key) == asked.token
        assert self.table.release(asked.key, asked.token, keep_ns) is ours
        if ours:
            _, until, fence = self.held[asked.key]
            self.held[asked.key] = ("kept", min(until, self.clock.boot + keep_ns), fence)

    @rule(key=st.sampled_from("abc"))
    def force(self, key: str) -> None:
        record = self.table.force_release(key, "op", "why")
        assert (record is None) == (self._holder(key) is None)
        if record is not None:
            assert record.previous_fence == self.held.pop(key)[2]
            assert record.fence > self.top
            self.top = record.fence

    @rule(ns=st.integers(1, 40))
    def time_passes(self, ns: int) -> None:
        self.clock.advance(ns)

    @rule()
    def restart(self) -> None:
        self.clock.advance(1000 * (self.count + 1) * 1000)  # a restart takes longer than the grants took fences
        self.table.forget()
        self.held.clear()

    @invariant()
    def views_agree(self) -> None:
        shown = {each.key: each.remaining_ns for each in self.table.holdings("", 10)}
        assert shown == {
            key: until - self.clock.boot for key, (_, until, _) in self.held.items() if until > self.clock.boot
        }


TestModel = Model.TestCase
