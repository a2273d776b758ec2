"""Bugs in the plane: jobs, messages, and the door."""

from __future__ import annotations

import asyncio
import itertools
import re
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, Final

import pytest

from holdfast.aio.client import Locks
from holdfast.aio.lease import Lease
from holdfast.aio.lock import Lock
from holdfast.core.ports import Ports
from holdfast.core.retry_delays import AnyDelays, SwitchableDelays
from holdfast.errors import BackendError, LockBusy, Unavailable
from holdfast.flows import acquire as acquiring
from holdfast.flows import release as releasing
from holdfast.guards.bearer import CarriedFence
from holdfast.plane.approvals import service
from holdfast.plane.approvals.service import Approvals
from holdfast.plane.bus import delivery_rules
from holdfast.plane.bus.embedded.bus import EmbeddedBus
from holdfast.plane.bus.embedded.consumer import EmbeddedConsumer
from holdfast.plane.bus.inflight import InFlight
from holdfast.plane.db import statements
from holdfast.plane.db.caller_transaction import CallerTx
from holdfast.plane.db.ports import Tx
from holdfast.plane.db.statements import sql
from holdfast.plane.jobs import rules, updates
from holdfast.plane.jobs.children import JobParent
from holdfast.plane.jobs.progress import ProgressReporter
from holdfast.plane.locks import run_lock
from holdfast.plane.locks.registry import RETRY_DELAYS, LockFamily
from holdfast.plane.model import job_states as jobs
from holdfast.plane.model import messages as subjects
from holdfast.plane.model.job_states import JobState
from holdfast.plane.model.records import Job, Message
from holdfast.plane.policy.duplicate_counters import DuplicateCounters
from holdfast.plane.process import parts, workflow_parts
from holdfast.plane.process.components import Components
from holdfast.plane.scheduler.placement import Placement
from holdfast.plane.schedules import store as schedule_store
from holdfast.plane.schedules.rules import Decided, Decision, DuePolicy, Timetable, decide
from holdfast.plane.workflows import engine
from holdfast.plane.workflows.engine import WorkflowEngine
from holdfast.types import NS
from holdfast.web.middleware import auth
from holdfast.web.middleware.auth import Access
from mutation.detectors import ServerTest, Test
from mutation.mutant import MutantGroup

group = MutantGroup()
keep = group.keep


@keep(
    "celery #2481, #5935: redelivered after the visibility timeout",
    where="plane/bus/inflight.py",
    found_by=Test(
        "integration.plane.bus.test_bus_endings",
        "test_a_handler_may_take_much_longer_than_the_ack_wait",
        at="assert len(got.got) == 1",
    ),
)
def a_message_in_hand_is_not_prolonged(patch: pytest.MonkeyPatch) -> None:
    """The consumer does not extend an in-flight message, so another worker gets it too."""
    patch.setattr(InFlight, "silent_since", lambda self, before_s: [])


@keep(
    "celery: acknowledged before the work, as is its default",
    where="plane/bus/embedded/consumer.py",
    found_by=Test(
        "integration.plane.bus.test_bus",
        "test_a_message_is_acknowledged_when_its_handler_has_returned_and_not_before",
        at="assert (consumer.handling, await bus.pending(SUBJECT, GROUP)) == (1, 1)",
    ),
)
def acknowledged_before_the_work_is_done(patch: pytest.MonkeyPatch) -> None:
    """A message counts as done when it is handed over; if the worker dies it is lost."""
    work = EmbeddedConsumer._work

    async def done_with_the_claim(self: EmbeddedConsumer, tx: Tx, *rest: Any) -> Any:
        found = await work(self, tx, *rest)
        for row in found.rows:
            claim = {"id": row["id"], "recipient": row["recipient"], "deliveries": row["deliveries"], "due_ns": 0}
            await tx.query(sql("bus_ack"), claim)
        return found

    patch.setattr(EmbeddedConsumer, "_work", done_with_the_claim)


