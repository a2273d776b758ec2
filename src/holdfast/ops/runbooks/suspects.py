"""Chooses the jobs or runs of a runbook that was called without an id, and concludes from their evidence.

The person on call has no id, because an alert counts and names no job. So a runbook about one job or run has searches,
each returning a `SuspectsFact`, the worst first. Grave suspects are examined whichever search has found them; of the
others, only those of the first search that found any. Each suspect is examined as if its id had been given.

Promises: pure. At most `SUSPECTS_MAX` suspects are examined, and the report names the number of the others. It says
that nothing is suspicious only if a search was complete, and names the incomplete ones.
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
    EvidenceSource,
    ExaminedSuspect,
    Finding,
    FindingSeverity,
    NextStep,
    Runbook,
    RunbookReport,
    applied,
    missed,
    typed,
    worst,
)

SUSPECTS_MAX: Final = 5


@dataclass(frozen=True, slots=True)
class Suspect:
    """A job or run that may have the problem."""

    id: str
    why: str
    grave: bool = False  # it should never be so; otherwise it may be normal


@dataclass(frozen=True, slots=True)
class SuspectsFact:
    """The result of one search."""

    looked_at: str  # description with counts
    suspects: tuple[Suspect, ...] = ()  # the worst first
    more: int = 0  # further suspects
    complete: bool = True  # whether the search read everything that it wanted to read

    @classmethod
    def of(cls, looked_at: str, ranked: Iterable[Suspect], *, complete: bool = True) -> SuspectsFact:
        """The worst of the ranked suspects."""
        found = list(ranked)
        return cls(looked_at, tuple(found[:SUSPECTS_MAX]), max(0, len(found) - SUSPECTS_MAX), complete)

    def lines(self) -> Sequence[str]:
        """The fact as text."""
        cut = "" if self.complete else "; the time limit was too short to read all of it"
        more = [f"… and {self.more} more"] if self.more else []
        found = [f"{each.id}: {each.why}" for each in self.suspects] or ["nothing suspicious"]
        return [f"{self.looked_at}{cut}", *found, *more]

    def as_dict(self) -> dict[str, Any]:
        """The fact as JSON types."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class ChosenSuspects:
    """The suspects to examine, the search that found each, and the number of the others."""

    suspects: Mapping[str, tuple[Suspect, Evidence]]  # by id
    more: int = 0


def chosen(searches: Sequence[Evidence]) -> ChosenSuspects:
    """Grave suspects, and then the others of the first search that has any."""
    pairs = [(each.fact, each) for each in searches if isinstance(each.fact, SuspectsFact) and each.fact.suspects]
    found: dict[str, tuple[Suspect, Evidence]] = {}
    for grave, believed in ((True, pairs), (False, pairs[:1])):
        for fact, search in believed:
            for each in fact.suspects:
                if each.grave is grave:
                    found.setdefault(each.id, (each, search))
    more = sum(fact.more for fact, _ in pairs[:1]) + max(0, len(found) - SUSPECTS_MAX)
    return ChosenSuspects(dict(list(found.items())[:SUSPECTS_MAX]), more)


@dataclass(frozen=True, slots=True)
class GatheredEvidence:
    """All evidence, about suspects and about the whole plane."""

    searches: tuple[Evidence, ...]
    whole: Mapping[str, Evidence]  # by step: evidence about the whole plane
    own: Mapping[str, Mapping[str, Evidence]]  # by suspect and step


def concluded(
    runbook: Runbook, argument: Argument, case: Case, gathered: GatheredEvidence, window_s: float
) -> RunbookReport:
    """The report. `case` has the time and the sources, and no evidence. Pure."""
    whole = Case(gathered.whole, case.settings, case.at_ns)
    picked = chosen(gathered.searches)
    examined = [
        _examined(runbook, argument, case, gathered, suspect, search.source)
        for suspect, search in picked.suspects.values()
    ]
    findings = applied(runbook, whole)
    essential = [step.name for step in runbook.steps if step.name in runbook.essential and not step.about]
    missing = missed(runbook, whole, essential)
    if missing is not None and worst(findings) is not FindingSeverity.ACT:
        findings.append(missing)
    if picked.suspects:
        findings.append(_named(runbook, argument, picked, examined))
    else:
        findings.append(_nobody(argument, gathered.searches, window_s))
    evidence = (*gathered.searches, *gathered.whole.values())
    ranked = tuple(sorted(findings, key=lambda each: -each.severity.rank))
    return RunbookReport(runbook, {}, case.at_ns, evidence, ranked, tuple(sorted(examined, key=_calm)))


