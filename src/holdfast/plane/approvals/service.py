"""What waits for a person: asked for with the job itself, and decided once, under the lock of the job.

Promises: a job that needs approval and the note that it does are one transaction, and so are a decision, the state
that it gives the job and the message that tells of it: a decision is never half made, and never told twice. Deciding
the same again changes nothing and says so; deciding otherwise is `ApprovalConflict`. The lock is the scheduler's own of
that job (10 s, renewed), so that a decision and a handler exclude each other; it is waited for during two seconds, and
what comes then is `ApprovalBusy`. Trouble with the store of leases is raised at once. Nothing slow happens under the
lock: what a decision needs is judged before it, judged again under it, and once more in the commit; all of it together
has less time than the lease, and when that is over the outcome is unknown (`Timeout`): look, or repeat it. The lock is
given back however the decision ends, also when whoever asked has gone. A release that fails is a warning, and never
the outcome: what is committed is told.

Does not promise that somebody is who they say: `actor` is as good as whatever proved it.

Clock: the wall clock, for people and for time limits; that of the locks, for the wait; that of the event loop, for the
time that a decision may take.
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
from holdfast.plane.approvals.rows import approval_of, new_values, own_labels, request_of
from holdfast.plane.approvals.rules import (
    Already,
    Approval,
    ApprovalConflict,
    ApprovalRules,
    ApprovalStatus,
    ConflictCode,
    Effect,
    Evaluation,
    SelfApproval,
    Situation,
    Taken,
    Verdict,
    judge,
)
from holdfast.plane.approvals.summaries import ApprovalOutline, approval_outline_of
from holdfast.plane.db.migrations import prepare
from holdfast.plane.db.ports import Database, Row, Tx
from holdfast.plane.db.statements import sql
from holdfast.plane.jobs.rows import job_of
from holdfast.plane.jobs.rules import End
from holdfast.plane.jobs.store import JobStore, Writing
from holdfast.plane.jobs.termination import ending
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
from holdfast.plane.workflows.core.run import AskApproval, RunStatus, StoredRun
from holdfast.plane.workflows.id_reuse import job_gives_way

GATE_TOPIC: Final = "holdfast.approval"
BUSY: Final = "approval lock busy"
NOTE_CHARS_MAX: Final = 1000
REVISION_MAX: Final = 2**31
RETRY_S: Final = 0.5
LIMIT_SHARE: Final = 2
"""A decision may take this part of the lock's TTL: if not one renewal arrives, the lease still outlives it."""

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
"""Makes a job as part of a transaction, or finds the one that is there; also whether it was made."""


class ApprovalBusy(LockBusy):
    """Somebody else has the lock of the job. Nothing was decided; `retry_after` says when to try again."""

    code: Final = ConflictCode.RETRYABLE_LOCK


@dataclass(frozen=True, slots=True)
class Decision:
    """What became of a decision."""

    approval: Approval
    job: Job
    taken: bool  # False: the same had been decided before


