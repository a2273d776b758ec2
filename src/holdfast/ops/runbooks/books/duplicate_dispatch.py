"""`holdfast runbook duplicate-dispatch [JOB]`: was a job run or ended twice, which job, and who holds it now."""

from __future__ import annotations

from typing import Final

from holdfast.core.history.events import EventKind
from holdfast.ops.runbooks.collectors.locks import POLICY_STEP, history_step, lock_step, metrics_step
from holdfast.ops.runbooks.collectors.plane import JOB_STEP
from holdfast.ops.runbooks.collectors.searches import JOBS_IN_DATABASE, JOBS_IN_LEDGER
from holdfast.ops.runbooks.evidence.ledger import LedgerFact
from holdfast.ops.runbooks.evidence.locks import LockFact, LocksFact, PolicyFact, number, span
from holdfast.ops.runbooks.evidence.metrics import Aggregation, MetricQuery, MetricsFact
from holdfast.ops.runbooks.evidence.plane import JobFact
from holdfast.ops.runbooks.model import (
    Argument,
    Case,
    Conclusion,
    FindingRule,
    FindingSeverity,
    NextStep,
    Runbook,
    typed,
)
from holdfast.plane.locks.registry import RECONCILER, REPLAYER, SCHEDULER_JOB, WORKER_JOB, LockFamily
from holdfast.plane.model.job_states import JobState
from holdfast.plane.settings.consistency import takeovers

WAIT_S: Final = 1.0
"""Half of the two seconds that a handler waits for the lock of a job: above it, some waits time out."""


def _lock(case: Case, family: LockFamily) -> LockFact | None:
    found = case.fact("locks", LocksFact)
    return None if found is None else found.get(case.key(family, job=case.arguments["JOB"]))


def _show(case: Case) -> NextStep:
    return NextStep(typed("holdfast", "jobs", "show", case.arguments["JOB"]), "the job with its whole history")


def _history(case: Case) -> NextStep:
    key = case.key(SCHEDULER_JOB, job=case.arguments["JOB"])
    return NextStep(f"{typed('holdfast', 'history', key)} --ledger LEDGER", "who held it when, and with which fence")


def _wrong_history(case: Case) -> Conclusion | None:
    job = case.fact("job", JobFact)
    if job is None or not job.problems:
        return None
    sentence = (
        f"The history of {job.id} contains impossible events: {'; '.join(job.problems)}. A writer changes the job "
        f"without the guard, or bypasses the plane."
    )
    steps = (
        _show(case),
        _history(case),
        NextStep("holdfast check LEDGER", "whether any other guarantee was violated"),
        NextStep('holdfast policy set low fail_closed --reason "duplicate dispatch"', "until it is understood"),
    )
    return Conclusion(sentence, ("job",), steps)


def _broken_rule(case: Case) -> Conclusion | None:
    ledger = case.fact("ledger", LedgerFact)
    if ledger is None or not ledger.violations:
        return None
    sentence = (
        f"The ledger shows a violated guarantee for the locks of {case.arguments['JOB']}: {ledger.violations[0]}."
    )
    return Conclusion(
        sentence, ("ledger",), (_history(case), NextStep("holdfast check LEDGER", "the two records that conflict"))
    )


def _stale_holder(case: Case) -> Conclusion | None:
    job = case.fact("job", JobFact)
    lock = _lock(case, SCHEDULER_JOB)
    if job is None or lock is None or lock.fence is None or job.fence is None or lock.fence >= job.fence:
        return None
    sentence = (
        f"{lock.owner} holds the lock of {job.id} with fence {lock.fence}, and the job was written under fence "
        f"{job.fence}: the store has lost a newer grant. Storage refuses the writes of this holder."
    )
    steps = (
        NextStep(
            typed("holdfast", "release", lock.key, "--reason", "older than the job's fence"), "free it for a new holder"
        ),
        NextStep("holdfast runbook store-outage", "whether the store was restarted or has failed over"),
    )
    return Conclusion(sentence, ("locks", "job"), steps)


def _abandoned(case: Case) -> Conclusion | None:
    job = case.fact("job", JobFact)
    lock = _lock(case, WORKER_JOB)
    if job is None or lock is None or lock.held or job.state is not JobState.RUNNING:
        return None
    bound = max(
        each.seconds for each in takeovers(case.settings) if each.key in {"worker.lease_ttl", "replayer.interval"}
    )
    if job.idle <= bound:
        return None
    sentence = (
        f"{job.id} is RUNNING and its execution lease is free: {job.worker or 'its worker'} has been gone for longer "
        f"than a takeover may take ({span(bound)}). No worker consumes its topic, or no loop recovers it."
    )
    steps = (
        NextStep("holdfast jobs stats", "whether workers are alive"),
        NextStep("holdfast runbook lock-debt", "whether other jobs are stuck as well"),
    )
    return Conclusion(sentence, ("job", "locks"), steps)


def _no_leader(case: Case) -> Conclusion | None:
    found = case.fact("loops", LocksFact)
    free = [each.key for each in found.locks if not each.held] if found is not None else []
    if not free:
        return None
    missing = " and ".join(free)
    sentence = f"No process holds {missing}: overdue and orphaned jobs are not recovered, so they stay where they are."
    step = NextStep("holdfast up --only reconciler,replayer", "on any host that reaches the same stores")
    return Conclusion(
        sentence, ("loops",), (step,), "sure, unless a tick has just ended in rotating mode; run it again"
    )