@keep(
    "many: contention counted as failure",
    where="plane/bus/delivery_rules.py",
    found_by=Test(
        "unit.plane.bus.test_delivery_rules",
        "test_contention_and_store_trouble_never_use_up_the_budget",
        at="assert isinstance(found, Nack)",
        given={"cause": LockBusy("busy"), "wrapped": True},
    ),
)
def busy_counted_against_the_budget(patch: pytest.MonkeyPatch) -> None:
    """A lock that is taken uses up the deliveries of a message, and patience ends in a dead letter."""
    patch.setattr(delivery_rules.Kind, "counts", property(lambda self: self is not delivery_rules.Kind.HANDLED))


@keep(
    "many: the result of an overtaken worker counts",
    where="plane/jobs/rules.py",
    found_by=Test(
        "integration.plane.scheduler.test_scheduler",
        "test_a_result_of_a_worker_that_was_overtaken_is_refused",
        at="assert (await plane.job(job)).state is JobState.RUNNING",
    ),
    attacks=("R71",),
)
def a_result_under_a_stale_fence_is_accepted(patch: pytest.MonkeyPatch) -> None:
    """A report is believed by the number of its attempt, whatever fence it comes under."""
    patch.setattr(rules, "accepts", lambda seen, fence: True)


@keep(
    "many: no fence in the WHERE clause",
    where="plane/jobs/updates.py",
    found_by=Test(
        "integration.plane.jobs.test_store",
        "test_a_scheduler_whose_fence_was_overtaken_changes_nothing",
        at="with pytest.raises(FencedOut) as refused",
    ),
    attacks=("R71",),
)
def a_write_that_does_not_compare_the_fence(patch: pytest.MonkeyPatch) -> None:
    """A job is written by its id and version: neither the decision nor the statement compares the fence."""
    patch.setattr(updates, "accepts", lambda seen, fence: True)
    script = statements.script

    def unfenced(name: str, dialect: str) -> str:
        text = script(name, dialect)
        if not name.startswith("job_change"):
            return text
        without = re.sub(r"\s+AND \((job\.)?holdfast_fence IS NULL OR [^)]*\)", "", text)
        assert without != text, "the statement has changed"
        return without

    patch.setattr(statements, "script", unfenced)


@keep(
    "many: a job that ends twice",
    where="plane/model/job_states.py",
    found_by=Test(
        "integration.plane.jobs.test_store",
        "test_a_job_ends_once_and_a_second_end_is_refused_and_counted",
        at="with pytest.raises(InvalidTransition",
    ),
)
def a_terminal_state_is_written_twice(patch: pytest.MonkeyPatch) -> None:
    """An end is written over another end."""
    for state in JobState:
        if state.terminal:
            patch.setitem(
                jobs.MOVES, state, frozenset({*jobs.MOVES[state], *(each for each in JobState if each.terminal)})
            )


@keep(
    "many: the message beside the transaction",
    where="plane/bus/embedded/bus.py",
    found_by=Test(
        "integration.plane.bus.test_bus",
        "test_what_is_undone_is_never_delivered_and_what_is_committed_is",
        at='assert got.ids == ["done"]',
    ),
)
def the_message_is_sent_outside_the_transaction(patch: pytest.MonkeyPatch) -> None:
    """State and message are two steps: what was rolled back is announced all the same."""
    prepare, stage = EmbeddedBus.prepare, EmbeddedBus.stage
    loops: dict[EmbeddedBus, asyncio.AbstractEventLoop] = {}

    async def prepared(self: EmbeddedBus) -> None:
        loops[self] = asyncio.get_running_loop()
        await prepare(self)

    async def beside(self: EmbeddedBus, _: Tx, messages: Sequence[Message]) -> None:
        sending = self._database.write(lambda tx: stage(self, tx, messages))
        asyncio.run_coroutine_threadsafe(sending, loops[self])

    patch.setattr(EmbeddedBus, "prepare", prepared)
    patch.setattr(EmbeddedBus, "stage", beside)


