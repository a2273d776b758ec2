"""Which of the jobs that wait for a slot of their topic go next, and where they join the queue."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.plane.scheduler.fair_share import TenantQueue
from holdfast.plane.scheduler.topic_backlog import Rank, TopicQueue, free_slots, merge_queues, select_ranks


def ranks(*jobs: str) -> tuple[Rank, ...]:
    return tuple(Rank(0, number, job) for number, job in enumerate(jobs))


@pytest.mark.parametrize(
    ("places", "running", "free", "room"),
    [
        (2, 0, 8, 2),
        (2, 1, 8, 1),
        (2, 2, 8, 0),
        (2, 5, 8, 0),  # handed out before its places were known, or to workers that have left
        (5, 0, 3, 3),
        (None, 7, 8, 8),  # it has as many places as its pool by now
        (2, 0, 0, 0),
        (2, 0, -3, 0),
        (0, 0, 8, 0),  # functions that do not stop have them all
    ],
)
def test_no_more_of_a_topic_go_than_it_and_its_pool_have_places_for(
    places: int | None, running: int, free: int, room: int
) -> None:
    assert free_slots(places, running, free) == room


def test_the_places_of_a_topic_go_round_among_tenants() -> None:
    lines = [
        TopicQueue("b", ranks("b1", "b2", "b3")),
        TopicQueue("c", ranks("c1")),
        TopicQueue("a", ranks("a1", "a2")),
    ]
    assert select_ranks(lines, 1) == {"b": [*ranks("b1")]}
    assert {tenant: len(some) for tenant, some in select_ranks(lines, 4).items()} == {"b": 2, "c": 1, "a": 1}
    assert select_ranks(lines, 0) == {}


def test_a_tenant_that_may_have_no_more_is_passed_over() -> None:
    lines = [
        TopicQueue("a", ranks("a1", "a2"), 0),
        TopicQueue("b", ranks("b1", "b2"), 1),
        TopicQueue("c", ranks("c1"), None),
    ]
    assert {tenant: [rank.job for rank in some] for tenant, some in select_ranks(lines, 5).items()} == {
        "b": ["b1"],
        "c": ["c1"],
    }


def test_whoever_may_go_stands_where_its_priority_and_its_age_put_it() -> None:
    there = {"old": Rank(-5, 1, "old"), "new": Rank(-5, 9, "new"), "low": Rank(0, 0, "low")}
    going = {"a": [Rank(-5, 4, "mid"), Rank(-9, 20, "urgent"), Rank(0, 7, "last")]}
    lines = [TenantQueue("a", ("old", "new", "low"), 3), TenantQueue("b", ("other",))]
    assert merge_queues(lines, going, there, {}, ["a", "b"]) == (
        TenantQueue("a", ("urgent", "old", "mid", "new", "low", "last"), 3),
        TenantQueue("b", ("other",)),
    )


def test_a_tenant_that_has_nothing_else_waiting_has_its_turn_among_the_others() -> None:
    going = {"b": [Rank(0, 1, "aside")]}
    lines = [TenantQueue("c", ("c1",)), TenantQueue("a", ("a1",))]
    assert merge_queues(lines, going, {}, {"b": 2}, ["b", "c", "a"]) == (TenantQueue("b", ("aside",), 2), *lines)
    assert merge_queues(lines, going, {}, {"b": 2}, ["c", "a"]) == tuple(lines), "its turn comes with a later page"


def test_a_job_that_left_the_line_meanwhile_is_left_out() -> None:
    going = {"a": [Rank(0, 1, "aside")]}
    assert merge_queues([TenantQueue("a", ("gone", "here"))], going, {"here": Rank(0, 0, "here")}, {}, ["a"]) == (
        TenantQueue("a", ("here", "aside")),
    )


@given(
    sizes=st.dictionaries(st.sampled_from("abcdef"), st.integers(0, 6), max_size=6),
    room=st.integers(0, 12),
)
def test_never_more_than_there_is_room_for_and_nobody_two_ahead_of_one_who_waits(
    sizes: dict[str, int], room: int
) -> None:
    lines = [TopicQueue(tenant, ranks(*(f"{tenant}{n}" for n in range(size)))) for tenant, size in sizes.items()]
    found = select_ranks(lines, room)
    assert sum(map(len, found.values())) == min(room, sum(sizes.values()))
    for tenant, size in sizes.items():
        if len(found.get(tenant, ())) < size:
            assert all(len(some) <= len(found.get(tenant, ())) + 1 for some in found.values())
