"""Rules for Prometheus as values: alerts, what is worked out for them beforehand, and the groups they stand in."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Final

from holdfast.core.name_prefixes import Names

RUNBOOKS: Final = "docs/runbooks.md"

# What Prometheus fills in when it sends an alert.
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


class Severity(StrEnum):
    """What an alert asks of people."""

    PAGE = "page"  # get up
    TICKET = "ticket"  # look in the morning


class Runbook(StrEnum):
    """What to run next: `holdfast runbook NAME`."""

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
        """As it is typed."""
        return f"holdfast runbook {self.value}"

    @property
    def url(self) -> str:
        """Where it can be read."""
        return f"{RUNBOOKS}#{self.value}"


@dataclass(frozen=True, slots=True)
class Recording:
    """A series that is worked out once, because several alerts look at it or a window is long."""

    name: str
    expression: str
    labels: Mapping[str, str] = field(default_factory=dict)

    def under(self, names: Names) -> Recording:
        """With the words that names begin with."""
        return replace(self, name=names.spelled(self.name), expression=names.spelled(self.expression))

    def as_rule(self, labels: Mapping[str, str]) -> dict[str, Any]:
        """As a file of rules has it."""
        own = {**self.labels, **labels}
        return {"record": self.name, "expr": self.expression, **({"labels": own} if own else {})}


@dataclass(frozen=True, slots=True)
class Alert:
    """One alert. Texts may use what Prometheus fills in (`COUNT`, `FAMILY`, …)."""

    name: str
    severity: Severity
    expression: str
    summary: str  # what is the matter, in one line
    description: str  # with the numbers, and what to think of
    because: str  # why this threshold: which settings it follows from
    runbook: Runbook
    hold_s: float = 0.0  # for how long it must be so
    labels: Mapping[str, str] = field(default_factory=dict)  # that tell rules of one name apart

    def under(self, names: Names) -> Alert:
        """With the words that names begin with. The name of an alert has none."""
        return replace(
            self,
            expression=names.spelled(self.expression),
            summary=names.spelled(self.summary),
            description=names.spelled(self.description),
            because=names.spelled(self.because),
        )

    def as_rule(self, labels: Mapping[str, str]) -> dict[str, Any]:
        """As a file of rules has it."""
        return {
            "alert": self.name,
            "expr": self.expression,
            **({"for": lasting(self.hold_s)} if self.hold_s else {}),
            "labels": {"severity": str(self.severity), **self.labels, **labels},
            "annotations": {
                "summary": self.summary,
                "description": f"{self.description} Threshold: {self.because}",
                "runbook_command": self.runbook.command,
                "runbook_url": self.runbook.url,
            },
        }

    def as_dict(self) -> dict[str, Any]:
        """For programs."""
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
class Group:
    """Rules about one thing, evaluated one after the other: what is recorded stands before what uses it."""

    name: str
    rules: Sequence[Alert | Recording]

    @property
    def alerts(self) -> Iterable[Alert]:
        """Without what is recorded."""
        return (each for each in self.rules if isinstance(each, Alert))


def lasting(seconds: float) -> str:
    """A length of time as Prometheus writes it: whole seconds, never shorter than what was asked for."""
    left = math.ceil(round(seconds, 3))
    text = ""
    for unit, size in (("d", 86_400), ("h", 3600), ("m", 60), ("s", 1)):
        count, left = divmod(left, size)
        text += f"{count}{unit}" if count else ""
    return text or "0s"


def number(value: float) -> str:
    """A number as people write it."""
    return f"{value:.6g}"


def plainly(text: str) -> str:
    """A text before anything is filled in: `<family>` stands for a label, `<n>` for the value."""
    return re.sub(r"\{\{ \$value.*?\}\}", "<n>", re.sub(r"\{\{ \$labels\.(\w+) \}\}", r"<\1>", text))
