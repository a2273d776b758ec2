"""Prometheus rules as values: alerts, recording rules, and rule groups."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Final

from holdfast.core.name_prefixes import NamePrefixes

RUNBOOKS: Final = "docs/runbooks.md"

# Templates that Prometheus expands when it sends an alert.
COUNT: Final = '{{ $value | printf "%.0f" }}'
NUMBER: Final = '{{ $value | printf "%.3g" }}'
SHARE: Final = "{{ $value | humanizePercentage }}"
AGO: Final = "{{ $value | humanizeDuration }}"
FAMILY: Final = "{{ $labels.family }}"
INSTANCE: Final = "{{ $labels.instance }}"
LOOP: Final = "{{ $labels.loop }}"
PART: Final = "{{ $labels.part }}"
REASON: Final = "{{ $labels.reason }}"
RISK: Final = "{{ $labels.risk }}"


class AlertSeverity(StrEnum):
    """How urgent an alert is."""

    PAGE = "page"  # wakes the person on call
    TICKET = "ticket"  # can wait until the morning


class RunbookName(StrEnum):
    """The runbook for an alert: `holdfast runbook NAME`."""

    WHY = "why"
    NOT_OWNED = "not-owned"
    DUPLICATES = "duplicate-dispatch"
    WORKFLOWS = "workflow-contention"
    SNAPSHOT = "snapshot-leader"
    STORE = "store-outage"
    DEBT = "lock-debt"
    WAVES = "retry-waves"
    TTL = "before-ttl-change"

    @property
    def command(self) -> str:
        """The shell command."""
        return "holdfast why" if self is RunbookName.WHY else f"holdfast runbook {self.value}"

    def url(self, page: str = RUNBOOKS) -> str:
        """The section of the page of runbooks."""
        return f"{page}#{self.value}"


@dataclass(frozen=True, slots=True)
class Recording:
    """A precomputed series: several alerts use it, or its window is long."""

    name: str
    expression: str
    labels: Mapping[str, str] = field(default_factory=dict)

    def under(self, names: NamePrefixes) -> Recording:
        """The recording with the prefixes of `names`."""
        return replace(self, name=names.spelled(self.name), expression=names.spelled(self.expression))

    def as_rule(self, labels: Mapping[str, str], page: str = RUNBOOKS) -> dict[str, Any]:
        """A rule of a Prometheus rule file."""
        own = {**self.labels, **labels}
        return {"record": self.name, "expr": self.expression, **({"labels": own} if own else {})}


@dataclass(frozen=True, slots=True)
class Alert:
    """One alert. Texts may contain templates (`COUNT`, `FAMILY`, …)."""

    name: str
    severity: AlertSeverity
    expression: str
    summary: str  # the problem in one line
    description: str  # the problem with its numbers, and possible causes
    because: str  # the reason for the threshold: the settings it follows from
    runbook: RunbookName
    hold_s: float = 0.0  # how long the expression must hold
    labels: Mapping[str, str] = field(default_factory=dict)  # distinguish alerts of the same name

    def under(self, names: NamePrefixes) -> Alert:
        """The alert with the prefixes of `names`. The alert name itself has no prefix."""
        return replace(
            self,
            expression=names.spelled(self.expression),
            summary=names.spelled(self.summary),
            description=names.spelled(self.description),
            because=names.spelled(self.because),
        )

    def as_rule(self, labels: Mapping[str, str], page: str = RUNBOOKS) -> dict[str, Any]:
        """A rule of a Prometheus rule file. `page`: the address of the page of runbooks."""
        return {
            "alert": self.name,
            "expr": self.expression,
            **({"for": lasting(self.hold_s)} if self.hold_s else {}),
            "labels": {"severity": str(self.severity), **self.labels, **labels},
            "annotations": {
                "summary": self.summary,
                "description": f"{self.description} Threshold: {self.because}",
                "runbook_command": self.runbook.command,
                "runbook_url": self.runbook.url(page),
            },
        }

    def as_dict(self) -> dict[str, Any]:
        """The alert as JSON types."""
        return {
            "alert": self.name,
            "severity": str(self.severity),
            "expression": self.expression,
            "for": self.hold_s,
            "labels": dict(self.labels),
            "summary": self.summary,
            "description": self.description,
            "because": self.because,
            "runbook": self.runbook.command,
        }


@dataclass(frozen=True, slots=True)
class RuleGroup:
    """Rules about one subject, evaluated in order: a recording comes before the alerts that use it."""

    name: str
    rules: Sequence[Alert | Recording]

    @property
    def alerts(self) -> Iterable[Alert]:
        """The rules without recordings."""
        return (each for each in self.rules if isinstance(each, Alert))


def lasting(seconds: float) -> str:
    """A duration in Prometheus notation: whole seconds, rounded up."""
    left = math.ceil(round(seconds, 3))
    text = ""
    for unit, size in (("d", 86_400), ("h", 3600), ("m", 60), ("s", 1)):
        count, left = divmod(left, size)
        text += f"{count}{unit}" if count else ""
    return text or "0s"


def number(value: float) -> str:
    """A number without superfluous digits."""
    return f"{value:.6g}"


def plainly(text: str) -> str:
    """A text without templates: `<family>` stands for a label, `<n>` for the value."""
    return re.sub(r"\{\{ \$value.*?\}\}", "<n>", re.sub(r"\{\{ \$labels\.(\w+) \}\}", r"<\1>", text))
