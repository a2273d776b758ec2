"""Bodies of requests and responses as models: the OpenAPI description is made from them.

Durations are seconds; times are RFC 3339 in UTC, by the plane's clock. Callers send durations from now and never times,
so their clocks do not matter. Unknown fields are refused, and values are not converted to other types.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, Final, Literal, TypeAlias, TypeVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    StringConstraints,
    WithJsonSchema,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticKnownError

from holdfast.plane.jobs.children import ChildLink
from holdfast.plane.jobs.progress import Progress
from holdfast.plane.jobs.summaries import JobOutline, LetterOutline
from holdfast.plane.jobs.timeline import EmittedValue, PlacedEntry
from holdfast.plane.jobs.waiting_reason import WaitCode, WaitReason
from holdfast.plane.model.caller import LABELS_MAX, PAGE_MAX, REASON_CHARS_MAX, TRACE_CHARS_MAX
from holdfast.plane.model.job_states import JobState
from holdfast.plane.model.messages import PARENT_LABEL
from holdfast.plane.model.records import ATTEMPTS_MAX, ID_CHARS_MAX, PRIORITY_MAX, DeadLetter, Job, JobEvent, Submission
from holdfast.plane.resources import model as resources
from holdfast.plane.service.change_watcher import WATCH_NS_MAX, WATCHED_MAX, Sighting
from holdfast.plane.service.timelines import TimelinePage
from holdfast.types import LABEL_CHARS_MAX, NS, duration_ns

T = TypeVar("T")

YEAR_S: Final = 366 * 86_400.0
CURSOR_CHARS_MAX: Final = 2000
MARK_CHARS_MAX: Final = 100
LABEL_PATTERN: Final = r"^[A-Za-z0-9._:/-]+$"
SEEN_PATTERN: Final = r"^[ -~]*[!-~][ -~]*$"
"""Text for people with at least one visible character."""
_DIGITS: Final = re.compile(r"-?[0-9]+\Z")


class _NeverNull:
    """None is omitted in JSON, and never null."""

    def __get_pydantic_json_schema__(self, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        made = handler(core)
        (only,) = (each for each in made.pop("anyOf") if each != {"type": "null"})
        return {**made, **only}


def _whole(value: object) -> object:
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _digits(value: object) -> object:
    if isinstance(value, str) and _DIGITS.match(value) is None:
        raise PydanticKnownError("int_parsing")
    return value


IN_DIGITS: Final = BeforeValidator(_digits)
"""A number in an address: only digits, and not the other forms that Python accepts (1_0, +1, spaces)."""

AS_WHOLE: Final = BeforeValidator(_whole)
"""JSON has one kind of number: 3.0 is 3. Applied after the limits, or they would not be described."""

Given: TypeAlias = Annotated[T | None, _NeverNull()]

Label: TypeAlias = Annotated[str, StringConstraints(pattern=LABEL_PATTERN, min_length=1, max_length=LABEL_CHARS_MAX)]
PoolName: TypeAlias = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]*$", max_length=100)]
JobId: TypeAlias = Annotated[
    str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:@/\[\]-]*$", max_length=ID_CHARS_MAX)
]
Key: TypeAlias = Annotated[str, StringConstraints(pattern=r"^[ -~]+$", max_length=ID_CHARS_MAX)]
LabelText: TypeAlias = Annotated[str, StringConstraints(pattern=r"^[ -~]*$", max_length=ID_CHARS_MAX)]
Labels: TypeAlias = Annotated[
    dict[Key, LabelText],
    Field(max_length=LABELS_MAX),
    # The schema from the types would not restrict the names.
    WithJsonSchema(
        {
            "type": "object",
            "maxProperties": LABELS_MAX,
            "propertyNames": {"pattern": "^[ -~]+$", "maxLength": ID_CHARS_MAX},
            "additionalProperties": {"type": "string", "pattern": "^[ -~]*$", "maxLength": ID_CHARS_MAX},
        }
    ),
]
Place: TypeAlias = Annotated[str, StringConstraints(pattern=r"^([0-9]{1,19}(\.[0-9]{1,19}){2})?$", max_length=59)]
Named: TypeAlias = Annotated[str, StringConstraints(pattern=SEEN_PATTERN, max_length=ID_CHARS_MAX)]
Resource: TypeAlias = Annotated[str, StringConstraints(pattern=r"^[ -z|~]*[!-z|~][ -z|~]*$", max_length=400)]
OwnToken: TypeAlias = Annotated[
    str,
    StringConstraints(pattern=r"^[!-~]+$", min_length=resources.TOKEN_CHARS_MIN, max_length=resources.TOKEN_CHARS_MAX),
]
Seconds: TypeAlias = Annotated[float, Field(ge=0.001, le=YEAR_S)]
Ttl: TypeAlias = Annotated[float, Field(ge=resources.TTL_LOW_NS / NS, le=resources.TTL_MAX_NS / NS)]
Limit: TypeAlias = Annotated[int, Field(ge=1, le=PAGE_MAX), IN_DIGITS]
Cursor: TypeAlias = Annotated[str, StringConstraints(min_length=1, max_length=CURSOR_CHARS_MAX)]
ModeName: TypeAlias = Literal["shared", "exclusive"]
StateName: TypeAlias = Annotated[JobState, Field(description="The state of a job.")]


class RequestBody(BaseModel):
    """Base of request bodies."""

    model_config = ConfigDict(extra="forbid", strict=True)


class QueryFilter(BaseModel):
    """Base of query parameters."""

    model_config = ConfigDict(extra="forbid")


class ResponseBody(BaseModel):
    """Base of response bodies."""

    model_config = ConfigDict(frozen=True)


# Jobs.


class SubmitJob(RequestBody):
    """A job to submit."""

    topic: Label
    payload: Any = None
    tenant: Label | None = Field(None, description="Only for callers who are not bound to a tenant.")
    id: JobId | None = Field(None, description="Generated by default.")
    idempotency_key: Key | None = Field(None, description="The same as the Idempotency-Key header.")
    pool: PoolName | None = Field(
        None, description="It runs only there. By default: in any pool that serves its topic."
    )
    priority: Annotated[int, Field(ge=-PRIORITY_MAX, le=PRIORITY_MAX), AS_WHOLE] = Field(0, description="Higher first.")
    max_attempts: Annotated[int, Field(ge=1, le=ATTEMPTS_MAX), AS_WHOLE] = 3
    timeout: Seconds | None = Field(None, description="Time limit of one attempt.")
    deadline_in: Seconds | None = Field(None, description="Time after which the job fails if it has not finished.")
    delay: float = Field(0, ge=0, le=YEAR_S, description="Time before it starts.")
    trace: LabelText = Field("", max_length=TRACE_CHARS_MAX)
    labels: Labels = Field(default_factory=dict)

    def submission(self, tenant: str, key: str | None, by: str, now_ns: int) -> Submission:
        """For the service."""
        return Submission(
            topic=self.topic,
            payload=self.payload,
            tenant=tenant,
            id=self.id,
            idempotency_key=key,
            priority=self.priority,
            max_attempts=self.max_attempts,
            timeout_ns=None if self.timeout is None else duration_ns("timeout", self.timeout),
            deadline_ns=None if self.deadline_in is None else now_ns + duration_ns("deadline_in", self.deadline_in),
            not_before_ns=now_ns + duration_ns("delay", self.delay) if self.delay else 0,
            submitted_by=by,
            trace=self.trace,
            labels=self.labels,
        )


class CancelJob(RequestBody):
    """The reason for a cancellation."""

    reason: Annotated[str, StringConstraints(pattern=r"^[ -~]+$", max_length=REASON_CHARS_MAX)] = "cancelled on request"


class JobFilter(QueryFilter):
    """Which jobs, and which page of them."""

    state: Given[StateName] = None
    topic: Given[Label] = None
    tenant: Given[Label] = Field(None, description="Only for callers who are not bound to a tenant.")
    cursor: Given[Cursor] = Field(None, description="The `next` of the page before.")
    limit: Limit = 100


class JobOutlineShown(ResponseBody):
    """A job in a list: without payload and result."""

    id: str
    tenant: str
    topic: str
    pool: str
    state: StateName
    priority: int
    attempt: int = Field(description="The number of started attempts.")
    max_attempts: int
    reason: str | None
    code: str | None
    worker: str | None
    fence: int | None = Field(description="Of the scheduler's lease of the last write.")
    run_fence: int | None = Field(description="Of the worker's lease under which it runs or ran.")
    version: int
    idempotency_key: str | None
    timeout: float | None
    created_at: datetime
    updated_at: datetime
    deadline_at: datetime | None
    not_before: datetime | None
    submitted_by: str
    trace: str
    labels: dict[str, str]

    @classmethod
    def of(cls, job: JobOutline) -> JobOutlineShown:
        """From the outline."""
        return cls(**_outline(job))


class ProgressShown(ResponseBody):
    """The last progress report of a job's function."""

    attempt: int
    at: datetime
    fraction: float | None = Field(description="The finished part of the work, 0 to 1.")
    note: str | None

    @classmethod
    def of(cls, progress: Progress) -> ProgressShown:
        """From the progress."""
        return cls(attempt=progress.attempt, at=moment(progress.at_ns), fraction=progress.fraction, note=progress.note)