@dataclass(frozen=True, slots=True)
class _Wish:
    """A decision that somebody wants."""

    job: str
    verdict: Verdict
    actor: str
    note: str
    revision: int | None
    tenant: str | None  # whose jobs they may decide about; None: anybody's


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
        self.decided: Counter[Verdict] = Counter()
        self.repeated: Counter[Verdict] = Counter()
        self.refused: Counter[str] = Counter()  # by code

    async def prepare(self) -> None:
        """Make the table if it is not there."""
        await prepare(self._database, "approval_schema")

    # Asking.

    def evaluate(self, wanted: Submission) -> Evaluation:
        """What the rules say of a job that somebody wants."""
        return self.rules.evaluate(wanted.topic, wanted.tenant, wanted.labels)

    def submission(self, wanted: Submission, pool: str, step: StepOf | None = None) -> Work:
        """The work of making a job that somebody wants: it goes, or waits for a person, as the rules say.

        `NotAllowed`: they refuse it. The submission was checked. `step`: whose job it is, if it is a run's.
        """
        said = self.evaluate(wanted)
        if said.effect is Effect.ALLOW:
            return self._jobs.submission(wanted, pool, [subjects.submitted()])
        rule = said.rule
        if said.effect is Effect.DENY or rule is None:
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

    async def ask(self, tx: Tx, run: StoredRun, wanted: AskApproval) -> None:
        """See `consequences.Gates`: a job that nobody runs, and that is over as soon as somebody decides."""
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
            raise BadInput("id", f"{wanted.id} is another tenant's job", "choose another id for the run") from None
        if job.topic != GATE_TOPIC or job.labels.get(subjects.RUN_LABEL) != run.run.id:
            raise BadInput("id", f"{wanted.id} is a job of somebody else", "choose another id for the run")
        step = StepOf(run.run.id, wanted.step, wanted.risk)
        await tx.query(_INSERT, new_values(job, gate=True, message=wanted.message, step=step))

    # Looking.

    async def get(self, job_id: str, *, tenant: str | None = None) -> Approval | None:
        """The approval of a job of a tenant, or None; of any (None): the newest of that id."""
        where = {"job": check_id("job", job_id), "tenant": tenant}
        rows = await self._database.read(lambda tx: tx.query(_GET, where))
        return approval_of(rows[0], rows[0]["job_state"]) if rows else None

    async def waiting(self, *, tenant: str | None, after: Place, limit: int) -> list[ApprovalOutline]:
        """What waits for somebody now, in outline, the oldest first."""
        values = {"tenant": tenant or "", "created_ns": after.at_ns, "job": after.id, "most": limit}
        rows = await self._database.read(lambda tx: tx.query(_WAITING, values))
        return [approval_outline_of(row) for row in rows]

    async def page(self, *, tenant: str | None, status: str, after: Place, limit: int) -> list[ApprovalOutline]:
        """Everything that waits or waited, in outline, the newest first. An empty status: any.

        For what waits now use `waiting`.
        """
        stored = ApprovalStatus.WAITING.value if status == ApprovalStatus.LAPSED else status
        values = {"tenant": tenant, "status": stored, "created_ns": after.at_ns, "job": after.id, "most": limit}
        statement = _LIST_STATUS if status else _LIST_ALL if tenant is None else _LIST_TENANT
        rows = await self._database.read(lambda tx: tx.query(statement, values))
        return [approval_outline_of(row) for row in rows]

    # Deciding.

    async def decide(
        self,
        job_id: str,
        verdict: Verdict,
        *,
        actor: str,
        note: str = "",
        revision: int | None = None,
        tenant: str | None = None,
    ) -> Decision:
        """Approve or reject. `RowMissing`: there is nothing to decide; see `plane.approvals.rules.judge` for the rest.

        `revision`, where it is given, is the one that was looked at: it must not have changed since. `tenant`, where it
        is given, is whose job it must be.
        """
        check_text("actor", actor, ID_CHARS_MAX)
        wish = _Wish(check_id("job", job_id), verdict, actor, note, revision, tenant)
        if note:
            check_text("note", note, NOTE_CHARS_MAX)
        if revision is not None:
            check_whole("revision", revision, 0, REVISION_MAX)
        try:
            situation, job = await self._situation(wish)  # most refusals need no lock
            if isinstance(self._judged(wish, situation), Already):
                return self._again(wish, situation, job)
            lease = await self._acquire(job_id)
            try:
                return await self._within_limit(lease, wish)
            finally:
                await lease.release()  # bounded, also for a caller that has gone; trouble with it is logged
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

    async def _within_limit(self, lease: Lease, wish: _Wish) -> Decision:
        limit = asyncio.timeout(self._limit)
        try:
            async with limit:
                return await self._decide(lease, wish)
        except (LeaseLost, FencedOut) as error:  # nothing was written: somebody newer has the lock, or will
            raise self._busy(wish.job) from error
        except TimeoutError as error:
            if isinstance(error, BackendError) or not limit.expired():
                raise
            raise Timeout(
                f"the decision about {wish.job} took longer than {self._limit:g} s; look at it, or repeat it"
            ) from error

    async def _decide(self, lease: Lease, wish: _Wish) -> Decision:
        situation, job = await self._situation(wish)  # it may have changed while we waited
        taken = self._judged(wish, situation)
        if isinstance(taken, Already):
            return self._again(wish, situation, job)
        fence, approval = carried(lease), situation.approval
        decided: list[Row] = []

        def decide(job: Job) -> Writing:
            self._judged(wish, replace(situation, state=job.state, request=request_of(job, approval)))
            return replace(_write(job, wish, approval, taken, fence, self._now_ns()), also=also)

        async def also(tx: Tx, _: Job) -> None:
            if approval.run is not None:
                self._judged(wish, replace(situation, run=await _run_status(tx, approval.run)))
            values = {
                "job": wish.job,
                "tenant": approval.tenant,
                "status": str(wish.verdict.status),
                "snapshot": taken.snapshot,
                "decided_by": wish.actor,
                "now_ns": self._now_ns(),
                "note": wish.note or None,
                "fence": fence.fence,
                "revision": approval.revision,
            }
            decided[:] = await tx.query(_DECIDE, values)
            if not decided or request_of(job, _as_asked(decided[0], approval)) != approval.request:
                raise ApprovalConflict(ConflictCode.STALE_REQUEST, "somebody decided at the same moment; look again")

        try:
            changed = await self._jobs.change(lease, wish.job, decide)
        except ApprovalConflict:
            # Something was committed since we looked, perhaps this same decision, whose answer was never heard.
            situation, job = await self._situation(wish)
            if isinstance(self._judged(wish, situation), Already):
                return self._again(wish, situation, job)
            raise
        if changed.after is None:
            raise RowMissing(_nothing(wish.job))
        self.decided[wish.verdict] += 1
        return Decision(approval_of(decided[0], changed.after.state), changed.after, taken=True)

    def _judged(self, wish: _Wish, situation: Situation) -> Taken | Already:
        return judge(wish.verdict, wish.actor, replace(situation, now_ns=self._now_ns()), revision=wish.revision)

    def _again(self, wish: _Wish, situation: Situation, job: Job) -> Decision:
        self.repeated[wish.verdict] += 1
        return Decision(situation.approval, job, taken=False)

    def _busy(self, job_id: str, retry_after: float = 0.0) -> ApprovalBusy:
        """The holder's lease may have a minute left, and is usually given back at once: come back sooner than that."""
        return ApprovalBusy(BUSY, key=self._family.key(job=job_id), retry_after=min(retry_after or RETRY_S, RETRY_S))

    async def _situation(self, wish: _Wish) -> tuple[Situation, Job]:
        async def work(tx: Tx) -> tuple[Row, Job, RunStatus | None] | None:
            jobs = await tx.query(_JOB, {"id": wish.job})
            if not jobs or wish.tenant not in (None, jobs[0]["tenant"]):
                return None
            job = job_of(jobs[0])
            rows = await tx.query(_GET, {"job": job.id, "tenant": job.tenant})
            if not rows or rows[0]["created_ns"] != job.created_ns:  # what is kept of another job of this id
                return None
            run = rows[0]["run"]
            return rows[0], job, None if run is None else await _run_status(tx, run)

        found = await self._database.read(work)
        if found is None:
            raise RowMissing(_nothing(wish.job))
        row, job, run = found
        approval = approval_of(row, job.state)
        if approval.gate:
            evaluation, snapshot = Evaluation(Effect.REQUIRE), approval.snapshot  # the workflow wants it, no rule does
        else:
            evaluation, snapshot = self.rules.evaluate(job.topic, job.tenant, job.labels), self.rules.snapshot
        situation = Situation(
            *(approval, job.state, request_of(job, approval), snapshot, evaluation, run, self._now_ns()),
            requesters=requesters_in(job.labels),
        )
        return situation, job

    def _now_ns(self) -> int:
        return self._jobs.clock.now().wall