def _calm(suspect: ExaminedSuspect) -> int:
    """The sort key: the worst first, otherwise in the order of the search."""
    return -suspect.severity.rank


def _examined(
    runbook: Runbook,
    argument: Argument,
    case: Case,
    gathered: GatheredEvidence,
    suspect: Suspect,
    source: EvidenceSource,
) -> ExaminedSuspect:
    """One suspect as if its id had been given; findings about the whole plane are not repeated here."""
    own = gathered.own.get(suspect.id, {})
    about = Case({**gathered.whole, **own}, case.settings, case.at_ns, {argument.name: suspect.id})
    findings = [each for each in applied(runbook, about) if not set(each.because) <= set(gathered.whole)]
    essential = [step.name for step in runbook.steps if step.name in runbook.essential and step.about]
    missing = missed(runbook, about, essential)
    if missing is not None and worst(findings) is not FindingSeverity.ACT:
        findings.append(missing)
    elif worst(findings) is FindingSeverity.FINE:
        findings.append(
            Finding("fine", FindingSeverity.FINE, argument.well.format(id=suspect.id), tuple(essential), "sure", ())
        )
    ranked = tuple(sorted(findings, key=lambda each: -each.severity.rank))
    return ExaminedSuspect(suspect.id, suspect.why, source, tuple(own.values()), ranked)


def _named(
    runbook: Runbook, argument: Argument, picked: ChosenSuspects, examined: Sequence[ExaminedSuspect]
) -> Finding:
    """The finding that names the examined suspects, why they were chosen, and whether they are fine."""
    named = "; ".join(f"{each.id} ({each.why}, by the {search.source})" for each, search in picked.suspects.values())
    more = f", and {picked.more} more that were not examined" if picked.more else ""
    counted = number(len(picked.suspects), f"{argument.noun} was", f"{argument.noun}s were")
    bad = [each.id for each in examined if each.severity is not FindingSeverity.FINE]
    verdict = "" if bad else " Nothing is wrong there."
    sentence = f"No id was given, so {counted} examined that might have the problem: {named}{more}.{verdict}"
    steps = [
        NextStep(typed("holdfast", "runbook", runbook.name, each), f"examine {argument.noun} {each} again, alone")
        for each in bad
    ]
    because = tuple(dict.fromkeys(search.what for _, search in picked.suspects.values()))
    severity = max((each.severity for each in examined), key=lambda each: each.rank)
    return Finding("suspects", severity, sentence, because, "sure", tuple(steps))


def _nobody(argument: Argument, searches: Sequence[Evidence], window_s: float) -> Finding:
    """The finding that there are no suspects, or that the searches were incomplete."""
    looked = [each for each in searches if isinstance(each.fact, SuspectsFact) and each.fact.complete]
    unread = [each for each in searches if each not in looked]
    late = "the time limit was too short to read all of it"
    reasons = "; ".join(f"{each.what} ({each.problem or late})" for each in unread)
    if not looked:
        sentence = f"The {argument.noun} cannot be determined: {reasons}. Give its id: {argument.find}."
        return Finding(
            "no suspects", FindingSeverity.UNKNOWN, sentence, tuple(each.what for each in unread), "not at all", ()
        )
    seen = "; ".join(each.fact.looked_at for each in looked if isinstance(each.fact, SuspectsFact))
    sentence = f"Nothing suspicious in the last {lately(window_s)}. Searched: {seen}."
    sure = "sure" if not unread else f"surer with {reasons}"
    return Finding("no suspects", FindingSeverity.FINE, sentence, tuple(each.what for each in looked), sure, ())


def lately(window_s: float) -> str:
    """The window in the shortest words: 15 min, and not 15 min 00 s."""
    return span(window_s).removesuffix(" 00 s").removesuffix(" 00 min").removesuffix(" 00 h")
