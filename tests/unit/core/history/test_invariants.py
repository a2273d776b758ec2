"""The checkers themselves: a clean history passes, and each rule sees its own violation and nothing else's."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.history.events import EventKind, Record
from holdfast.core.history.invariants import Breach, check
from holdfast.types import NS


def record(kind: EventKind, at: float, fence: int | None = None, key: str = "k", **more: object) -> Record:
    return Record(kind, round(at * NS), key, fence=fence, **more)  # type: ignore[arg-type]  # the fields of a record


def hold(fence: int, at: float, *, key: str = "k", value: int = 1) -> list[Record]:
    """One clean tenure of a second: handed, granted, a guarded update, released."""
    return [
        record(EventKind.HANDED, at, fence, key),
        record(EventKind.GRANTED, at + 0.1, fence, key, began_ns=round((at - 0.1) * NS)),
        record(EventKind.STEP, at + 0.2, fence, key, until_ns=round((at + 5) * NS)),
        record(EventKind.READ, at + 0.3, fence, key, value=value - 1),
        record(EventKind.WRITE, at + 0.4, fence, key, value=value, based_on=value - 1),
        record(EventKind.EXTENDED, at + 0.5, fence, key),
        record(EventKind.ENDED, at + 0.6, fence, key),
        record(EventKind.RELEASED, at + 0.7, fence, key),
    ]


CLEAN = [*hold(5, 10), *hold(7, 20, value=2), *hold(6, 12, key="other")]


def rules(history: list[Record]) -> list[str]:
    return [violation.rule for violation in check(history)]


def test_a_clean_history_breaks_no_rule() -> None:
    assert check(CLEAN) == []
    assert check([]) == []


@given(st.permutations(CLEAN))
def test_the_order_in_which_records_are_collected_does_not_matter(shuffled: list[Record]) -> None:
    assert check(shuffled) == []


@pytest.mark.parametrize(
    ("rule", "history"),
    [
        ("C1", [record(EventKind.HANDED, 1, 0)]),
        ("C1", [record(EventKind.GRANTED, 1, 5), record(EventKind.GRANTED, 2, 5)]),
        ("C2", [record(EventKind.HANDED, 1, 5), record(EventKind.HANDED, 2, 4)]),
        ("C2", [record(EventKind.GRANTED, 1, 5, began_ns=0), record(EventKind.PROMOTED, 3, 4, began_ns=2 * NS)]),
        ("C3", [record(EventKind.HANDED, 1, 5), record(EventKind.FORGOT, 2, key=""), record(EventKind.HANDED, 3, 4)]),
        ("C4", [record(EventKind.HANDED, 1, 5), record(EventKind.HANDED, 2, 6), record(EventKind.STEP, 3, 5)]),
        ("C4", [record(EventKind.HANDED, 1, 5), record(EventKind.HANDED, 2, 6), record(EventKind.BELIEVED, 2, 5)]),
        ("C4", [record(EventKind.GRANTED, 1, 5), record(EventKind.GRANTED, 2, 6), record(EventKind.STEP, 3, 5)]),
        (
            "C6",
            [record(EventKind.WRITE, 1, 5, value=1, based_on=0), record(EventKind.WRITE, 2, 5, value=2, based_on=0)],
        ),
        ("C6", [record(EventKind.WRITE, 1, 5, value=1, based_on=0), record(EventKind.READ, 2, 5, value=2)]),
        ("C6", [record(EventKind.READ, 1, 5, value=1)]),
        ("C7", [record(EventKind.READ, 1, 5, value=0), record(EventKind.WRITE, 2, 5, ok=False)]),
        ("C8", [record(EventKind.HANDED, 1, 5), record(EventKind.HANDED, 2, 6), record(EventKind.ENDED, 3, 5)]),
        ("C8", [record(EventKind.HANDED, 1, 5), record(EventKind.HANDED, 2, 6), record(EventKind.EXTENDED, 3, 5)]),
        ("C8", [record(EventKind.HANDED, 1, 5), record(EventKind.ENDED, 2, None)]),
        ("C8", [record(EventKind.HANDED, 1, 5), record(EventKind.ENDED, 2, 5), record(EventKind.ENDED, 3, 5)]),
        ("C8", [record(EventKind.LOST, 1, 5, ok=False), record(EventKind.RELEASED, 2, 5)]),
        ("C9", [record(EventKind.HANDED, 1, 5), record(EventKind.GRANTED, 2, 6)]),
        ("C9", [record(EventKind.HANDED, 1, 5, owner="a@h:1/x"), record(EventKind.GRANTED, 2, 5, owner="a@h:1/y")]),
        ("C9", [record(EventKind.HANDED, 1, 5, owner="a@h:1/x"), record(EventKind.GRANTED, 2, 5, owner="i")]),
        ("C10", [record(EventKind.STEP, 3, 5, until_ns=3 * NS)]),
        ("C11", [record(EventKind.HANDED, 1, 5), record(EventKind.HEALED, 2, key="", until_ns=3 * NS)]),
        (
            "C11",
            [
                record(EventKind.HANDED, 1, 5),
                record(EventKind.HEALED, 2, key="", until_ns=3 * NS),
                record(EventKind.HANDED, 4, 6),
                record(EventKind.GRANTED, 4, 6),
            ],
        ),
    ],
)
def test_each_rule_sees_its_violation(rule: str, history: list[Record]) -> None:
    assert rules(history) == [rule]


def test_a_stale_write_that_was_accepted_breaks_the_order_and_loses_an_update() -> None:
    history = [
        record(EventKind.READ, 1, 5, value=0),
        record(EventKind.WRITE, 2, 6, value=1, based_on=0),
        record(EventKind.WRITE, 3, 5, value=2, based_on=0),
    ]
    assert rules(history) == ["C5", "C6"]


@pytest.mark.parametrize("between", [record(EventKind.FORGOT, 1.5, key=""), record(EventKind.FORCED, 1.5, 5)])
def test_exclusion_is_not_demanded_across_what_no_store_can_survive(between: Record) -> None:
    history = [record(EventKind.HANDED, 1, 5), between, record(EventKind.HANDED, 2, 6), record(EventKind.STEP, 3, 5)]
    assert rules(history) == []
    assert rules([between, *(replace(each, at_ns=each.at_ns + NS) for each in history if each is not between)]) == [
        "C4"
    ]


def test_concurrent_grants_may_have_any_order_of_fences_as_far_as_their_holders_can_tell() -> None:
    history = [record(EventKind.GRANTED, 3, 5, began_ns=NS), record(EventKind.GRANTED, 4, 4, began_ns=2 * NS)]
    assert rules(history) == []


def test_a_violation_names_the_rule_the_key_and_both_records() -> None:
    history = [record(EventKind.HANDED, 1, 5), record(EventKind.HANDED, 2, 6), record(EventKind.STEP, 3, 5)]
    text = str(check(history)[0])
    assert text.startswith("C4 k: a holder acted on fence 5 when the store had given the key to another")
    assert "2.000000s handed k by the store fence=6" in text
    assert "3.000000s step k by the store fence=5" in text
    assert isinstance(check(history)[0], Breach)


def test_a_hundred_thousand_records_are_checked_in_one_sweep() -> None:
    """Rules are sweeps, not searches. A search would not come to an end here."""
    history = [each for number in range(1, 12_501) for each in hold(number, number * 10.0, value=number)]
    assert len(history) == 100_000
    assert check(history) == []


@pytest.mark.parametrize(("store", "holder"), [("a@h:1/x", "a@h:1/x"), ("a@h:1/x", "h"), ("", "h"), ("a@h:1/x", "")])
def test_a_grant_belongs_to_whom_it_was_handed_however_they_are_named(store: str, holder: str) -> None:
    assert check([record(EventKind.HANDED, 1, 5, owner=store), record(EventKind.GRANTED, 2, 5, owner=holder)]) == []
