"""Bugs in what a client of a store does: taking, keeping, judging and giving back leases."""

from __future__ import annotations

import sys
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any

import pytest

from holdfast.aio.lease import AnyLease
from holdfast.core.lease import states as table
from holdfast.core.lease.spec import LockSpec
from holdfast.core.lease.states import LeaseState
from holdfast.core.lease.timing import Timing
from holdfast.core.ports import Ports
from holdfast.errors import Timeout
from holdfast.flows import acquire as acquiring
from holdfast.flows import release as releasing
from holdfast.flows.release import Released
from holdfast.runtime.lease_record import LeaseRecord
from holdfast.runtime.renewer import Renewer
from holdfast.testing.sim.environment.clock import SimEntropy
from holdfast.types import Busy, Grant, Instant
from mutation.detectors import Test, broken
from mutation.mutant import MutantGroup

group = MutantGroup()
keep = group.keep


async def _nothing(*_: object) -> None:
    """What was left out."""


@keep(
    "many: a deadline counted from the reply",
    where="flows/acquire.py",
    found_by=broken(0, "C4", "C10"),
    attacks=("R1",),
)
def ttl_counted_from_the_reply(patch: pytest.MonkeyPatch) -> None:
    """The lease is believed to run from when the store's answer arrived, not from when it was asked."""
    ask_once, answered = acquiring.try_once, LeaseRecord.answered

    async def try_once(ports: Any, *rest: Any) -> tuple[Grant | Busy, Instant, Instant]:
        answer, _, now = await ask_once(ports, *rest)
        return answer, now, now

    patch.setattr(acquiring, "try_once", try_once)
    patch.setattr(LeaseRecord, "answered", lambda self, answer, sent, now: answered(self, answer, now, now))


@keep(
    "many: not owned as one strike of several",
    where="runtime/lease_record.py",
    found_by=broken(5, "C10"),
    attacks=("R1", "R119"),
)
def not_owned_counted_as_a_strike(patch: pytest.MonkeyPatch) -> None:
    """A renewal that the store refuses counts as one failure of three, and the holder continues."""
    answered = LeaseRecord.answered
    patch.setattr(LeaseRecord, "answered", lambda self, answer, sent, now: answered(self, answer or None, sent, now))


@keep("python-redis-lock #85, #91, #33", where="aio/lease.py", found_by=broken(17, "C10"), attacks=("R1",))
def loss_judged_by_the_timer_alone(patch: pytest.MonkeyPatch) -> None:
    """Only a background thread says that a lease is lost; while it is starved the holder continues."""

    def ensure_held(self: AnyLease, min_remaining: float = 0) -> None:
        state = self._lease_record.recorded
        if not state.live:
            raise self._lost_error(state)

    patch.setattr(AnyLease, "ensure_held", ensure_held)


@keep("aioredlock #46, #64", where="core/lease/states.py", found_by=broken(19, "C4", "C10"), attacks=("R1", "R108"))
def a_lease_stays_valid_after_its_time(patch: pytest.MonkeyPatch) -> None:
    """Time alone never ends a lease for its holder; only a refused renewal does."""
    patch.setattr(table, "judge", lambda state, timing, now, tail_ns=0: state)
    patch.setattr(Renewer, "_set_alarm", lambda *_: None)


@keep(
    "many: the monotonic clock, which stands still while a host sleeps",
    where="core/lease/states.py",
    found_by=broken(21, "C4", "C10"),
    attacks=("R1",),
)
def suspend_not_counted(patch: pytest.MonkeyPatch) -> None:
    """Ages are measured on a clock that does not count the time for which the host was suspended."""

    def by_the_monotonic_clock(since: Instant, now: Instant) -> int:
        return now.mono - since.mono

    patch.setattr(table, "elapsed_ns", by_the_monotonic_clock)
    patch.setattr(acquiring, "elapsed_ns", by_the_monotonic_clock)


@keep(
    "many: no room for clocks that drift apart",
    where="core/lease/timing.py",
    found_by=broken(36, "C4"),
    attacks=("R117",),
)
def no_room_for_drift(patch: pytest.MonkeyPatch) -> None:
    """The holder uses the whole TTL, as if its clock and the store's ran alike."""
    patch.setattr(Timing, "valid_ns", lambda self: self.ttl_ns)
    patch.setattr(Timing, "loss_age_ns", lambda self, tail_ns=0: self.ttl_ns)


@keep(
    "many: a lost lease released at the end of the work",
    where="aio/lease.py",
    found_by=broken(33, "C8", text="a lost lease was released"),
    attacks=("R124",),
)
def lost_lease_released_all_the_same(patch: pytest.MonkeyPatch) -> None:
    """A lease that was lost is released at the end of the work, though another client may hold the key by then."""

    async def release(self: AnyLease, *_: object) -> Released:
        lease_record = self._lease_record
        lease_record.end(table.Event.RELEASED)
        if lease_record.entry is not None:
            lease_record.entry.leave()
        if lease_record.grant is None:
            return Released.YES
        return await releasing.release(
            self._ports, lease_record.spec, lease_record.grant, lease_record.recorded.granted
        )

    patch.setattr(AnyLease, "_release", release)


