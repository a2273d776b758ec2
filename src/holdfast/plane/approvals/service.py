"""Approvals: requested in the transaction that inserts the job, and decided once, under the job's lock.

Promises:

- A job that needs approval and its approval are inserted in one transaction. So are a decision, the new job state and
  the message about it: a decision is never partial and never announced twice.
- Repeating a decision changes nothing and reports the first one. The opposite decision is `ApprovalConflict`.
- The lock is the scheduler's own lock of the job (10 s, renewed), so decisions and handlers exclude each other. The
  caller waits for it for two seconds, then gets `ApprovalBusy`. Errors of the lease store are raised immediately.
- Nothing slow happens under the lock. The facts are checked before it, again under it, and once more in the commit. All
  of it takes less time than the lease; after that the outcome is unknown (`Timeout`): read the approval, or repeat.
- The lock is released however the decision ends, also when the caller has gone. A failed release is a warning and does
  not change the outcome.

Does not promise that `actor` is authentic: that is up to the caller.

Clock: the wall clock, for people and deadlines; the clock of the locks, for the wait; the event loop's, for the time
limit of a decision.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

from holdfast.aio.client import Locks
from holdfast.aio.lease import Lease
from holdfast.errors import BackendError, BadInput, FencedOut, LeaseLost, LockBusy, RowMissing, Timeout
from holdfast.guards.bearer import CarriedFence, carried
from holdfast.plane.approvals.rows import (
    ApprovalOutline,
    approval_of,
    approval_outline_of,
    new_values,
    own_labels,
    request_of,
)
from holdfast.plane.approvals.rules import (
    Approval,
    ApprovalConflict,
    ApprovalRules,
    ApprovalStatus,
    ApprovalVerdict,
    ConflictCode,
    DecisionFacts,
    RepeatedDecision,
    RuleEffect,
    RuleEvaluation,
    SelfApproval,
    ValidDecision,
    judge,
)
from holdfast.plane.db.migrations import prepare
from holdfast.plane.db.ports import Database, Row, Tx
from holdfast.plane.db.statements import sql
from holdfast.plane.jobs.rows import job_of
from holdfast.plane.jobs.rules import End
from holdfast.plane.jobs.store import JobStore, Writing
from holdfast.plane.jobs.updates import ending
from holdfast.plane.locks.registry import APPROVAL, LockFamily
from holdfast.plane.model import messages as subjects
from holdfast.plane.model.caller import NotAllowed
from holdfast.plane.model.job_states import InvalidTransition, JobState
from holdfast.plane.model.messages import own_key, requesters_in
from holdfast.plane.model.paging import Place
from holdfast.plane.model.records import (
    DEFAULT_POOL,
    ID_CHARS_MAX,
    Change,
    Job,
    StepOf,
    Submission,
    check_id,
    check_text,
    check_whole,
    encoded,
)
from holdfast.plane.workflows.core.run import RequestApproval, RunStatus, StoredRun
from holdfast.plane.workflows.id_reuse import job_gives_way

GATE_TOPIC: Final = "holdfast.approval"
BUSY: Final = "approval lock busy"
NOTE_CHARS_MAX: Final = 1000
REVISION_MAX: Final = 2**31
RETRY_S: Final = 0.5
LIMIT_SHARE: Final = 2
"""A decision may take this fraction of the lock's TTL, so the lease outlives it even if no renewal succeeds."""

_INSERT: Final = sql("approval_insert")
_GET: Final = sql("approval_get")
_DECIDE: Final = sql("approval_decide")
_WAITING: Final = sql("approval_waiting")
_LIST_ALL: Final = sql("approval_list_all")
_LIST_TENANT: Final = sql("approval_list_tenant")
_LIST_STATUS: Final = sql("approval_list_status")
_RUN: Final = sql("approval_run")
_JOB: Final = sql("job_get")

Work: TypeAlias = Callable[[Tx], Awaitable[tuple[Job, bool]]]
"""Inserts a job as part of a transaction, or finds the existing one. Also returns whether it was inserted."""


class ApprovalBusy(LockBusy):
    """Another process holds the job's lock. Nothing was decided; `retry_after` is the time until the next try."""

    code: Final = ConflictCode.RETRYABLE_LOCK


@dataclass(frozen=True, slots=True)
class DecisionResult:
    """The result of a decision."""

    approval: Approval
    job: Job
    taken: bool  # False: the same decision was made before


