"""Runbooks that run: what is looked at, how it is judged and what to do next, declared as values.

    report = await run(RUNBOOKS["snapshot-leader"], scene)   # runbook_running

A `Step` says what is looked at, which call gathers it and how a person would do the same by hand. A `Rule` is a pure
function over what was gathered, with its threshold in words beside it. From the same declarations come the command
`holdfast runbook`, its JSON, and the page in the documentation, so that none of them can drift from what runs. How they
are run is in `runbook_running`; how one that is about a job or run finds out which, in `runbook_suspects`.

Promises: every step may fail, because the thing that it asks may be what is broken: then that is evidence, and the rest
goes on. A report is there when the time limit of the steps is over at the latest (twice that, where suspects have to be
found first). What was not given is said, and no report says that all is well when what it would have to know is
missing. Nothing is written anywhere, unless the runbook says so (`writes`). No report contains a token, because no fact
does.

Clock: the wall clock, for people.
"""

from __future__ import annotations

import shlex
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from holdfast.errors import HoldfastError
from holdfast.plane.locks.registry import LockFamily
from holdfast.plane.settings.lock_times import family_in_effect
from holdfast.plane.settings.settings import Settings

if TYPE_CHECKING:
    from holdfast.ops.runbooks.evidence.metrics import Query
    from holdfast.ops.runbooks.sources import Scene


class Severity(StrEnum):
    """What a finding asks of whoever reads it, mildest first."""

    FINE = "fine"  # nothing to do
    WATCH = "watch"  # nothing to do yet; look again
    UNKNOWN = "unknown"  # cannot be told from what was given
    ACT = "act"  # do something now

    @property
    def rank(self) -> int:
        """For putting the worst first."""
        return list(Severity).index(self)


class Source(StrEnum):
    """Where evidence comes from, and what to give if it is missing."""

    LEASES = "lease store"
    DATABASE = "database of the plane"
    METRICS = "metrics"
    LEDGER = "audit ledger"
    SETTINGS = "settings"

    @property
    def fix(self) -> str:
        """What to type."""
        return _FIXES[self]


_FIXES: Final[Mapping[Source, str]] = {
    Source.LEASES: "give --url URL",
    Source.DATABASE: "give --database URL or --config FILE",
    Source.METRICS: "give --metrics URL for each process, or --prometheus URL",
    Source.LEDGER: "give --ledger DIR",
    Source.SETTINGS: "give --config FILE",
}


class Fact(Protocol):
    """What a step has found out."""

    def lines(self) -> Sequence[str]:
        """For people, most important first."""
        ...

    def as_dict(self) -> dict[str, Any]:
        """For programs: plain JSON types."""
        ...


class NotGiven(HoldfastError):
    """The place that a step asks was not named."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """What one step has brought: a fact, or why there is none."""

    what: str  # the step
    source: Source
    where: str  # the place that was asked, without its password
    at_ns: int
    fact: Fact | None = None
    problem: str | None = None
    given: bool = True  # False: the place was not named, so nobody was asked

    def as_dict(self) -> dict[str, Any]:
        """For programs."""
        return {
            "what": self.what,
            "source": str(self.source),
            "where": self.where,
            "at_ns": self.at_ns,
            "value": None if self.fact is None else self.fact.as_dict(),
            "problem": self.problem,
            "given": self.given,
        }


@dataclass(frozen=True, slots=True)
class NextStep:
    """What to type, and why."""

    command: str
    why: str


def typed(*words: str) -> str:
    """A command as it is typed: names are quoted where a shell would read them as something else."""
    return shlex.join(words)


@dataclass(frozen=True, slots=True)
class Said:
    """What a rule says when it applies."""

    sentence: str
    because: tuple[str, ...]  # the steps whose evidence it rests on
    next: tuple[NextStep, ...] = ()
    sure: str = "sure"  # or what would make it surer


@dataclass(frozen=True, slots=True)
class Finding:
    """What follows from the evidence."""

    rule: str
    severity: Severity
    sentence: str
    because: tuple[str, ...]
    sure: str
    next: tuple[NextStep, ...]

    def as_dict(self) -> dict[str, Any]:
        """For programs."""
        return {
            "rule": self.rule,
            "severity": str(self.severity),
            "sentence": self.sentence,
            "because": list(self.because),
            "sure": self.sure,
            "next": [{"command": each.command, "why": each.why} for each in self.next],
        }


F = TypeVar("F")


@dataclass(frozen=True, slots=True)
class Case:
    """Everything that was gathered, for the rules."""

    evidence: Mapping[str, Evidence]
    settings: Settings
    at_ns: int = 0
    arguments: Mapping[str, str] = field(default_factory=dict)

    def fact(self, step: str, kind: type[F]) -> F | None:
        """What a step has found, or None if it has found nothing."""
        found = self.evidence.get(step)
        return found.fact if found is not None and isinstance(found.fact, kind) else None

    def key(self, family: LockFamily, **ids: str) -> str:
        """The name of a lock of this plane."""
        return family_in_effect(self.settings, family).key(**ids)

    def problem(self, step: str) -> str | None:
        """Why a step that was asked has found nothing."""
        found = self.evidence.get(step)
        return None if found is None or not found.given else found.problem


@dataclass(frozen=True, slots=True)
class Step:
    """One thing that is looked at."""

    name: str
    looks_at: str
    by_hand: tuple[str, ...]  # commands and queries that show the same
    source: Source
    gather: Callable[[Scene], Awaitable[Fact]]
    lasts: Callable[[Scene], float] | None = None  # seconds that it lets pass on purpose
    queries: tuple[Query, ...] = ()  # of metrics
    about: str = ""  # the argument that it looks at; empty: it is about the whole plane, and looks once for everybody
    at_once: Callable[[Scene, Sequence[str]], Awaitable[Mapping[str, Fact]]] | None = None
    """For several ids by one look, where one look for each would cost too much."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One thing that may be found, and when."""

    name: str
    severity: Severity
    when: str  # with its thresholds, made from the constants that the function uses
    judge: Callable[[Case], Said | None]