@keep(
    "many: a retry under a new message id",
    where="plane/bus/embedded/bus.py",
    found_by=Test(
        "integration.plane.bus.test_bus",
        "test_an_id_is_one_message_however_often_it_is_published",
        at='assert got.ids == ["1", "2"]',
    ),
)
def a_message_published_again_is_another_message(patch: pytest.MonkeyPatch) -> None:
    """A publication that is repeated because its answer was lost gets a new id, and is delivered twice."""
    stage, numbers = EmbeddedBus.stage, itertools.count()

    async def renamed(self: EmbeddedBus, tx: Tx, messages: Sequence[Message]) -> None:
        await stage(self, tx, [replace(each, id=f"{each.id}.{next(numbers)}") for each in messages])

    patch.setattr(EmbeddedBus, "stage", renamed)


@keep(
    "many: a message id that names only the job",
    where="plane/model/messages.py",
    found_by=Test(
        "integration.plane.scheduler.test_scheduler",
        "test_a_lost_dispatch_is_sent_again_as_the_same_attempt_under_a_newer_fence",
        at="first, second = await plane.staged(subjects.WORK)",
    ),
)
def a_message_sent_again_is_dropped_as_a_duplicate(patch: pytest.MonkeyPatch) -> None:
    """The id of a dispatch does not change when it is sent again, so the bus takes the second for the first."""
    dispatched = subjects.dispatched

    def under_one_id(job: Job, fence: CarriedFence, **how: bool) -> Message:
        return replace(dispatched(job, fence, **how), id=f"work:{job.id}")

    patch.setattr(subjects, "dispatched", under_one_id)


@keep(
    "Flower #1217: open to all by default",
    where="web/middleware/auth.py",
    found_by=Test(
        "integration.web.test_auth",
        "test_without_tokens_a_server_that_others_can_reach_is_refused",
        at="with pytest.raises(BadInput",
        given={"host": "0.0.0.0"},
    ),
)
def a_server_without_tokens_is_open_to_the_network(patch: pytest.MonkeyPatch) -> None:
    """Without configured tokens the server serves all clients, on any interface."""
    patch.setattr(auth, "is_loopback", lambda host: True)


@keep(
    "Flower #1217: no protection against other sites",
    where="web/middleware/auth.py",
    found_by=Test(
        "integration.web.test_auth",
        "test_an_open_server_serves_this_machine_and_no_page_from_elsewhere",
        at="assert (answer.status_code, cancel.status_code)",
        given={"headers": {"origin": "https://evil.example"}, "allowed": False},
    ),
)
def a_page_from_elsewhere_may_post(patch: pytest.MonkeyPatch) -> None:
    """The origin of a request is not checked, so a page that a user visits cancels their jobs."""
    stranger = Access.stranger
    patch.setattr(Access, "stranger", lambda self, host, origin: stranger(self, host, None))


@keep(
    "Flower, CVE-2022-30034: a pattern that matches only the beginning",
    where="web/middleware/auth.py",
    found_by=Test(
        "integration.web.test_auth",
        "test_an_open_server_serves_this_machine_and_no_page_from_elsewhere",
        at="assert (answer.status_code, cancel.status_code)",
        given={"headers": {"host": "localhost.evil.example"}, "allowed": False},
    ),
)
def a_name_that_begins_like_ours_is_ours(patch: pytest.MonkeyPatch) -> None:
    """A host is let in because its name begins like one that may."""
    stranger = Access.stranger

    def by_prefix(self: Access, host: str | None, origin: str | None) -> str | None:
        return stranger(self, "localhost" if (host or "").startswith("localhost") else host, origin)

    patch.setattr(Access, "stranger", by_prefix)


def _spread(at: str) -> Test:
    return Test(
        "integration.plane.policy.test_busy_jitter",
        "test_a_running_plane_spreads_busy_retries_and_stops_without_a_restart",
        at=at,
    )


