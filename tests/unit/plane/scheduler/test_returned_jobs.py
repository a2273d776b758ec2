"""Who waits for a place of a topic, as one scheduler remembers it."""

from __future__ import annotations

from holdfast.plane.scheduler.scheduler import RETURNED_MAX, TOPICS_MAX, ReturnedJobs


def test_the_one_that_has_waited_for_longest_is_next_and_is_not_remembered_any_more() -> None:
    returned = ReturnedJobs()
    for job in ("a", "b"):
        returned.add("p", "t", job)
    returned.add("p", "other", "c")
    returned.add("q", "t", "d")
    assert [returned.pop("p", "t") for _ in range(3)] == ["a", "b", None]
    assert (returned.pop("p", "other"), returned.pop("q", "t")) == ("c", "d")


def test_of_too_many_the_oldest_are_forgotten() -> None:
    returned = ReturnedJobs()
    for number in range(RETURNED_MAX + 1):
        returned.add("p", "t", f"j{number}")
    assert returned.pop("p", "t") == "j1"
    for number in range(TOPICS_MAX):
        returned.add("p", f"t{number}", "x")
    assert returned.pop("p", "t") is None
