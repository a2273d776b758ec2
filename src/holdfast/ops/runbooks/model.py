"""Executable runbooks: evidence to gather, rules to judge it, and next steps, declared as values.

    report = await run(RUNBOOKS["snapshot-leader"], scene)   # runbooks.runner

A `RunbookStep` declares what is inspected, the function that gathers it, and the commands that do the same by hand. A
`FindingRule` is a pure function over the evidence, with its threshold in words beside it. The command `holdfast
runbook`, its JSON and the page in the documentation come from the same declarations, so they cannot drift apart.
`runbooks.runner` runs them. `runbooks.suspects` chooses the jobs or runs of a runbook that was called without an id.

Promises: every step may fail, because its source may be broken: that is evidence, and the other steps continue. The
report is complete when the time limit of the steps is over (twice that if suspects must be found first). Missing
sources are listed, and no report says that all is well if an essential fact is missing. Runbooks are read-only unless
they declare otherwise (`writes`). No report contains a token, because no fact does.


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
    from holdfast.ops.runbooks.evidence.metrics import MetricQuery
    from holdfast.ops.runbooks.sources import RunbookContext


class FindingSeverity(StrEnum):
    """How urgent a finding is, mildest first."""

    FINE = "fine"  # no action
    WATCH = "watch"  # no action yet; check again
    UNKNOWN = "unknown"  # the evidence is insufficient
    ACT = "act"  # act now

    @property
    def rank(self) -> int:
        """The sort key: the worst is the highest."""
        return list(FindingSeverity).index(self)


class EvidenceSource(StrEnum):
    """The source of evidence, and the option to give if it is missing."""

    LEASES = "lease store"
    DATABASE = "database of the plane"
    BUS = "message bus"
    METRICS = "metrics"
    LEDGER = "audit ledger"
    SETTINGS = "settings"

    @property
    def fix(self) -> str:
        """The option to give."""
        return _FIXES[self]


_FIXES: Final[Mapping[EvidenceSource, str]] = {
    EvidenceSource.LEASES: "give --url URL",
    EvidenceSource.DATABASE: "give --database URL or --config FILE",
    EvidenceSource.BUS: "give --config FILE",
    EvidenceSource.METRICS: "give --metrics URL for each process, or --prometheus URL",
    EvidenceSource.LEDGER: "give --ledger DIR",
    EvidenceSource.SETTINGS: "give --config FILE",
}


class Fact(Protocol):
    """The result of a step."""

    def lines(self) -> Sequence[str]:
        """Text for people, most important first."""
        ...

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON types."""
        ...


