"""What is said of a storm follows from what its processes report; each thing that can go wrong is planted here."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from holdfast.drills.catalog import drill
from holdfast.drills.model import KEYS, WAITERS, DrillClaim, DrillPlan
from holdfast.drills.planner import planned
from holdfast.drills.verdict.resource_usage import MIB, Usage, usage
from holdfast.drills.verdict.storm import (
    LeaseReport,
    WaiterReport,
    first_half,
    judge_leases,
    judge_waits,
    lead,
    lease_figures,
    memory_plot,
    wait_figures,
    wait_plot,
)
from holdfast.errors import BadInput
from holdfast.types import MS, NS

EACH = 1_000
EMPTY = Usage(0, 50 * MIB, 100_000, 5, 3, 20, 4)
FULL = EMPTY._replace(at_ns=NS, resident=54 * MIB, objects=125_000)
AFTER = EMPTY._replace(at_ns=20 * NS, resident=54 * MIB, objects=101_000)


def waits(place: int, processes: int = 4, every_ns: int = 4 * MS) -> WaiterReport:
    """A process of a storm that took turns with the others."""
    got = [NS + (number * processes + place) * every_ns for number in range(EACH)]
    came = [number * MS // 10 for number in range(EACH)]
    return WaiterReport(
        f"process-{place + 1}", range(EACH), came, got, 0, 0, 0, 3 * EACH, EACH, True, EMPTY, FULL, AFTER, [FULL]
    )


def shortened(each: WaiterReport, **counts: int) -> WaiterReport:
    """The same, with one fewer served."""
    less = len(each.who) - 1
    columns = {"who": each.who[:less], "came_ns": each.came_ns[:less], "got_ns": each.got_ns[:less]}
    return each._replace(**columns, **counts)  # type: ignore[arg-type]  # by name


def hoard(place: int) -> LeaseReport:
    """A process that kept its leases."""
    return LeaseReport(f"process-{place + 1}", EACH, 0, 0, 0, 2 * EACH, 90, 40.0, EMPTY, FULL, AFTER, [FULL])


def broken(claims: Sequence[DrillClaim]) -> list[str]:
    return [each.text for each in claims if not each.kept]


def judged(found: Sequence[WaiterReport], *, fair: bool = True) -> list[str]:
    done = sum(len(each.who) - each.refused for each in found)
    return broken(list(judge_waits(found, 4 * EACH, done, fair=fair)))


@pytest.mark.requires("R48", "R68")
@pytest.mark.parametrize("fair", [False, True])
def test_a_storm_with_alternating_processes_meets_all_conditions(fair: bool) -> None:
    found = [waits(place) for place in range(4)]
    assert judged(found, fair=fair) == []
    assert (lead(found), first_half(found)) == (1, EACH // 2)
    told = {each.name: each.value for each in wait_figures(found)}
    assert told["lead"] == "1"
    assert told["requests"] == "4.0"
    assert told["memory"] == f"{4 * MIB / EACH / 1024:.1f} KiB"
    assert [len(line.points) for line in wait_plot(found).lines] == [300] * 4
    assert memory_plot(found).lines[0].points[-1][1] == 54


Spoil = Callable[[WaiterReport], WaiterReport]


@pytest.mark.requires("R48", "R68")
@pytest.mark.parametrize(
    ("spoil", "text"),
    [
        (lambda each: shortened(each, failed=1), "served or times out"),
        (lambda each: each._replace(refused=1), "does its work once"),
        (lambda each: each._replace(who=[1, 0, *range(2, EACH)]), "no waiter overtakes"),
        (lambda each: each._replace(asked=20 * EACH), "requests"),
        (lambda each: each._replace(queued=FULL._replace(resident=100 * MIB)), "KiB for a waiter"),
        (lambda each: each._replace(samples=[FULL._replace(resident=100 * MIB)]), "KiB for a waiter"),
        (lambda each: each._replace(after=AFTER._replace(objects=120_000)), "memory is freed"),
        (lambda each: each._replace(unrelated_held=False), "kept through the storm"),
    ],
)
def test_each_thing_that_goes_wrong_is_said(spoil: Spoil, text: str) -> None:
    found = [spoil(waits(0)), *(waits(place) for place in range(1, 4))]
    wrong = judged(found)
    assert len(wrong) == 1, wrong
    assert text in wrong[0]


def test_a_waiter_that_times_out_is_no_reason_to_fail() -> None:
    assert judged([shortened(waits(0), timed_out=1), *(waits(place) for place in range(1, 4))]) == []


def test_a_process_that_is_served_only_after_the_others_has_starved() -> None:
    last = waits(3)
    last = last._replace(got_ns=[at_ns + 30 * NS for at_ns in last.got_ns])
    found = [*(waits(place) for place in range(3)), last]
    assert "processes alternate" in judged(found, fair=True)
    assert any("starves" in text for text in judged(found, fair=False))
    assert first_half(found) == 0


def test_leases_that_are_all_kept_and_released_meet_all_conditions() -> None:
    found = [hoard(place) for place in range(4)]
    assert broken(list(judge_leases(found, 4 * EACH, 0, 2))) == []
    told = {each.name: each.value for each in lease_figures(found)}
    assert told["renewals"] == "8,000"
    assert told["resident afterwards"] == "+16 MiB"


@pytest.mark.requires("R68")
@pytest.mark.parametrize(
    ("spoiled", "left", "text"),
    [
        ({"taken": EACH - 1, "not_taken": 1}, 0, "every lock is acquired"),
        ({"lost": 1}, 0, "none is lost"),
        ({"renewed": EACH}, 0, "renewed 2 times"),
        ({"requests": 2 * EACH}, 0, "in batches"),
        ({"not_released": 1}, 0, "are released"),
        ({}, 1, "are released"),
        ({"peak": FULL._replace(resident=100 * MIB)}, 0, "KiB for a lease"),
        ({"after": AFTER._replace(objects=120_000)}, 0, "memory is freed"),
    ],
)
def test_each_lease_that_goes_wrong_is_said(spoiled: dict[str, object], left: int, text: str) -> None:
    found = [hoard(0)._replace(**spoiled), *(hoard(place) for place in range(1, 4))]  # type: ignore[arg-type]  # by name
    wrong = broken(list(judge_leases(found, 4 * EACH, left, 2)))
    assert len(wrong) == 1, wrong
    assert text in wrong[0]


def test_a_process_sees_what_it_uses() -> None:
    before = usage()
    kept = [object() for _ in range(50_000)]
    now = usage()
    assert now.objects - before.objects >= len(kept)
    assert before.resident > MIB
    assert min(before.threads, before.files) >= 1


def test_a_storm_that_is_larger_than_usual_has_more_time() -> None:
    chosen = drill("storm")
    usual = chosen.limit_s(planned(chosen, waiters=WAITERS, keys=KEYS))
    assert usual == chosen.limit_s(DrillPlan())
    assert chosen.limit_s(planned(chosen, waiters=2 * WAITERS)) > usual + chosen.seconds


@pytest.mark.parametrize(
    ("options", "field"), [({"waiters": 3}, "--waiters"), ({"keys": 0}, "--keys"), ({"keys": 10**7}, "--keys")]
)
def test_a_storm_of_an_impossible_size_is_refused(options: dict[str, int], field: str) -> None:
    with pytest.raises(BadInput) as caught:
        planned(drill("storm"), **options)  # type: ignore[arg-type]  # by name
    assert caught.value.field == field
