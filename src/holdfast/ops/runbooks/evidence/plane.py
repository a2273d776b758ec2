"""Facts about jobs, runs, tenants and messages: plain values that print as text and as JSON.

`history_problems` lists impossible events in the history of a job: it is the check for a duplicate dispatch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from holdfast.ops.runbooks.evidence.locks import span
from holdfast.plane.model.job_states import JobState, legal
from holdfast.plane.model.records import Job, JobEvent
from holdfast.plane.workflows.core.run import StepStatus


def history_problems(events: Sequence[JobEvent], max_attempts: int) -> tuple[str, ...]:
    """The problems in the history of one job; empty if there are none. Pure."""
    problems: list[str] = []
    state: JobState | None = None
    fence = -1
    ends = 0
    dispatched: Counter[int] = Counter()
    for event in events:
        if event.before != state or not legal(event.before, event.after):
            problems.append(f"it went from {event.before or 'nothing'} to {event.after} when it was {state or 'new'}")
        if event.fence is not None and event.fence < fence:
            problems.append(f"fence {event.fence} wrote after fence {fence}")
        # A success whose output is rejected later is the only end that another one may follow.
        ends += event.after.terminal and event.after is not JobState.OUTPUT_QUARANTINED
        dispatched[event.attempt] += event.after is JobState.DISPATCHED
        state, fence = event.after, fence if event.fence is None else event.fence
    problems += [f"attempt {each} was dispatched {times} times" for each, times in dispatched.items() if times > 1]
    if ends > 1:
        problems.append(f"it ended {ends} times")
    if events and max(each.attempt for each in events) > max_attempts:
        problems.append(f"it had {max(each.attempt for each in events)} attempts of at most {max_attempts}")
    return tuple(problems)


@dataclass(frozen=True, slots=True)
class JobFact:
    """One job and its history."""

    id: str
    tenant: str
    topic: str
    state: JobState
    attempt: int
    max_attempts: int
    idle: float  # seconds since it last changed
    fence: int | None
    run_fence: int | None
    worker: str
    problems: tuple[str, ...]
    events: tuple[str, ...]  # one line each

    @classmethod
    def of(cls, job: Job, events: Sequence[JobEvent], now_ns: int) -> JobFact:
        """From the stored rows."""
        return cls(
            *(job.id, job.tenant, job.topic, job.state, job.attempt, job.max_attempts),
            idle=max(0.0, (now_ns - job.updated_ns) / 1e9),
            fence=job.fence,
            run_fence=job.run_fence,
            worker=job.worker or "",
            problems=history_problems(events, job.max_attempts),
            events=tuple(
                f"{each.before or 'new'} -> {each.after}, attempt {each.attempt}, "
                f"{'no fence' if each.fence is None else f'fence {each.fence}'}, by {each.actor}"
                for each in events
            ),
        )

    def lines(self) -> Sequence[str]:
        """The fact as text."""
        worker = f", on {self.worker}" if self.worker and not self.state.terminal else ""
        about = (
            f"{self.id} of {self.tenant} ({self.topic}) is {self.state} at attempt {self.attempt} of "
            f"{self.max_attempts}{worker}, unchanged for {span(self.idle)}"
        )
        return [
            about,
            f"written under fence {self.fence}, run under fence {self.run_fence}",
            *self.events[-12:],
            *(f"WRONG: {each}" for each in self.problems),
        ]

    def as_dict(self) -> dict[str, Any]:
        """The fact as JSON types."""
        return {**asdict(self), "state": str(self.state)}


def at_work(steps: Mapping[str, Any], over: frozenset[str], now_ns: int) -> bool:
    """Whether a run has something to wait for: an unfinished job, an approval, or a timer. Pure."""
    for step in _leaves(steps.values()):
        status, due_ns = step.get("status"), step.get("due_ns")
        if status == StepStatus.WAITING or (due_ns is not None and due_ns > now_ns):
            return True
        if status == StepStatus.RUNNING and (job := step.get("job")) is not None and job not in over:
            return True
    return False


def jobs_at_work(steps: Mapping[str, Any]) -> list[str]:
    """The jobs that a run records as running. Pure."""
    running = (step for step in _leaves(steps.values()) if step.get("status") == StepStatus.RUNNING)
    return [step["job"] for step in running if isinstance(step.get("job"), str)]


def _leaves(steps: Any) -> Iterator[Mapping[str, Any]]:
    """Steps, and the children instead of a step that fans out."""
    for step in steps:
        if isinstance(step, Mapping):
            children = step.get("children")
            yield from _leaves(children) if children else (step,)


@dataclass(frozen=True, slots=True)
class RunFact:
    """One run of a workflow and its timeline."""

    id: str
    tenant: str
    workflow: str
    status: str
    over: bool
    risk: str
    fence: int | None
    idle: float
    overdue: float | None  # seconds since it was due; None: it waits for nothing
    repeated: tuple[str, ...]  # steps that completed more than once in one attempt
    unfenced: int  # timeline events that were written without the store
    lines_number: int
    at_rest: bool = False  # it is unfinished, and has nothing to wait for: it should advance

    def lines(self) -> Sequence[str]:
        """The fact as text."""
        late = f", overdue for {span(self.overdue)}" if self.overdue else ""
        late += ", with nothing to wait for" if self.at_rest else ""
        about = (
            f"{self.id} of {self.tenant} ({self.workflow}, class {self.risk}) is {self.status}, unchanged for "
            f"{span(self.idle)}{late}, written under fence {self.fence}"
        )
        return [
            about,
            f"{self.lines_number} timeline events, {self.unfenced} written without the lease store",
            *(f"WRONG: step {each} completed more than once" for each in self.repeated),
        ]

    def as_dict(self) -> dict[str, Any]:
        """The fact as JSON types."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class SnapshotFact:
    """The worker snapshot. Without an age: it was never written."""

    age: float | None
    writer: str = ""
    fence: int | None = None
    workers: int = 0
    alive: int = 0  # by the registry, as the snapshot should list

    def lines(self) -> Sequence[str]:
        """The fact as text."""
        if self.age is None:
            return [f"no snapshot was ever written; {self.alive} workers are alive"]
        about = f"written {span(self.age)} ago by {self.writer}, fence {self.fence}"
        return [f"{about}: {self.workers} workers ({self.alive} are alive now)"]

    def as_dict(self) -> dict[str, Any]:
        """The fact as JSON types."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class TenantDebt:
    """One tenant: its running jobs, its limit, and its queued jobs."""

    name: str
    running: int
    slots: int | None
    waiting: int
    oldest: float = 0.0  # how long the oldest of them has waited

    @property
    def full(self) -> bool:
        """Whether its own limit delays it."""
        return self.slots is not None and self.running >= self.slots

    def line(self) -> str:
        """One line of text."""
        first = f" (the oldest for {span(self.oldest)})" if self.waiting else ""
        most = "no limit" if self.slots is None else f"limit {self.slots}"
        return f"tenant {self.name}: {self.waiting} queued{first}, {self.running} dispatched, {most}"


@dataclass(frozen=True, slots=True)
class PoolDebt:
    """One pool of workers."""

    name: str
    running: int
    workers: int
    capacity: int
    waiting: int


@dataclass(frozen=True, slots=True)
class DebtFact:
    """Queued jobs by tenant and pool, and overdue jobs."""

    tenants: tuple[TenantDebt, ...]  # those with queued or running jobs, the longest queue first
    pools: tuple[PoolDebt, ...]
    overdue: Mapping[str, int]  # by state: jobs past its time limit

    @property
    def waiting(self) -> int:
        """Of all tenants."""
        return sum(each.waiting for each in self.tenants)

    @property
    def running(self) -> int:
        """Of all tenants."""
        return sum(each.running for each in self.tenants)

    def lines(self) -> Sequence[str]:
        """The fact as text."""
        tenants = [each.line() for each in self.tenants[:8]]
        more = [f"… and {len(self.tenants) - 8} more tenants"] if len(self.tenants) > 8 else []
        pools = [
            f"pool {each.name}: {each.waiting} queued, {each.running} dispatched, {each.workers} workers with slots: "
            f"{each.capacity}"
            for each in self.pools
        ]
        overdue = ", ".join(f"{state} {count}" for state, count in self.overdue.items() if count)
        return [*tenants, *more, *pools, f"stale jobs: {overdue or 'none'}"]

    def as_dict(self) -> dict[str, Any]:
        """The fact as JSON types."""
        return {**asdict(self), "waiting": self.waiting, "running": self.running}


@dataclass(frozen=True, slots=True)
class PendingFact:
    """Queued messages, at two moments."""

    first: Mapping[str, int]  # by subject
    last: Mapping[str, int]
    spacing_s: float

    @property
    def growth(self) -> int:
        """How many more there were at the end."""
        return sum(self.last.values()) - sum(self.first.values())

    def lines(self) -> Sequence[str]:
        """The fact as text."""
        return [
            f"{subject}: {count} queued, {count - self.first.get(subject, 0):+d} in {span(self.spacing_s)}"
            for subject, count in self.last.items()
            if count or self.first.get(subject)
        ] or ["no message is queued"]

    def as_dict(self) -> dict[str, Any]:
        """The fact as JSON types."""
        return {**asdict(self), "growth": self.growth}


@dataclass(frozen=True, slots=True)
class RetryFact:
    """How work with a busy lock is retried, by the settings."""

    delay: float
    jitter: float
    ttls: Mapping[str, float]  # by family
    budgets: Mapping[str, float]  # by family: how much jitter its TTL allows
    carried: str  # how the bus handled a delay, or why that was not tested

    def lines(self) -> Sequence[str]:
        """The fact as text."""
        how = f"exactly {span(self.delay)}" if not self.jitter else f"{span(self.delay)} ± {span(self.jitter)}"
        budgets = ", ".join(f"{family} {span(budget)}" for family, budget in self.budgets.items())
        return [f"work with a busy lock is retried after {how}", f"room for jitter: {budgets}", self.carried]

    def as_dict(self) -> dict[str, Any]:
        """The fact as JSON types."""
        return asdict(self)
