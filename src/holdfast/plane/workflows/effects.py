"""Effects of a write to a run: the jobs, gates and child runs that it starts or stops, and the messages about it.

Promises: all effects are part of the transaction that writes the run. An impossible effect fails its step with the
reason and not the transaction. An effect that was applied before is found by its id, which names run, step and attempt;
it is reported and not repeated. Remains of an earlier run with the same id give way (`id_reuse`). Jobs and runs that
belong to another run or tenant are neither used as a result nor stopped, whatever their ids.

Clock: the wall clock, for the times of new runs.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Final, Protocol

from holdfast.core.ports import Clock
from holdfast.errors import BadInput
from holdfast.plane.approvals.rows import own_labels
from holdfast.plane.db.ports import Bus, Tx
from holdfast.plane.db.statements import sql
from holdfast.plane.model import messages as subjects
from holdfast.plane.model.caller import NotAllowed
from holdfast.plane.model.job_states import InvalidTransition, JobState
from holdfast.plane.model.messages import own_key
from holdfast.plane.model.records import DEFAULT_POOL, Job, Message, StepOf, Submission, check_id
from holdfast.plane.workflows.core.advance import begin
from holdfast.plane.workflows.core.run import (
    Effect,
    Parent,
    RequestApproval,
    Run,
    RunRequest,
    RunStatus,
    StartChildRun,
    StopJob,
    StopRun,
    StoredRun,
    SubmitStepJob,
    TimelineEntry,
)
from holdfast.plane.workflows.core.validation import check_input
from holdfast.plane.workflows.definitions import Definitions
from holdfast.plane.workflows.id_reuse import job_gives_way, run_gives_way
from holdfast.plane.workflows.run_quotas import RunQuotas, TooManyRuns
from holdfast.plane.workflows.run_rows import line_values, new_values, run_of

_INSERT: Final = sql("run_insert")
_GET: Final = sql("run_get")
_LINE: Final = sql("run_event_insert")


class Gates(Protocol):
    """The approvals: decides which jobs must wait, and inserts gates."""

    def submission(
        self, wanted: Submission, pool: str, step: StepOf | None = None
    ) -> Callable[[Tx], Awaitable[tuple[Job, bool]]]:
        """The transaction that inserts a job of a step, which may need approval. `NotAllowed`: rules refuse it."""
        ...

    async def ask(self, tx: Tx, run: StoredRun, wanted: RequestApproval) -> None:
        """Insert the gate of a step, as part of a transaction. `BadInput`: it is not possible."""
        ...


@dataclass(slots=True)
class AppliedEffects:
    """Results of the effects of one write."""

    messages: list[Message] = field(default_factory=list)
    repeated: list[str] = field(default_factory=list)
    submitted: int = 0  # inserted jobs


class EffectRunner:
    """Applies the effects of runs."""

    def __init__(
        self, bus: Bus, definitions: Definitions, gates: Gates, clock: Clock, quotas: RunQuotas | None = None
    ) -> None:
        self._quotas = quotas or RunQuotas()
        self._bus = bus
        self._definitions = definitions
        self._gates = gates
        self._clock = clock

    async def follow(self, tx: Tx, run: StoredRun, effect: Effect, following: AppliedEffects) -> None:
        """Apply one effect. An impossible effect fails its step, not the transaction."""
        try:
            if isinstance(effect, SubmitStepJob):
                await self._submit(tx, run, effect, following)
            elif isinstance(effect, RequestApproval):
                await self._gates.ask(tx, run, effect)
            elif isinstance(effect, StartChildRun):
                await self._start_child(tx, run, effect, following)
            elif isinstance(effect, StopJob):
                following.messages.append(subjects.stop_step(*_own(run, effect), token=_token(run)))
            elif isinstance(effect, StopRun):
                following.messages.append(subjects.stop_child(*_own(run, effect), token=_token(run)))
        except NotAllowed as refused:
            made_ns = run.run.created_ns
            following.messages.append(
                subjects.step_refused(
                    run.run.id, run.risk, effect.id, str(refused), state=JobState.DENIED, made_ns=made_ns
                )
            )
        except (BadInput, TooManyRuns) as refused:
            identity, reason, made_ns = run.run.id, str(refused), run.run.created_ns
            following.messages.append(
                subjects.child_over(identity, run.risk, effect.id, str(RunStatus.FAILED), reason, made_ns=made_ns)
                if isinstance(effect, StartChildRun)
                else subjects.step_refused(identity, run.risk, effect.id, reason, made_ns=made_ns)
            )

    async def _submit(self, tx: Tx, run: StoredRun, effect: SubmitStepJob, following: AppliedEffects) -> None:
        wanted = Submission(
            effect.topic,
            effect.payload,
            run.run.tenant,
            effect.id,
            idempotency_key=own_key(effect.id),
            priority=effect.priority,
            max_attempts=1,  # the step itself is retried, each time with another job
            timeout_ns=effect.timeout_ns,
            deadline_ns=effect.deadline_ns,
            submitted_by=run.about.submitted_by,
            trace=run.about.trace,
            labels=own_labels(run.run, effect.step, effect.risk) | {subjects.ATTEMPTS_LABEL: str(effect.attempts)},
        ).check()
        try:
            make = self._gates.submission(wanted, DEFAULT_POOL, StepOf(run.run.id, effect.step, effect.risk))
            job, made = await make(tx)
            if not made and await job_gives_way(tx, job, run.run):
                job, made = await make(tx)
        except InvalidTransition:
            raise BadInput(
                "id", f"job {effect.id} belongs to another tenant", "choose another id for the run"
            ) from None
        if made:
            following.submitted += 1
            return
        if job.labels.get(subjects.RUN_LABEL) != run.run.id:
            raise BadInput("id", f"{effect.id} is the id of another job", "choose another id for the run")
        following.repeated.append(job.id)

    async def _start_child(self, tx: Tx, run: StoredRun, effect: StartChildRun, following: AppliedEffects) -> None:
        tenant = run.run.tenant
        definition = await self._definitions.find(tx, tenant, effect.workflow, effect.version)
        if definition is None:
            raise BadInput("workflow", f"{effect.workflow!r} is not known", "store it first: holdfast runs define")
        child = begin(
            check_id("run", effect.id),
            tenant,
            definition.workflow,
            check_input(definition.workflow, effect.input),
            now_ns=self._clock.now().wall,
            parent=Parent(run.run.id, effect.step, effect.attempt),
            depth=run.run.depth + 1,
            deadline_ns=effect.deadline_ns,
        )
        child = replace(child, requesters=run.run.requesters)
        about = RunRequest(submitted_by=run.about.submitted_by, trace=run.about.trace, labels=run.about.labels)
        there = await tx.query(_GET, {"id": effect.id})
        if not there and await self.make(tx, child, definition.scope, about) is not None:
            return
        row = (there or await tx.query(_GET, {"id": effect.id}))[0]
        workflow = await self._definitions.of_run(tx, row["scope"], row["workflow"], row["workflow_version"])
        known = run_of(row, workflow).run
        if await run_gives_way(tx, known, run.run):
            await self.make(tx, child, definition.scope, about)
            return
        if known.parent is None or known.parent.run != run.run.id or known.tenant != tenant:
            raise BadInput("id", f"{effect.id} is the id of another run", "choose another id for the run")
        following.repeated.append(effect.id)

    async def make(self, tx: Tx, run: Run, scope: str, about: RunRequest) -> StoredRun | None:
        """Insert a run and request its first advance. None: its id is taken. `TooManyRuns`: a quota is reached."""
        await self._quotas.check(tx, run)
        made = await tx.query(_INSERT, new_values(run, scope, about))
        if not made:
            return None
        note = TimelineEntry(None, "submitted", f"{run.workflow.name} version {run.workflow.version}")
        line = line_values(run.id, 0, 0, note, None, run.created_ns, about.submitted_by or "api")
        await tx.query(_LINE, line)
        await self._bus.stage(tx, [subjects.look_at_run(run.id, run.workflow.risk, again=str(run.created_ns))])
        return run_of(made[0], run.workflow)


def _own(run: StoredRun, effect: StopJob | StopRun) -> tuple[str, str, str, str]:
    """The job or run to stop, its owner, and the reason."""
    return effect.id, run.run.id, run.run.tenant, effect.reason


def _token(run: StoredRun) -> str:
    return f"{run.run.id}:{run.version}"


def over(after: StoredRun) -> list[Message]:
    """The messages about the end of a run."""
    run, made_ns = after.run, after.run.created_ns
    name, status = run.workflow.name, str(run.status)
    told = [subjects.run_done(run.id, run.tenant, name, status, after.version, made_ns=made_ns)]
    if run.parent is not None:
        told.append(subjects.child_over(run.parent.run, "", run.id, status, run.error, made_ns=made_ns))
    return told