def _refused(case: Case) -> Conclusion | None:
    found, ledger = case.fact("rates", MetricsFact), case.fact("ledger", LedgerFact)
    rate = (found.total("second ends") or 0.0) if found is not None else 0.0
    seen = ledger.count(EventKind.DUPLICATE) if ledger is not None else 0
    if rate <= 0 and not seen:
        return None
    of_all = f"{rate:.3g} per second in total" if rate > 0 else ""
    if not seen:
        sentence = f"Duplicate ends are reported and refused, {of_all}: work is done twice, and one result is used."
        return Conclusion(
            sentence, ("rates",), (NextStep("holdfast check LEDGER", "whether any other guarantee was violated"),)
        )
    told = f"{number(seen, 'is', 'are')} in the ledger{', and ' if of_all else ''}{of_all}"
    sentence = (
        f"A second end of {case.arguments['JOB']} was reported and refused ({told}): two workers did the same "
        f"work, and one result was used."
    )
    return Conclusion(sentence, ("ledger", "rates") if of_all else ("ledger",), (_history(case), _show(case)))


def _rising(case: Case) -> Conclusion | None:
    policy = case.fact("policy", PolicyFact)
    if policy is None or not policy.rising:
        return None
    counts = ", ".join(f"{sign} {now} after {was}" for sign, (now, was) in policy.duplicates.items() if now or was)
    sentence = f"The whole plane does more duplicate work than before: {counts} in {span(policy.window_s)}."
    return Conclusion(sentence, ("policy",), (NextStep("holdfast runbook store-outage", "whether locks fall back"),))


def _contended(case: Case) -> Conclusion | None:
    found = case.fact("rates", MetricsFact)
    if found is None or (worst := found.worst("wait"))[1] < WAIT_S:
        return None
    sentence = f"The p99 wait for a job lock is {span(worst[1])} ({worst[0] or 'all parts'}), of 2 s at most."
    return Conclusion(
        sentence, ("rates",), (NextStep("holdfast runbook lock-debt", "which locks are held for how long"),)
    )


RUNBOOK: Final = Runbook(
    name="duplicate-dispatch",
    title="One job was dispatched, run or ended twice",
    when="a customer saw an effect twice; `holdfast_plane_duplicate_ends_total` or `holdfast_duplicates_total` rises; "
    "after a scheduler was killed",
    needs="the database and the lease store; the job id, if it is known; --ledger for past holders; metrics",
    over="the job has one end, and `holdfast_plane_duplicate_ends_total` no longer rises; `holdfast jobs "
    "show JOB` prints its history",
    argument=Argument(
        "JOB",
        "job",
        "the id of the job",
        "`holdfast check LEDGER` and the log lines `published again` name jobs; `holdfast jobs list` lists all",
        "{id} has at most one end, each of its attempts was dispatched once, and its fences only rise.",
        (JOBS_IN_LEDGER, JOBS_IN_DATABASE),
    ),
    steps=(
        lock_step(
            "locks", "which process decides about the job, and which runs it", SCHEDULER_JOB, WORKER_JOB, argument="JOB"
        ),
        lock_step("loops", "which processes recover overdue and orphaned jobs", RECONCILER, REPLAYER),
        JOB_STEP,
        history_step(
            *("ledger", "the history of both locks of the job, checked against every rule", "JOB"),
            *(SCHEDULER_JOB, WORKER_JOB),
        ),
        POLICY_STEP,
        metrics_step(
            "rates",
            "second ends, refused writes, waits for job locks, and recoveries by the loops",
            MetricQuery("second ends", "holdfast_plane_duplicate_ends_total"),
            MetricQuery("duplicates", "holdfast_duplicates_total", by=("kind",)),
            MetricQuery("refused writes", "holdfast_guard_steps_total", where=(("outcome", "refused"),)),
            MetricQuery("abandoned", "holdfast_job_lock_abandoned_total", by=("part",)),
            MetricQuery("wait", "holdfast_job_lock_wait", Aggregation.P99, ("part",), unit=" s"),
            MetricQuery("stale jobs", "holdfast_stale_jobs", Aggregation.NOW, ("state",), worst=True),
            MetricQuery("orphans replayed", "holdfast_orphan_replayed_total"),
            MetricQuery("fail-open", "holdfast_scheduler_input_fail_open_total"),
        ),
    ),
    rules=(
        FindingRule(
            "wrong history",
            FindingSeverity.ACT,
            "the job ended twice, an attempt was dispatched twice, a fence decreased, a transition was illegal, or it "
            "had more attempts than allowed",
            _wrong_history,
        ),
        FindingRule(
            "broken rule", FindingSeverity.ACT, "`holdfast check` finds a violated rule about its locks", _broken_rule
        ),
        FindingRule(
            "stale holder", FindingSeverity.ACT, "the holder's fence is older than the fence on the job", _stale_holder
        ),
        FindingRule(
            "abandoned",
            FindingSeverity.ACT,
            "it is RUNNING, and its execution lease has been free for longer than a takeover may take",
            _abandoned,
        ),
        FindingRule(
            "no leader",
            FindingSeverity.ACT,
            "no process holds the lock of the reconciler or of the replayer",
            _no_leader,
        ),
        FindingRule("refused end", FindingSeverity.WATCH, "a second end was reported and refused", _refused),
        FindingRule("rising", FindingSeverity.WATCH, "duplicates are more frequent than in the window before", _rising),
        FindingRule(
            "contention", FindingSeverity.WATCH, f"the p99 wait for job locks is {WAIT_S:g} s or more", _contended
        ),
    ),
    fine="The job has at most one end, each attempt was dispatched once, and its fences only rise.",
    essential=("job", "locks", "loops"),
)