async def _run_status(tx: Tx, run: str) -> RunStatus:
    """How a run is. One that is not stored any more was over long before that."""
    rows = await tx.query(_RUN, {"run": run})
    return RunStatus(rows[0]["status"]) if rows else RunStatus.CANCELLED


def _as_asked(row: Row, approval: Approval) -> Approval:
    """A row as it was found in the commit, with what the decision itself has written put back."""
    return replace(approval_of(row, None), snapshot=approval.snapshot)


def _write(job: Job, wish: _Wish, approval: Approval, taken: Taken, fence: CarriedFence, now_ns: int) -> Writing:
    """What a decision does to its job."""
    if wish.verdict is Verdict.REJECT:
        reason = f"rejected by {wish.actor}" + (f": {wish.note}" if wish.note else "")
        return ending(job, End(JobState.DENIED, None, reason, dead=not approval.gate), fence, actor=wish.actor)
    if approval.gate:
        result = {"approved_by": wish.actor, "note": wish.note or None}
        return ending(job, End(JobState.SUCCEEDED, None, "", dead=False), fence, actor=wish.actor, result=result)
    due_ns = job.not_before_ns if job.not_before_ns > now_ns else 0  # whoever asked may have wanted it later still
    change = Change(JobState.PENDING, reason=f"approved by {wish.actor}", not_before_ns=due_ns, actor=wish.actor)
    return Writing([change], [subjects.submitted(job.id, again=f"approval:{job.created_ns}:{taken.revision}")])


def _nothing(job_id: str) -> str:
    return f"nothing about {job_id!r:.220} waits, or waited, for anybody"
