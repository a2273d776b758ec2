"""A report as lines of text, the same for a terminal and for the page.

Each line has a tone, which a terminal may render and a page ignores. External values (owners, reasons, names) are text
and never markup. The printing code must make control characters visible.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple

from holdfast.ops.runbooks.model import Evidence, Finding, Report, Severity, Step


class Tone(StrEnum):
    """The kind of a line."""

    HEAD = "head"
    PLAIN = "plain"
    FAINT = "faint"
    BAD = "bad"
    COMMAND = "command"
    FINE = "fine"
    WATCH = "watch"
    UNKNOWN = "unknown"
    ACT = "act"


class Line(NamedTuple):
    """One line."""

    text: str
    tone: Tone = Tone.PLAIN


def report_lines(report: Report) -> Iterator[Line]:
    """The whole report: the steps with their evidence, the findings, and the next steps."""
    named = " ".join((report.runbook.name, *report.arguments.values()))
    yield Line(f"{named}: {report.runbook.title}", Tone.HEAD)
    argument = report.runbook.argument
    steps = {step.name: step for step in (*report.runbook.steps, *(argument.searches if argument else ()))}
    yield from _part(steps, report.evidence, ())
    for number, suspect in enumerate(report.suspects, 1):
        yield Line("")
        yield Line(f"SUSPECT {number} of {len(report.suspects)}: {suspect.id}", Tone.HEAD)
        yield Line(f"  by the {suspect.source}: {suspect.why}")
        yield from _part(steps, suspect.evidence, suspect.findings)
    yield from _part(steps, (), report.findings)
    if report.next:
        yield Line("")
        yield Line("NEXT STEPS", Tone.HEAD)
        for number, step in enumerate(report.next, 1):
            yield Line(f"  {number}. {step.why}")
            yield Line(f"     $ {step.command}", Tone.COMMAND)


def _part(steps: Mapping[str, Step], seen: Sequence[Evidence], findings: Sequence[Finding]) -> Iterator[Line]:
    for evidence in seen:
        yield Line("")
        yield from _evidence_lines(steps[evidence.what], evidence)
    for finding in findings:
        yield Line("")
        yield from _finding_lines(finding)


def _evidence_lines(step: Step, evidence: Evidence) -> Iterator[Line]:
    yield Line(f"{step.name}: {step.looks_at}", Tone.HEAD)
    if evidence.fact is not None:
        yield Line(f"  [{evidence.source}] {evidence.where}", Tone.FAINT)
        yield from (Line(f"  {text}", _tone(text)) for text in evidence.fact.lines())
    elif evidence.given:
        yield Line(f"  [{evidence.source}] {evidence.where}", Tone.FAINT)
        yield Line(f"  no answer: {evidence.problem}", Tone.BAD)
    else:
        yield Line(f"  not inspected: {evidence.problem}", Tone.FAINT)


def _tone(text: str) -> Tone:
    return Tone.BAD if text.startswith(("WRONG", "BROKEN", "NOT TRUE")) else Tone.PLAIN


def _finding_lines(finding: Finding) -> Iterator[Line]:
    yield Line(f"FINDING ({_WORDS[finding.severity]}) {finding.sentence}", Tone(str(finding.severity)))
    because = f"  because of {', '.join(finding.because)}"
    yield Line(because if finding.sure == "sure" else f"{because}; {finding.sure}", Tone.FAINT)


_WORDS = {
    Severity.FINE: "no action",
    Severity.WATCH: "watch",
    Severity.UNKNOWN: "insufficient evidence",
    Severity.ACT: "act now",
}
