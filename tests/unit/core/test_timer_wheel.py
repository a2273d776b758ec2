"""The calendar: never late, in order, nothing lost, nothing twice."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from holdfast.core.timer_wheel import SLOT_NS, TimerWheel
from holdfast.types import MS
from support.faults.bytecode_interrupts import Tracer, every

ITEMS = st.integers(0, 9)


def test_an_empty_calendar_has_nothing_due() -> None:
    timer_wheel: TimerWheel[str] = TimerWheel()
    assert timer_wheel.next_due_ns() is None
    assert timer_wheel.pop_due(10**18) == []
    assert len(timer_wheel) == 0
    assert not timer_wheel.drop("unknown")


def test_due_times_are_rounded_down_so_that_neighbors_come_out_together_and_none_late() -> None:
    timer_wheel: TimerWheel[str] = TimerWheel()
    timer_wheel.put("a", 5 * SLOT_NS + 1)
    timer_wheel.put("b", 6 * SLOT_NS - 1)
    timer_wheel.put("c", 6 * SLOT_NS)
    assert timer_wheel.next_due_ns() == 5 * SLOT_NS
    assert timer_wheel.pop_due(5 * SLOT_NS - 1) == []
    assert timer_wheel.pop_due(5 * SLOT_NS) == ["a", "b"]
    assert timer_wheel.pop_due(10 * SLOT_NS) == ["c"]


def test_putting_again_moves_an_item() -> None:
    timer_wheel: TimerWheel[str] = TimerWheel()
    timer_wheel.put("a", SLOT_NS)
    timer_wheel.put("a", 9 * SLOT_NS)
    assert len(timer_wheel) == 1
    assert timer_wheel.pop_due(8 * SLOT_NS) == []
    assert timer_wheel.pop_due(9 * SLOT_NS) == ["a"]


def test_put_returns_whether_the_sleeper_has_to_be_woken_earlier() -> None:
    timer_wheel: TimerWheel[str] = TimerWheel()
    assert timer_wheel.put("a", 5 * SLOT_NS)
    assert not timer_wheel.put("b", 6 * SLOT_NS)
    assert not timer_wheel.put("c", 5 * SLOT_NS)
    assert timer_wheel.put("d", 4 * SLOT_NS)


def test_iteration_is_a_snapshot() -> None:
    timer_wheel: TimerWheel[str] = TimerWheel()
    for name in "abc":
        timer_wheel.put(name, 0)
    for name in timer_wheel:
        timer_wheel.drop(name)
    assert len(timer_wheel) == 0


def test_no_more_than_asked_for_come_out() -> None:
    timer_wheel: TimerWheel[int] = TimerWheel()
    for number in range(10):
        timer_wheel.put(number, 0)
    assert len(timer_wheel.pop_due(0, most=3)) == 3
    assert len(timer_wheel) == 7


def test_leases_acquired_and_released_all_day_leave_nothing_behind() -> None:
    timer_wheel: TimerWheel[int] = TimerWheel()
    for number in range(1_000):
        timer_wheel.put(number, 3_600_000 * MS)
        timer_wheel.drop(number)
    assert len(timer_wheel._heap) <= 10


class CalendarModel(RuleBasedStateMachine):
    """The calendar beside a plain dictionary of due slots."""

    def __init__(self) -> None:
        super().__init__()
        self.timer_wheel: TimerWheel[int] = TimerWheel(10)
        self.due: dict[int, int] = {}
        self.now = 0

    @rule(item=ITEMS, ahead=st.integers(-30, 300))
    def put(self, item: int, ahead: int) -> None:
        due = max(0, self.now + ahead)
        first_before = min(self.due.values(), default=None)
        first = self.timer_wheel.put(item, due)
        self.due[item] = due // 10 * 10
        if first:
            assert min(self.due.values()) == self.due[item]
        if first_before is None or self.due[item] < first_before:
            # The sleeper waits until `first_before` and must be woken, unless something withdrawn wakes it earlier
            # still.
            assert first or self.timer_wheel._heap[0] * 10 < self.due[item]

    @rule(item=ITEMS)
    def drop(self, item: int) -> None:
        assert self.timer_wheel.drop(item) == (self.due.pop(item, None) is not None)

    @rule(gap=st.integers(0, 60))
    def pop(self, gap: int) -> None:
        self.now += gap
        popped = self.timer_wheel.pop_due(self.now)
        wanted = {item: due for item, due in self.due.items() if due <= self.now}
        assert sorted(popped) == sorted(wanted)
        assert [wanted[item] for item in popped] == sorted(wanted.values())
        for item in popped:
            del self.due[item]

    @invariant()
    def same_contents(self) -> None:
        assert sorted(self.timer_wheel) == sorted(self.due)
        assert len(self.timer_wheel) == len(self.due)
        assert all(item in self.timer_wheel for item in self.due)

    @rule()
    def next_due(self) -> None:
        assert self.timer_wheel.next_due_ns() == min(self.due.values(), default=None)


TestCalendar = CalendarModel.TestCase


def reachable(timer_wheel: TimerWheel[str]) -> None:
    """Every item comes out when its slot is due, and taking out ends."""
    there = sorted(timer_wheel)
    assert sorted(timer_wheel.pop_due(10**18, most=50)) == there
    assert timer_wheel.next_due_ns() is None
    assert timer_wheel.pop_due(10**18, most=50) == []


STEPS: dict[str, Callable[[TimerWheel[str]], object]] = {
    "drop the only item of a slot": lambda timer_wheel: timer_wheel.drop("alone"),
    "drop one of two": lambda timer_wheel: timer_wheel.drop("a"),
    "move to a new slot": lambda timer_wheel: timer_wheel.put("alone", 9 * SLOT_NS),
    "move to a known slot": lambda timer_wheel: timer_wheel.put("alone", 7 * SLOT_NS),
    "enter in a new slot": lambda timer_wheel: timer_wheel.put("new", 3 * SLOT_NS),
    "enter many": lambda timer_wheel: timer_wheel.put_all(["n1", "n2"], 4 * SLOT_NS),
    "take out": lambda timer_wheel: timer_wheel.pop_due(5 * SLOT_NS, most=10),
    "look": lambda timer_wheel: (timer_wheel.drop("alone"), timer_wheel.next_due_ns()),
}


@pytest.mark.parametrize("name", STEPS)
def test_an_interrupt_at_any_bytecode_loses_no_other_item_and_leaves_nothing_that_never_comes_out(name: str) -> None:
    timer_wheel: TimerWheel[str] = TimerWheel()

    def work(at: Tracer) -> None:
        nonlocal timer_wheel
        Tracer.pause()
        timer_wheel = TimerWheel()
        timer_wheel.put("alone", 5 * SLOT_NS)
        for item in ("a", "b"):
            timer_wheel.put(item, 7 * SLOT_NS)
        at.resume()
        STEPS[name](timer_wheel)

    places = 0
    for where in every(work):
        places += 1
        timer_wheel.put("later", 6 * SLOT_NS)
        assert {"b", "later"} <= set(timer_wheel), where
        reachable(timer_wheel)
    assert places > 10


@pytest.mark.parametrize("name", ["drop one of two", "move to a new slot", "enter in a new slot", "enter many"])
def test_a_signal_handler_may_withdraw_items_at_any_bytecode(name: str) -> None:
    timer_wheel: TimerWheel[str] = TimerWheel()

    def handler() -> None:
        timer_wheel.drop("b")
        timer_wheel.drop("alone")

    def work(at: Tracer) -> None:
        nonlocal timer_wheel
        Tracer.pause()
        timer_wheel = TimerWheel()
        timer_wheel.put("alone", 5 * SLOT_NS)
        for item in ("a", "b"):
            timer_wheel.put(item, 7 * SLOT_NS)
        at.resume()
        STEPS[name](timer_wheel)

    for where in every(work, handler):
        assert "b" not in timer_wheel, where
        timer_wheel.put("later", 6 * SLOT_NS)
        reachable(timer_wheel)
