"""How many messages a consumer of several queues requests from each."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from holdfast.plane.bus.nats.pull_sizes import PullQueue, next_requests

SLOTS = 8


def queues(*states: tuple[int, bool]) -> list[PullQueue]:
    return [PullQueue(at, f"s{at}", f"d{at}", busy, asked) for at, (asked, busy) in enumerate(states)]


@given(st.lists(st.tuples(st.integers(0, SLOTS), st.booleans()), min_size=1, max_size=6), st.integers(0, SLOTS))
def test_a_free_consumer_has_a_request_at_every_queue_and_not_many_more_than_it_has_slots(
    states: list[tuple[int, bool]], free: int
) -> None:
    there = queues(*states)
    wanted = next_requests(there, free, SLOTS)
    asked = {queue: 0 if wanted.withdraw else queue.asked for queue in there}
    for queue, more in wanted.more:
        assert more > 0
        asked[queue] += more
    if free:
        assert min(asked.values()) > 0
    else:
        assert not any(asked[queue] for queue in there[1:])
    if wanted.more:
        assert sum(asked.values()) <= free + len(there)


@given(st.integers(0, SLOTS), st.integers(0, SLOTS))
def test_one_queue_is_asked_for_what_is_free_in_few_requests(asked: int, free: int) -> None:
    [queue] = there = queues((asked, True))
    wanted = next_requests(there, free, SLOTS)
    room = free - asked
    assert not wanted.withdraw
    assert list(wanted.more) == ([(queue, room)] if room > 0 and (not asked or 2 * room >= SLOTS) else [])


def test_queues_from_which_nothing_comes_leave_the_slots_to_the_others() -> None:
    shared, quiet, busy = there = queues((1, False), (1, False), (0, True))
    assert next_requests(there, SLOTS, SLOTS).more == [(busy, SLOTS)]
    shared.asked, quiet.asked = 1, 6
    divided = next_requests(there, SLOTS, SLOTS)
    assert (divided.withdraw, divided.more) == (True, [(shared, 1), (quiet, 1), (busy, SLOTS)])