class WaitingShown(ResponseBody):
    """Why a job waits."""

    code: WaitCode = Field(description="For programs.")
    text: str = Field(description="For people.")


class ChildShown(ResponseBody):
    """A job that the function of a job submitted."""

    id: str
    state: StateName
    detached: bool = Field(description="Whether it goes on when its parent is cancelled.")


class JobShown(JobOutlineShown):
    """A job."""

    payload: Any
    result: Any
    parent: str | None = Field(None, description="The job, or the step RUN:STEP, whose function submitted it.")
    children: list[ChildShown] = Field(default_factory=list, description="Only for a single job; at most 1,000.")
    progress: ProgressShown | None = Field(None, description="Only for a single job; null: none was reported.")
    waiting: WaitingShown | None = Field(
        description="Why it waits; null: it runs or is finished. In responses to submit, retry and cancel: "
        "only the warning that no live worker takes it."
    )

    @classmethod
    def whole(
        cls,
        job: Job,
        progress: Progress | None = None,
        waiting: WaitReason | None = None,
        children: Sequence[ChildLink] = (),
    ) -> JobShown:
        """From the job."""
        family: dict[str, Any] = {
            "parent": job.labels.get(PARENT_LABEL),
            "children": [ChildShown(id=each.id, state=each.state, detached=each.detached) for each in children],
        }
        shown = None if progress is None else ProgressShown.of(progress)
        why = None if waiting is None else WaitingShown(code=waiting.code, text=waiting.text)
        return cls(**_outline(job), payload=job.payload, result=job.result, progress=shown, waiting=why, **family)


