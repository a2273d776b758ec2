"""Which jobs or runs a runbook looks at when it is told of none: what searches have found, and what follows from it.

Whoever was paged has no id, because an alert counts and does not name. So a runbook about one job or run has searches:
each gives a `SuspectsFact`, the worst first. Whatever is grave is looked at, whichever search has found it; of what is
not, only what the first search has that has any. Each suspect is then looked at as if its id had been given.

Promises: pure. At most `SUSPECTS_MAX` suspects are looked at, and how many more there are is said. That nothing is
suspicious is said only if a search could look at all that it is about; which one could not is said with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from holdfast.ops.runbooks.evidence.locks import number, span
from holdfast.ops.runbooks.model import (
    Argument,
    Case,
    Evidence,
    Examined,
    Finding,
    NextStep,
    Report,
    Runbook,
    Severity,
    Source,
    applied,
    missed,
    typed,
    worst,
)

SUSPECTS_MAX: Final = 5


@dataclass(frozen=True, slots=True)
class Suspect:
    """A job or run that may be the one."""

    id: str
    why: str
    grave: bool = False  # it should never be so; otherwise it often is, and means nothing by itself


@dataclass(frozen=True, slots=True)
class SuspectsFact:
    """What one search has found."""

    looked_at: str  # in words, with how many
    suspects: tuple[Suspect, ...] = ()  # the worst first
    more: int = 0  # that are not among them
    complete: bool = True  # whether it got through all that it wanted to look at

    @classmethod
    def of(cls, looked_at: str, ranked: Iterable[Suspect], *, complete: bool = True) -> SuspectsFact:
        """The worst of those that were found."""
        found = list(ranked)
        return cls(looked_at, tuple(found[:SUSPECTS_MAX]), max(0, len(found) - SUSPECTS_MAX), complete)

    def lines(self) -> Sequence[str]:
        """For people."""
        cut = "" if self.complete else "; there was no time to look at all of it"
        more = [f"… and {self.more} more"] if self.more else []
        found = [f"{each.id}: {each.why}" for each in self.suspects] or ["nothing suspicious"]
        return [f"{self.looked_at}{cut}", *found, *more]

    def as_dict(self) -> dict[str, Any]:
        """For programs."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Chosen:
    """Who is looked at, by which search, and how many are not."""

    suspects: Mapping[str, tuple[Suspect, Evidence]]  # by id
    more: int = 0


def chosen(searches: Sequence[Evidence]) -> Chosen:
    """Whatever is grave, and then the others of the first search that has any suspect."""
    pairs = [(each.fact, each) for each in searches if isinstance(each.fact, SuspectsFact) and each.fact.suspects]
    found: dict[str, tuple[Suspect, Evidence]] = {}
    for grave, believed in ((True, pairs), (False, pairs[:1])):
        for fact, search in believed:
            for each in fact.suspects:
                if each.grave is grave:
                    found.setdefault(each.id, (each, search))
    more = sum(fact.more for fact, _ in pairs[:1]) + max(0, len(found) - SUSPECTS_MAX)
    return Chosen(dict(list(found.items())[:SUSPECTS_MAX]), more)


@dataclass(frozen=True, slots=True)
class Gathered:
    """Everything that was gathered, for suspects and for the whole plane."""

    searches: tuple[Evidence, ...]
    whole: Mapping[str, Evidence]  # by step: what is about the whole plane
    own: Mapping[str, Mapping[str, Evidence]]  # by suspect and step


def concluded(runbook: Runbook, argument: Argument, case: Case, gathered: Gathered, window_s: float) -> Report:
    """What follows from all of it. `case` says where and when, and has no evidence. Pure."""
    whole = Case(gathered.whole, case.settings, case.at_ns)
    picked = chosen(gathered.searches)
    examined = [
        _examined(runbook, argument, case, gathered, suspect, search.source)
        for suspect, search in picked.suspects.values()
    ]
    findings = applied(runbook, whole)
    essential = [step.name for step in runbook.steps if step.name in runbook.essential and not step.about]
    missing = missed(runbook, whole, essential)
    if missing is not None and worst(findings) is not Severity.ACT:
        findings.append(missing)
    if picked.suspects:
        findings.append(_named(runbook, argument, picked, examined))
    else:
        findings.append(_nobody(argument, gathered.searches, window_s))
    evidence = (*gathered.searches, *gathered.whole.values())
    ranked = tuple(sorted(findings, key=lambda each: -each.severity.rank))
    return Report(runbook, {}, case.at_ns, evidence, ranked, tuple(sorted(examined, key=_calm)))