@keep(
    "many: a setting that is read and never used",
    where="plane/process/workflow_parts.py",
    found_by=_spread("assert varies(delays[subjects.RUN_LOOK])"),
    attacks=("R165",),
)
def the_jitter_never_reaches_the_engine(patch: pytest.MonkeyPatch) -> None:
    """The engine of a plane is made without the retry delays of the plane: busy runs come back in step."""
    engine_of = workflow_parts.engine_of

    def unwired(components: Components, name: str = "engine") -> WorkflowEngine:
        made = engine_of(components, name)
        made.delays = RETRY_DELAYS
        return made

    patch.setattr(workflow_parts, "engine_of", unwired)


@keep(
    "many: a setting that is read and never used",
    where="plane/process/parts.py",
    found_by=_spread("assert varies(delays[subjects.CANCEL])"),
    attacks=("R165",),
)
def the_jitter_never_reaches_the_scheduler(patch: pytest.MonkeyPatch) -> None:
    """The scheduler of a plane is made without the retry delays of the plane: busy jobs come back in step."""
    placement_of = parts.placement_of

    def unwired(components: Components, actor: str = "scheduler") -> Placement:
        placement = placement_of(components, actor)
        placement._changes.delays = RETRY_DELAYS
        return placement

    patch.setattr(parts, "placement_of", unwired)


@keep(
    "many: a setting that is read and never used",
    where="plane/workflows/engine.py",
    found_by=_spread("assert varies(delays[subjects.RUN_LOOK])"),
    attacks=("R165",),
)
def the_engine_ignores_its_delays(patch: pytest.MonkeyPatch) -> None:
    """The engine has the delays and takes the locks of runs with others."""
    take = run_lock.run_lock

    def ignoring(locks: Locks, run_id: str, risk: str, delays: AnyDelays, **how: Any) -> Any:
        return take(locks, run_id, risk, **how)

    patch.setattr(engine, "run_lock", ignoring)


@keep(
    "many: a change of a setting that needs a restart",
    where="core/retry_delays.py",
    found_by=_spread("assert set(fixed[subjects.CANCEL]) == {HALF}"),
    attacks=("R168",),
)
def the_way_back_to_the_fixed_delay_needs_a_restart(patch: pytest.MonkeyPatch) -> None:
    """A jitter is switched on while a plane runs, and a switch to 0 is noted and changes no delay."""
    use = SwitchableDelays.use_jitter
    patch.setattr(SwitchableDelays, "use_jitter", lambda self, ns: use(self, ns) if ns else None)


@keep(
    "Holdfast itself: a counter that could not move",
    where="plane/policy/duplicate_counters.py",
    found_by=Test(
        "integration.plane.process.test_fail_open_input",
        "test_jobs_of_a_run_that_fails_open_are_counted_as_unchecked_input",
        at="assert counted(plane) == 2",
    ),
    attacks=("R64",),
)
def jobs_that_reach_the_scheduler_unchecked_are_not_counted(patch: pytest.MonkeyPatch) -> None:
    """Runs without the store submit jobs, and the counter of fail-open input stays at zero."""
    patch.setattr(DuplicateCounters, "submitted_without_store", lambda self, jobs: None)


def _deciding(test: str, at: str, **given: str) -> Test:
    return Test("integration.plane.approvals.test_approval_lock", test, at=at, given=given)


BUSY_LOCK = "test_the_lock_is_the_schedulers_own_and_busy_is_an_answer_of_its_own"
MANY_LOCKS = "many: a lock that lasts, waits or ends otherwise than it is documented"


@keep(
    MANY_LOCKS,
    where="plane/locks/registry.py",
    found_by=_deciding(BUSY_LOCK, "assert (never.lease.key, never.lease.family, never.lease.ttl)"),
    attacks=("R9",),
)
def a_decision_locks_its_job_for_a_minute(patch: pytest.MonkeyPatch) -> None:
    """After a crash in the middle of a decision its job stands still for six times as long."""
    lock = LockFamily.lock
    patch.setattr(LockFamily, "lock", lambda self, locks, **how: lock(self.timed(ttl=60.0), locks, **how))


