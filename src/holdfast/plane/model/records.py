"""The values of the plane: jobs, their events, messages, workers, dead letters. No I/O.

Receivers do not change them. Still, the ones that are made several times for every job are not frozen, because that
would make creating them eight times as expensive.

Times are integer nanoseconds of the wall clock (`…_ns`); they order nothing that matters. What orders is the fence of
the lease under which a thing was written, and the version of the row.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final, NamedTuple

from holdfast.core.strict_parsers import DEPTH_MAX, deeper, unstorable
from holdfast.errors import BadInput
from holdfast.guards.bearer import CarriedFence
from holdfast.plane.model.job_states import JobQueue, JobState
from holdfast.types import MS, check_label

BRIEF_NS: Final = 10 * MS
"""An attempt that took less counts as very short."""

TEXT_CHARS_MAX: Final = 200
"""What an outline has of a longer text. Statements read one character more of a description, to know that it continues,
and `_WRITTEN_MAX` of a message, which is JSON: as many characters as fit there however they are written."""


class StepOf(NamedTuple):
    """Which step of which run something is."""

    run: str
    step: str
    risk: str


_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}\Z")

CONCURRENCY_MAX: Final = 10_000

DEFAULT_POOL: Final = "default"

PAYLOAD_BYTES_MAX: Final = 1_000_000
LABELS_BYTES_MAX: Final = 20_000
MESSAGE_BYTES_MAX: Final = 1_040_000
"""A payload or result of the longest kind with all that is told along with it. What is accepted can then be sent: with
its head, a message stays below the 1 MiB that a NATS server takes by default."""
ID_CHARS_MAX: Final = 200
PRIORITY_MAX: Final = 100
ATTEMPTS_MAX: Final = 50
TIME_MAX: Final = 2**63 - 1  # what a column holds

_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@/\[\]\-]*\Z")


@dataclass(frozen=True, slots=True)
class Submission:
    """A job as a caller submits it. `check` refuses invalid ones."""

    topic: str
    payload: Any = None
    tenant: str = "default"
    id: str | None = None  # made up when not given
    idempotency_key: str | None = None  # the same key of the same tenant is the same job
    priority: int = 0  # higher goes first, among the jobs of one tenant
    max_attempts: int = 3
    timeout_ns: int | None = None  # how long one attempt may run
    deadline_ns: int | None = None  # when the job is pointless; wall clock
    not_before_ns: int = 0
    submitted_by: str = ""
    trace: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)

    def check(self) -> Submission:
        """The submission itself, or `BadInput` that names the field."""
        check_label("topic", self.topic)
        check_label("tenant", self.tenant)
        if self.id is not None:
            check_id("id", self.id)
        if self.idempotency_key is not None:
            check_text("idempotency_key", self.idempotency_key, ID_CHARS_MAX)
        check_whole("priority", self.priority, -PRIORITY_MAX, PRIORITY_MAX)
        check_whole("max_attempts", self.max_attempts, 1, ATTEMPTS_MAX)
        for name, value in (("timeout_ns", self.timeout_ns), ("deadline_ns", self.deadline_ns)):
            if value is not None:
                check_whole(name, value, 1, TIME_MAX)
        check_whole("not_before_ns", self.not_before_ns, 0, TIME_MAX)
        encoded("payload", self.payload)
        if not all(isinstance(each, str) for pair in self.labels.items() for each in pair):
            raise BadInput("labels", "are not text", "give a mapping of text to text")
        encoded("labels", dict(self.labels), LABELS_BYTES_MAX)
        return self

    def by(self, name: str) -> Submission:
        """The same, submitted by that caller."""
        return Submission(
            self.topic,
            self.payload,
            self.tenant,
            self.id,
            self.idempotency_key,
            self.priority,
            self.max_attempts,
            self.timeout_ns,
            self.deadline_ns,
            self.not_before_ns,
            name,
            self.trace,
            self.labels,
        )


@dataclass(slots=True, unsafe_hash=True)
class Job:
    """A job as it is stored."""

    id: str
    tenant: str
    topic: str
    pool: str
    state: JobState
    priority: int
    attempt: int  # how many have begun
    max_attempts: int
    payload: Any
    created_ns: int
    updated_ns: int
    version: int  # rises with every write
    fence: int | None  # of the scheduler's lease under which it was last entered or written
    run_fence: int | None = None  # of the worker's lease under which the current attempt runs
    worker: str | None = None
    result: Any = None
    reason: str | None = None  # why it is in this state, for people
    code: str | None = None  # the same for programs: unknown_topic, deadline, max_attempts, …
    idempotency_key: str | None = None
    timeout_ns: int | None = None
    deadline_ns: int | None = None
    not_before_ns: int = 0  # when a delayed job is due; 0: its queue is another
    submitted_by: str = ""
    trace: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    queue: JobQueue = JobQueue.POOL


@dataclass(slots=True, unsafe_hash=True)
class Change:
    """One write to a job: where it goes, and what goes with it. None leaves a column as it is."""

    after: JobState
    reason: str | None = None
    code: str | None = None
    result: Any = None
    worker: str | None = None
    run_fence: int | None = None
    not_before_ns: int | None = None  # delays the job; 0: it is due now, and waits in the queue of its pool
    queue: JobQueue | None = None  # of a job that is due
    pool: str | None = None  # of a job that is not with a worker
    actor: str = ""  # who did it, for the event
    traceback: str | None = None  # the end of that of a failed attempt, for the event
    taken_back: bool = False  # no worker has started its attempt, which does not count


@dataclass(frozen=True, slots=True)
class JobEvent:
    """One line in the history of a job."""

    job: str
    version: int
    at_ns: int
    before: JobState | None
    after: JobState
    attempt: int
    fence: int | None
    actor: str
    reason: str | None = None
    traceback: str | None = None  # the end of it, if an attempt has failed


@dataclass(slots=True, unsafe_hash=True)
class Message:
    """Something to be delivered at least once to each group that listens to its subject.

    `id` names the cause and not the delivery: it contains attempt and target, so that a second dispatch of a job is
    another message, and the same dispatch published twice is one.
    """

    id: str
    subject: str
    body: Mapping[str, Any]
    key: str = ""  # messages of one key are delivered in order where the bus can do so
    fence: CarriedFence | None = None
    priority: int = 0
    not_before_ns: int = 0


@dataclass(slots=True, unsafe_hash=True)
class Delivery:
    """A message as a consumer gets it."""

    message: Message
    group: str
    deliveries: int  # this one included
    failures: int  # deliveries that ended in an error; busy and store trouble do not count
    first_ns: int  # when the message was first published


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """What a worker says about itself."""

    worker: str
    pool: str
    topics: tuple[str, ...]
    capacity: int  # attempts that it can run at the same time; fewer while functions run on that were told to stop
    active: int  # attempts that it is making
    at_ns: int
    draining: bool = False
    host: str = ""
    pid: int = 0
    places: Mapping[str, int] = field(default_factory=dict, hash=False)  # of topics that have fewer than its capacity
    by_topic: bool = False  # it takes from the queues of its topics; an older one only from the shared one of its pool


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A job or a message that the plane does not retry any more."""

    id: str
    job: str
    tenant: str
    topic: str
    reason: str
    code: str
    last_state: JobState | None
    attempts: int
    at_ns: int
    body: Mapping[str, Any] = field(default_factory=dict)
    retried_as: str | None = None
    made_ns: int = 0  # when its job was made: another job may have the same id by now; 0: it is of a message