def _calm(suspect: Examined) -> int:
    """For putting the worst first, and otherwise as the search has it."""
    return -suspect.severity.rank


def _examined(
    runbook: Runbook, argument: Argument, case: Case, gathered: Gathered, suspect: Suspect, source: Source
) -> Examined:
    """One suspect as if its id had been given; what is about the whole plane is said once, and not here."""
    own = gathered.own.get(suspect.id, {})
    about = Case({**gathered.whole, **own}, case.settings, case.at_ns, {argument.name: suspect.id})
    findings = [each for each in applied(runbook, about) if not set(each.because) <= set(gathered.whole)]
    essential = [step.name for step in runbook.steps if step.name in runbook.essential and step.about]
    missing = missed(runbook, about, essential)
    if missing is not None and worst(findings) is not Severity.ACT:
        findings.append(missing)
    elif worst(findings) is Severity.FINE:
        findings.append(
            Finding("fine", Severity.FINE, argument.well.format(id=suspect.id), tuple(essential), "sure", ())
        )
    ranked = tuple(sorted(findings, key=lambda each: -each.severity.rank))
    return Examined(suspect.id, suspect.why, source, tuple(own.values()), ranked)


def _named(runbook: Runbook, argument: Argument, picked: Chosen, examined: Sequence[Examined]) -> Finding:
    """Who was looked at, why these, and how bad it is."""
    named = "; ".join(f"{each.id} ({each.why}, by the {search.source})" for each, search in picked.suspects.values())
    more = f", and {picked.more} more that were not looked at" if picked.more else ""
    counted = number(len(picked.suspects), f"{argument.noun} was", f"{argument.noun}s were")
    bad = [each.id for each in examined if each.severity is not Severity.FINE]
    verdict = "" if bad else " Nothing is wrong there."
    sentence = f"No id was given, so {counted} looked at that might be the one: {named}{more}.{verdict}"
    steps = [
        NextStep(typed("holdfast", "runbook", runbook.name, each), f"look at {argument.noun} {each} again, alone")
        for each in bad
    ]
    because = tuple(dict.fromkeys(search.what for _, search in picked.suspects.values()))
    severity = max((each.severity for each in examined), key=lambda each: each.rank)
    return Finding("suspects", severity, sentence, because, "sure", tuple(steps))


def _nobody(argument: Argument, searches: Sequence[Evidence], window_s: float) -> Finding:
    """That nothing was found, if that can be said."""
    looked = [each for each in searches if isinstance(each.fact, SuspectsFact) and each.fact.complete]
    unread = [each for each in searches if each not in looked]
    reasons = "; ".join(f"{each.what} ({each.problem or 'there was no time to look at all of it'})" for each in unread)
    if not looked:
        sentence = f"It cannot be told which {argument.noun} it is about: {reasons}. Give its id: {argument.find}."
        return Finding("no suspects", Severity.UNKNOWN, sentence, tuple(each.what for each in unread), "not at all", ())
    seen = "; ".join(each.fact.looked_at for each in looked if isinstance(each.fact, SuspectsFact))
    sentence = f"Nothing suspicious in the last {lately(window_s)}. Looked at: {seen}."
    sure = "sure" if not unread else f"surer with {reasons}"
    return Finding("no suspects", Severity.FINE, sentence, tuple(each.what for each in looked), sure, ())


def lately(window_s: float) -> str:
    """How far back was looked, in the shortest words: 15 min, and not 15 min 00 s."""
    return span(window_s).removesuffix(" 00 s").removesuffix(" 00 min").removesuffix(" 00 h")