@keep(
    MANY_LOCKS,
    where="plane/approvals/service.py",
    found_by=_deciding(BUSY_LOCK, "with pytest.raises(ApprovalBusy"),
    attacks=("R12",),
)
def a_busy_lock_is_reported_as_store_trouble(patch: pytest.MonkeyPatch) -> None:
    """A decision whose lock stays busy until its deadline ends with the text of a store that does not answer."""
    patch.setattr(service, "BUSY", "lock acquire: no answer within the limit")


@keep(
    MANY_LOCKS,
    where="plane/approvals/service.py",
    found_by=_deciding(
        "test_trouble_with_the_store_of_leases_is_an_error_at_once",
        "statistics().store_errors == 1",
        nowhere="redis://127.0.0.1:1",
    ),
    attacks=("R11",),
)
def a_decision_asks_a_store_that_failed_again(patch: pytest.MonkeyPatch) -> None:
    """An error of the lease store does not end the wait for the lock of a decision."""
    acquire = Approvals._acquire

    async def twice(self: Approvals, job: str) -> Lease:
        try:
            return await acquire(self, job)
        except BackendError:
            return await acquire(self, job)

    patch.setattr(Approvals, "_acquire", twice)


@keep(
    MANY_LOCKS,
    where="aio/lease.py",
    found_by=_deciding("test_who_has_gone_before_the_commit_left_nothing_behind", "await untouched(replica, job.id)"),
    attacks=("R13",),
)
def a_release_that_ends_with_the_request(patch: pytest.MonkeyPatch) -> None:
    """The lock of a job is not released when the client that decides about it has gone."""
    release = Lease.release

    async def tied(self: Lease) -> bool:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            _KEPT.append(self)
            raise asyncio.CancelledError
        return await release(self)

    patch.setattr(Lease, "release", tied)


_KEPT: Final[list[Lease]] = []  # leases that a mutant does not release: dropping one is an error of its own


def _hung(test: str) -> ServerTest:
    return ServerTest(
        "integration.plane.approvals.test_approval_lock", test, at="assert min(took) < ENVELOPE_S + OVERSHOOT_S"
    )


@keep(
    MANY_LOCKS,
    where="flows/release.py",
    found_by=_hung("test_a_release_on_a_hung_lease_store_ends_within_two_seconds_and_is_never_the_outcome"),
    attacks=("R13",),
)
def a_release_waits_a_minute_for_a_hung_store(patch: pytest.MonkeyPatch) -> None:
    """A client whose decision is committed waits for its answer until the lease store has released the lock."""
    release = releasing.release

    async def patient(ports: Ports, *rest: Any) -> Any:
        return await release(replace(ports, request_timeout_ns=60 * NS), *rest)

    patch.setattr(releasing, "release", patient)


@keep(
    MANY_LOCKS,
    where="flows/acquire.py",
    found_by=_hung("test_a_decision_on_a_hung_lease_store_ends_within_the_envelope"),
    attacks=("R14",),
)
def an_acquisition_waits_a_minute_for_a_hung_store(patch: pytest.MonkeyPatch) -> None:
    """One attempt may take as long as the store does, whatever the deadline of the caller."""
    once = acquiring.try_once
    patch.setattr(
        acquiring, "try_once", lambda ports, *rest: once(replace(ports, request_timeout_ns=60 * NS), *rest[:-1])
    )


def _engine_lock(at: str) -> Test:
    name = "test_the_lock_of_a_run_lasts_30_s_and_is_released_when_its_handler_is_cancelled"
    return Test("integration.plane.workflows.test_engine", name, at=at)


@keep(
    MANY_LOCKS,
    where="plane/locks/item_lock.py",
    found_by=_engine_lock("assert not (await replica.components.locks.inspect(key)).held"),
    attacks=("R150",),
)
def the_lock_of_a_run_is_never_released(patch: pytest.MonkeyPatch) -> None:
    """A run waits for the TTL of its lock after each message."""

    @asynccontextmanager
    async def kept(lock: Callable[[], Lock[Lease]], *_: object) -> AsyncIterator[Lease]:
        lease = await lock().acquire()
        _KEPT.append(lease)
        yield lease

    patch.setattr(run_lock, "item_lock", kept)


