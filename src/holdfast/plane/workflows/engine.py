"""The workflow engine: handles messages about runs. Any number of engines may run at the same time.

Promises:

- A run is advanced under its lock by a pure decision (`plane.workflows.core.advance`), and written with all effects in
  one transaction (`run_store`).
- A message that is handled twice, late or out of order changes nothing the second time, and is counted.
- Messages about one run that arrive while it is being advanced are applied in one write, so the results of a fan-out do
  not each cost a write of the whole run.
- A message that cannot be handled now is nacked with a delay, separately for `run lock busy` and store errors. This
  does not consume an attempt: a busy lock never counts as handled.
- The lease is passed down and never acquired twice.
- A run whose message is dead-lettered, because handling it failed or ended its process too often, ends as failed: no
  further message would advance it.

When the lease store fails, the risk class of the workflow decides whether its runs continue without it (`run_lock`).
Steps whose own class does not allow that are held back, and checked again until the store is back.

Clock: the wall clock, for delays and deadlines.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import replace
from functools import partial
from itertools import takewhile
from typing import Any, Final, NamedTuple, Protocol
from weakref import WeakValueDictionary

from holdfast.aio.client import Locks
from holdfast.aio.lease import DegradedLease, Lease
from holdfast.core.lease.error_policy import OnError
from holdfast.core.retry_delays import AnyDelays
from holdfast.errors import BackendError, BadInput, RetryLater, Unavailable
from holdfast.plane.bus.delivery_rules import DeadLetterCode as Undeliverable
from holdfast.plane.db.batcher import Batcher, Failed, copy_of
from holdfast.plane.db.ports import Bus, Consumer, Consumption, Handler
from holdfast.plane.jobs.rules import JobCode
from holdfast.plane.locks.item_lock import ItemLockStatistics
from holdfast.plane.locks.registry import RETRY_DELAYS, WORKFLOW_RUN, LockFamily
from holdfast.plane.locks.run_lock import run_lock
from holdfast.plane.model import messages as subjects
from holdfast.plane.model.job_states import JobState
from holdfast.plane.model.records import ID_CHARS_MAX, Delivery, check_id, check_text
from holdfast.plane.workflows.core.advance import advance_all
from holdfast.plane.workflows.core.run import (
    Advance,
    CancelRequested,
    CheckRun,
    ChildEnded,
    Event,
    EventOutcome,
    GiveUp,
    JobEnded,
    RunStatus,
    StoredRun,
)
from holdfast.plane.workflows.expression_quota import put_off
from holdfast.plane.workflows.expressions.builtins import Budget
from holdfast.plane.workflows.run_store import HELD_BACK_NS, ChangedRun, RunStore
from holdfast.types import check_label, duration_ns

CONCURRENCY: Final = 32
BATCH_MAX: Final = 128  # events of one run in one write
REASON_CHARS_MAX: Final = 1000
_STOPPING_S: Final = 0.1
EVENT_LABELS: Final[Mapping[type[Event], str]] = {
    CheckRun: "Look",
    JobEnded: "JobEnded",
    ChildEnded: "ChildEnded",
    CancelRequested: "CancelWanted",
    GiveUp: "GiveUp",
}
"""Names of events in metrics, which do not follow the names of classes."""

NOT_AGAIN: Final = frozenset({str(JobCode.FATAL), str(JobCode.UNKNOWN_TOPIC), "refused"})


def _any_run(_: StoredRun) -> bool:
    return True


class _PendingEvent(NamedTuple):
    """One event for a run."""

    event: Event
    risk: str | None = None  # the class of the run, if it is known
    meant: Callable[[StoredRun], bool] = _any_run  # False: the event is about an earlier run with this id


class DuplicateObserver(Protocol):
    """Counts indicators of duplicates: see `plane.policy.duplicate_counters`."""

    def step_repeated(self, *, run: str, step: str) -> None:
        """A completed step was completed again."""
        ...

    def publish_repeated(self, *, job: str) -> None:
        """A job that existed was to be inserted again."""
        ...

    def submitted_without_store(self, jobs: int) -> None:
        """Jobs were submitted by a run whose lock was granted without the store."""
        ...


class WorkflowEngine:
    """One engine. `serving` runs it; every advance of a run goes through `move`."""

    def __init__(
        self,
        runs: RunStore,
        locks: Locks,
        bus: Bus,
        *,
        delays: AnyDelays = RETRY_DELAYS,
        indicators: DuplicateObserver | None = None,
        family: LockFamily = WORKFLOW_RUN,
        name: str = "engine",
    ) -> None:
        self.runs = runs
        self.delays = delays
        self.lock_statistics = ItemLockStatistics()
        self.tally: Counter[str] = Counter()
        self.family = family
        self._locks = locks
        self._bus = bus
        self._indicators = indicators
        self._name = check_text("name", name, ID_CHARS_MAX)
        self._stopping = False
        self._consumers: list[Consumer] = []
        self._batchers: WeakValueDictionary[str, Batcher[_PendingEvent, ChangedRun]] = WeakValueDictionary()

    @property
    def handlers(self) -> dict[str, Handler]:
        """The handler of each subject."""
        return {
            subjects.RUN_LOOK: self._guarded(_check_event),
            subjects.RUN_RESULT: self._guarded(_job_ended),
            subjects.RUN_CHILD: self._guarded(_child_ended),
            subjects.RUN_CANCEL: self._guarded(_cancel_wanted),
        }

    @asynccontextmanager
    async def serving(
        self, *, concurrency: int = CONCURRENCY, ack_wait: float | None = None
    ) -> AsyncIterator[WorkflowEngine]:
        """Handle messages inside the block. At its end, running handlers complete and other messages are nacked."""
        wait_ns = duration_ns("ack_wait", self.family.ttl / 2 if ack_wait is None else ack_wait)
        async with AsyncExitStack() as stack:
            for subject, handler in self.handlers.items():
                how = Consumption(
                    *(subject, subjects.ENGINE),
                    concurrency=concurrency,
                    ack_wait_ns=wait_ns,
                    ordered=False,
                    on_dead=self.give_up,
                )
                self._consumers.append(await stack.enter_async_context(self._bus.consume(how, handler)))
            try:
                yield self
            finally:
                self.stop()

    @property
    def handling(self) -> int:
        """The number of messages in handlers."""
        return sum(each.handling for each in self._consumers)

    def stop(self) -> None:
        """Start no more handlers. Later deliveries are nacked, for another engine."""
        self._stopping = True

    def statistics(self) -> dict[str, int]:
        """Counts of events by kind and outcome."""
        return dict(self.tally)

    # Advancing runs.

    async def move(
        self,
        run_id: str,
        event: Event,
        *,
        actor: str | None = None,
        risk: str | None = None,
        timeout: float | None = None,
    ) -> ChangedRun:
        """Apply an event to a run, under its lock. Without such a run: None before and after.

        `RetryLater`: the lock is busy, or a store failed; nothing was done. `risk` saves a read.
        """
        self._check_quota(run_id, event)
        risk = risk or await self.runs.risk(run_id)
        if risk is None:
            return self._counted(event, ChangedRun(None, None))
        async with self._lock(run_id, risk, timeout) as lease:
            return await self.move_held(lease, run_id, event, actor=actor)

    async def move_held(
        self, lease: Lease | DegradedLease, run_id: str, event: Event, *, actor: str | None = None
    ) -> ChangedRun:
        """The same for a caller that holds the run's lock."""
        return (await self.move_all_held(lease, run_id, [event], actor=actor))[0]

    async def move_all_held(
        self, lease: Lease | DegradedLease, run_id: str, events: Sequence[Event], *, actor: str | None = None
    ) -> list[ChangedRun]:
        """Apply several events to a run, in order and in one write. Returns the outcome of each.

        Returns fewer outcomes than events if the expressions of the first events cost as much as one advance may; the
        remaining events were not applied.
        """
        return await self._move_all_held(lease, run_id, [_PendingEvent(event) for event in events], actor)

    async def _move_all_held(
        self, lease: Lease | DegradedLease, run_id: str, pending: Sequence[_PendingEvent], actor: str | None = None
    ) -> list[ChangedRun]:
        draw = self.runs.entropy.below
        outcomes: list[EventOutcome] = []

        def decide(stored: StoredRun, budget: Budget) -> Advance:
            wanted = [each.event for each in pending if each.meant(stored)]
            if not wanted:
                outcomes[:] = [EventOutcome.UNKNOWN] * len(pending)
                return Advance(stored.run, EventOutcome.UNKNOWN, wake_ns=stored.wake_ns)
            now_ns, may_start = self.runs.clock.now().wall, self._may_start(lease)
            whole, found = advance_all(stored.run, wanted, now_ns, draw, may_start=may_start, budget=budget)
            each_outcome = iter(found)
            all_outcomes = (
                next(each_outcome, None) if each.meant(stored) else EventOutcome.UNKNOWN for each in pending
            )
            known = takewhile(lambda each: each is not None, all_outcomes)
            outcomes[:] = [each for each in known if each is not None]
            return whole

        changed = await self.runs.change(lease, run_id, decide, actor=actor or self._name)
        if changed.before is None:
            return [self._counted(each.event, changed) for each in pending]
        if self._indicators is not None and not lease.guaranteed:
            self._indicators.submitted_without_store(changed.submitted)
        # Statistics of the whole write are counted once, with the last event.
        alone = [replace(changed, outcome=each, held_back=(), repeated=()) for each in outcomes]
        alone[-1] = replace(changed, outcome=outcomes[-1])
        changes = [each if each.outcome is EventOutcome.APPLIED else replace(each, after=None) for each in alone]
        return [self._counted(each.event, end) for each, end in zip(pending, changes, strict=False)]

    async def _move_together(self, run_id: str, pending: Sequence[_PendingEvent]) -> Sequence[ChangedRun | Failed]:
        """Events of concurrent messages, under one lease."""
        risk = next((each.risk for each in pending if each.risk), None) or await self.runs.risk(run_id)
        if risk is None:
            return [self._counted(each.event, ChangedRun(None, None)) for each in pending]
        try:
            async with self._lock(run_id, risk) as lease:
                changes = await self._move_all_held(lease, run_id, pending)
        except RetryLater as later:
            return [Failed(copy_of(later)) for _ in pending]
        spent = put_off(HELD_BACK_NS)
        return [*changes, *(Failed(copy_of(spent)) for _ in pending[len(changes) :])]

    def _check_quota(self, run_id: str, event: Event) -> None:
        """Return if the run may evaluate expressions now, or has none; otherwise raise `RetryLater`."""
        if not isinstance(event, CancelRequested | GiveUp):
            self.runs.expression_quota.check(run_id)

    def _batcher_of(self, run_id: str) -> Batcher[_PendingEvent, ChangedRun]:
        """The batcher of one run; kept while a handler waits for it."""
        found = self._batchers.get(run_id)
        if found is None:
            found = self._batchers[run_id] = Batcher(partial(self._move_together, run_id), most=BATCH_MAX)
        return found

    def _lock(
        self, run_id: str, risk: str, timeout: float | None = None
    ) -> AbstractAsyncContextManager[Lease | DegradedLease]:
        counts, family = self.lock_statistics, self.family
        return run_lock(self._locks, run_id, risk, self.delays, statistics=counts, timeout=timeout, family=family)

    async def give_up(self, delivery: Delivery, reason: str, code: str) -> None:
        """Fail the run whose message failed, or ended its process, too often: the next one would do the same.

        A message that is merely too old is no reason: the reconciler handles its run.
        """
        run_id = delivery.message.body.get("run")
        if code in (Undeliverable.FAILURES, Undeliverable.LOST) and isinstance(run_id, str):
            why = f"given up: message {delivery.message.subject} {reason}"
            await self.move(run_id, GiveUp(why[:REASON_CHARS_MAX]))

    def _may_start(self, lease: Lease | DegradedLease) -> Callable[[str], bool]:
        """The steps that may start under this lease: all under a full one."""
        if lease.guaranteed:
            return _any_class
        policy = self._locks.policy
        return lambda risk: policy.on_error(risk) is OnError.FAIL_OPEN

    def _counted(self, event: Event, changed: ChangedRun) -> ChangedRun:
        outcome = "missing" if changed.before is None else str(changed.outcome)
        self.tally[f"{EVENT_LABELS[type(event)]}.{outcome}"] += 1
        self.tally["held_back"] += len(changed.held_back)
        self.tally["repeated_publishes"] += len(changed.repeated)
        if self._indicators is not None and changed.before is not None:
            run = changed.before.run.id
            if changed.outcome is EventOutcome.REPEATED:
                name = event.job if isinstance(event, JobEnded) else event.run if isinstance(event, ChildEnded) else ""
                self._indicators.step_repeated(run=run, step=name.removeprefix(f"{run}:"))
            for job in changed.repeated:
                self._indicators.publish_repeated(job=job)
        return changed

    async def _with_output(self, run_id: str, event: ChildEnded) -> ChildEnded:
        """The end of a child run, with its output for the parent."""
        child = await self.runs.get(event.run)
        if child is None or child.run.parent is None or child.run.parent.run != run_id:
            return event
        return replace(event, output=child.run.output)

    # Shared by the handlers.

    def _guarded(self, read: Callable[[Mapping[str, Any]], Event]) -> Handler:
        async def handle(delivery: Delivery) -> None:
            if self._stopping:
                self.tally["stopping"] += 1
                raise RetryLater(_STOPPING_S, Unavailable("this engine is stopping"))
            body = delivery.message.body
            run_id, risk = check_id("run", body.get("run")), body.get("risk")
            event = read(body)
            self._check_quota(run_id, event)
            try:
                if isinstance(event, ChildEnded):
                    event = await self._with_output(run_id, event)
                pending = _PendingEvent(event, check_label("risk", risk) if risk else None, partial(_meant, body))
                await self._batcher_of(run_id).ask(pending)
            except BackendError as error:
                raise self.delays.later(error, self.runs.entropy.below) from error

        return handle


