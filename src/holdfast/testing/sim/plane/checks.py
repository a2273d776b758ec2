"""What must hold of every simulated plane, whatever went wrong in it. Pure: a story in, what is wrong with it out.

P1   what was acknowledged is there; the same key is the same job, and was made at most once
P2   every job, and every run, comes to an end after the last fault
P3   it ends once: an end is written once, and nothing but the table of states leads to or from a state
P4   fences and versions of a row never go down
P5   a tenant never has more jobs with workers than its limit; the counters say what the states say
P6   an effect that was guarded happens once: of a job that succeeded exactly one is there, of others at most one
P7   a dead letter has a cause: attempts, deliveries or time that were really used up
P8   in the end no message waits for delivery
P9   the history of a job tells every change of its row
P10  of decisions about one thing that were acknowledged, all are the same
P11  a due time of a schedule has at most one job, and exactly one if its policy says so
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from holdfast.core.history.events import Record
from holdfast.core.history.invariants import Breach
from holdfast.plane.bus.delivery_rules import LOST_MAX, UNREADABLE_MAX
from holdfast.plane.bus.delivery_rules import DeadLetterCode as Delivering
from holdfast.plane.jobs.rules import JobCode
from holdfast.plane.model.job_states import WITH_WORKERS, JobState, legal
from holdfast.plane.workflows.core.run import RunStatus
from holdfast.testing.sim.plane.load import Asked
from holdfast.testing.sim.plane.row_history import JobSeen, LetterSeen, RunSeen
from holdfast.testing.sim.plane.timed_jobs import TimedJobs

FAILURES_MAX: Final = 5  # of a message, as a `Consumption` has it


@dataclass(slots=True)
class Ending:
    """A job as it is in the end."""

    state: str
    result: int | None  # the effect that its result names


@dataclass(slots=True)
class Story:
    """All that is known of a plane that has been through it."""

    asked: Sequence[Asked] = ()
    asked_runs: Sequence[Asked] = ()
    jobs: Sequence[JobSeen] = ()
    runs: Sequence[RunSeen] = ()
    letters: Sequence[LetterSeen] = ()
    endings: Mapping[str, Ending] = field(default_factory=dict)
    run_endings: Mapping[str, str] = field(default_factory=dict)
    events: Mapping[str, Sequence[tuple[str | None, str]]] = field(default_factory=dict)  # (before, after) by job
    effects: Mapping[str, Sequence[Record]] = field(default_factory=dict)  # the writes that were accepted, by job
    verdicts: Mapping[str, Sequence[str]] = field(default_factory=dict)
    slots: int | None = None
    counters: Mapping[str, int] = field(default_factory=dict)  # tenants and pools that still have jobs with workers
    waiting: Sequence[tuple[str, str]] = ()  # (id, subject) of unhandled messages
    timed: Sequence[TimedJobs] = ()


def check_plane(story: Story) -> list[Breach]:
    """Every rule that the story breaks, in the order of the rules."""
    return [violation for rule in _RULES for violation in rule(story)]


def _acknowledged(story: Story) -> Iterator[Breach]:
    """P1."""
    for asked, found in [
        *((each, story.endings) for each in story.asked),
        *((each, story.run_endings) for each in story.asked_runs),
    ]:
        if not asked.answers:
            yield Breach("P1", asked.key, "was never acknowledged, though all is well again")
            continue
        if len(set(asked.answers)) > 1:
            yield Breach("P1", asked.key, f"one key was answered with different ids: {sorted(set(asked.answers))}")
        if asked.made > 1:
            yield Breach("P1", asked.key, f"was said to be made {asked.made} times")
        if asked.answers[0] not in found:
            yield Breach("P1", asked.key, f"{asked.answers[0]} was acknowledged and is not there")


def _over(story: Story) -> Iterator[Breach]:
    """P2."""
    for job, ending in story.endings.items():
        if not JobState(ending.state).terminal:
            yield Breach("P2", job, f"is still {ending.state} long after the last fault")
    for run, status in story.run_endings.items():
        if not RunStatus(status).terminal:
            yield Breach("P2", run, f"is still {status} long after the last fault")


def _once(story: Story) -> Iterator[Breach]:
    """P3. The row may pass through several states in one write, whose moves are in its history (P9)."""
    for job, moves in story.events.items():
        for before, after in moves:
            if not legal(None if before is None else JobState(before), JobState(after)):
                yield Breach("P3", job, f"went from {before} to {after}, which the table does not allow")
        ends = [after for _, after in moves if JobState(after).terminal]
        if len(ends) > 1:
            yield Breach("P3", job, f"ended {len(ends)} times: {', '.join(ends)}")
    for seen in story.jobs:
        if seen.before is not None and JobState(seen.before).terminal and seen.after != seen.before:
            yield Breach("P3", seen.job, f"was over ({seen.before}) and became {seen.after} at {seen.at_ns}")
    for run in story.runs:
        if run.before is not None and RunStatus(run.before).terminal and run.after != run.before:
            yield Breach("P3", run.run, f"was over ({run.before}) and became {run.after} at {run.at_ns}")


def _rising(story: Story) -> Iterator[Breach]:
    """P4."""
    for seen in story.jobs:
        for what, before, after in (
            ("fence", seen.fence_before, seen.fence),
            ("run_fence", seen.run_fence_before, seen.run_fence),
        ):
            if before is not None and (after is None or after < before):
                yield Breach("P4", seen.job, f"its {what} went from {before} to {after} at {seen.at_ns}")
        if seen.version < seen.version_before:
            yield Breach("P4", seen.job, f"its version went from {seen.version_before} to {seen.version}")
    for run in story.runs:
        if run.fence_before is not None and (run.fence is None or run.fence < run.fence_before):
            yield Breach("P4", run.run, f"its fence went from {run.fence_before} to {run.fence} at {run.at_ns}")


def _limited(story: Story) -> Iterator[Breach]:
    """P5. Checked after each commit: within one, slots may be taken before others are released."""
    states: dict[str, str] = {}
    running: Counter[str] = Counter()
    for number, seen in enumerate(story.jobs):
        running[seen.tenant] -= states.get(seen.job) in WITH_WORKERS
        running[seen.tenant] += seen.after in WITH_WORKERS
        states[seen.job] = seen.after
        last = number + 1 == len(story.jobs) or story.jobs[number + 1].commit != seen.commit
        if last and story.slots is not None and running[seen.tenant] > story.slots:
            text = f"has {running[seen.tenant]} jobs with workers at {seen.at_ns}, and may have {story.slots}"
            yield Breach("P5", seen.tenant, text)
    for name, number in story.counters.items():
        if number != 0:
            yield Breach("P5", name, f"is said to have {number} jobs with workers, and all are over")


def _effects(story: Story) -> Iterator[Breach]:
    """P6."""
    for job, ending in story.endings.items():
        done = story.effects.get(job, ())
        first, second = (*done, None, None)[:2]
        if len(done) > 1:
            yield Breach("P6", job, f"its effect happened {len(done)} times", first, second)
        if ending.state == JobState.SUCCEEDED and ending.result is not None and len(done) != 1:
            yield Breach("P6", job, f"succeeded with effect {ending.result}, and {len(done)} are there")
        elif ending.result is not None and first is not None and first.value != ending.result:
            yield Breach("P6", job, f"says that its effect is {ending.result}", first)


def _dead(story: Story) -> Iterator[Breach]:
    """P7."""
    last: dict[str, JobSeen] = {seen.job: seen for seen in story.jobs}
    for letter in story.letters:
        enough = {
            str(Delivering.FAILURES): letter.attempts >= FAILURES_MAX,
            str(Delivering.LOST): letter.attempts > LOST_MAX or _begun(story, letter.job) >= LOST_MAX,
            str(Delivering.UNREADABLE): letter.attempts >= UNREADABLE_MAX,
            str(JobCode.FATAL): True,
            str(JobCode.STATE_TIMEOUT): True,
            str(JobCode.MAX_ATTEMPTS): letter.job in last and last[letter.job].attempt >= last[letter.job].max_attempts,
        }.get(letter.code, False)
        if not enough:
            text = f"is a dead letter for {letter.code} after {letter.attempts}, which is no reason"
            yield Breach("P7", letter.letter, text)


def _begun(story: Story, job: str) -> int:
    """How often a worker has said that it has begun it."""
    return sum(after == JobState.RUNNING for _, after in story.events.get(job, ()))


def _quiet(story: Story) -> Iterator[Breach]:
    """P8."""
    for message, subject in story.waiting:
        yield Breach("P8", message, f"still waits on {subject}, and no consumer handles it")


def _told(story: Story) -> Iterator[Breach]:
    """P9. Each change of the state of a row is the outcome of the moves that were written with it."""
    rows: dict[str, list[str]] = defaultdict(list)
    for seen in story.jobs:
        if seen.before != seen.after:
            rows[seen.job].append(seen.after)
    for job, states in rows.items():
        moves = iter([after for _, after in story.events.get(job, ())])
        for state in states:
            if state not in moves:  # looks for it from where the last one was found
                yield Breach("P9", job, f"became {state}, and its history does not tell")
                break


def _decided(story: Story) -> Iterator[Breach]:
    """P10."""
    for job, verdicts in story.verdicts.items():
        if len(set(verdicts)) > 1:
            yield Breach("P10", job, f"was decided {' and '.join(verdicts)}, and each was acknowledged")


def _timed(story: Story) -> Iterator[Breach]:
    """P11."""
    for timed in story.timed:
        for due, jobs in Counter(timed.seen).items():
            if jobs > 1:
                yield Breach("P11", timed.schedule, f"submitted {jobs} jobs for {due}")
        if timed.expected is not None:
            for due in sorted(set(timed.expected) ^ set(timed.seen)):
                what = "has no job" if due in timed.expected else "was not due"
                yield Breach("P11", timed.schedule, f"{due} {what}")


_RULES: Final[tuple[Callable[[Story], Iterator[Breach]], ...]] = (
    *(_acknowledged, _over, _once, _rising, _limited, _effects, _dead, _quiet, _told, _decided, _timed),
)