class NotGiven(HoldfastError):
    """The source of a step was not given."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """The result of one step: a fact, or the reason why there is none."""

    what: str  # the step
    source: EvidenceSource
    where: str  # the source, without its password
    at_ns: int
    fact: Fact | None = None
    problem: str | None = None
    given: bool = True  # False: the source was not given, so the step did not run

    def as_dict(self) -> dict[str, Any]:
        """JSON types."""
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
    """A command, and its purpose."""

    command: str
    why: str


def typed(*words: str) -> str:
    """A command as it is typed: arguments are quoted for the shell."""
    return shlex.join(words)


@dataclass(frozen=True, slots=True)
class Conclusion:
    """The result of a rule that applies."""

    sentence: str
    because: tuple[str, ...]  # the steps with the evidence
    next: tuple[NextStep, ...] = ()
    sure: str = "sure"  # or how to make it surer


@dataclass(frozen=True, slots=True)
class Finding:
    """A conclusion from the evidence."""

    rule: str
    severity: FindingSeverity
    sentence: str
    because: tuple[str, ...]
    sure: str
    next: tuple[NextStep, ...]

    def as_dict(self) -> dict[str, Any]:
        """JSON types."""
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
    """All evidence, as input for the rules."""

    evidence: Mapping[str, Evidence]
    settings: Settings
    at_ns: int = 0
    arguments: Mapping[str, str] = field(default_factory=dict)

    def fact(self, step: str, kind: type[F]) -> F | None:
        """The fact of a step, or None if it has none."""
        found = self.evidence.get(step)
        return found.fact if found is not None and isinstance(found.fact, kind) else None

    def key(self, family: LockFamily, **ids: str) -> str:
        """The key of a lock of this plane."""
        return family_in_effect(self.settings, family).key(**ids)

    def problem(self, step: str) -> str | None:
        """Why a step that ran has no fact."""
        found = self.evidence.get(step)
        return None if found is None or not found.given else found.problem


@dataclass(frozen=True, slots=True)
class RunbookStep:
    """One inspection."""

    name: str
    looks_at: str
    by_hand: tuple[str, ...]  # commands and queries that show the same
    source: EvidenceSource
    gather: Callable[[RunbookContext], Awaitable[Fact]]
    lasts: Callable[[RunbookContext], float] | None = None  # seconds that it waits on purpose
    queries: tuple[MetricQuery, ...] = ()  # of metrics
    about: str = ""  # the argument that it inspects; empty: the whole plane, once for all suspects
    at_once: Callable[[RunbookContext, Sequence[str]], Awaitable[Mapping[str, Fact]]] | None = None
    """Inspects several ids in one call, if a call for each id would be too expensive."""


@dataclass(frozen=True, slots=True)
class FindingRule:
    """One possible finding, and its condition."""

    name: str
    severity: FindingSeverity
    when: str  # with its thresholds, made from the constants that the function uses
    judge: Callable[[Case], Conclusion | None]


@dataclass(frozen=True, slots=True)
class Argument:
    """The job or run that the runbook inspects. Without it, `searches` find suspects: an alert names no job."""

    name: str  # JOB
    noun: str  # job
    help: str
    find: str  # how to find one by hand
    well: str  # the text for a healthy suspect; {id} is its id
    searches: tuple[RunbookStep, ...]  # each returns a `SuspectsFact`; earlier ones take precedence


@dataclass(frozen=True, slots=True)
class Runbook:
    """One runbook."""

    name: str
    title: str
    when: str  # to use it
    needs: str  # the sources that it needs
    over: str  # how an operator sees that the incident is over
    steps: tuple[RunbookStep, ...]
    rules: tuple[FindingRule, ...]
    fine: str  # the text if no rule applies
    essential: tuple[str, ...]  # the steps that this text requires
    argument: Argument | None = None
    writes: str = ""  # what it writes, if anything; then it requests confirmation
    in_order: bool = False  # whether each step depends on the one before
    then: tuple[NextStep, ...] = ()  # next steps if all is well
    causes_first: bool = False  # the rules are ordered from causes to consequences; the report begins with findings


@dataclass(frozen=True, slots=True)
class ExaminedSuspect:
    """One suspect, and the findings about it."""

    id: str
    why: str  # it is suspicious
    source: EvidenceSource  # of the suspicion
    evidence: tuple[Evidence, ...]
    findings: tuple[Finding, ...]  # the worst first

    @property
    def severity(self) -> FindingSeverity:
        """The severity of the worst finding."""
        return worst(self.findings)

    def as_dict(self) -> dict[str, Any]:
        """JSON types."""
        return {
            "id": self.id,
            "why": self.why,
            "source": str(self.source),
            "severity": str(self.severity),
            "evidence": [each.as_dict() for each in self.evidence],
            "findings": [each.as_dict() for each in self.findings],
        }


@dataclass(frozen=True, slots=True)
class RunbookReport:
    """The result of a runbook. With suspects, each has its own findings; those here are about the whole plane."""

    runbook: Runbook
    arguments: Mapping[str, str]
    at_ns: int
    evidence: tuple[Evidence, ...]
    findings: tuple[Finding, ...]  # the worst first
    suspects: tuple[ExaminedSuspect, ...] = ()

    @property
    def severity(self) -> FindingSeverity:
        """The severity of the worst finding."""
        return worst(self._all)

    @property
    def next(self) -> tuple[NextStep, ...]:
        """The next steps, the most urgent first, without duplicates."""
        found: dict[str, NextStep] = {}
        for finding in self._all:
            for step in finding.next:
                found.setdefault(step.command, step)
        return tuple(found.values())

    @property
    def _all(self) -> list[Finding]:
        """Findings of the suspects and of the plane, the worst first."""
        found = [finding for suspect in self.suspects for finding in suspect.findings]
        return sorted([*found, *self.findings], key=lambda each: -each.severity.rank)

    def as_dict(self) -> dict[str, Any]:
        """JSON types."""
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


def worst(findings: Sequence[Finding]) -> FindingSeverity:
    """The severity of the worst finding; without findings, no action is needed."""
    return max((each.severity for each in findings), key=lambda each: each.rank, default=FindingSeverity.FINE)


def judged(runbook: Runbook, case: Case) -> tuple[Finding, ...]:
    """The findings that follow from the evidence, the worst first. Pure."""
    found = applied(runbook, case)
    missing = missed(runbook, case, runbook.essential)
    if missing is not None and (runbook.causes_first or worst(found) is not FindingSeverity.ACT):
        found.append(missing)
    elif worst(found) is FindingSeverity.FINE:
        found.append(Finding("fine", FindingSeverity.FINE, runbook.fine, runbook.essential, "sure", runbook.then))
    return tuple(sorted(found, key=lambda each: -each.severity.rank))


def applied(runbook: Runbook, case: Case) -> list[Finding]:
    """The findings of all rules that apply. Pure."""
    said = ((rule, rule.judge(case)) for rule in runbook.rules)
    return [
        Finding(rule.name, rule.severity, each.sentence, each.because, each.sure, each.next)
        for rule, each in said
        if each is not None
    ]


def missed(runbook: Runbook, case: Case, essential: Sequence[str]) -> Finding | None:
    """The finding that the evidence is insufficient, if an essential step has no fact. Pure."""
    missing = [step.name for step in runbook.steps if step.name in essential and not _known(case, step)]
    if not missing:
        return None
    reasons: dict[str, list[str]] = {}
    for step in missing:
        found = case.evidence.get(step)
        reasons.setdefault(str("not inspected" if found is None else found.problem), []).append(step)
    told = "; ".join(f"{', '.join(steps)} ({reason})" for reason, steps in reasons.items())
    sentence = f"The evidence is insufficient to judge: {told}."
    return Finding("cannot tell", FindingSeverity.UNKNOWN, sentence, tuple(missing), "not at all", ())


def _known(case: Case, step: RunbookStep) -> bool:
    found = case.evidence.get(step.name)
    return found is not None and found.fact is not None