def _any_class(_: str) -> bool:
    return True


def _meant(body: Mapping[str, Any], stored: StoredRun) -> bool:
    """Whether the run has the tenant and the parent run that the message names."""
    tenant, parent = body.get("tenant"), body.get("parent")
    if tenant is not None and tenant != stored.run.tenant:
        return False
    return parent is None or (stored.run.parent is not None and stored.run.parent.run == parent)


# From messages to events.


def _check_event(_: Mapping[str, Any]) -> Event:
    return CheckRun()


def _job_ended(body: Mapping[str, Any]) -> Event:
    try:
        state = JobState(str(body.get("state")))
    except ValueError:
        raise BadInput("state", f"{body.get('state')!r:.60} is not a state", "give its last state") from None
    if not state.terminal:
        raise BadInput("state", f"{state} is not terminal", "give its last state")
    again = body.get("code") not in NOT_AGAIN
    return JobEnded(check_id("job", body.get("job")), state, body.get("result"), _reason(body), again)


def _child_ended(body: Mapping[str, Any]) -> Event:
    try:
        status = RunStatus(str(body.get("status")))
    except ValueError:
        raise BadInput("status", f"{body.get('status')!r:.60} is not a status", "give its last status") from None
    if not status.terminal:
        raise BadInput("status", f"{status} is not terminal", "give its last status")
    return ChildEnded(check_id("child", body.get("child")), status, None, _reason(body))


def _cancel_wanted(body: Mapping[str, Any]) -> Event:
    return CancelRequested(check_text("actor", body.get("actor"), ID_CHARS_MAX), _reason(body) or "cancelled")


def _reason(body: Mapping[str, Any]) -> str | None:
    reason = body.get("reason")
    return None if reason is None else str(reason)[:REASON_CHARS_MAX]
