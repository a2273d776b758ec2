"""Decisions about due times: overlap, catch-up after an outage, clock steps, jitter, and versions of an app."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.plane.schedules.rules import (
    DECLARED_NS,
    GRACE_NS,
    ON_TIME_MAX,
    CatchUp,
    Decided,
    Decision,
    DeclaredVersion,
    DuePolicy,
    Every,
    Overlap,
    begin,
    decide,
    shortest_gap_ns,
    upcoming,
    version_in_effect,
)
from holdfast.types import NS
from support.campaigns import campaign

MINUTE = 60 * NS
HOURLY = Every(60 * MINUTE)
T0 = 1_700_000_000 * NS // (60 * MINUTE) * 60 * MINUTE  # on the hour


def at(hours: float) -> int:
    return T0 + round(hours * 60) * MINUTE


def decided(
    now: float, *, done: float = 0, queued: float | None = None, running: bool = False, **policy: object
) -> Decision:
    state = Decided(at(done), None if queued is None else at(queued))
    return decide(HOURLY, DuePolicy(**policy), state, now_ns=at(now), running=running)  # type: ignore[arg-type]


def test_nothing_is_decided_before_the_next_due_time() -> None:
    decision = decided(0.9)
    assert (decision.state, decision.fired, decision.next_ns) == (Decided(at(0)), (), at(1))


def test_a_due_time_is_fired_and_the_next_one_follows() -> None:
    decision = decided(1.01)
    assert (decision.state, decision.fired, decision.next_ns) == (Decided(at(1)), (at(1),), at(2))
    assert (decision.skipped, decision.missed) == (0, 0)


@pytest.mark.parametrize(
    ("overlap", "running", "queued", "fired", "waits", "skipped"),
    [
        (Overlap.SKIP, False, None, [1], None, 0),
        (Overlap.SKIP, True, None, [], None, 1),
        (Overlap.QUEUE, False, None, [1], None, 0),
        (Overlap.QUEUE, True, None, [], 1, 0),
        (Overlap.QUEUE, True, 0, [], 0, 1),  # one waits already
        (Overlap.QUEUE, False, 0, [0], 1, 0),  # the queued one goes first, and the new one waits for it
        (Overlap.ALLOW, True, None, [1], None, 0),
        (Overlap.SKIP, True, 0, [], None, 2),  # queued under another policy
        (Overlap.ALLOW, True, 0, [0, 1], None, 0),
    ],
)
def test_a_due_time_while_the_last_job_has_not_finished_follows_the_overlap_policy(
    overlap: Overlap, running: bool, queued: float | None, fired: list[int], waits: int | None, skipped: int
) -> None:
    decision = decided(1.5, queued=queued, running=running, overlap=overlap)
    assert decision.fired == tuple(map(at, fired))
    assert decision.state == Decided(at(1), None if waits is None else at(waits))
    assert decision.skipped == skipped


def test_a_queued_due_time_is_fired_when_the_job_has_finished() -> None:
    decision = decided(1.5, done=1, queued=1, overlap=Overlap.QUEUE)
    assert (decision.fired, decision.state) == ((at(1),), Decided(at(1)))


@pytest.mark.parametrize(
    ("catch_up", "most", "now", "fired", "missed"),
    [
        (CatchUp.NONE, 100, 5.5, [], 5),
        (CatchUp.NONE, 100, 5, [5], 4),  # the last one is on time
        (CatchUp.LATEST, 100, 5.5, [5], 4),
        (CatchUp.ALL, 100, 5.5, [1, 2, 3, 4, 5], 0),
        (CatchUp.ALL, 2, 5.5, [4, 5], 3),
    ],
)
def test_due_times_of_an_outage_follow_the_catch_up_policy(
    catch_up: CatchUp, most: int, now: float, fired: list[int], missed: int
) -> None:
    decision = decided(now, catch_up=catch_up, catch_up_max=most, overlap=Overlap.ALLOW)
    assert decision.fired == tuple(map(at, fired))
    assert decision.missed == missed
    assert (decision.state, decision.next_ns) == (Decided(at(5)), at(6))


def test_without_catch_up_a_due_time_is_on_time_for_the_grace_period() -> None:
    policy = DuePolicy(catch_up=CatchUp.NONE)
    for late_ns, fired in ((GRACE_NS, 1), (GRACE_NS + 1, 0)):
        decision = decide(HOURLY, policy, Decided(at(0)), now_ns=at(1) + late_ns, running=False)
        assert (len(decision.fired), decision.missed, decision.late_ns) == (fired, 1 - fired, late_ns)


def test_an_outage_of_years_reads_a_bounded_number_of_due_times() -> None:
    read = 0

    class Counted(Every):
        def following(self, after_ns: int):  # type: ignore[no-untyped-def]  # an iterator, as in the parent
            nonlocal read
            for due_ns in super().following(after_ns):
                read += 1
                yield due_ns

    years = 20 * 365 * 24 * 60 * MINUTE
    policy = DuePolicy(Overlap.ALLOW, CatchUp.ALL, 100)
    decision = decide(Counted(MINUTE), policy, Decided(T0), now_ns=T0 + years, running=False)
    assert decision.fired == tuple(T0 + years - n * MINUTE for n in range(99, -1, -1))
    assert decision.state.done_ns == T0 + years
    assert decision.missed == ON_TIME_MAX - 100
    assert read < 2 * ON_TIME_MAX


def test_after_a_step_back_of_the_clock_nothing_is_fired_twice() -> None:
    first = decided(5)
    back = decide(HOURLY, DuePolicy(), first.state, now_ns=at(2.5), running=False)
    assert (back.fired, back.state, back.next_ns) == ((), first.state, at(6))
    again = decide(HOURLY, DuePolicy(), back.state, now_ns=at(6), running=False)
    assert again.fired == (at(6),)


def test_a_schedule_that_is_resumed_begins_with_the_next_due_time_and_not_with_a_decided_one() -> None:
    assert begin(HOURLY, at(3.5), at(1)) == Decision(Decided(at(3.5)), at(4))
    assert begin(HOURLY, at(3.5), at(7)) == Decision(Decided(at(7)), at(8))  # the clock was set back


def test_an_interval_is_anchored_and_does_not_drift() -> None:
    third = Every(7 * NS, 2 * NS)
    assert upcoming(third, 0, 3) == [2 * NS, 9 * NS, 16 * NS]
    assert upcoming(third, 9 * NS, 1) == upcoming(third, 15 * NS, 1) == [16 * NS]
    assert shortest_gap_ns(third, 0) == 7 * NS


def test_jitter_depends_on_schedule_and_due_time_alone() -> None:
    policy = DuePolicy(jitter_ns=MINUTE, seed="acme/nightly")
    moved = [policy.submits_ns(at(n)) - at(n) for n in range(50)]
    assert moved == [policy.submits_ns(at(n)) - at(n) for n in range(50)]
    assert all(0 <= each <= MINUTE for each in moved)
    assert len(set(moved)) > 40
    assert moved != [DuePolicy(jitter_ns=MINUTE, seed="acme/other").submits_ns(at(n)) - at(n) for n in range(50)]


def test_a_due_time_with_jitter_is_fired_when_the_jitter_is_over() -> None:
    policy = DuePolicy(jitter_ns=30 * MINUTE, seed="x")
    submits_ns = policy.submits_ns(at(1))
    early = decide(HOURLY, policy, Decided(at(0)), now_ns=submits_ns - 1, running=False)
    assert (early.fired, early.state, early.next_ns) == ((), Decided(at(0)), at(1))
    assert decide(HOURLY, policy, Decided(at(0)), now_ns=submits_ns, running=False).fired == (at(1),)


@given(
    steps=st.lists(
        st.tuples(st.integers(-200, 400), st.booleans(), st.booleans()), min_size=1, max_size=campaign(30, 80)
    ),
    overlap=st.sampled_from(Overlap),
    catch_up=st.sampled_from(CatchUp),
    jitter=st.integers(0, 59),
    interval=st.integers(60, 400),
)
@settings(max_examples=campaign(80, 2000), deadline=None)
def test_each_due_time_is_decided_once_however_the_clock_moves(
    steps: list[tuple[int, bool, bool]], overlap: Overlap, catch_up: CatchUp, jitter: int, interval: int
) -> None:
    """Fired, skipped, missed or queued: one of these, once; with `all` and `allow`, exactly those that have come."""
    timetable, policy = Every(interval * NS), DuePolicy(overlap, catch_up, 100, jitter * NS, "seed")
    state, now_ns = Decided(T0), T0
    fired: list[int] = []
    skipped = missed = 0
    highest_ns = T0
    for seconds, running, repeats in steps:
        now_ns = max(T0, now_ns + seconds * NS)
        highest_ns = max(highest_ns, now_ns)
        decision = decide(timetable, policy, state, now_ns=now_ns, running=running)
        if repeats:  # a leader that dies before its commit has decided nothing
            assert decide(timetable, policy, state, now_ns=now_ns, running=running) == decision
        assert decision.state.done_ns >= state.done_ns
        assert all(policy.submits_ns(due) <= now_ns for due in decision.fired if due != state.queued_ns)
        state = decision.state
        fired += decision.fired
        skipped += decision.skipped
        missed += decision.missed
    assert fired == sorted(set(fired))
    come = [due for due in upcoming(timetable, T0, 200) if due <= state.done_ns]
    assert len(come) == len(fired) + skipped + missed + (state.queued_ns is not None)
    if overlap is Overlap.ALLOW and catch_up is CatchUp.ALL:
        assert fired == [due for due in upcoming(timetable, T0, 200) if policy.submits_ns(due) <= highest_ns]


# Versions of an app.


def versions(*each: tuple[str, float, float]) -> list[DeclaredVersion]:
    return [DeclaredVersion(digest, at(first), at(seen)) for digest, first, seen in each]


@pytest.mark.parametrize(
    ("known", "digest"),
    [
        ([], None),
        ([("one", 0, 10)], "one"),
        ([("one", 0, 10), ("two", 5, 10)], "two"),  # a rolling deployment: the newer one
        ([("one", 0, 10), ("two", 5, 9)], "one"),  # the newer one is gone: rolled back
        ([("one", 9.99, 10), ("two", 5, 10)], "one"),  # it came back after it was gone
        ([("one", 0, 1)], None),
        ([("one", 5, 10), ("two", 5, 10)], "two"),  # a tie is decided alike everywhere
    ],
)
def test_the_newest_version_of_an_app_that_still_runs_decides(
    known: list[tuple[str, float, float]], digest: str | None
) -> None:
    assert version_in_effect(versions(*known), at(10)) == digest
    assert version_in_effect(reversed(versions(*known)), at(10)) == digest


def test_a_version_counts_as_running_for_a_while_after_its_last_sign() -> None:
    known = [DeclaredVersion("one", T0, T0)]
    assert version_in_effect(known, T0 + DECLARED_NS) == "one"
    assert version_in_effect(known, T0 + DECLARED_NS + 1) is None
