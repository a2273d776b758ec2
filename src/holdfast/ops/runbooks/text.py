"""A report as lines of text, the same for a terminal and for the page.

Each line has a tone, which a terminal may render and a page ignores. External values (owners, reasons, names) are text
and never markup. The printing code must make control characters visible.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple

from holdfast.ops.runbooks.model import Evidence, Finding, FindingSeverity, RunbookReport, RunbookStep


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


class ReportLine(NamedTuple):
    """One line."""

    text: str
    tone: Tone = Tone.PLAIN


def report_lines(report: RunbookReport) -> Iterator[ReportLine]:
    """The whole report: the steps with their evidence, the findings, and the next steps."""
    named = " ".join((report.runbook.name, *report.arguments.values()))
    yield ReportLine(f"{named}: {report.runbook.title}", Tone.HEAD)
    argument = report.runbook.argument
    steps = {step.name: step for step in (*report.runbook.steps, *(argument.searches if argument else ()))}
    if report.runbook.causes_first:
        yield from _ranked(report.findings)
        yield ReportLine("")
        yield ReportLine("EVIDENCE", Tone.HEAD)
        yield from _part(steps, report.evidence, ())
        return
    yield from _part(steps, report.evidence, ())
    for number, suspect in enumerate(report.suspects, 1):
        yield ReportLine("")
        yield ReportLine(f"SUSPECT {number} of {len(report.suspects)}: {suspect.id}", Tone.HEAD)
        yield ReportLine(f"  by the {suspect.source}: {suspect.why}")
        yield from _part(steps, suspect.evidence, suspect.findings)
    yield from _part(steps, (), report.findings)
    if report.next:
        yield ReportLine("")
        yield ReportLine("NEXT STEPS", Tone.HEAD)
        for number, step in enumerate(report.next, 1):
            yield ReportLine(f"  {number}. {step.why}")
            yield ReportLine(f"     $ {step.command}", Tone.COMMAND)


def _ranked(findings: Sequence[Finding]) -> Iterator[ReportLine]:
    """The findings, each with its own next steps, the one to act on first."""
    for place, finding in enumerate(findings, 1):
        yield ReportLine("")
        words = f"{place}. {_WORDS[finding.severity].upper()}: {finding.rule}"
        yield ReportLine(words, Tone(str(finding.severity)))
        yield ReportLine(f"   {finding.sentence}")
        if finding.sure != "sure":
            yield ReportLine(f"   {finding.sure}", Tone.FAINT)
        for step in finding.next:
            yield ReportLine(f"   $ {step.command}", Tone.COMMAND)
            yield ReportLine(f"     {step.why}", Tone.FAINT)


def _part(
    steps: Mapping[str, RunbookStep], seen: Sequence[Evidence], findings: Sequence[Finding]
) -> Iterator[ReportLine]:
    for evidence in seen:
        yield ReportLine("")
        yield from _evidence_lines(steps[evidence.what], evidence)
    for finding in findings:
        yield ReportLine("")
        yield from _finding_lines(finding)


def _evidence_lines(step: RunbookStep, evidence: Evidence) -> Iterator[ReportLine]:
    yield ReportLine(f"{step.name}: {step.looks_at}", Tone.HEAD)
    if evidence.fact is not None:
        yield ReportLine(f"  [{evidence.source}] {evidence.where}", Tone.FAINT)
        yield from (ReportLine(f"  {text}", _tone(text)) for text in evidence.fact.lines())
    elif evidence.given:
        yield ReportLine(f"  [{evidence.source}] {evidence.where}", Tone.FAINT)
        yield ReportLine(f"  no answer: {evidence.problem}", Tone.BAD)
    else:
        yield ReportLine(f"  not inspected: {evidence.problem}", Tone.FAINT)


def _tone(text: str) -> Tone:
    return Tone.BAD if text.startswith(("WRONG", "BROKEN", "NOT TRUE")) else Tone.PLAIN


def _finding_lines(finding: Finding) -> Iterator[ReportLine]:
    yield ReportLine(f"FINDING ({_WORDS[finding.severity]}) {finding.sentence}", Tone(str(finding.severity)))
    because = f"  because of {', '.join(finding.because)}"
    yield ReportLine(because if finding.sure == "sure" else f"{because}; {finding.sure}", Tone.FAINT)


_WORDS = {
    FindingSeverity.FINE: "no action",
    FindingSeverity.WATCH: "watch",
    FindingSeverity.UNKNOWN: "insufficient evidence",
    FindingSeverity.ACT: "act now",
}
