"""Retries of many processes: a wave of single contenders is told from an even spread, and from too few to tell."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from holdfast.core.tuning.burstiness import BUCKET_NS, Burstiness
from holdfast.core.tuning.fleet_burstiness import GROUPS, GroupCounts, fleet_fano, order_of
from holdfast.types import MS, NS

BEGIN_NS = 1_800_000_000 * NS + 123 * MS
PROCESSES = 20
LASTS_S = 60


def fano(retries: Callable[[int], list[int]], processes: int = PROCESSES, lasts_s: float = LASTS_S) -> float | None:
    """Each process counts its own retries; the sum is judged."""
    summed = [0.0] * GROUPS
    for process in range(processes):
        counted = GroupCounts()
        for now in retries(process):
            counted.note(BEGIN_NS + now)
        summed = [so_far + more for so_far, more in zip(summed, counted.read().values(), strict=True)]
    return fleet_fano(summed, lasts_s)


def every(delay_ns: int, first_ns: int = 0, lasts_s: float = LASTS_S) -> list[int]:
    return list(range(first_ns, round(lasts_s * NS), delay_ns))


@pytest.mark.requires("R141", "R154")
@pytest.mark.parametrize("delay_ms", [250, 470, 500, 503, 1000])
def test_single_contenders_in_phase_are_a_wave_whatever_their_delay_is(delay_ms: int) -> None:
    one = Burstiness()
    for now in every(delay_ms * MS):
        one.note(now)
    assert one.read(LASTS_S * NS).fano <= 1.0, "no process alone shows it"
    found = fano(lambda _: every(delay_ms * MS))
    assert found is not None
    assert 0.4 * PROCESSES < found < 2 * PROCESSES


@pytest.mark.requires("R154")
def test_single_contenders_that_are_spread_over_the_delay_are_no_wave() -> None:
    found = fano(lambda process: every(500 * MS, process * 500 * MS // PROCESSES))
    assert found is not None
    assert found < 1.0


def test_retries_at_random_are_near_one() -> None:
    draw = random.Random(5)
    found = fano(lambda _: [draw.randrange(LASTS_S * NS) for _ in range(200)])
    assert found is not None
    assert 0.3 < found < 2.0


def test_a_rate_that_rises_slowly_is_no_wave() -> None:
    draw = random.Random(5)
    found = fano(lambda _: [round(LASTS_S * NS * draw.random() ** 0.5) for _ in range(200)])
    assert found is not None
    assert found < 2.0


def test_a_short_window_of_many_steady_retries_is_no_wave() -> None:
    found = fano(lambda process: every(20 * MS, process * MS, 3.4), lasts_s=3.4)
    assert found is not None
    assert found < 2.0


@pytest.mark.requires("R154")
def test_too_few_retries_give_no_figure() -> None:
    assert fano(lambda _: every(15 * NS)) is None
    assert fleet_fano([], 60.0) is None
    assert fleet_fano([5.0] * GROUPS, 0.0) is None
    assert fleet_fano([5.0] * (GROUPS - 1), 60.0) is None, "a group is missing"
    assert fleet_fano([5.0] * GROUPS, 60.0) == 0.0


def test_each_second_uses_every_group_once_in_an_order_of_its_own() -> None:
    orders = {order_of(second) for second in range(100)}
    assert len(orders) == 100
    assert all(sorted(order) == list(range(GROUPS)) for order in orders)


def test_processes_agree_on_the_group_of_an_interval_and_a_clock_may_go_back() -> None:
    first, second = GroupCounts(), GroupCounts()
    for now in (5 * NS, 5 * NS + BUCKET_NS, 4 * NS):
        first.note(now)
    for now in (4 * NS + BUCKET_NS - 1, 5 * NS + BUCKET_NS - 1, 5 * NS + BUCKET_NS):
        second.note(now)
    assert first.read() == second.read()
    assert sum(first.read().values()) == 3