@dataclass(frozen=True, slots=True)
class Argument:
    """What the runbook is about. Without it, `searches` find suspects: an alert knows of no job."""

    name: str  # JOB
    noun: str  # job
    help: str
    find: str  # how to find one by hand
    well: str  # what is said of a suspect with which nothing is wrong; {id} is which
    searches: tuple[Step, ...]  # each gives a `SuspectsFact`; the first is believed first


@dataclass(frozen=True, slots=True)
class Runbook:
    """One runbook."""

    name: str
    title: str
    when: str  # to use it
    needs: str  # what it is given, at best
    steps: tuple[Step, ...]
    rules: tuple[Rule, ...]
    fine: str  # what is said when no rule applies
    essential: tuple[str, ...]  # steps without which that cannot be said
    argument: Argument | None = None
    writes: str = ""  # what it writes, if it does; then it asks before
    in_order: bool = False  # whether each step stands on the one before
    then: tuple[NextStep, ...] = ()  # what to do when all is well


@dataclass(frozen=True, slots=True)
class Examined:
    """One suspect, and what was found out about it."""

    id: str
    why: str  # it is one
    source: Source  # that says so
    evidence: tuple[Evidence, ...]
    findings: tuple[Finding, ...]  # the worst first

    @property
    def severity(self) -> Severity:
        """That of the worst finding."""
        return worst(self.findings)

    def as_dict(self) -> dict[str, Any]:
        """For programs."""
        return {
            "id": self.id,
            "why": self.why,
            "source": str(self.source),
            "severity": str(self.severity),
            "evidence": [each.as_dict() for each in self.evidence],
            "findings": [each.as_dict() for each in self.findings],
        }


@dataclass(frozen=True, slots=True)
class Report:
    """How it went. With suspects, what is about one of them is there, and here is what is about all."""

    runbook: Runbook
    arguments: Mapping[str, str]
    at_ns: int
    evidence: tuple[Evidence, ...]
    findings: tuple[Finding, ...]  # the worst first
    suspects: tuple[Examined, ...] = ()

    @property
    def severity(self) -> Severity:
        """That of the worst finding."""
        return worst(self._all)

    @property
    def next(self) -> tuple[NextStep, ...]:
        """What to do, the most urgent first, nothing twice."""
        found: dict[str, NextStep] = {}
        for finding in self._all:
            for step in finding.next:
                found.setdefault(step.command, step)
        return tuple(found.values())

    @property
    def _all(self) -> list[Finding]:
        """Of the suspects and of the rest, the worst first."""
        found = [finding for suspect in self.suspects for finding in suspect.findings]
        return sorted([*found, *self.findings], key=lambda each: -each.severity.rank)

    def as_dict(self) -> dict[str, Any]:
        """For programs."""
        return {
            "runbook": self.runbook.name,
            "arguments": dict(self.arguments),
            "at_ns": self.at_ns,
            "severity": str(self.severity),
            "evidence": [each.as_dict() for each in self.evidence],
            "findings": [each.as_dict() for each in self.findings],
            "suspects": [each.as_dict() for each in self.suspects],
            "next": [{"command": each.command, "why": each.why} for each in self.next],
        }


def worst(findings: Sequence[Finding]) -> Severity:
    """The severity of the worst of some findings; of none, that nothing has to be done."""
    return max((each.severity for each in findings), key=lambda each: each.rank, default=Severity.FINE)


def judged(runbook: Runbook, case: Case) -> tuple[Finding, ...]:
    """What follows from the evidence, the worst first. Pure."""
    found = applied(runbook, case)
    missing = missed(runbook, case, runbook.essential)
    if missing is not None and worst(found) is not Severity.ACT:
        found.append(missing)
    elif worst(found) is Severity.FINE:
        found.append(Finding("fine", Severity.FINE, runbook.fine, runbook.essential, "sure", runbook.then))
    return tuple(sorted(found, key=lambda each: -each.severity.rank))


def applied(runbook: Runbook, case: Case) -> list[Finding]:
    """What the rules say that apply. Pure."""
    said = ((rule, rule.judge(case)) for rule in runbook.rules)
    return [
        Finding(rule.name, rule.severity, each.sentence, each.because, each.sure, each.next)
        for rule, each in said
        if each is not None
    ]


def missed(runbook: Runbook, case: Case, essential: Sequence[str]) -> Finding | None:
    """That it cannot be told, if a step has found nothing without which it cannot. Pure."""
    missing = [step.name for step in runbook.steps if step.name in essential and not _known(case, step)]
    if not missing:
        return None
    reasons = []
    for step in missing:
        found = case.evidence.get(step)
        reasons.append(f"{step} ({'not looked at' if found is None else found.problem})")
    sentence = f"It cannot be told whether anything is wrong: {'; '.join(reasons)}."
    return Finding("cannot tell", Severity.UNKNOWN, sentence, tuple(missing), "not at all", ())


def _known(case: Case, step: Step) -> bool:
    found = case.evidence.get(step.name)
    return found is not None and found.fact is not None
