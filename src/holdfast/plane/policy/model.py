"""Values of the error policy: risk classes, the busy jitter, changes and exercises, with their conversion from rows.

`store` describes their meaning. Clock: the wall clock, for people.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from holdfast.core.lease.error_policy import OnError
from holdfast.core.lease.policy_exercise import Exercise
from holdfast.errors import HoldfastError
from holdfast.plane.db.ports import Row

BUSY_JITTER: Final = "busy_jitter"
"""The name under which the jitter of busy retries is switched. No risk class can have this name."""


class PolicySource(StrEnum):
    """The origin of a change."""

    COMMAND = "command"
    API = "api"
    FILE = "file"  # the policy file
    START = "start"  # the settings of a starting process, or the built-in default
    ESCALATION = "escalation"


@dataclass(frozen=True, slots=True)
class ClassPolicy:
    """The mode of one risk class, and the change that set it."""

    risk: str
    mode: OnError
    revision: int
    since_ns: int
    actor: str
    reason: str
    source: PolicySource

    def as_dict(self) -> dict[str, Any]:
        """For programs."""
        return {
            "risk": self.risk,
            "mode": str(self.mode),
            "revision": self.revision,
            "since_ns": self.since_ns,
            "actor": self.actor,
            "reason": self.reason,
            "source": str(self.source),
        }


@dataclass(frozen=True, slots=True)
class JitterPolicy:
    """The jitter of busy retries in force, and the change that set it."""

    seconds: float
    revision: int
    since_ns: int
    actor: str
    reason: str
    source: PolicySource

    def as_dict(self) -> dict[str, Any]:
        """For programs."""
        return {
            "seconds": self.seconds,
            "revision": self.revision,
            "since_ns": self.since_ns,
            "actor": self.actor,
            "reason": self.reason,
            "source": str(self.source),
        }


@dataclass(frozen=True, slots=True)
class PolicyChange:
    """One entry of the history: of a risk class, or of the busy jitter, whose values are seconds."""

    revision: int
    risk: str
    before: str
    after: str
    actor: str
    reason: str
    source: PolicySource
    at_ns: int

    def as_dict(self) -> dict[str, Any]:
        """For programs."""
        return {
            "revision": self.revision,
            "risk": self.risk,
            "before": self.before,
            "after": self.after,
            "actor": self.actor,
            "reason": self.reason,
            "source": str(self.source),
            "at_ns": self.at_ns,
        }


@dataclass(frozen=True, slots=True)
class PlaneExercise:
    """An exercise in all processes, and who started it."""

    plan: Exercise
    revision: int
    since_ns: int
    until_ns: int
    actor: str
    reason: str
    ended_by: str | None

    def as_dict(self) -> dict[str, Any]:
        """For programs."""
        return {
            "family": self.plan.family,
            "share": self.plan.share,
            "risk": self.plan.risk,
            "forced": self.plan.forced,
            "since_ns": self.since_ns,
            "until_ns": self.until_ns,
            "actor": self.actor,
            "reason": self.reason,
            "ended_by": self.ended_by,
        }


@dataclass(frozen=True, slots=True)
class PolicyView:
    """Everything that a process follows, read in one transaction."""

    revision: int
    classes: Mapping[str, ClassPolicy]
    exercises: Sequence[PlaneExercise]
    jitter: JitterPolicy | None  # None: it was never switched, so there is none


class PolicyConflict(HoldfastError):
    """The class was changed since it was read. Nothing was done; read it again. `found` is its current revision."""

    def __init__(self, message: str, *, risk: str, found: int) -> None:
        super().__init__(message)
        self.risk = risk
        self.found = found


def class_policy_of(row: Row) -> ClassPolicy:
    """The mode of a class from its row."""
    return ClassPolicy(
        row["risk"],
        OnError(row["mode"]),
        int(row["revision"]),
        row["since_ns"],
        row["actor"],
        row["reason"],
        PolicySource(row["source"]),
    )


def jitter_of(row: Row) -> JitterPolicy:
    """The busy jitter in force from a row with the same columns."""
    return JitterPolicy(
        float(row["mode"]),
        int(row["revision"]),
        row["since_ns"],
        row["actor"],
        row["reason"],
        PolicySource(row["source"]),
    )


def change_of(row: Row) -> PolicyChange:
    """An entry of the history from its row."""
    return PolicyChange(
        row["revision"],
        row["risk"],
        row["before"],
        row["after"],
        row["actor"],
        row["reason"],
        PolicySource(row["source"]),
        row["at_ns"],
    )


def exercise_of(row: Row) -> PlaneExercise:
    """An exercise from its row."""
    plan = Exercise(row["family"], row["parts"], row["until_ns"], row["risk"], bool(row["forced"]))
    return PlaneExercise(
        plan, row["revision"], row["since_ns"], row["until_ns"], row["actor"], row["reason"], row["ended_by"]
    )