@keep(
    "Holdfast itself, found by the simulator",
    where="flows/acquire.py",
    found_by=broken(7, "C4"),
)
def retry_under_a_token_that_is_being_given_back(patch: pytest.MonkeyPatch) -> None:
    """An attempt of unknown outcome is repeated under its own token, and its clean-up then undoes the new grant."""

    class Stubborn(acquiring._Acquisition):
        __slots__ = ()

        def __setattr__(self, name: str, value: object) -> None:
            if name != "token" or not hasattr(self, "token"):
                super().__setattr__(name, value)

    patch.setattr(acquiring, "_Acquisition", Stubborn)


@keep(
    "node-redlock #168",
    where="flows/acquire.py",
    found_by=Test(
        "unit.leases.test_release",
        "test_acquire_with_an_unknown_outcome_is_undone",
        at='assert not (await locks.inspect("k")).held',
    ),
)
def retry_under_a_new_token_without_undoing_the_old(patch: pytest.MonkeyPatch) -> None:
    """An attempt of unknown outcome is repeated under a new token, and waits for what the first one may have got."""
    undo = acquiring.undo

    def unless_it_timed_out(ports: Ports, spec: LockSpec, token: str, *rest: Any) -> Coroutine[Any, Any, None]:
        return _nothing() if isinstance(sys.exc_info()[1], Timeout) else undo(ports, spec, token, *rest)

    patch.setattr(acquiring, "undo", unless_it_timed_out)


@keep("aredis #119", where="testing/sim/environment/clock.py", found_by=broken(22, "C1", text="was given out twice"))
def one_token_for_all_tasks_of_a_process(patch: pytest.MonkeyPatch) -> None:
    """The token belongs to the process and not to the grant, so one task gives back what another holds."""
    patch.setattr(SimEntropy, "token", lambda self: self.__dict__.setdefault("only", "0" * 31 + "1"))


@keep("Redisson #7272", where="runtime/renewer.py", found_by=broken(19, "C0", text="the renewer still keeps"))
def the_renewer_outlives_the_release(patch: pytest.MonkeyPatch) -> None:
    """A released lease is not removed from the renewer."""
    patch.setattr(Renewer, "drop", lambda self, lease_record: None)

    async def renew_all(self: Renewer, due: list[LeaseRecord]) -> None:
        if due:
            await self._renew(due)
            for lease_record in due:
                if not lease_record.recorded.live:
                    self._renewals.put(lease_record, self._ports.clock.now().mono + lease_record.timing.renew_every_ns)

    patch.setattr(Renewer, "_renew_due", renew_all)


@keep(
    "Redisson #2515, #3194, #3714",
    where="runtime/renewer.py",
    found_by=Test(
        "unit.leases.test_renewal",
        "test_a_blip_makes_the_lease_doubtful_and_an_answer_makes_it_whole_again",
        at='assert lease.state == "held"',
    ),
    attacks=("R118", "R127"),
)
def no_renewal_after_the_first_that_failed(patch: pytest.MonkeyPatch) -> None:
    """After one renewal that brought no answer the renewer never asks for this lease again."""
    due = Renewer._renew_due

    async def those_without_a_failure(self: Renewer, lease_records: list[LeaseRecord]) -> None:
        await due(self, [lease_record for lease_record in lease_records if not lease_record.recorded.failures])

    patch.setattr(Renewer, "_renew_due", those_without_a_failure)


@keep(
    "Redisson #6483, #7254",
    where="core/lease/states.py",
    found_by=Test(
        "unit.leases.test_renewal",
        "test_three_failed_periods_abandon_the_lease_though_many_attempts_failed_before",
        at='assert lease.lost.reason == "unconfirmed"',
    ),
    attacks=("R45", "R119", "R123", "R127"),
)
def a_failed_renewal_is_only_logged(patch: pytest.MonkeyPatch) -> None:
    """Renewals without an answer are never counted against the budget of failures, and the holder continues."""
    unknown = table.unknown

    def uncounted(state: LeaseState, timing: Timing, now: Instant) -> LeaseState:
        return unknown(state, replace(timing, failures_max=10**9), now)

    patch.setattr(table, "unknown", uncounted)


@keep(
    "many: a swallowed renewal error",
    where="runtime/lease_record.py",
    found_by=broken(2, "C4", "C10"),
    attacks=("R123", "R127"),
)
def an_error_of_a_renewal_taken_for_success(patch: pytest.MonkeyPatch) -> None:
    """Whatever a renewal raises is swallowed, and the lease counts as renewed."""
    answered = LeaseRecord.answered

    def swallowed(self: LeaseRecord, answer: bool | None, sent: Instant, now: Instant) -> None:
        answered(self, True if answer is None else answer, sent, now)

    patch.setattr(LeaseRecord, "answered", swallowed)


