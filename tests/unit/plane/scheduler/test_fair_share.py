"""Whose turn it is: one job from each tenant in turn, within each tenant's room."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from holdfast.plane.scheduler.fair_share import Selection, TenantQueue, select_jobs


def line(tenant: str, jobs: int, room: int | None = None) -> TenantQueue:
    return TenantQueue(tenant, tuple(f"{tenant}{n}" for n in range(jobs)), room)


LINES = st.lists(st.tuples(st.integers(0, 6), st.none() | st.integers(-1, 6)), max_size=6).map(
    lambda each: [line(chr(97 + n), jobs, room) for n, (jobs, room) in enumerate(each)]
)


def test_tenants_take_turns_whatever_the_length_of_their_lines() -> None:
    turn = select_jobs([line("a", 100), line("b", 1), line("c", 2)], 6)
    assert turn == Selection(("a0", "b0", "c0", "a1", "c1", "a2"), "a")


def test_nobody_waits_no_turn() -> None:
    assert select_jobs([], 5) == Selection((), None)
    assert select_jobs([line("a", 3)], 0) == Selection((), None)
    assert select_jobs([line("a", 3, room=0)], 5) == Selection((), None)


@given(LINES, st.integers(0, 20))
def test_places_are_dealt_out_fairly_within_room_and_none_is_left_over(lines: list[TenantQueue], free: int) -> None:
    turn = select_jobs(lines, free)
    reach = {
        each.tenant: max(0, min(len(each.jobs), len(each.jobs) if each.room is None else each.room)) for each in lines
    }
    got = Counter(job[0] for job in turn.jobs)
    assert len(turn.jobs) == len(set(turn.jobs)) == min(free, sum(reach.values()))
    for each in lines:
        mine = [job for job in turn.jobs if job[0] == each.tenant]
        assert mine == list(each.jobs[: len(mine)])
        assert len(mine) <= reach[each.tenant]
        # A tenant that got less than another by more than one had no more jobs, or was at its limit.
        assert all(got[each.tenant] >= number - 1 or got[each.tenant] == reach[each.tenant] for number in got.values())
    assert turn.last == (turn.jobs[-1][0] if turn.jobs else None)
