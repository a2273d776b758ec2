"""The response about findings. See `jobs`."""

from __future__ import annotations

from datetime import datetime
from typing import Literal, TypeAlias

from pydantic import Field

from holdfast.ops.runbooks.model import Evidence, Finding, NextStep, RunbookReport
from holdfast.web.schemas.jobs import ResponseBody, moment

SeverityText: TypeAlias = Literal["fine", "watch", "unknown", "act"]


class NextStepShown(ResponseBody):
    """A command, and its purpose."""

    command: str
    why: str

    @classmethod
    def of(cls, step: NextStep) -> NextStepShown:
        """From the step."""
        return cls(command=step.command, why=step.why)


class FindingShown(ResponseBody):
    """A cause, with its figures and the next commands."""

    rule: str = Field(description="The name of the finding, as in the runbook `why`.")
    severity: SeverityText
    sentence: str
    because: list[str] = Field(description="The inspections with the evidence.")
    next: list[NextStepShown]

    @classmethod
    def of(cls, finding: Finding) -> FindingShown:
        """From the finding."""
        return cls.model_validate(
            {
                "rule": finding.rule,
                "severity": str(finding.severity),
                "sentence": finding.sentence,
                "because": list(finding.because),
                "next": [NextStepShown.of(each) for each in finding.next],
            }
        )


class InspectionShown(ResponseBody):
    """One inspection, and what it saw."""

    what: str
    source: str
    lines: list[str] = Field(description="What it saw, for people.")
    problem: str | None = Field(default=None, description="Why it saw nothing; null: it saw something.")

    @classmethod
    def of(cls, evidence: Evidence) -> InspectionShown:
        """From the evidence."""
        lines = [] if evidence.fact is None else list(evidence.fact.lines())
        return cls(what=evidence.what, source=str(evidence.source), lines=lines, problem=evidence.problem)


class FindingsShown(ResponseBody):
    """What is wrong with the plane, as this process sees it: the same as `holdfast why`."""

    at: datetime
    severity: SeverityText = Field(description="Of the worst finding.")
    findings: list[FindingShown] = Field(description="The worst first, and causes before their consequences.")
    inspections: list[InspectionShown]

    @classmethod
    def of(cls, report: RunbookReport) -> FindingsShown:
        """From the report."""
        return cls.model_validate(
            {
                "at": moment(report.at_ns),
                "severity": str(report.severity),
                "findings": [FindingShown.of(each) for each in report.findings],
                "inspections": [InspectionShown.of(each) for each in report.evidence],
            }
        )
