"""Bugs in what callers and operators rely on: texts, times, delays, the local path, the error policy, the inventory."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from holdfast import errors
from holdfast.aio.client import Locks
from holdfast.aio.lease import Lease
from holdfast.core import backoff
from holdfast.core.backoff import Draw, Fixed, Jittered
from holdfast.core.history.events import EventKind
from holdfast.core.lease import timing
from holdfast.core.lease.error_policy import OnError, Policy
from holdfast.core.lease.timing import Timing
from holdfast.core.retry_delays import RetryDelays
from holdfast.core.tuning import ttl as tuning
from holdfast.core.tuning.burstiness import Burst, Burstiness
from holdfast.errors import BackendError, LockBusy, NotOwner, RetryLater, Unavailable
from holdfast.flows import acquire as acquiring
from holdfast.flows import raw_token
from holdfast.flows import release as releasing
from holdfast.flows.release import Released
from holdfast.guards.admission import Admission
from holdfast.leases import lock_spec
from holdfast.ops.alerts import thresholds
from holdfast.ops.tuning import metrics as tuning_metrics
from holdfast.plane.locks import registry as families
from holdfast.plane.locks.registry import Scope
from holdfast.plane.policy import escalation_rules
from holdfast.runtime import recorder
from holdfast.runtime.asyncio_runtime import LoopEntry
from holdfast.runtime.system import SystemEntropy
from holdfast.stores.memory.table import MemoryTable
from holdfast.types import MS, AcquireRequest, Busy, Grant
from mutation.detectors import Test
from mutation.mutant import MutantGroup

group = MutantGroup()
keep = group.keep

MANY = "many: a promise that is not kept"


@keep(
    MANY,
    where="runtime/system.py",
    found_by=Test(
        "unit.leases.test_taking",
        "test_every_grant_has_a_token_of_its_own_and_a_higher_fence",
        at="assert len(marks) == 20",
    ),
    attacks=("R2",),
)
def one_token_for_all_grants(patch: pytest.MonkeyPatch) -> None:
    """Every acquisition of a process has the same token."""
    patch.setattr(SystemEntropy, "token", lambda self: "0" * 31 + "1")


@keep(
    MANY,
    where="flows/raw_token.py",
    found_by=Test(
        "unit.leases.test_primitive",
        "test_acquire_gives_a_new_token_or_the_empty_string",
        at='assert await others.acquire_token("k", 5) == ""',
    ),
    attacks=("R3",),
)
def contention_is_an_error(patch: pytest.MonkeyPatch) -> None:
    """The primitive raises while another client holds the key."""
    acquire = raw_token.acquire

    async def or_raise(*arguments: Any) -> str:
        token = await acquire(*arguments)
        if not token:
            raise LockBusy("lock busy")
        return token

    patch.setattr(raw_token, "acquire", or_raise)


@keep(
    MANY,
    where="flows/raw_token.py",
    found_by=Test(
        "unit.leases.test_primitive",
        "test_what_is_missing_is_said_without_asking_the_store",
        at='assert str(raised.value) == "lock token required"',
    ),
    attacks=("R5",),
)
def a_release_without_a_token_asks_the_store(patch: pytest.MonkeyPatch) -> None:
    """An empty token is sent to the store, whose answer is that the lock is not owned."""
    release = raw_token.release
    patch.setattr(raw_token, "release", lambda ports, key, token: release(ports, key, token or "."))


@keep(
    MANY,
    where="flows/raw_token.py",
    found_by=Test(
        "unit.leases.test_primitive",
        "test_a_store_error_names_the_operation_and_keeps_its_cause",
        at='await locks.release_token("k", token)',
        given={"trouble": "down", "kind": Unavailable},
    ),
    attacks=("R6", "R8"),
)
def store_trouble_is_called_not_owned(patch: pytest.MonkeyPatch) -> None:
    """A release or renewal that the store did not answer ends as `lock not owned`."""
    patch.setattr(raw_token, "_naming", lambda error, what: NotOwner())


@keep(
    MANY,
    where="leases/lock_spec.py",
    found_by=Test(
        "unit.leases.test_capabilities",
        "test_a_store_that_cannot_renew_is_not_asked_to",
        at="assert not timing.auto_renew",
    ),
    attacks=("R16",),
)
def every_store_is_asked_to_renew(patch: pytest.MonkeyPatch) -> None:
    """No check whether the store can renew."""
    settle = timing.settle
    patch.setattr(timing, "settle", lambda **chosen: settle(**{**chosen, "auto_renew": True}))
    _nothing_known(patch)


@keep(
    MANY,
    where="flows/release.py",
    found_by=Test(
        "unit.leases.test_measuring",
        "test_losses_are_by_family_and_reason_and_what_was_not_owned_is_by_family",
        at="found[name].counts.get(EventKind.RELEASE_REFUSED, 0)",
    ),
    attacks=("R32",),
)
def what_was_not_owned_is_not_counted(patch: pytest.MonkeyPatch) -> None:
    """A refused release is recorded nowhere."""
    note = acquiring.note

    def others(ports: Any, wish: Any, kind: EventKind, **how: Any) -> None:
        if kind is not EventKind.RELEASE_REFUSED:
            note(ports, wish, kind, **how)

    patch.setattr(releasing, "note", others)


@keep(
    MANY,
    where="guards/admission.py",
    found_by=Test(
        "unit.guards.test_admission",
        "test_a_degraded_lease_is_refused_unless_the_guard_was_made_to_allow_it",
        at="with pytest.raises(Unfenced",
    ),
    attacks=("R44",),
)
def every_guard_lets_leases_without_a_fence_write(patch: pytest.MonkeyPatch) -> None:
    """A lease of the local path alone writes where duplicates corrupt."""
    begin = Admission.__init__
    patch.setattr(Admission, "__init__", lambda self, name, **_: begin(self, name, allow_degraded=True))


@keep(
    MANY,
    where="aio/client.py",
    found_by=Test(
        "unit.leases.test_hold_and_leader",
        "test_a_hold_is_taken_once_per_window_by_whoever_comes_first",
        at="assert [tick for tick, _ in taken] == [0, 3, 6]",
    ),
    attacks=("R46", "R51", "R54"),
)
def a_hold_ends_before_its_window(patch: pytest.MonkeyPatch) -> None:
    """A loop gives its lock free after a third of the window, and another replica ticks in the same one."""
    hold = Locks.hold

    def shorter(self: Locks, name: str, *, ttl: float, family: str = "default") -> Awaitable[Any]:
        return hold(self, name, ttl=ttl / 3, family=family)

    patch.setattr(Locks, "hold", shorter)


@keep(
    MANY,
    where="runtime/asyncio_runtime.py",
    found_by=Test(
        "unit.leases.test_local_mutex",
        "test_only_one_waiter_of_a_process_talks_to_the_store",
        at="eight callers are queued",
    ),
    attacks=("R48",),
)
def every_waiter_of_a_process_asks_the_store(patch: pytest.MonkeyPatch) -> None:
    """There is no mutex inside the process, so eight waiters are eight times the requests."""

    async def enter(self: LoopEntry, *_: object) -> bool:
        return True

    patch.setattr(LoopEntry, "enter", enter)
    patch.setattr(LoopEntry, "leave", lambda self: None)


@keep(
    MANY,
    where="runtime/asyncio_runtime.py",
    found_by=Test(
        "unit.leases.test_local_mutex", "test_contention_gives_the_local_mutex_back", at="assert nobody_in_line(two)"
    ),
    attacks=("R81",),
)
def contention_keeps_the_local_mutex(patch: pytest.MonkeyPatch) -> None:
    """A caller who could not have the lock stays at the head of the line of its process."""
    patch.setattr(LoopEntry, "leave", lambda self: None)


@keep(
    MANY,
    where="core/lease/timing.py",
    found_by=Test(
        "unit.leases.test_renewal",
        "test_a_job_lock_is_sixty_twenty_three",
        at='assert stage.plan.calls["renew_many"] == 3',
    ),
    attacks=("R50", "R122"),
)
def renewals_every_half_of_the_ttl(patch: pytest.MonkeyPatch) -> None:
    """One renewal that fails is followed by none before the lease has to be given up."""
    _renewing(patch, lambda ttl: ttl / 2)


@keep(
    MANY,
    where="core/lease/timing.py",
    found_by=Test(
        "unit.core.lease.test_timing",
        "test_the_defaults_are_thirty_seconds_renewed_every_ten",
        at="assert timing.renew_every_ns == 10 * NS",
    ),
    attacks=("R114",),
)
def renewals_every_second(patch: pytest.MonkeyPatch) -> None:
    """The interval between renewals does not follow from the TTL."""
    _renewing(patch, lambda _: 1.0)


def _renewing(patch: pytest.MonkeyPatch, every: Callable[[float], float]) -> None:
    settle = timing._settle

    def settled(**settings: Any) -> Timing:
        return settle(**{"renew_every": every(settings.get("ttl", timing.DEFAULT_TTL)), **settings})

    patch.setattr(timing, "_known", settled)
    _nothing_known(patch)


def _nothing_known(patch: pytest.MonkeyPatch) -> None:
    """What is described under a mutant does not stay among the descriptions that are kept."""
    patch.setattr(lock_spec, "_model", lock_spec._model.__wrapped__)


@keep(
    MANY,
    where="core/lease/timing.py",
    found_by=Test(
        "unit.core.lease.test_timing",
        "test_unsafe_settings_are_refused_with_the_sum",
        at="with pytest.raises(BadInput)",
        given={"settings": {"ttl": 60, "takeover_slo": 30}, "field": "takeover_slo", "sums": []},
    ),
    attacks=("R116", "R120"),
)
def a_takeover_objective_that_cannot_be_kept_is_accepted(patch: pytest.MonkeyPatch) -> None:
    """A TTL of 60 s is accepted where 30 s were promised."""
    patch.setattr(timing, "_check_takeover", lambda timing, slo_ns: None)
    patch.setattr(timing, "_known", timing._settle)


@keep(
    MANY,
    where="core/tuning/ttl.py",
    found_by=Test(
        "unit.core.tuning.test_tuning", "test_the_worked_example_comes_out_exactly", at="assert (found.ttl_ns"
    ),
    attacks=("R113",),
)
def a_ttl_without_a_guard(patch: pytest.MonkeyPatch) -> None:
    """The TTL is computed from the hold and the jitter alone."""
    compute = timing.ttl_from_data_ns
    patch.setattr(timing, "ttl_from_data_ns", lambda hold, jitter, guard: compute(hold, jitter, 0))


@keep(
    MANY,
    where="core/tuning/ttl.py",
    found_by=Test(
        "unit.core.tuning.test_tuning",
        "test_the_worked_example_comes_out_exactly",
        at="assert (found.detection_ns, found.takeover",
    ),
    attacks=("R115",),
)
def a_takeover_without_the_time_to_notice(patch: pytest.MonkeyPatch) -> None:
    """The bound of a takeover leaves out the time until a waiter notices."""
    ttl_alone = property(lambda self: None if self.timing is None else self.timing.ttl_ns)
    patch.setattr(tuning.Recommendation, "takeover_ns", ttl_alone)


@keep(
    MANY,
    where="plane/locks/registry.py",
    found_by=Test(
        "unit.plane.locks.test_families",
        "test_the_job_lock_has_the_times_that_operators_know",
        at="assert (job.ttl, job.renew",
    ),
    attacks=("R50",),
)
def a_job_lock_of_half_a_minute(patch: pytest.MonkeyPatch) -> None:
    """The lock of a job lasts 30 s."""
    patch.setattr(families, "SCHEDULER_JOB", families.SCHEDULER_JOB.timed(ttl=30.0))


@keep(
    MANY,
    where="plane/locks/registry.py",
    found_by=Test(
        "unit.plane.locks.test_families",
        "test_the_lock_of_a_loop_lasts_two_of_its_intervals",
        at="assert families.RECONCILER.ttl_for(30) == 60.0",
    ),
    attacks=("R51",),
)
def a_loop_lock_of_one_interval(patch: pytest.MonkeyPatch) -> None:
    """The lock of a loop runs out as the next tick begins."""
    patch.setattr(families, "RECONCILER", replace(families.RECONCILER, per_interval=1.0))


@keep(
    MANY,
    where="plane/locks/registry.py",
    found_by=Test(
        "unit.plane.locks.test_families",
        "test_the_inventory_tells_locks_of_items_from_locks_of_loops",
        at="assert items ==",
    ),
    attacks=("R54", "R70"),
)
def a_lock_of_an_item_is_listed_as_one_of_a_loop(patch: pytest.MonkeyPatch) -> None:
    """The inventory tells operators that the lock of an approval is held until it expires."""
    patch.setitem(families.FAMILIES, "approval", replace(families.APPROVAL, scope=Scope.LOOP))


@keep(
    MANY,
    where="plane/locks/registry.py",
    found_by=Test(
        "unit.plane.approvals.test_approval_attempts",
        "test_a_decision_asks_every_25_ms_until_two_seconds_after_its_first_attempt",
        at="assert waits ==",
    ),
    attacks=("R10", "R12"),
)
def approvals_ask_four_times_as_seldom(patch: pytest.MonkeyPatch) -> None:
    """A waiting decision requests its lock every 100 ms."""
    patch.setattr(Fixed, "longest_ns", lambda self: 100 * MS)


@keep(
    MANY,
    where="aio/lease.py",
    found_by=Test(
        "unit.leases.test_taking",
        "test_a_lease_carries_key_owner_fence_and_ttl",
        at="assert isinstance(lease.fence, int)",
    ),
    attacks=("R55",),
)
def a_lease_without_a_fence(patch: pytest.MonkeyPatch) -> None:
    """A lease of a store that counts fences has none."""
    patch.setattr(Lease, "fence", None)


@keep(
    MANY,
    where="stores/memory/table.py",
    found_by=Test(
        "unit.leases.test_taking",
        "test_a_busy_lock_is_none_for_try_acquire_and_not_an_error",
        at='assert await two.lock("run:1", ttl=5).try_acquire() is None',
    ),
    attacks=("R79", "R86"),
)
def a_store_that_grants_what_is_held(patch: pytest.MonkeyPatch) -> None:
    """Two replicas are inside together."""
    acquire = MemoryTable.acquire

    def always(self: MemoryTable, ask: AcquireRequest) -> Grant | Busy:
        self._state.entries.pop(ask.key, None)
        return acquire(self, ask)

    patch.setattr(MemoryTable, "acquire", always)


FALLBACK = "test_a_low_risk_class_runs_under_the_local_lock_and_is_counted_and_logged"


@keep(
    MANY,
    where="core/lease/error_policy.py",
    found_by=Test("unit.leases.test_policy", FALLBACK, at='async with locks.lock("wf:run:1"'),
    attacks=("R80", "R88"),
)
def every_class_fails_closed(patch: pytest.MonkeyPatch) -> None:
    """Work of low risk stops while the store is down, whatever its class was set to."""
    patch.setattr(Policy, "on_error", lambda self, risk: OnError.FAIL_CLOSED)


@keep(
    MANY,
    where="flows/acquire.py",
    found_by=Test("unit.leases.test_policy", FALLBACK, at="assert locks.statistics().fallbacks == 1"),
    attacks=("R80", "R84", "R105"),
)
def a_fallback_that_is_not_counted(patch: pytest.MonkeyPatch) -> None:
    """Work continues under the local lock, and no number tells an operator."""
    note = acquiring.note

    def others(ports: Any, wish: Any, kind: EventKind, **how: Any) -> None:
        if kind is not EventKind.FELL_BACK:
            note(ports, wish, kind, **how)

    patch.setattr(acquiring, "note", others)


@keep(
    MANY,
    where="runtime/recorder.py",
    found_by=Test("unit.leases.test_policy", FALLBACK, at="assert len(lines) == 1"),
    attacks=("R85",),
)
def a_fallback_under_another_text(patch: pytest.MonkeyPatch) -> None:
    """The line of the log is not the one that operators search for."""
    patch.setitem(recorder._LINES, EventKind.FELL_BACK, (logging.ERROR, "the store is down"))


@keep(
    MANY,
    where="core/lease/error_policy.py",
    found_by=Test(
        "unit.core.lease.test_error_policy",
        "test_switching_a_class_makes_a_new_policy_and_leaves_the_old_one_alone",
        at="assert (after.on_error",
    ),
    attacks=("R104",),
)
def a_switch_without_an_effect(patch: pytest.MonkeyPatch) -> None:
    """A class that is switched while the process runs does what it did before."""
    patch.setattr(Policy, "with_class", lambda self, risk, mode: self)


@keep(
    MANY,
    where="flows/release.py",
    found_by=Test(
        "unit.leases.test_release",
        "test_a_release_that_fails_is_a_warning_and_finished_work_stays_finished",
        at="async with locks.lock(",
        given={"trouble": "down"},
    ),
    attacks=("R6", "R83"),
)
def a_release_that_fails_fails_the_work(patch: pytest.MonkeyPatch) -> None:
    """Work that is done ends with an error because its lock could not be released."""
    release = releasing.release

    async def strict(*arguments: Any, **how: Any) -> Released:
        released = await release(*arguments, **how)
        if released is Released.UNKNOWN:
            raise Unavailable("the lock could not be released")
        return released

    patch.setattr(releasing, "release", strict)


@keep(
    MANY,
    where="core/retry_delays.py",
    found_by=Test(
        "unit.core.test_retry_delays",
        "test_a_busy_lock_sends_the_work_back_for_exactly_500_ms",
        at="assert later.delay == 0.5",
    ),
    attacks=("R146", "R149", "R151"),
)
def a_busy_run_comes_back_after_an_exponential_delay(patch: pytest.MonkeyPatch) -> None:
    """Work that finds its run locked comes again sooner, and later each time."""
    later = RetryDelays.later

    def growing(self: RetryDelays, error: LockBusy | BackendError, draw: Draw, attempt: int = 0) -> RetryLater:
        found = later(self, error, draw, attempt)
        return RetryLater(0.05 * 2**attempt, error) if isinstance(error, LockBusy) else found

    patch.setattr(RetryDelays, "later", growing)


@keep(
    MANY,
    where="core/retry_delays.py",
    found_by=Test(
        "unit.core.test_retry_delays",
        "test_store_trouble_sends_the_work_back_for_one_second",
        at="assert later.delay == 1.0",
    ),
    attacks=("R147",),
)
def store_trouble_is_taken_for_contention(patch: pytest.MonkeyPatch) -> None:
    """Work comes back to a store that is down as soon as to a lock that is taken."""
    later = RetryDelays.later
    patch.setattr(
        RetryDelays, "later", lambda self, error, *rest, **how: later(self, LockBusy(str(error)), *rest, **how)
    )


@keep(
    MANY,
    where="errors.py",
    found_by=Test(
        "unit.core.test_errors",
        "test_retry_later_carries_its_delay_unchanged_and_its_cause",
        at="assert error.delay == 0.5",
    ),
    attacks=("R148",),
)
def a_delay_in_whole_seconds(patch: pytest.MonkeyPatch) -> None:
    """The delay that the bus reads is rounded."""
    begin = RetryLater.__init__
    patch.setattr(errors.RetryLater, "__init__", lambda self, delay, *cause: begin(self, float(int(delay)), *cause))


@keep(
    MANY,
    where="core/backoff.py",
    found_by=Test(
        "unit.core.test_backoff",
        "test_bounded_jitter_is_500_ms_with_an_offset_from_minus_200_up_to_but_not_including_200",
        at="assert shape.delay_ns(0, 0, highest) == 700 * MS - 1",
    ),
    attacks=("R152", "R166"),
)
def jitter_that_reaches_its_upper_bound(patch: pytest.MonkeyPatch) -> None:
    """700 ms can be drawn."""

    def delay_ns(self: Jittered, attempt: int, previous_ns: int, draw: Draw) -> int:
        return self.base_ns - self.spread_ns + draw(2 * self.spread_ns + 1)

    patch.setattr(backoff.Jittered, "delay_ns", delay_ns)


@keep(
    MANY,
    where="core/tuning/burstiness.py",
    found_by=Test(
        "unit.core.tuning.test_burstiness",
        "test_waves_show_at_the_width_of_their_period_and_single_bursts_at_a_smaller_one",
        at="assert fine.peak_to_mean == 10.0",
    ),
    attacks=("R167",),
)
def bursts_are_counted_by_the_half_second_only(patch: pytest.MonkeyPatch) -> None:
    """Retries in phase look as even as others, because every bucket holds one wave."""
    read = Burstiness.read

    def coarse(self: Burstiness, now_ns: int, width_ns: int) -> Burst:
        return read(self, now_ns, 500 * MS)

    patch.setattr(Burstiness, "read", coarse)


@keep(
    MANY,
    where="plane/locks/registry.py",
    found_by=Test(
        "repository.test_inventory_page",
        "test_what_a_busy_lock_and_a_store_that_fails_mean_differs_by_path_on_purpose",
        at='assert policies["approval"] ==',
    ),
    attacks=("R49",),
)
def one_policy_for_all_paths(patch: pytest.MonkeyPatch) -> None:
    """A decision that finds its lock taken is skipped like the tick of a loop."""
    loops = replace(families.APPROVAL, on_busy="skip the tick", on_error="skip the tick")
    patch.setitem(families.FAMILIES, "approval", loops)


@keep(
    MANY,
    where="plane/locks/registry.py",
    found_by=Test(
        "repository.test_inventory_page",
        "test_the_page_states_the_60_and_20_seconds_of_the_lock_that_a_job_is_given",
        at="assert (job.ttl, job.renew_every) == (60.0, 20.0)",
    ),
    attacks=("R125",),
)
def times_that_are_not_those_of_the_page(patch: pytest.MonkeyPatch) -> None:
    """The lock of a job is renewed every 10 s, and operators are told 20 s."""
    patch.setitem(families.FAMILIES, "scheduler.job", families.SCHEDULER_JOB.timed(renew_every=10.0))


@keep(
    MANY,
    where="ops/alerts/thresholds.py",
    found_by=Test(
        "unit.ops.test_alert_thresholds",
        "test_no_single_burst_can_hold_for_as_long_as_an_alert_must",
        at="assert burn.hold_s > burn.short_s",
    ),
    attacks=("R33",),
)
def a_single_burst_pages(patch: pytest.MonkeyPatch) -> None:
    """An alert holds for as long as the window in which one burst is seen."""
    patch.setattr(thresholds.Burn, "hold_s", property(lambda self: self.short_s))


@keep(
    MANY,
    where="plane/policy/escalation_rules.py",
    found_by=Test(
        "unit.plane.policy.test_escalation",
        "test_it_takes_a_high_rate_of_fallbacks_and_rising_duplicates",
        at="assert verdict.escalate is escalate",
        given={"fallbacks": 30, "duplicates": 1, "before": 0, "escalate": False},
    ),
    attacks=("R96", "R106"),
)
def every_fallback_escalates(patch: pytest.MonkeyPatch) -> None:
    """Classes are made to fail closed below the threshold that operators were told."""
    verdict = escalation_rules.EscalationResult
    patch.setattr(escalation_rules, "EscalationResult", lambda escalate, *rest: verdict(True, *rest))


@keep(
    MANY,
    where="core/lease/timing.py",
    found_by=Test(
        "unit.core.lease.test_timing",
        "test_the_scheduler_lock_of_sixty_seconds_is_renewed_every_twenty",
        at="assert timing.renew_every_ns == 20 * NS",
    ),
    attacks=("R121", "R122"),
)
def a_ttl_that_is_doubled(patch: pytest.MonkeyPatch) -> None:
    """A lease lasts twice as long as requested, and so does the takeover after a crash."""
    settle = timing._settle
    patch.setattr(timing, "_known", lambda **given: settle(**{**given, "ttl": 2 * given.get("ttl", 30)}))
    _nothing_known(patch)


@keep(
    MANY,
    where="runtime/recorder.py",
    found_by=Test(
        "unit.leases.test_measuring",
        "test_losses_are_by_family_and_reason_and_what_was_not_owned_is_by_family",
        at="assert (found[BILLING].lost",
    ),
    attacks=("R139",),
)
def losses_without_a_reason(patch: pytest.MonkeyPatch) -> None:
    """An abandoned lease is counted among all others, so the alert on it never fires."""
    patch.setattr(recorder, "_LABELLED", recorder._LABELLED - {EventKind.LOST})


@keep(
    MANY,
    where="ops/tuning/metrics.py",
    found_by=Test(
        "unit.ops.test_tuning_evidence",
        "test_every_family_with_job_classes_has_a_metric_of_them",
        at="assert {family for family, _ in CLASSES.values()}",
    ),
    attacks=("R137",),
)
def holds_of_one_family_only(patch: pytest.MonkeyPatch) -> None:
    """How long leases are held is known by the class of job for workers alone."""
    for metric, (family, _) in tuple(tuning_metrics.CLASSES.items()):
        if family != "worker.job":
            patch.delitem(tuning_metrics.CLASSES, metric)