@keep(
    MANY_LOCKS,
    where="plane/locks/registry.py",
    found_by=_engine_lock("assert (leases[0].ttl, "),
    attacks=("R150",),
)
def the_lock_of_a_run_lasts_a_minute(patch: pytest.MonkeyPatch) -> None:
    """After a crash a run stands still for a minute instead of half of one."""
    lock = LockFamily.risky
    patch.setattr(LockFamily, "risky", lambda self, locks, **how: lock(self.timed(ttl=60.0), locks, **how))


@keep(
    MANY_LOCKS,
    where="aio/lease.py",
    found_by=ServerTest(
        "integration.plane.workflows.test_engine",
        "test_a_lock_of_a_run_that_cannot_be_released_changes_nothing_for_the_run",
        at="changed = await replica.engine.move(run, CheckRun())",
    ),
    attacks=("R150",),
)
def a_release_error_fails_the_message_of_a_run(patch: pytest.MonkeyPatch) -> None:
    """A message that was handled comes again because the lock of its run could not be released."""
    release = releasing.release

    async def strict(*arguments: Any) -> Any:
        released = await release(*arguments)
        if released is releasing.Released.UNKNOWN:
            raise Unavailable("the lock could not be released")
        return released

    patch.setattr(releasing, "release", strict)


@keep(
    "many: the last run of a cron job is computed from the clock, so a clock that is set back repeats it",
    where="plane/schedules/store.py",
    found_by=Test(
        "integration.plane.schedules.test_schedule_store",
        "test_a_clock_that_is_set_forward_and_back_fires_no_due_time_twice",
        at="assert len(fired) == len(set(fired))",
    ),
)
def a_due_time_comes_again_when_the_clock_is_set_back(patch: pytest.MonkeyPatch) -> None:
    """A schedule forgets decided due times that are in the future of its clock."""

    def forgetful(timetable: Timetable, policy: DuePolicy, state: Decided, *, now_ns: int, running: bool) -> Decision:
        state = state._replace(done_ns=min(state.done_ns, now_ns))
        return decide(timetable, policy, state, now_ns=now_ns, running=running)

    patch.setattr(schedule_store, "decide", forgetful)


@keep(
    "many: a child that each attempt of its parent submits again",
    where="plane/jobs/children.py",
    found_by=Test(
        "integration.plane.worker.test_child_jobs",
        "test_the_children_of_a_step_belong_to_all_its_attempts",
        at="assert first == second",
    ),
)
def children_of_one_attempt(patch: pytest.MonkeyPatch) -> None:
    """The id of a child begins with the attempt of the step, so the next attempt submits another child."""
    patch.setattr(JobParent, "of", lambda job, made_ns, labels: JobParent(job, made_ns))


@keep(
    "many: a result that overtakes the partial results",
    where="plane/jobs/progress.py",
    found_by=Test(
        "integration.plane.jobs.test_progress",
        "test_values_wait_for_a_database_that_does_not_answer_and_are_stored_in_order",
        at="with pytest.raises(Unavailable)",
    ),
)
def a_result_that_does_not_wait_for_emitted_values(patch: pytest.MonkeyPatch) -> None:
    """A worker publishes the result while values of the attempt are not stored."""

    async def flushed(self: ProgressReporter, job: str, fence: int) -> None:
        return None

    patch.setattr(ProgressReporter, "flush", flushed)


@keep(
    "many: a library that commits the transaction of its caller",
    where="plane/db/caller_transaction.py",
    found_by=Test(
        "unit.plane.db.test_caller_transaction",
        "test_the_end_of_a_transaction_is_left_to_the_caller",
        at="assert connection.in_transaction",
    ),
)
def a_submission_that_commits_for_its_caller(patch: pytest.MonkeyPatch) -> None:
    """A job in the caller's transaction is committed when it is submitted, and a rollback does not undo it."""
    flush = CallerTx.flush

    async def committed(self: CallerTx) -> None:
        await flush(self)
        await self._execute("COMMIT", [])

    patch.setattr(CallerTx, "flush", committed)
