"""Bodies of requests and responses about the error policy. See `jobs`."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Final, Literal, TypeAlias

from pydantic import Field, StringConstraints

from holdfast.core.lease.error_policy import BUSY_JITTER_MAX_NS
from holdfast.plane.policy.model import ClassPolicy, JitterPolicy, PlaneExercise, PolicyChange
from holdfast.plane.policy.store import HISTORY_PAGE_MAX, REASON_CHARS_MAX
from holdfast.plane.service.policy import ClassReport, PolicyReport
from holdfast.types import NS
from holdfast.web.schemas.jobs import AS_WHOLE, IN_DIGITS, Label, QueryFilter, RequestBody, ResponseBody, moment

REVISION_MAX: Final = 2**53 - 1  # larger numbers are not exact in every JSON parser

ModeText: TypeAlias = Literal["fail_open", "fail_closed", "wait"]
Reason: TypeAlias = Annotated[str, StringConstraints(pattern=r"^[ -~]*[!-~][ -~]*$", max_length=REASON_CHARS_MAX)]
Revision: TypeAlias = Annotated[int, Field(ge=0, le=REVISION_MAX), AS_WHOLE]


class SwitchPolicy(RequestBody):
    """The mode of a risk class when the lease store fails."""

    risk: Label
    mode: ModeText
    reason: Reason = Field(description="The reason; the history keeps it.")
    expect: Revision | None = Field(None, description="Only if the class still has this revision; 0: it was never set.")


class SwitchJitter(RequestBody):
    """The variation of the delay of busy retries."""

    seconds: Annotated[float, Field(ge=0, le=BUSY_JITTER_MAX_NS / NS)] = Field(
        description="Up and down; 0: exactly the fixed delay."
    )
    reason: Reason = Field(description="The reason; the history keeps it.")
    expect: Revision | None = Field(
        None, description="Only if the jitter still has this revision; 0: it was never switched."
    )


class HistoryFilter(QueryFilter):
    """Which changes."""

    risk: Label | None = Field(None, description="Of this risk class; or `busy_jitter`.")
    limit: Annotated[int, Field(ge=1, le=HISTORY_PAGE_MAX), IN_DIGITS] = 100
    below: Annotated[int, Field(ge=0, le=REVISION_MAX), IN_DIGITS] | None = Field(
        None, description="Only with a smaller revision."
    )


class StandingShown(ResponseBody):
    """The mode of a risk class, and the change that set it."""

    risk: str
    mode: str
    revision: int
    since: datetime
    actor: str
    reason: str
    source: str

    @classmethod
    def of(cls, standing: ClassPolicy) -> StandingShown:
        """From the policy."""
        return cls(**_standing(standing))


class SwitchedShown(StandingShown):
    """The class in force, and whether the request changed it."""

    changed: bool

    @classmethod
    def after(cls, standing: ClassPolicy, *, changed: bool) -> SwitchedShown:
        """From the result."""
        return cls(**_standing(standing), changed=changed)


class ClassShown(StandingShown):
    """A risk class and its recent fallbacks in all processes."""

    fallbacks: int = Field(description="Locks that were granted without the store in the window.")
    rate: float = Field(description="Fallbacks a second.")
    exercised: int = Field(description="Fallbacks in exercises.")

    @classmethod
    def reported(cls, each: ClassReport) -> ClassShown:
        """From the report."""
        return cls(**_standing(each.standing), fallbacks=each.fallbacks, rate=each.rate, exercised=each.exercised)


class DuplicatesShown(ResponseBody):
    """Work that was done twice."""

    kind: str
    lately: int = Field(description="In the window.")
    before: int = Field(description="In the window before it.")


class ExerciseShown(ResponseBody):
    """An exercise of the fallback path."""

    family: str
    share: float
    risk: str | None
    forced: bool
    since: datetime
    until: datetime
    actor: str
    reason: str

    @classmethod
    def of(cls, each: PlaneExercise) -> ExerciseShown:
        """From the exercise."""
        return cls(
            family=each.plan.family,
            share=each.plan.share,
            risk=each.plan.risk,
            forced=each.plan.forced,
            since=moment(each.since_ns),
            until=moment(each.until_ns),
            actor=each.actor,
            reason=each.reason,
        )


class JitterShown(ResponseBody):
    """The jitter of busy retries, and who switched it."""

    seconds: float
    revision: int
    since: datetime
    actor: str
    reason: str
    source: str

    @classmethod
    def of(cls, standing: JitterPolicy) -> JitterShown:
        """From the policy."""
        return cls(**_standing(standing))


class JitterSwitched(JitterShown):
    """The jitter in force, and whether the request changed it."""

    changed: bool

    @classmethod
    def after(cls, standing: JitterPolicy, *, changed: bool) -> JitterSwitched:
        """From the result."""
        return cls(**_standing(standing), changed=changed)


class PolicyShown(ResponseBody):
    """The error policy and its recent effects."""

    window: float = Field(description="Seconds of the counts.")
    rate: float = Field(description="Fallbacks a second, of all classes.")
    classes: list[ClassShown] = Field(description="Any other class fails closed.")
    duplicates: list[DuplicatesShown]
    exercises: list[ExerciseShown]
    busy_jitter: JitterShown | None = Field(description="Null: it was never switched, and there is none.")
    hints: list[str] = Field(description="Next steps, for people.")

    @classmethod
    def of(cls, report: PolicyReport) -> PolicyShown:
        """From the report."""
        return cls(
            window=report.window_ns / NS,
            rate=report.rate,
            classes=[ClassShown.reported(each) for each in report.classes],
            duplicates=[
                DuplicatesShown(kind=kind, lately=lately, before=before)
                for kind, (lately, before) in report.duplicates.items()
            ],
            exercises=[ExerciseShown.of(each) for each in report.exercises],
            busy_jitter=None if report.jitter is None else JitterShown.of(report.jitter),
            hints=list(report.hints),
        )


class ChangeShown(ResponseBody):
    """One entry of the history."""

    revision: int
    risk: str
    before: str
    after: str
    actor: str
    reason: str
    source: str
    at: datetime

    @classmethod
    def of(cls, change: PolicyChange) -> ChangeShown:
        """From the change."""
        return cls(
            revision=change.revision,
            risk=change.risk,
            before=change.before,
            after=change.after,
            actor=change.actor,
            reason=change.reason,
            source=str(change.source),
            at=moment(change.at_ns),
        )


class ChangeList(ResponseBody):
    """Changes, newest first. For earlier ones, set `below` to the revision of the last one."""

    items: list[ChangeShown]


def _standing(standing: ClassPolicy | JitterPolicy) -> dict[str, Any]:
    shown = standing.as_dict()
    return {**shown, "since": moment(shown.pop("since_ns"))}