@dataclass(frozen=True, slots=True)
class _DecisionRequest:
    """A decision that an approver requests."""

    job: str
    verdict: ApprovalVerdict
    actor: str
    note: str
    revision: int | None
    tenant: str | None  # the job must belong to it; None: any tenant


class Approvals:
    """The approvals of one plane."""

    def __init__(
        self,
        database: Database,
        jobs: JobStore,
        locks: Locks,
        rules: ApprovalRules | None = None,
        *,
        family: LockFamily = APPROVAL,
        limit: float | None = None,
    ) -> None:
        """`limit`: how many seconds a decision may take under the lock; by default half of its TTL."""
        self.rules = rules or ApprovalRules()
        self._database = database
        self._jobs = jobs
        self._locks = locks
        self._family = family
        self._limit = family.ttl / LIMIT_SHARE if limit is None else limit
        self.decided: Counter[ApprovalVerdict] = Counter()
        self.repeated: Counter[ApprovalVerdict] = Counter()
        self.refused: Counter[str] = Counter()  # by code

    async def prepare(self) -> None:
        """Create the table if it is missing."""
        await prepare(self._database, "approval_schema")

    # Requests.

    def evaluate(self, wanted: Submission) -> RuleEvaluation:
        """The effect of the rules on a submission."""
        return self.rules.evaluate(wanted.topic, wanted.tenant, wanted.labels)

    def submission(self, wanted: Submission, pool: str, step: StepOf | None = None) -> Work:
        """The transaction that inserts a submission: PENDING, or waiting for approval, as the rules require.

        Raises `NotAllowed` if the rules refuse it. The submission was checked before. `step`: the step that it runs.
        """
        evaluation = self.evaluate(wanted)
        if evaluation.effect is RuleEffect.ALLOW:
            return self._jobs.submission(wanted, pool, [subjects.submitted()])
        rule = evaluation.rule
        if evaluation.effect is RuleEffect.DENY or rule is None:
            raise NotAllowed(f"the rule {rule.name if rule else '?'} refuses this job")
        make = self._jobs.submission(wanted, pool, state=JobState.APPROVAL_REQUIRED)
        snapshot = self.rules.snapshot

        async def work(tx: Tx) -> tuple[Job, bool]:
            job, made = await make(tx)
            if made:
                values = new_values(job, gate=False, message=rule.message, rule=rule.name, snapshot=snapshot, step=step)
                await tx.query(_INSERT, values)
            return job, made

        return work

    async def ask(self, tx: Tx, run: StoredRun, wanted: RequestApproval) -> None:
        """See `effects.Gates`: inserts a job that no worker runs and that ends with the decision."""
        encoded("message", wanted.message)
        submission = Submission(
            GATE_TOPIC,
            {"message": wanted.message},
            run.run.tenant,
            wanted.id,
            idempotency_key=own_key(wanted.id),
            max_attempts=1,
            deadline_ns=wanted.deadline_ns,
            submitted_by=run.about.submitted_by,
            trace=run.about.trace,
            labels=own_labels(run.run, wanted.step, wanted.risk),
        ).check()
        make = self._jobs.submission(submission, DEFAULT_POOL, state=JobState.APPROVAL_REQUIRED)
        try:
            job, made = await make(tx)
            if not made and await job_gives_way(tx, job, run.run):
                job, _ = await make(tx)
        except InvalidTransition:
            raise BadInput(
                "id", f"job {wanted.id} belongs to another tenant", "choose another id for the run"
            ) from None
        if job.topic != GATE_TOPIC or job.labels.get(subjects.RUN_LABEL) != run.run.id:
            raise BadInput("id", f"{wanted.id} is the id of another job", "choose another id for the run")
        step = StepOf(run.run.id, wanted.step, wanted.risk)
        await tx.query(_INSERT, new_values(job, gate=True, message=wanted.message, step=step))

    # Queries.

    async def get(self, job_id: str, *, tenant: str | None = None) -> Approval | None:
        """The approval of a tenant's job, or None. Without a tenant: the newest approval of that job id."""
        where = {"job": check_id("job", job_id), "tenant": tenant}
        rows = await self._database.read(lambda tx: tx.query(_GET, where))
        return approval_of(rows[0], rows[0]["job_state"]) if rows else None

    async def waiting(self, *, tenant: str | None, after: Place, limit: int) -> list[ApprovalOutline]:
        """Outlines of the approvals that wait for a decision, oldest first."""
        values = {"tenant": tenant or "", "created_ns": after.at_ns, "job": after.id, "most": limit}
        rows = await self._database.read(lambda tx: tx.query(_WAITING, values))
        return [approval_outline_of(row) for row in rows]

    async def page(self, *, tenant: str | None, status: str, after: Place, limit: int) -> list[ApprovalOutline]:
        """Outlines of all approvals, newest first. An empty status: any.

        For open approvals use `waiting`.
        """
        stored = ApprovalStatus.WAITING.value if status == ApprovalStatus.LAPSED else status
        values = {"tenant": tenant, "status": stored, "created_ns": after.at_ns, "job": after.id, "most": limit}
        statement = _LIST_STATUS if status else _LIST_ALL if tenant is None else _LIST_TENANT
        rows = await self._database.read(lambda tx: tx.query(statement, values))
        return [approval_outline_of(row) for row in rows]

    # Decisions.

    async def decide(
        self,
        job_id: str,
        verdict: ApprovalVerdict,
        *,
        actor: str,
        note: str = "",
        revision: int | None = None,
        tenant: str | None = None,
    ) -> DecisionResult:
        """Approve or reject. `RowMissing`: no such approval. See `plane.approvals.rules.judge` for other errors.

        `revision`, if given, must be the current one. `tenant`, if given, must be the tenant of the job.
        """
        check_text("actor", actor, ID_CHARS_MAX)
        request = _DecisionRequest(check_id("job", job_id), verdict, actor, note, revision, tenant)
        if note:
            check_text("note", note, NOTE_CHARS_MAX)
        if revision is not None:
            check_whole("revision", revision, 0, REVISION_MAX)
        try:
            facts, job = await self._facts(request)  # refuses most requests without the lock
            if isinstance(self._judged(request, facts), RepeatedDecision):
                return self._repeated(request, facts, job)
            lease = await self._acquire(job_id)
            try:
                return await self._within_limit(lease, request)
            finally:
                await lease.release()  # bounded, also for a cancelled caller; a failure is logged
        except (ApprovalConflict, ApprovalBusy, SelfApproval) as refused:
            self.refused[str(refused.code)] += 1
            raise

    async def _acquire(self, job_id: str) -> Lease:
        try:
            return await self._family.lock(self._locks, job=job_id).acquire()
        except LockBusy as error:
            raise self._busy(job_id, error.retry_after) from error
        except BackendError as error:
            raise type(error)(f"lock acquire: {error}") from error

    async def _within_limit(self, lease: Lease, request: _DecisionRequest) -> DecisionResult:
        limit = asyncio.timeout(self._limit)
        try:
            async with limit:
                return await self._decide(lease, request)
        except (LeaseLost, FencedOut) as error:  # nothing was written: a newer holder has the lock, or will have it
            raise self._busy(request.job) from error
        except TimeoutError as error:
            if isinstance(error, BackendError) or not limit.expired():
                raise
            raise Timeout(
                f"the decision about {request.job} took longer than {self._limit:g} s; read the approval, or repeat it"
            ) from error

    async def _decide(self, lease: Lease, request: _DecisionRequest) -> DecisionResult:
        facts, job = await self._facts(request)  # it may have changed during the wait for the lock
        taken = self._judged(request, facts)
        if isinstance(taken, RepeatedDecision):
            return self._repeated(request, facts, job)
        fence, approval = carried(lease), facts.approval
        decided: list[Row] = []

        def decide(job: Job) -> Writing:
            self._judged(request, replace(facts, state=job.state, request=request_of(job, approval)))
            return replace(_write(job, request, approval, taken, fence, self._now_ns()), also=also)

        async def also(tx: Tx, _: Job) -> None:
            if approval.run is not None:
                self._judged(request, replace(facts, run=await _run_status(tx, approval.run)))
            values = {
                "job": request.job,
                "tenant": approval.tenant,
                "status": str(request.verdict.status),
                "snapshot": taken.snapshot,
                "decided_by": request.actor,
                "now_ns": self._now_ns(),
                "note": request.note or None,
                "fence": fence.fence,
                "revision": approval.revision,
            }
            decided[:] = await tx.query(_DECIDE, values)
            if not decided or request_of(job, _as_asked(decided[0], approval)) != approval.request:
                raise ApprovalConflict(ConflictCode.STALE_REQUEST, "it was decided at the same moment; read it again")

        try:
            changed = await self._jobs.change(lease, request.job, decide)
        except ApprovalConflict:
            # A transaction was committed since the read: perhaps this same decision, whose answer was lost.
            facts, job = await self._facts(request)
            if isinstance(self._judged(request, facts), RepeatedDecision):
                return self._repeated(request, facts, job)
            raise
        if changed.after is None:
            raise RowMissing(_nothing(request.job))
        self.decided[request.verdict] += 1
        return DecisionResult(approval_of(decided[0], changed.after.state), changed.after, taken=True)

    def _judged(self, request: _DecisionRequest, facts: DecisionFacts) -> ValidDecision | RepeatedDecision:
        return judge(request.verdict, request.actor, replace(facts, now_ns=self._now_ns()), revision=request.revision)

    def _repeated(self, request: _DecisionRequest, facts: DecisionFacts, job: Job) -> DecisionResult:
        self.repeated[request.verdict] += 1
        return DecisionResult(facts.approval, job, taken=False)

    def _busy(self, job_id: str, retry_after: float = 0.0) -> ApprovalBusy:
        """The holder's lease may last a minute, but holders usually release early: retry sooner than it expires."""
        return ApprovalBusy(BUSY, key=self._family.key(job=job_id), retry_after=min(retry_after or RETRY_S, RETRY_S))

    async def _facts(self, request: _DecisionRequest) -> tuple[DecisionFacts, Job]:
        async def work(tx: Tx) -> tuple[Row, Job, RunStatus | None] | None:
            jobs = await tx.query(_JOB, {"id": request.job})
            if not jobs or request.tenant not in (None, jobs[0]["tenant"]):
                return None
            job = job_of(jobs[0])
            rows = await tx.query(_GET, {"job": job.id, "tenant": job.tenant})
            if not rows or rows[0]["created_ns"] != job.created_ns:  # of an earlier job with this id
                return None
            run = rows[0]["run"]
            return rows[0], job, None if run is None else await _run_status(tx, run)

        found = await self._database.read(work)
        if found is None:
            raise RowMissing(_nothing(request.job))
        row, job, run = found
        approval = approval_of(row, job.state)
        if approval.gate:
            evaluation, snapshot = (
                RuleEvaluation(RuleEffect.REQUIRE),
                approval.snapshot,
            )  # required by the workflow, not a rule
        else:
            evaluation, snapshot = self.rules.evaluate(job.topic, job.tenant, job.labels), self.rules.snapshot
        facts = DecisionFacts(
            *(approval, job.state, request_of(job, approval), snapshot, evaluation, run, self._now_ns()),
            requesters=requesters_in(job.labels),
        )
        return facts, job

    def _now_ns(self) -> int:
        return self._jobs.clock.now().wall


