"""What every guard does at its door: who is let in, what is counted, what is told to whom."""

from __future__ import annotations

import logging

import pytest

import holdfast
from holdfast.core import failpoints
from holdfast.core.history.events import EventKind, Record
from holdfast.core.lease.fencing import Absent, Accepted, Outcome, Present, Rule, Stale, Unregistered
from holdfast.errors import BadInput, FencedOut, LeaseLost, NotEntered, RowExists, RowMissing, Unfenced
from holdfast.guards import Bearer, CarriedFence
from holdfast.guards.admission import Admission, GuardStatistics, Presented
from holdfast.runtime.run_sync import run_now
from support.fixtures.guards import carried


class Notebook:
    def __init__(self) -> None:
        self.records: list[Record] = []

    def note(self, record: Record) -> None:
        self.records.append(record)


def admit(admission: Admission, bearer: Bearer, *, seen: int | None = None, resource: str = "invoices 42") -> Presented:
    async def newest() -> int | None:
        return seen

    return run_now(admission.admit(bearer, resource, Rule.AT_LEAST, newest, {"id": 42}))


def test_a_held_lease_is_let_in_with_its_fence(lease: holdfast.Lease) -> None:
    presented = admit(Admission("g"), lease)
    assert (presented.fence, presented.key, presented.owner) == (lease.fence, "invoice:42", lease.owner)


@pytest.mark.requires("R29")
def test_a_lost_lease_is_refused_before_anything_is_sent(released: holdfast.Lease) -> None:
    admission = Admission("g")
    with pytest.raises(LeaseLost):
        admit(admission, released)
    assert admission.statistics() == GuardStatistics(lost=1)


def test_a_lost_lease_learns_whether_a_newer_holder_was_there_already(released: holdfast.Lease) -> None:
    admission = Admission("g")
    with pytest.raises(FencedOut) as refused:
        admit(admission, released, seen=released.fence + 1)
    assert (refused.value.fence, refused.value.seen) == (released.fence, released.fence + 1)
    assert (refused.value.key, refused.value.resource) == ("invoice:42", "invoices 42")
    assert admission.statistics() == GuardStatistics(refused=1)


@pytest.mark.requires("R44")
def test_a_degraded_lease_is_refused_unless_the_guard_was_made_to_allow_it(degraded: holdfast.DegradedLease) -> None:
    strict, lenient = Admission("g"), Admission("g", allow_degraded=True)
    with pytest.raises(Unfenced, match="allow_degraded=True"):
        admit(strict, degraded)
    assert strict.statistics() == GuardStatistics(unfenced_refused=1)
    presented = admit(lenient, degraded)
    assert (presented.fence, presented.rule) == (None, Rule.NONE)
    assert lenient.written(presented, Accepted("x")) == "x"
    assert lenient.statistics() == GuardStatistics(unfenced=1), "and what went unprotected is counted as such"


@pytest.mark.parametrize("wrong", [None, 7, "7", object(), True, {"fence": 7}])
def test_what_is_no_lease_is_refused_and_says_what_to_pass(wrong: object) -> None:
    with pytest.raises(BadInput, match=r"^lease: .*CarriedFence") as refused:
        admit(Admission("g"), wrong)  # type: ignore[arg-type]  # what a caller without a type checker might pass
    assert refused.value.field == "lease"


def test_the_lease_of_another_lock_is_refused_where_the_guard_knows_the_name() -> None:
    admission = Admission("g", key="invoice:{id}", names=("id",))
    assert admit(admission, carried(1)).fence == 1
    with pytest.raises(BadInput, match=r"'invoice:43' is not the lock of invoices 42; hold 'invoice:42'"):
        admit(admission, carried(1, "invoice:43"))


@pytest.mark.parametrize("wrong", ["invoice:{nr}", "invoice:{", "invoice:{0}", "invoice:{}", 7])
def test_a_template_that_can_never_match_is_refused_when_the_guard_is_made(wrong: object) -> None:
    with pytest.raises(BadInput, match=r"^key: "):
        Admission("g", key=wrong, names=("id",))  # type: ignore[arg-type]  # on purpose


@pytest.mark.parametrize(
    ("outcome", "error", "counted"),
    [
        (Stale(9), FencedOut, GuardStatistics(refused=1)),
        (Absent(), RowMissing, GuardStatistics(missing=1)),
        (Present(), RowExists, GuardStatistics(existing=1)),
        (Unregistered(3), NotEntered, GuardStatistics(not_entered=1)),
        (Unregistered(None), NotEntered, GuardStatistics(not_entered=1)),
    ],
)
def test_each_outcome_is_an_error_of_its_own_and_counted_apart(
    outcome: Outcome[str], error: type[Exception], counted: GuardStatistics
) -> None:
    admission = Admission("g")
    presented = admit(admission, carried(7))
    with pytest.raises(error, match="invoices 42"):
        admission.written(presented, outcome)
    assert admission.statistics() == counted


def test_entering_what_does_not_exist_is_a_registration_and_not_an_error() -> None:
    admission = Admission("g")
    outcome: Outcome[str] = Absent()
    assert admission.entered(admit(admission, carried(7)), outcome) is None
    assert admission.statistics() == GuardStatistics(entered=1)


@pytest.mark.requires("R58")
def test_a_refusal_is_logged_and_told_to_the_observer(caplog: pytest.LogCaptureFixture) -> None:
    notebook = Notebook()
    admission = Admission("sqlite:invoices", observer=notebook)
    presented = admit(admission, carried(7))
    admission.entered(presented, Accepted("x"))
    with caplog.at_level(logging.WARNING, "holdfast.guards"), pytest.raises(FencedOut):
        admission.written(presented, Stale(9))
    assert [(each.kind, each.ok, each.fence, each.key) for each in notebook.records] == [
        (EventKind.READ, True, 7, "invoice:42"),
        (EventKind.WRITE, False, 7, "invoice:42"),
    ]
    assert "seen 9" in notebook.records[1].detail
    assert [record.getMessage() for record in caplog.records] == [
        "refused a stale write: guard=sqlite:invoices resource=invoices 42 key=invoice:42 fence=7 seen=9"
    ]


def test_an_observer_that_raises_does_not_change_what_happened(caplog: pytest.LogCaptureFixture) -> None:
    class Broken:
        def note(self, record: Record) -> None:
            raise RuntimeError("no")

    admission = Admission("g", observer=Broken())
    assert admission.written(admit(admission, carried(7)), Accepted("x")) == "x"
    assert admission.statistics().accepted == 1
    assert "not affected" in caplog.text


@pytest.mark.parametrize(("key", "fence"), [("", 1), ("x{y}", 1), ("x", -1), ("x", True), ("x", "1"), ("x", 2**63)])
def test_a_carried_fence_is_checked_when_it_is_made(key: str, fence: int) -> None:
    with pytest.raises(BadInput):
        CarriedFence(key, fence)


def test_failpoints_act_only_inside_their_block_and_only_by_known_names() -> None:
    reached: list[str] = []
    with failpoints.armed("guard.admitted", lambda: reached.append("outer")):
        with failpoints.armed("guard.admitted", lambda: reached.append("inner")):
            admit(Admission("g"), carried(7))
        admit(Admission("g"), carried(7))
    admit(Admission("g"), carried(7))
    assert reached == ["inner", "outer"]
    with pytest.raises(ValueError, match="nowhere"), failpoints.armed("nowhere", lambda: None):
        pass