class JobPage(ResponseBody):
    """A page of jobs, newest first."""

    items: list[JobOutlineShown]
    next: str | None = Field(description="The `cursor` of the next page; null: there is none.")


class EventShown(ResponseBody):
    """One entry in the history of a job."""

    version: int
    at: datetime
    before: StateName | None
    after: StateName
    attempt: int
    fence: int | None
    actor: str
    reason: str | None
    traceback: str | None = Field(None, description="Of a failed attempt: the end of it, without directories.")

    @classmethod
    def of(cls, event: JobEvent) -> EventShown:
        """From the event."""
        return cls(
            version=event.version,
            at=moment(event.at_ns),
            before=event.before,
            after=event.after,
            attempt=event.attempt,
            fence=event.fence,
            actor=event.actor,
            reason=event.reason,
            traceback=event.traceback,
        )


class EventList(ResponseBody):
    """The history of a job, oldest first."""

    items: list[EventShown]


class UpdateShown(ResponseBody):
    """A new state of a job, a value that its function emitted, or its progress."""

    id: str | None = Field(description="The place behind it, for `after` or Last-Event-ID; null: progress has none.")
    kind: Literal["state", "value", "progress"]
    at: datetime
    state: StateName = Field(description="RUNNING for values and progress.")
    attempt: int
    reason: str | None = None
    traceback: str | None = Field(None, description="Of a failed attempt: the end of it, without directories.")
    number: int | None = Field(None, description="Of a value within its attempt, from 1.")
    value: Any = None
    progress: ProgressShown | None = None

    @classmethod
    def of(cls, placed: PlacedEntry) -> UpdateShown:
        """From an entry of the timeline."""
        entry, place = placed.entry, placed.place.text
        at, attempt = moment(entry.at_ns), entry.attempt
        if isinstance(entry, EmittedValue):
            value: dict[str, Any] = {"state": JobState.RUNNING, "number": entry.number, "value": entry.value}
            return cls(id=place, kind="value", at=at, attempt=attempt, **value)
        state: dict[str, Any] = {"state": entry.after, "reason": entry.reason, "traceback": entry.traceback}
        return cls(id=place, kind="state", at=at, attempt=attempt, **state)

    @classmethod
    def about(cls, progress: Progress) -> UpdateShown:
        """From progress."""
        at, shown = moment(progress.at_ns), ProgressShown.of(progress)
        told: dict[str, Any] = {"state": JobState.RUNNING, "progress": shown}
        return cls(id=None, kind="progress", at=at, attempt=progress.attempt, **told)


class UpdateList(ResponseBody):
    """States and values of a job after a place, oldest first."""

    items: list[UpdateShown]
    progress: ProgressShown | None = Field(description="The last progress report; null: none.")
    next: str = Field(description="The `after` of the next request.")
    more: bool = Field(description="Whether there are more items already.")
    ended: bool = Field(description="Whether the job has ended and nothing follows.")

    @classmethod
    def of(cls, page: TimelinePage) -> UpdateList:
        """From a page of the timeline."""
        return cls(
            items=[UpdateShown.of(each) for each in page.entries],
            progress=None if page.progress is None else ProgressShown.of(page.progress),
            next=page.place.text,
            more=page.more,
            ended=page.ended,
        )


