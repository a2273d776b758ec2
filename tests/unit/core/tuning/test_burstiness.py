"""Burstiness: waves are told from a steady trickle, and old waves are forgotten."""

from __future__ import annotations

import random

import pytest

from holdfast.core.backoff import Backoff, Fixed, Jittered
from holdfast.core.tuning.burstiness import BUCKET_NS, BUCKETS, Burst, Burstiness
from holdfast.types import MS, NS


def waves(backoff: Backoff, contenders: int = 200, rounds: int = 20) -> Burst:
    """Contenders that all met a busy lock at the same moment, and retry with this delay."""
    draw = random.Random(7).randrange
    retries = []
    for _ in range(contenders):
        now = 0
        for attempt in range(rounds):
            now += backoff.delay_ns(attempt, 0, draw)
            retries.append(now)
    burstiness = Burstiness()
    for now in sorted(retries):
        burstiness.note(now)
    return burstiness.read(max(retries))


def test_nothing_counted_is_nothing() -> None:
    assert Burstiness().read(5 * NS) == Burst(0, 0.0, 0.0)


def test_one_in_each_bucket_is_perfectly_steady() -> None:
    burstiness = Burstiness()
    for bucket in range(3 * BUCKETS):
        burstiness.note(bucket * BUCKET_NS)
    assert burstiness.read((3 * BUCKETS - 1) * BUCKET_NS) == Burst(BUCKETS, 1.0, 0.0)


def test_all_in_one_bucket_is_as_bunched_as_can_be() -> None:
    burstiness = Burstiness()
    for _ in range(50):
        burstiness.note(NS)
    burst = burstiness.read(NS + 9 * BUCKET_NS)
    assert (burst.events, burst.peak_to_mean) == (50, 10.0)
    assert burst.fano > 40


def test_what_is_older_than_the_ring_is_forgotten() -> None:
    burstiness = Burstiness()
    for _ in range(50):
        burstiness.note(0)
    assert burstiness.read((BUCKETS + 1) * BUCKET_NS).events == 0


def test_a_clock_that_stands_still_or_goes_back_is_taken_as_now() -> None:
    burstiness = Burstiness()
    burstiness.note(5 * NS)
    burstiness.note(4 * NS)
    assert burstiness.read(5 * NS).events == 2


@pytest.mark.requires("R141", "R154", "R157", "R167")
def test_bounded_jitter_smooths_what_a_fixed_delay_bunches() -> None:
    fixed = waves(Fixed(500 * MS))
    jittered = waves(Jittered(500 * MS, 200 * MS))
    assert fixed.events == jittered.events
    assert fixed.fano > 5 * jittered.fano
    assert fixed.peak_to_mean > 2 * jittered.peak_to_mean


@pytest.mark.requires("R154", "R167")
def test_waves_show_at_the_width_of_their_period_and_single_bursts_at_a_smaller_one() -> None:
    """Half a second is how far apart retries of a fixed delay are; inside of it, fifty milliseconds tell."""
    steady, waves_apart = Burstiness(), Burstiness()
    for tick in range(200):
        for now in range(10):
            steady.note(tick * 500 * MS + now * 50 * MS)
            waves_apart.note(tick * 500 * MS)
    end = 199 * 500 * MS + 450 * MS
    assert (steady.read(end, 500 * MS).peak_to_mean, steady.read(end, 50 * MS).peak_to_mean) == (1.0, 1.0)
    assert waves_apart.read(end, 500 * MS) == Burst(1200, 1.0, 0.0), "each half second is like the other"
    fine = waves_apart.read(end, 50 * MS)
    assert fine.peak_to_mean == 10.0
    assert fine.fano > 5


def test_a_wide_bucket_holds_what_its_narrow_ones_hold() -> None:
    burstiness = Burstiness()
    for now in range(0, 20 * NS, 130 * MS):
        burstiness.note(now)
    wide, fine = burstiness.read(20 * NS, 500 * MS), burstiness.read(20 * NS, 50 * MS)
    assert 0 <= fine.events - wide.events <= 4, "what is left over of the oldest bucket is not looked at"
