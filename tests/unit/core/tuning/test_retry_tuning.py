"""Retry delays on recorded contention: the replay is fair, exact and repeatable, and jitter breaks waves."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.backoff import Fixed, jittered
from holdfast.core.history.events import EventKind, Record
from holdfast.core.tuning.burstiness import Burstiness
from holdfast.core.tuning.contention import ContentionReader
from holdfast.core.tuning.retry import Arrival, guardrails, replay, worst_minute
from holdfast.types import MS, NS

FIXED = Fixed(500 * MS)
SPREAD = jittered(0.5, 0.2)


def crowd(people: int, hold_ms: int, waves: int = 1) -> list[Arrival]:
    """All callers want the same lock at nearly the same moment."""
    chance = random.Random(1)
    return [
        Arrival(wave * 60 * NS + chance.randrange(5 * MS), f"k{wave}", hold_ms * MS)
        for wave in range(waves)
        for _ in range(people)
    ]


@pytest.mark.requires("R142", "R153", "R157")
def test_jitter_breaks_the_waves_of_a_fixed_delay_and_shortens_the_wait() -> None:
    arrivals = crowd(30, 60, waves=5)
    fixed, spread = replay("fixed", arrivals, FIXED), replay("jitter", arrivals, SPREAD)
    assert fixed.waits.number == spread.waits.number == len(arrivals)
    assert spread.burst.fano < 0.7 * fixed.burst.fano, "retries come in waves no more"
    assert spread.p95_wait_ns < fixed.p95_wait_ns
    assert spread.busy < fixed.busy


def test_equal_input_gives_equal_output_and_another_seed_another() -> None:
    arrivals = crowd(30, 60)
    assert replay("a", arrivals, SPREAD, seed=3) == replay("a", reversed(arrivals), SPREAD, seed=3)
    assert replay("a", arrivals, SPREAD, seed=3).waits != replay("a", arrivals, SPREAD, seed=4).waits


def test_one_holder_at_a_time_to_the_nanosecond() -> None:
    found = replay("fixed", [Arrival(0, "k", 700 * MS), Arrival(1, "k", NS), Arrival(2, "other", NS)], FIXED)
    assert found.contended.counts.number == 1
    assert found.contended.longest_ns == 1000 * MS, "busy at 1 ns and at 500 ms, had at 1000 ms and 1 ns"
    assert found.busy == 2


def test_a_patient_caller_gets_the_lock_at_its_release_and_another_comes_again_later() -> None:
    pair = [Arrival(0, "k", 700 * MS), Arrival(MS, "k", 10 * MS)]
    patient = replay("p", pair, FIXED, patience_ns=2 * NS)
    assert (patient.contended.longest_ns, patient.busy) == (699 * MS, 0)
    hasty = replay("h", pair, FIXED, patience_ns=100 * MS)
    assert (hasty.contended.longest_ns, hasty.busy) == (699 * MS, 1), "it was waiting again by then"


@given(
    st.lists(st.tuples(st.integers(0, 3000), st.sampled_from("abc"), st.integers(0, 900)), max_size=40),
    st.integers(0, 2500),
)
def test_all_callers_have_the_lock_once_and_no_two_at_the_same_time(
    found: list[tuple[int, str, int]], wait: int
) -> None:
    arrivals = [Arrival(at * MS, key, hold * MS) for at, key, hold in found]
    run = replay("any", arrivals, SPREAD, patience_ns=wait * MS)
    assert (run.waits.number, run.unfinished) == (len(arrivals), 0)
    for key in "abc":
        mine = [each for each in arrivals if each.key == key]
        if mine and len(mine) == len(arrivals):
            last = max(each.at_ns for each in mine)
            assert run.waits.longest_ns + last >= sum(each.hold_ns for each in mine) - max(e.hold_ns for e in mine)


@pytest.mark.requires("R154", "R167")
def test_bunching_is_counted_as_the_metric_counts_it() -> None:
    times = [wave * 500 * MS for wave in range(100) for _ in range(7)]
    counted = Burstiness()
    for at in times:
        counted.note(at)
    assert worst_minute(times) == counted.read(times[-1])
    assert worst_minute([]).events == 0
    calm = [n * 70 * MS for n in range(3000)]
    assert worst_minute([*calm, *[240 * NS] * 50]).fano > 5 > worst_minute(calm).fano


@pytest.mark.requires("R158")
def test_guardrails_are_sentences_with_the_arithmetic() -> None:
    assert guardrails(FIXED, 30 * NS, 400 * MS) == []
    (short,) = guardrails(FIXED, 30 * NS, 600 * MS)
    assert "0.5 s is not above the median hold of 0.6 s" in short
    (wide,) = guardrails(SPREAD, NS, None)
    assert "safety budget ttl / 3" in wide
    assert len(guardrails(SPREAD, NS, 2 * NS)) == 1, "the first thing to change is said first"


@pytest.mark.requires("R157")
def test_arrivals_are_read_off_a_history() -> None:
    records = [
        Record(EventKind.GRANTED, 10, "k", "f", "one", 1, began_ns=5),
        Record(EventKind.BUSY, 20, "k", "f", "two"),
        Record(EventKind.BUSY, 520, "k", "f", "two"),
        Record(EventKind.RELEASED, 600, "k", "f", "one", 1),
        Record(EventKind.GRANTED, 1025, "k", "f", "two", 2, began_ns=1020),
        Record(EventKind.LOST, 2000, "k", "f", "two", 2),
        Record(EventKind.GRANTED, 3000, "k", "f", "two", 3, began_ns=2990),
    ]
    found = ContentionReader().read(records)["f"]
    assert found.arrivals == [Arrival(5, "k", 590), Arrival(20, "k", 975)]
    assert (found.busy, found.recorded) == (2, True)
    quiet = ContentionReader().read(records[:1] + records[3:4])["f"]
    assert not quiet.recorded