# Waiting for changes, of jobs and of runs.


class WatchedItem(RequestBody):
    """A job or a run, as the caller last saw it."""

    id: JobId
    mark: Annotated[str, StringConstraints(pattern=r"^[ -~]*$", max_length=MARK_CHARS_MAX)] = Field(
        "", description="As the last response contained it; empty: it was never seen."
    )


class WatchItems(RequestBody):
    """What to wait for."""

    items: Annotated[list[WatchedItem], Field(min_length=1, max_length=WATCHED_MAX)]
    ended: bool = Field(False, description="Whether to wait only until items have ended, and not for every change.")
    timeout: Annotated[float, Field(ge=0, le=WATCH_NS_MAX / NS)] = Field(
        20.0, description="Time after which the response is empty."
    )

    @property
    def known(self) -> dict[str, str]:
        """The mark of each item."""
        return {each.id: each.mark for each in self.items}


class WatchedShown(ResponseBody):
    """An item that has changed."""

    id: str
    state: str | None = Field(description="Its state, of a run its status; null: it does not exist for the caller.")
    ended: bool
    mark: str


class WatchedList(ResponseBody):
    """The items that have changed since their mark, or have ended."""

    items: list[WatchedShown]

    @classmethod
    def of(cls, found: Mapping[str, Sighting | None]) -> WatchedList:
        """From the sightings."""
        shown = [
            WatchedShown(id=item, state=None, ended=False, mark="")
            if seen is None
            else WatchedShown(id=item, state=seen.state, ended=seen.ended, mark=seen.mark)
            for item, seen in found.items()
        ]
        return cls(items=shown)


# Dead letters.


class LetterFilter(QueryFilter):
    """Which page of dead letters."""

    tenant: Given[Label] = Field(None, description="Only for callers who are not bound to a tenant.")
    cursor: Given[Cursor] = Field(None, description="The `next` of the page before.")
    limit: Limit = 100


class LetterOutlineShown(ResponseBody):
    """A dead letter in a list: without its body."""

    id: str
    job: str
    tenant: str
    topic: str
    reason: str
    code: str
    last_state: StateName | None
    attempts: int
    at: datetime
    retried_as: str | None

    @classmethod
    def of(cls, letter: LetterOutline) -> LetterOutlineShown:
        """From the outline."""
        return cls(**_letter_outline(letter))


class LetterShown(LetterOutlineShown):
    """A job or a message that is not retried automatically any more."""

    body: dict[str, Any]

    @classmethod
    def whole(cls, letter: DeadLetter) -> LetterShown:
        """From the dead letter."""
        return cls(**_letter_outline(letter), body=dict(letter.body))


class LetterPage(ResponseBody):
    """A page of dead letters, newest first."""

    items: list[LetterOutlineShown]
    next: str | None = Field(description="The `cursor` of the next page; null: there is none.")


def _outline(job: Job | JobOutline) -> dict[str, Any]:
    return {
        "id": job.id,
        "tenant": job.tenant,
        "topic": job.topic,
        "pool": job.pool,
        "state": job.state,
        "priority": job.priority,
        "attempt": job.attempt,
        "max_attempts": job.max_attempts,
        "reason": job.reason,
        "code": job.code,
        "worker": job.worker,
        "fence": job.fence,
        "run_fence": job.run_fence,
        "version": job.version,
        "idempotency_key": job.idempotency_key,
        "timeout": None if job.timeout_ns is None else job.timeout_ns / NS,
        "created_at": moment(job.created_ns),
        "updated_at": moment(job.updated_ns),
        "deadline_at": None if job.deadline_ns is None else moment(job.deadline_ns),
        "not_before": moment(job.not_before_ns) if job.not_before_ns > 0 else None,
        "submitted_by": job.submitted_by,
        "trace": job.trace,
        "labels": dict(job.labels),
    }


def _letter_outline(letter: DeadLetter | LetterOutline) -> dict[str, Any]:
    return {
        "id": letter.id,
        "job": letter.job,
        "tenant": letter.tenant,
        "topic": letter.topic,
        "reason": letter.reason,
        "code": letter.code,
        "last_state": letter.last_state,
        "attempts": letter.attempts,
        "at": moment(letter.at_ns),
        "retried_as": letter.retried_as,
    }


def moment(wall_ns: int) -> datetime:
    """A time for people, limited to the range of a calendar."""
    return datetime.fromtimestamp(min(wall_ns, 253_402_300_799 * NS) / NS, UTC)
