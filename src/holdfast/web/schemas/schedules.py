"""Bodies of requests and responses about schedules. See `jobs`."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import Field, StringConstraints

from holdfast.plane.model.caller import REASON_CHARS_MAX
from holdfast.plane.model.records import ATTEMPTS_MAX, PRIORITY_MAX
from holdfast.plane.schedules.model import (
    CATCH_UP_MAX,
    EVERY_MAX_NS,
    JITTER_MAX_NS,
    Schedule,
    ScheduleSpec,
    ScheduleState,
    made_spec,
)
from holdfast.plane.schedules.rules import CatchUp, Overlap
from holdfast.plane.schedules.timetable import CRON_CHARS_MAX, ZONE_CHARS_MAX
from holdfast.types import NS
from holdfast.web.schemas.jobs import (
    AS_WHOLE,
    Cursor,
    Given,
    JobId,
    Label,
    Labels,
    Limit,
    PoolName,
    QueryFilter,
    RequestBody,
    ResponseBody,
    Seconds,
    moment,
)

_TENANT = "Only for callers who are not bound to a tenant."

ScheduleName: TypeAlias = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=100)]
OverlapName: TypeAlias = Literal["skip", "queue", "allow"]
CatchUpName: TypeAlias = Literal["none", "latest", "all"]


class ScheduleFilter(QueryFilter):
    """Which schedules, and which page of them."""

    tenant: Given[Label] = Field(None, description=_TENANT)
    cursor: Given[Cursor] = Field(None, description="The `next` of the page before.")
    limit: Limit = 100


class OneSchedule(QueryFilter):
    """Whose schedule."""

    tenant: Given[Label] = Field(None, description=f"{_TENANT} By default: default.")


class PutSchedule(RequestBody):
    """A schedule: either `cron` or `every` gives the due times."""

    topic: Label
    cron: Annotated[str, StringConstraints(pattern=r"^[ -~]+$", max_length=CRON_CHARS_MAX)] | None = Field(
        None, description="Five fields: minute, hour, day of the month, month, day of the week; or @daily and the like."
    )
    tz: Annotated[str, StringConstraints(pattern=r"^[ -~]+$", max_length=ZONE_CHARS_MAX)] = Field(
        "UTC", description="The time zone of `cron`, such as Europe/Berlin."
    )
    every: Annotated[float, Field(ge=1, le=EVERY_MAX_NS / NS)] | None = Field(
        None, description="An interval in whole seconds, counted from 1970."
    )
    offset: Annotated[float, Field(ge=0, le=EVERY_MAX_NS / NS)] = Field(0, description="Moves the times of `every`.")
    jitter: Annotated[float, Field(ge=0, le=JITTER_MAX_NS / NS)] = Field(
        0, description="Submits up to so many seconds later: the same for a due time every time it is computed."
    )
    overlap: OverlapName = Field("skip", description="At a due time while the last job has not finished.")
    catch_up: CatchUpName = Field("latest", description="With due times that passed in an outage.")
    catch_up_max: Annotated[int, Field(ge=1, le=CATCH_UP_MAX), AS_WHOLE] = Field(CATCH_UP_MAX, description="For `all`.")
    payload: Any = None
    pool: PoolName | None = None
    priority: Annotated[int, Field(ge=-PRIORITY_MAX, le=PRIORITY_MAX), AS_WHOLE] = 0
    max_attempts: Annotated[int, Field(ge=1, le=ATTEMPTS_MAX), AS_WHOLE] = 3
    timeout: Seconds | None = Field(None, description="Time limit of one attempt.")
    deadline: Seconds | None = Field(None, description="Time after which a job fails if it has not finished.")
    labels: Labels = Field(default_factory=dict)
    paused: bool = Field(False, description="Only for a new schedule.")
    replace: bool = Field(True, description="False: 409 if it exists with other options.")

    def spec(self, name: str, tenant: str) -> ScheduleSpec:
        """For the service."""
        return made_spec(name, tenant=tenant, **self.model_dump(exclude={"paused", "replace"}))


class PauseSchedule(RequestBody):
    """Why a schedule is paused."""

    reason: Annotated[str, StringConstraints(pattern=r"^[ -~]*$", max_length=REASON_CHARS_MAX)] = ""


class RunSchedule(RequestBody):
    """A job of a schedule besides its due times."""

    id: JobId | None = Field(None, description="Of the job; made up by the caller, who can then repeat the request.")


class ScheduleShown(ResponseBody):
    """A schedule."""

    tenant: str
    name: str
    topic: str
    state: Annotated[ScheduleState, Field(description="Whether it fires; undeclared: its app does not declare it now.")]
    expression: str = Field(description="Its due times, for people.")
    cron: str | None
    tz: str
    every: float | None
    offset: float
    jitter: float
    overlap: Overlap
    catch_up: CatchUp
    catch_up_max: int
    payload: Any
    pool: str | None
    priority: int
    max_attempts: int
    timeout: float | None
    deadline: float | None
    labels: dict[str, str]
    app: str | None = Field(description="The app that declares it; null: it was created at run time.")
    author: str
    paused: bool
    paused_by: str | None
    paused_reason: str | None
    paused_at: datetime | None
    next_at: datetime | None = Field(description="The next due time; null: it does not fire.")
    upcoming: list[datetime] = Field(description="The next due times. Only for a single schedule; else empty.")
    queued_at: datetime | None = Field(description="A due time that waits for the end of the last job.")
    last_due_at: datetime | None
    last_fired_at: datetime | None
    last_job: str | None
    problem: str | None = Field(description="Why the last due time could not be submitted.")
    fired: int
    skipped: int
    missed: int
    created_at: datetime
    updated_at: datetime
    updated_by: str
    version: int

    @classmethod
    def of(cls, schedule: Schedule, upcoming: Sequence[int] = ()) -> ScheduleShown:
        """From the schedule."""
        spec, active = schedule.spec, schedule.state is ScheduleState.ACTIVE
        names = (
            *("app", "author", "paused", "paused_by", "paused_reason", "last_job", "problem", "fired", "skipped"),
            *("missed", "updated_by", "version", "state", "tenant"),
        )
        options = (
            *("name", "topic", "expression", "cron", "tz", "overlap", "catch_up", "catch_up_max", "payload", "pool"),
            *("priority", "max_attempts"),
        )
        return cls(
            **{name: getattr(schedule, name) for name in names},
            **{name: getattr(spec, name) for name in options},
            every=_seconds(spec.every_ns),
            offset=spec.offset_ns / NS,
            jitter=spec.jitter_ns / NS,
            timeout=_seconds(spec.timeout_ns),
            deadline=_seconds(spec.deadline_ns),
            labels=dict(spec.labels),
            paused_at=_moment(schedule.paused_ns),
            next_at=_moment(schedule.next_ns) if active else None,
            upcoming=[moment(each) for each in upcoming],
            queued_at=_moment(schedule.decided.queued_ns),
            last_due_at=_moment(schedule.last_due_ns),
            last_fired_at=_moment(schedule.last_fired_ns),
            created_at=moment(schedule.created_ns),
            updated_at=moment(schedule.updated_ns),
        )


class SchedulePageShown(ResponseBody):
    """A page of schedules, by tenant and name."""

    items: list[ScheduleShown]
    next: str | None = Field(description="The `cursor` of the next page; null: there is none.")


def _seconds(ns: int | None) -> float | None:
    return None if ns is None else ns / NS


def _moment(ns: int | None) -> datetime | None:
    return None if ns is None else moment(ns)