@keep(
    "pottery #692",
    where="runtime/renewer.py",
    found_by=Test(
        "unit.leases.test_renewal", "test_renewal_keeps_a_lease_for_as_long_as_the_work_takes", at="assert lease.held"
    ),
    attacks=("R15", "R45", "R52", "R78", "R82", "R89"),
)
def renewals_are_capped(patch: pytest.MonkeyPatch) -> None:
    """A lease is renewed a few times and then no more, however long the work takes."""
    due = Renewer._renew_due
    times: dict[LeaseRecord, int] = {}

    async def the_first_three(self: Renewer, lease_records: list[LeaseRecord]) -> None:
        for lease_record in lease_records:
            times[lease_record] = times.get(lease_record, 0) + 1
        await due(self, [lease_record for lease_record in lease_records if times[lease_record] <= 3])

    patch.setattr(Renewer, "_renew_due", the_first_three)


@keep(
    "node-redlock #369",
    where="flows/acquire.py",
    found_by=Test(
        "unit.leases.test_taking",
        "test_an_answer_that_took_longer_than_the_lease_is_not_a_lease",
        at="with pytest.raises(Timeout)",
    ),
)
def a_grant_that_is_past_its_time_is_handed_out(patch: pytest.MonkeyPatch) -> None:
    """No check whether the reply took longer than the lease lasts."""
    patch.setattr(acquiring, "elapsed_ns", lambda since, now: 0)


@keep(
    "redis-py #3532",
    where="leases/lease_base.py",
    found_by=Test(
        "unit.leases.test_block",
        "test_a_loss_that_nobody_noticed_is_raised_at_the_end_of_the_block",
        at="with pytest.raises(LeaseLost)",
        given={"begin": "lock_itself"},
    ),
)
def a_loss_is_swallowed_at_the_end_of_the_block(patch: pytest.MonkeyPatch) -> None:
    """The end of a `with` block says nothing about a lease that was lost inside."""
    patch.setattr(AnyLease, "_report_at_exit", lambda self, lost, error: None)


@keep(
    "redis-py 8.1 (no report found)",
    where="flows/acquire.py",
    found_by=Test(
        "simulation.test_cancellation",
        "test_cancelling_at_any_await_point_leaves_nothing_behind",
        at="an orphan holds the key",
        given={"scenario": "acquire_and_release", "contended": False, "way": "as the answer arrives"},
    ),
    attacks=("R45",),
)
def a_cancelled_acquire_is_not_undone(patch: pytest.MonkeyPatch) -> None:
    """A task that is cancelled while the store's grant is on its way leaves a key without a holder."""
    undo = acquiring.undo

    def unless_it_was_cancelled(ports: Ports, spec: LockSpec, token: str, *rest: Any) -> Coroutine[Any, Any, None]:
        return undo(ports, spec, token, *rest) if isinstance(sys.exc_info()[1], Timeout) else _nothing()

    patch.setattr(acquiring, "undo", unless_it_was_cancelled)


@keep(
    "redis-py #3847",
    where="aio/lease.py",
    found_by=Test(
        "unit.leases.test_cancellation",
        "test_a_cancelled_release_still_gives_the_lock_back",
        at="release cancelled at step",
        given={"times": 1},
    ),
)
def a_cancelled_release_forgets_its_token(patch: pytest.MonkeyPatch) -> None:
    """The lease is over for its holder before the store was told, so a release that is cancelled is never made."""

    patch.setattr(releasing, "again", _nothing)


@keep(
    "many: a lease that was dropped is renewed for ever",
    where="leases/lease_base.py",
    found_by=Test(
        "unit.leases.test_loss",
        "test_a_lease_that_is_dropped_is_left_to_expire_and_says_so",
        at='assert not (await locks.inspect("k")).held',
    ),
)
def a_dropped_lease_is_renewed_for_ever(patch: pytest.MonkeyPatch) -> None:
    """The renewer continues for a lease object that the program has dropped."""
    patch.setattr(LeaseRecord, "abandoned", False)


@keep(
    "many: a failed clean-up is dropped",
    where="runtime/renewer.py",
    found_by=Test(
        "unit.leases.test_release",
        "test_what_could_not_be_released_is_given_back_when_the_store_is_well",
        at='assert not (await locks.inspect("k")).held',
    ),
)
def what_could_not_be_given_back_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    """A release that the store did not answer is not tried again, and the key stays taken for its whole TTL."""
    patch.setattr(Renewer, "reap", lambda self, key, token, ttl_ns, after_ns=0: None)