_JSON: Final = json.JSONEncoder(allow_nan=False, separators=(",", ":"), ensure_ascii=False)


@lru_cache(maxsize=4096)
def _is_id(value: str) -> bool:
    """Whether a short text can be one. A job that is at hand is named several times within milliseconds."""
    return _ID.match(value) is not None


def check_id(field_name: str, value: object) -> str:
    """A job or worker id, or `BadInput`."""
    if not isinstance(value, str) or len(value) > ID_CHARS_MAX or not _is_id(value):
        fix = f"use letters, digits and . _ : @ / [ ] -, beginning with a letter or digit, at most {ID_CHARS_MAX}"
        raise BadInput(field_name, f"{_shown(value)} is not an id", fix)
    return value


def check_text(field_name: str, value: object, longest: int) -> str:
    """Printable text that is not empty, or `BadInput`."""
    if not isinstance(value, str) or not value or not value.isprintable() or len(value) > longest:
        raise BadInput(field_name, f"{_shown(value)} is not usable", f"give 1 to {longest} printable characters")
    return value


def check_whole(field_name: str, value: object, low: int, high: int) -> int:
    """A whole number in a range, or `BadInput`."""
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise BadInput(field_name, f"{_shown(value)} is out of range", f"give a whole number from {low} to {high}")
    return value


def encoded(field_name: str, value: Any, most: int = PAYLOAD_BYTES_MAX, depth: int = DEPTH_MAX) -> str:
    """JSON text of a value that users gave, or `BadInput`: not JSON, not finite, deeper than `depth`, or too large."""
    if value is None:
        return "null"
    if type(value) is dict and not value:
        return "{}"
    try:
        text = _JSON.encode(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise BadInput(field_name, f"cannot be written as JSON ({error})", "use plain JSON values") from None
    if (size := len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))) > most:
        fix = f"use at most {most} bytes; store more elsewhere and pass a pointer"
        raise BadInput(field_name, f"is {size} bytes long", fix)
    if deeper(text, depth):
        fix = f"use at most {depth} levels of lists and objects within each other"
        raise BadInput(field_name, "is nested too deeply", fix)
    if unstorable(text):
        raise BadInput(field_name, "contains a zero character or half a surrogate pair", "remove it")
    return text


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "…"


def check_name(field: str, value: object) -> str:
    """The name of an app, a pool or a worker, or `BadInput`. It becomes one part of a subject, so it has no dots."""
    if not isinstance(value, str) or _NAME.match(value) is None:
        shown = repr(value)[:60]
        raise BadInput(
            field,
            f"{shown} is not a name",
            "use letters, digits, _ and -, beginning with a letter or digit, at most 100",
        )
    return value


def beginning(text: str) -> str:
    """A text, or as much of it as an outline has."""
    return text if len(text) <= TEXT_CHARS_MAX else f"{text[: TEXT_CHARS_MAX - 1]}…"