async def _run_status(tx: Tx, run: str) -> RunStatus:
    """The status of a run. A run that is no longer stored ended long ago."""
    rows = await tx.query(_RUN, {"run": run})
    return RunStatus(rows[0]["status"]) if rows else RunStatus.CANCELLED


def _as_asked(row: Row, approval: Approval) -> Approval:
    """The approval as read in the commit, without the snapshot that the decision itself wrote."""
    return replace(approval_of(row, None), snapshot=approval.snapshot)


def _write(
    job: Job, request: _DecisionRequest, approval: Approval, taken: ValidDecision, fence: CarriedFence, now_ns: int
) -> Writing:
    """The job update for a decision."""
    if request.verdict is ApprovalVerdict.REJECT:
        reason = f"rejected by {request.actor}" + (f": {request.note}" if request.note else "")
        return ending(job, End(JobState.DENIED, None, reason, dead=not approval.gate), fence, actor=request.actor)
    if approval.gate:
        result = {"approved_by": request.actor, "note": request.note or None}
        return ending(job, End(JobState.SUCCEEDED, None, "", dead=False), fence, actor=request.actor, result=result)
    due_ns = job.not_before_ns if job.not_before_ns > now_ns else 0  # a delay that was requested still applies
    change = Change(JobState.PENDING, reason=f"approved by {request.actor}", not_before_ns=due_ns, actor=request.actor)
    return Writing([change], [subjects.submitted(job.id, again=f"approval:{job.created_ns}:{taken.revision}")])


def _nothing(job_id: str) -> str:
    return f"no approval found for {job_id!r:.220}"
