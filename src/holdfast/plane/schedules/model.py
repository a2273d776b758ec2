"""The values of schedules: what a schedule submits and when, its stored state, and the ids of its jobs.

Promises: a `ScheduleSpec` that passed `check` can be stored, and each of its jobs can be submitted. Its document has
every option, so two specs are the same schedule if their documents are equal. The id of a scheduled job names tenant,
schedule and due time, so one due time has one job, however many replicas submit it. Other callers cannot use it.

Clock: none.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any, Final, TypeVar

from holdfast.core.duration_text import parse_duration_ns
from holdfast.errors import BadInput, RowExists
from holdfast.plane.model.caller import LABELS_MAX
from holdfast.plane.model.messages import OWN_LABELS, POOL_LABEL
from holdfast.plane.model.records import (
    ID_CHARS_MAX,
    Submission,
    check_name,
    check_text,
    check_whole,
    encoded,
)
from holdfast.plane.schedules.rules import (
    CatchUp,
    Decided,
    DuePolicy,
    Every,
    Overlap,
    Timetable,
    shortest_gap_ns,
)
from holdfast.plane.schedules.timetable import Cron
from holdfast.types import NS, check_label

NAME_CHARS_MAX: Final = 100
CATCH_UP_MAX: Final = 100
EVERY_MAX_NS: Final = 366 * 86_400 * NS
JITTER_MAX_NS: Final = 86_400 * NS
SCHEDULE_LABEL: Final = f"{OWN_LABELS}schedule"
DUE_LABEL: Final = f"{OWN_LABELS}due"

_NAME: Final = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._-]{{0,{NAME_CHARS_MAX - 1}}}\Z")
_DUE_ID: Final = re.compile(r"schedule:.+@[0-9]{8}T[0-9]{6}Z\Z")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_REFERENCE_NS: Final = 1_704_067_200 * NS  # the beginning of 2024: checks do not depend on when they are made

E = TypeVar("E", bound=StrEnum)


class ScheduleConflict(RowExists):
    """The schedule exists and may not be changed like this. Nothing was done."""


@dataclass(frozen=True, slots=True)
class ScheduleSpec:
    """A schedule as its author describes it."""

    name: str
    topic: str
    tenant: str = "default"
    cron: str | None = None  # either this, or an interval
    tz: str = "UTC"
    every_ns: int | None = None
    offset_ns: int = 0
    jitter_ns: int = 0
    overlap: Overlap = Overlap.SKIP
    catch_up: CatchUp = CatchUp.LATEST
    catch_up_max: int = CATCH_UP_MAX
    payload: Any = None
    pool: str | None = None
    priority: int = 0
    max_attempts: int = 3
    timeout_ns: int | None = None
    deadline_ns: int | None = None  # from the submission of the job
    labels: Mapping[str, str] = field(default_factory=dict)

    def check(self) -> ScheduleSpec:
        """The spec itself, or `BadInput` that names the field."""
        check_schedule_name(self.name)
        check_label("tenant", self.tenant)
        if len(job_id(self.tenant, self.name, 0)) > ID_CHARS_MAX:
            raise BadInput("name", "is too long together with its tenant", f"use at most {NAME_CHARS_MAX // 2}")
        self.timetable()
        self._check_times()
        for name, kind in (("overlap", Overlap), ("catch_up", CatchUp)):
            one_of(name, kind, getattr(self, name))
        check_whole("catch_up_max", self.catch_up_max, 1, CATCH_UP_MAX)
        if self.catch_up is CatchUp.ALL and self.overlap is not Overlap.ALLOW:
            fix = "set overlap to allow, or catch_up to latest"
            raise BadInput("catch_up", f"is all, and overlap {self.overlap} would skip all but the first job", fix)
        if self.pool is not None:
            check_name("pool", self.pool)
        if len(self.labels) > LABELS_MAX:
            raise BadInput("labels", f"are {len(self.labels)}", f"give at most {LABELS_MAX}")
        for name in self.labels:
            check_text("labels", name, ID_CHARS_MAX)
            if name.startswith(OWN_LABELS):
                raise BadInput("labels", f"{name!r:.60} is reserved for the plane", "choose another name")
        self.submission(None, 0, 0, "author").check()
        return self

    def _check_times(self) -> None:
        if self.cron is not None and self.offset_ns:
            raise BadInput("offset", "is for intervals, and a cron expression has none", "change the expression")
        check_whole("jitter_ns", self.jitter_ns, 0, JITTER_MAX_NS)
        gap_ns = shortest_gap_ns(self.timetable(), _REFERENCE_NS) if self.jitter_ns else None
        if gap_ns is not None and self.jitter_ns >= gap_ns:
            problem = (
                f"{self.jitter_ns / NS:g} s is not shorter than the time between two due times ({gap_ns / NS:g} s)"
            )
            raise BadInput("jitter", problem, "give a shorter one")

    def timetable(self) -> Timetable:
        """Its due times, or `BadInput`."""
        if (self.cron is None) == (self.every_ns is None):
            raise BadInput("cron", "and an interval exclude each other", "give either cron or every")
        if self.cron is not None:
            return Cron(self.cron, self.tz)
        every_ns, offset_ns = self.every_ns or 0, self.offset_ns
        for name, value_ns, low_ns, high_ns in (
            ("every", every_ns, NS, EVERY_MAX_NS),
            ("offset", offset_ns, 0, max(0, every_ns - NS)),
        ):
            if not low_ns <= value_ns <= high_ns:
                fix = f"give between {low_ns / NS:g} and {high_ns / NS:g} seconds"
                raise BadInput(name, f"{value_ns / NS:g} s is out of range", fix)
            if value_ns % NS:
                raise BadInput(name, f"{value_ns / NS:g} s is not a whole number of seconds", "round it")
        if self.tz != "UTC":
            raise BadInput("tz", "is for cron expressions, and an interval has no time zone", "leave it out")
        return Every(every_ns, offset_ns)

    @property
    def policy(self) -> DuePolicy:
        """For the decisions."""
        seed = f"{self.tenant}/{self.name}"
        return DuePolicy(self.overlap, self.catch_up, self.catch_up_max, self.jitter_ns, seed)

    @property
    def expression(self) -> str:
        """Its due times, for people."""
        if self.cron is not None:
            return self.cron if self.tz == "UTC" else f"{self.cron} ({self.tz})"
        offset = f" + {_length(self.offset_ns)}" if self.offset_ns else ""
        return f"every {_length(self.every_ns or 0)}{offset}"

    def submission(self, identity: str | None, due_ns: int, now_ns: int, by: str) -> Submission:
        """The job of one due time, on behalf of the author of the schedule, who may not approve it."""
        own = {SCHEDULE_LABEL: self.name, DUE_LABEL: moment_text(due_ns)}
        if self.pool is not None:
            own[POOL_LABEL] = self.pool
        return Submission(
            topic=self.topic,
            payload=self.payload,
            tenant=self.tenant,
            id=identity,
            priority=self.priority,
            max_attempts=self.max_attempts,
            timeout_ns=self.timeout_ns,
            deadline_ns=None if self.deadline_ns is None else now_ns + self.deadline_ns,
            submitted_by=by,
            labels={**self.labels, **own},
        )

    def document(self) -> dict[str, Any]:
        """All options as JSON, without name and tenant."""
        found = asdict(self)
        del found["name"], found["tenant"]
        return {**found, "overlap": str(self.overlap), "catch_up": str(self.catch_up), "labels": dict(self.labels)}

    def text(self) -> str:
        """The document as text that is the same for the same options."""
        return json.dumps(self.document(), sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def spec_of(tenant: str, name: str, document: Mapping[str, Any]) -> ScheduleSpec:
    """The spec of a stored document. Options of a newer version are left out."""
    known = {each for each in ScheduleSpec.__dataclass_fields__ if each in document}
    values = {each: document[each] for each in known}
    values |= {"overlap": Overlap(document["overlap"]), "catch_up": CatchUp(document["catch_up"])}
    return ScheduleSpec(**{**values, "name": name, "tenant": tenant})


def made_spec(
    name: str,
    topic: str,
    *,
    tenant: str | None = None,
    cron: str | None = None,
    tz: str = "UTC",
    every: object = None,
    offset: object = 0,
    jitter: object = 0,
    overlap: str = Overlap.SKIP,
    catch_up: str = CatchUp.LATEST,
    catch_up_max: int = CATCH_UP_MAX,
    payload: Any = None,
    pool: str | None = None,
    priority: int = 0,
    max_attempts: int = 3,
    timeout: object = None,
    deadline: object = None,
    labels: Mapping[str, str] | None = None,
) -> ScheduleSpec:
    """A checked spec from options as users write them: durations are seconds, a `timedelta`, or text such as 10m."""
    return ScheduleSpec(
        name=name,
        topic=topic,
        tenant="default" if tenant is None else tenant,
        cron=None if cron is None else Cron(cron).expression,
        tz=tz,
        every_ns=None if every is None else parse_duration_ns("every", every, low_ns=NS, high_ns=EVERY_MAX_NS),
        offset_ns=parse_duration_ns("offset", offset, high_ns=EVERY_MAX_NS),
        jitter_ns=parse_duration_ns("jitter", jitter, high_ns=JITTER_MAX_NS),
        overlap=one_of("overlap", Overlap, overlap),
        catch_up=one_of("catch_up", CatchUp, catch_up),
        catch_up_max=catch_up_max,
        payload=json.loads(encoded("payload", payload)),
        pool=pool,
        priority=priority,
        max_attempts=max_attempts,
        timeout_ns=None if timeout is None else parse_duration_ns("timeout", timeout, low_ns=1),
        deadline_ns=None if deadline is None else parse_duration_ns("deadline", deadline, low_ns=1),
        labels={} if labels is None else dict(labels),
    ).check()


class ScheduleState(StrEnum):
    """Whether a schedule fires."""

    ACTIVE = "active"
    PAUSED = "paused"  # until an operator resumes it
    UNDECLARED = "undeclared"  # its app does not declare it any more


@dataclass(frozen=True, slots=True)
class Schedule:
    """A schedule as it is stored."""

    spec: ScheduleSpec
    author: str  # who has written the spec
    decided: Decided
    next_ns: int | None  # the next due time; None: it does not fire
    version: int  # rises with every write
    paused: bool
    paused_by: str | None
    paused_reason: str | None
    paused_ns: int | None
    app: str | None  # that declares it; None: it was created at run time
    declared: bool  # False: its app does not declare it any more
    last_due_ns: int | None  # of the last job
    last_fired_ns: int | None
    last_job: str | None
    problem: str | None  # why the last due time could not be submitted
    fired: int
    skipped: int
    missed: int
    created_ns: int
    updated_ns: int
    updated_by: str

    @property
    def state(self) -> ScheduleState:
        """Whether it fires."""
        if self.app is not None and not self.declared:
            return ScheduleState.UNDECLARED
        return ScheduleState.PAUSED if self.paused else ScheduleState.ACTIVE

    @property
    def tenant(self) -> str:
        """Whose it is."""
        return self.spec.tenant


def check_schedule_name(name: object) -> str:
    """The name of a schedule, or `BadInput`."""
    if not isinstance(name, str) or _NAME.match(name) is None:
        fix = f"use letters, digits and . _ -, beginning with a letter or digit, at most {NAME_CHARS_MAX}"
        raise BadInput("name", f"{name!r:.60} is not the name of a schedule", fix)
    return name


def one_of(name: str, kind: Callable[[str], E], value: object) -> E:
    """A value of an enumeration, or `BadInput`."""
    try:
        return kind(str(value))
    except ValueError:
        known = ", ".join(kind)  # type: ignore[arg-type]  # an enumeration is iterable
        raise BadInput(name, f"{value!r:.60} is not known", f"use one of {known}") from None


def job_id(tenant: str, name: str, due_ns: int) -> str:
    """The id of the job of one due time."""
    return f"schedule:{tenant}:{name}@{_moment(due_ns):%Y%m%dT%H%M%SZ}"


def is_due_id(text: str) -> bool:
    """Whether a text has the form of `job_id`: callers cannot choose such ids for jobs."""
    return _DUE_ID.match(text) is not None


def moment_text(at_ns: int) -> str:
    """A due time as ISO 8601."""
    return f"{_moment(at_ns):%Y-%m-%dT%H:%M:%SZ}"


def _moment(at_ns: int) -> datetime:
    return _EPOCH + timedelta(seconds=at_ns // NS)


def _length(ns: int) -> str:
    seconds = ns // NS
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "m")):
        if seconds and seconds % size == 0:
            return f"{seconds // size}{unit}"
    return f"{seconds}s"
