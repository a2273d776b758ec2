"""Who waits for a place of a topic, as one scheduler remembers it."""

from __future__ import annotations

from holdfast.plane.scheduler.returned_jobs import KEPT_MAX, TOPICS_MAX, Parking


def test_the_one_that_has_waited_for_longest_is_next_and_is_not_remembered_any_more() -> None:
    parking = Parking()
    for job in ("a", "b"):
        parking.came_back("p", "t", job)
    parking.came_back("p", "other", "c")
    parking.came_back("q", "t", "d")
    assert [parking.next("p", "t") for _ in range(3)] == ["a", "b", None]
    assert (parking.next("p", "other"), parking.next("q", "t")) == ("c", "d")


def test_of_too_many_the_oldest_are_forgotten() -> None:
    parking = Parking()
    for number in range(KEPT_MAX + 1):
        parking.came_back("p", "t", f"j{number}")
    assert parking.next("p", "t") == "j1"
    for number in range(TOPICS_MAX):
        parking.came_back("p", f"t{number}", "x")
    assert parking.next("p", "t") is None
