"""One attempt of a step: its effect, the meaning of its end, and the delay before the next one. Pure.

Promises: an attempt has at most one effect (a job, a gate, a run), whose id names it. An expression without a value
ends the attempt with the code `bad_expression` and is not retried, since a retry gives the same. Denials,
cancellations, fatal errors and quarantined outputs are not retried either: the first three were decided, and the last
means that the work *was* done. Times are the wall clock's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from holdfast.core.backoff import Draw
from holdfast.core.strict_parsers import Unstorable, json_size
from holdfast.errors import ExpressionFailed
from holdfast.plane.model.job_states import JobState
from holdfast.plane.workflows.core.definition import DEPTH_MAX, Step, StepKind, StepRetry
from holdfast.plane.workflows.core.run import (
    ID_CHARS_MAX,
    ChildEnded,
    Effect,
    JobEnded,
    RequestApproval,
    Run,
    RunStatus,
    StartChildRun,
    StepSlot,
    StepStatus,
    StopJob,
    StopRun,
    SubmitStepJob,
    attempt_id,
)
from holdfast.plane.workflows.expressions import evaluate, render
from holdfast.plane.workflows.expressions.builtins import Budget
from holdfast.types import NS

ERROR_CHARS_MAX: Final = 2_000
BYTES_PER_UNIT: Final = 25  # of encoded JSON, for one unit of a budget
TIME_MAX_NS: Final = 2**63 - 1  # what a database can hold


class AttemptOutcome(NamedTuple):
    """The end of an attempt."""

    status: StepStatus
    result: Any = None
    error: str | None = None
    code: str | None = None
    retryable: bool = False


@dataclass(frozen=True, slots=True)
class StartedAttempt:
    """A started attempt."""

    status: StepStatus
    job: str | None = None  # the id of its job, gate or run
    effect: Effect | None = None
    due_ns: int | None = None  # a delay: its end
    outcome: AttemptOutcome | None = None  # it has ended already


def begin_attempt(
    run: Run,
    step: Step,
    slot: StepSlot,
    attempt: int,
    names: Mapping[str, Any],
    *,
    now_ns: int,
    limit_ns: int | None,
    budget: Budget | None = None,
) -> StartedAttempt:
    """Start an attempt of a step. Raises the errors of its expressions."""
    if step.kind is StepKind.TRANSFORM:
        made = render(step.input, names, budget)
        return StartedAttempt(StepStatus.RUNNING, outcome=AttemptOutcome(StepStatus.SUCCEEDED, made, retryable=False))
    if step.kind is StepKind.DELAY:
        return StartedAttempt(StepStatus.RUNNING, due_ns=_delay_ends(step, names, now_ns, budget))
    if step.kind is StepKind.WORKFLOW and run.depth >= DEPTH_MAX:
        problem = f"workflows that start workflows may be {DEPTH_MAX} deep, and this run is"
        return StartedAttempt(
            StepStatus.RUNNING, outcome=AttemptOutcome(StepStatus.FAILED, error=problem, code="too_deep")
        )
    job = attempt_id(run.id, slot, attempt)
    if len(job) > ID_CHARS_MAX:
        problem = f"its id would be {len(job)} characters long, and {ID_CHARS_MAX} is the most; use shorter names"
        return StartedAttempt(
            StepStatus.RUNNING, outcome=AttemptOutcome(StepStatus.FAILED, error=problem, code="id_too_long")
        )
    risk = run.workflow.risk_of(step.name)
    deadline_ns = earliest(limit_ns, run.deadline_ns)
    if step.kind is StepKind.APPROVAL:
        asked = RequestApproval(job, slot.path, _handed_on(step.message, names, budget), risk, attempt, deadline_ns)
        return StartedAttempt(StepStatus.WAITING, job, asked)
    given = _handed_on(step.input, names, budget)
    if step.kind is StepKind.WORKFLOW:
        name = step.workflow or ""
        started = StartChildRun(job, slot.path, name, step.version, given, attempt, deadline_ns)
        return StartedAttempt(StepStatus.RUNNING, job, started)
    topic = step.topic or ""
    most = step.retry.retries + 1
    submitted = SubmitStepJob(
        *(job, slot.path, topic, given, risk, attempt, step.priority, most),
        timeout_ns=step.timeout_ns,
        deadline_ns=deadline_ns,
    )
    return StartedAttempt(StepStatus.RUNNING, job, submitted)


def _handed_on(template: Any, names: Mapping[str, Any], budget: Budget | None) -> Any:
    """The value of a template, if it can be stored."""
    value = render(template, names, budget)
    try:
        charge_bytes(budget, json_size(value))
    except Unstorable as problem:
        raise ExpressionFailed(template if isinstance(template, str) else "the template", str(problem)) from None
    return value


def charge_bytes(budget: Budget | None, size: int) -> None:
    """Charge the encoding of a value as JSON, which happens several times on its way into a database."""
    if budget is not None:
        budget.charge(size // BYTES_PER_UNIT)


def _delay_ends(step: Step, names: Mapping[str, Any], now_ns: int, budget: Budget | None) -> int:
    if step.until is None:
        return min(now_ns + (step.delay_ns or 0), TIME_MAX_NS)
    seconds = evaluate(step.until, names, budget)
    if not isinstance(seconds, int | float) or isinstance(seconds, bool):
        raise ExpressionFailed(step.until, "gives no Unix time in seconds")
    if not 0 <= seconds <= TIME_MAX_NS // NS:
        raise ExpressionFailed(step.until, f"gives {seconds:g}, which is no Unix time in seconds")
    return seconds * NS if isinstance(seconds, int) else int(seconds * NS)


def stop_effect(step: Step, job: str, reason: str) -> Effect:
    """The effect that stops the job, gate or run of an attempt."""
    return StopRun(job, reason) if step.kind is StepKind.WORKFLOW else StopJob(job, reason)


_JOB_ENDS: Final[Mapping[JobState, tuple[StepStatus, str | None, bool]]] = {
    JobState.SUCCEEDED: (StepStatus.SUCCEEDED, None, False),
    JobState.FAILED: (StepStatus.FAILED, "failed", True),
    JobState.TIMEOUT: (StepStatus.TIMED_OUT, "timeout", True),
    JobState.DENIED: (StepStatus.DENIED, "denied", False),
    JobState.CANCELLED: (StepStatus.CANCELLED, "cancelled", False),
    JobState.OUTPUT_QUARANTINED: (StepStatus.FAILED, "output_quarantined", False),
}
_RUN_ENDS: Final[Mapping[RunStatus, tuple[StepStatus, str | None, bool]]] = {
    RunStatus.SUCCEEDED: (StepStatus.SUCCEEDED, None, False),
    RunStatus.FAILED: (StepStatus.FAILED, "run_failed", True),
    RunStatus.TIMED_OUT: (StepStatus.TIMED_OUT, "timeout", True),
    RunStatus.DENIED: (StepStatus.DENIED, "denied", False),
    RunStatus.CANCELLED: (StepStatus.FAILED, "run_cancelled", False),
}


def outcome(event: JobEnded | ChildEnded) -> AttemptOutcome | None:
    """The outcome of an attempt from the end of its job or run; None: it has not ended."""
    if isinstance(event, JobEnded):
        found, result, retryable = _JOB_ENDS.get(event.state), event.result, event.retryable
        shown = f"its job ended as {event.state}"
    else:
        found, result, retryable = _RUN_ENDS.get(event.status), event.output, True
        shown = f"its run ended as {event.status}"
    if found is None:
        return None
    status, code, again = found
    if status is StepStatus.SUCCEEDED:
        return AttemptOutcome(status, result)
    return AttemptOutcome(status, None, (event.reason or shown)[:ERROR_CHARS_MAX], code, again and retryable)


def retry_delay_ns(retry: StepRetry, attempt: int, draw: Draw) -> int:
    """The delay between attempt number `attempt` and the next: exponential, capped, with jitter."""
    delay = float(min(retry.initial_ns, retry.cap_ns))
    for _ in range(attempt - 1):
        delay *= retry.multiplier
        if delay >= retry.cap_ns:
            delay = float(retry.cap_ns)
            break
    return int(delay) + draw(int(delay * retry.jitter) + 1)


def earliest(*times: int | None) -> int | None:
    """The earliest of the given times."""
    return min((each for each in times if each is not None), default=None)
