"""What the error policy of a plane consists of: risk classes, the busy jitter, changes, exercises; as rows and back.

`policies` says what they mean. Clock: the wall clock, for people.
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
"""The name under which the jitter of busy retries is switched. No risk class can have it."""


class Source(StrEnum):
    """Where a word came from."""

    COMMAND = "command"
    API = "api"
    FILE = "file"  # the policy file
    START = "start"  # the settings of a process that started, or what is built in
    ESCALATION = "escalation"


@dataclass(frozen=True, slots=True)
class Standing:
    """What one risk class does, and whose word that is."""

    risk: str
    mode: OnError
    revision: int
    since_ns: int
    actor: str
    reason: str
    source: Source

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
class JitterStanding:
    """The jitter of busy retries in force, and who switched it."""

    seconds: float
    revision: int
    since_ns: int
    actor: str
    reason: str
    source: Source

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
    """One line of history: of a risk class, or of the busy jitter, whose values are seconds."""

    revision: int
    risk: str
    before: str
    after: str
    actor: str
    reason: str
    source: Source
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
    """An exercise that all processes take part in, and whose word that is."""

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
    """Everything that a process follows, as of one moment."""

    revision: int
    classes: Mapping[str, Standing]
    exercises: Sequence[PlaneExercise]
    jitter: JitterStanding | None  # None: it was never switched, and there is none


class PolicyMoved(HoldfastError):
    """The class was changed since it was looked at. Nothing was done; look again. `found` is its present revision."""

    def __init__(self, message: str, *, risk: str, found: int) -> None:
        super().__init__(message)
        self.risk = risk
        self.found = found


def standing_of(row: Row) -> Standing:
    """From a row to what a class does."""
    return Standing(
        row["risk"],
        OnError(row["mode"]),
        int(row["revision"]),
        row["since_ns"],
        row["actor"],
        row["reason"],
        Source(row["source"]),
    )


def jitter_of(row: Row) -> JitterStanding:
    """From a row of the same columns to the busy jitter in force."""
    return JitterStanding(
        float(row["mode"]),
        int(row["revision"]),
        row["since_ns"],
        row["actor"],
        row["reason"],
        Source(row["source"]),
    )


def change_of(row: Row) -> PolicyChange:
    """From a row to a line of history."""
    return PolicyChange(
        row["revision"],
        row["risk"],
        row["before"],
        row["after"],
        row["actor"],
        row["reason"],
        Source(row["source"]),
        row["at_ns"],
    )


def exercise_of(row: Row) -> PlaneExercise:
    """From a row to an exercise."""
    plan = Exercise(row["family"], row["parts"], row["until_ns"], row["risk"], bool(row["forced"]))
    return PlaneExercise(
        plan, row["revision"], row["since_ns"], row["until_ns"], row["actor"], row["reason"], row["ended_by"]
    )
