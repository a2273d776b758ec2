"""The calendar: never late, in order, nothing lost, nothing twice."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from bytecodes import Tracer, every
from holdfast.core.timer_wheel import SLOT_NS, Calendar
from holdfast.types import MS

ITEMS = st.integers(0, 9)


def test_an_empty_calendar_has_nothing_due() -> None:
    calendar: Calendar[str] = Calendar()
    assert calendar.next_due_ns() is None
    assert calendar.pop_due(10**18) == []
    assert len(calendar) == 0
    assert not calendar.drop("nobody")


def test_due_times_are_rounded_down_so_that_neighbours_come_out_together_and_nobody_late() -> None:
    calendar: Calendar[str] = Calendar()
    calendar.put("a", 5 * SLOT_NS + 1)
    calendar.put("b", 6 * SLOT_NS - 1)
    calendar.put("c", 6 * SLOT_NS)
    assert calendar.next_due_ns() == 5 * SLOT_NS
    assert calendar.pop_due(5 * SLOT_NS - 1) == []
    assert calendar.pop_due(5 * SLOT_NS) == ["a", "b"]
    assert calendar.pop_due(10 * SLOT_NS) == ["c"]


def test_putting_again_moves_an_item() -> None:
    calendar: Calendar[str] = Calendar()
    calendar.put("a", SLOT_NS)
    calendar.put("a", 9 * SLOT_NS)
    assert len(calendar) == 1
    assert calendar.pop_due(8 * SLOT_NS) == []
    assert calendar.pop_due(9 * SLOT_NS) == ["a"]


def test_put_says_when_somebody_has_to_be_woken_earlier() -> None:
    calendar: Calendar[str] = Calendar()
    assert calendar.put("a", 5 * SLOT_NS)
    assert not calendar.put("b", 6 * SLOT_NS)
    assert not calendar.put("c", 5 * SLOT_NS)
    assert calendar.put("d", 4 * SLOT_NS)


def test_iteration_is_a_snapshot() -> None:
    calendar: Calendar[str] = Calendar()
    for name in "abc":
        calendar.put(name, 0)
    for name in calendar:
        calendar.drop(name)
    assert len(calendar) == 0


def test_no_more_than_asked_for_come_out() -> None:
    calendar: Calendar[int] = Calendar()
    for number in range(10):
        calendar.put(number, 0)
    assert len(calendar.pop_due(0, most=3)) == 3
    assert len(calendar) == 7


def test_leases_taken_and_given_back_all_day_leave_nothing_behind() -> None:
    calendar: Calendar[int] = Calendar()
    for number in range(1_000):
        calendar.put(number, 3_600_000 * MS)
        calendar.drop(number)
    assert len(calendar._heap) <= 10


class CalendarModel(RuleBasedStateMachine):
    """The calendar beside a plain dictionary of due slots."""

    def __init__(self) -> None:
        super().__init__()
        self.calendar: Calendar[int] = Calendar(10)
        self.due: dict[int, int] = {}
        self.now = 0

    @rule(item=ITEMS, ahead=st.integers(-30, 300))
    def put(self, item: int, ahead: int) -> None:
        due = max(0, self.now + ahead)
        first_before = min(self.due.values(), default=None)
        first = self.calendar.put(item, due)
        self.due[item] = due // 10 * 10
        if first:
            assert min(self.due.values()) == self.due[item]
        if first_before is None or self.due[item] < first_before:
            # Somebody sleeps until `first_before` and must be woken, unless something withdrawn wakes it earlier still.
            assert first or self.calendar._heap[0] * 10 < self.due[item]

    @rule(item=ITEMS)
    def drop(self, item: int) -> None:
        assert self.calendar.drop(item) == (self.due.pop(item, None) is not None)

    @rule(gap=st.integers(0, 60))
    def pop(self, gap: int) -> None:
        self.now += gap
        popped = self.calendar.pop_due(self.now)
        wanted = {item: due for item, due in self.due.items() if due <= self.now}
        assert sorted(popped) == sorted(wanted)
        assert [wanted[item] for item in popped] == sorted(wanted.values())
        for item in popped:
            del self.due[item]

    @invariant()
    def same_contents(self) -> None:
        assert sorted(self.calendar) == sorted(self.due)
        assert len(self.calendar) == len(self.due)
        assert all(item in self.calendar for item in self.due)

    @rule()
    def next_due(self) -> None:
        assert self.calendar.next_due_ns() == min(self.due.values(), default=None)


TestCalendar = CalendarModel.TestCase


def reachable(calendar: Calendar[str]) -> None:
    """Every item comes out when its slot is due, and taking out ends."""
    there = sorted(calendar)
    assert sorted(calendar.pop_due(10**18, most=50)) == there
    assert calendar.next_due_ns() is None
    assert calendar.pop_due(10**18, most=50) == []


STEPS: dict[str, Callable[[Calendar[str]], object]] = {
    "drop the only item of a slot": lambda calendar: calendar.drop("alone"),
    "drop one of two": lambda calendar: calendar.drop("a"),
    "move to a new slot": lambda calendar: calendar.put("alone", 9 * SLOT_NS),
    "move to a known slot": lambda calendar: calendar.put("alone", 7 * SLOT_NS),
    "enter in a new slot": lambda calendar: calendar.put("new", 3 * SLOT_NS),
    "enter many": lambda calendar: calendar.put_all(["n1", "n2"], 4 * SLOT_NS),
    "take out": lambda calendar: calendar.pop_due(5 * SLOT_NS, most=10),
    "look": lambda calendar: (calendar.drop("alone"), calendar.next_due_ns()),
}


@pytest.mark.parametrize("name", STEPS)
def test_an_interrupt_at_any_bytecode_loses_no_other_item_and_leaves_nothing_that_never_comes_out(name: str) -> None:
    calendar: Calendar[str] = Calendar()

    def work(at: Tracer) -> None:
        nonlocal calendar
        Tracer.pause()
        calendar = Calendar()
        calendar.put("alone", 5 * SLOT_NS)
        for item in ("a", "b"):
            calendar.put(item, 7 * SLOT_NS)
        at.resume()
        STEPS[name](calendar)

    places = 0
    for where in every(work):
        places += 1
        calendar.put("later", 6 * SLOT_NS)
        assert {"b", "later"} <= set(calendar), where
        reachable(calendar)
    assert places > 10


@pytest.mark.parametrize("name", ["drop one of two", "move to a new slot", "enter in a new slot", "enter many"])
def test_a_signal_handler_may_withdraw_items_at_any_bytecode(name: str) -> None:
    calendar: Calendar[str] = Calendar()

    def handler() -> None:
        calendar.drop("b")
        calendar.drop("alone")

    def work(at: Tracer) -> None:
        nonlocal calendar
        Tracer.pause()
        calendar = Calendar()
        calendar.put("alone", 5 * SLOT_NS)
        for item in ("a", "b"):
            calendar.put(item, 7 * SLOT_NS)
        at.resume()
        STEPS[name](calendar)

    for where in every(work, handler):
        assert "b" not in calendar, where
        calendar.put("later", 6 * SLOT_NS)
        reachable(calendar)
