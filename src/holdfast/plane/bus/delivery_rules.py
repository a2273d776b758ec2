"""What a bus does with a message after it was handed to a consumer. Pure: no clock, no chance of its own.

Promises: only handled messages are acknowledged. The delay of a handler is passed on unchanged, to the nanosecond; zero
means immediately. Contention and store trouble never use up the budget of failures, however often they
come: what bounds them is the age of the message. Whatever counts as a failure is bounded by number, so every message
ends: handled, or as a dead letter.

**A message that kills its consumer** leaves no process that could count a failure. So lost deliveries are counted:
those that were started and never reported again. A consumer that fails, is busy, drains or has lost a store reports
that, and it does not count. Attempts at jobs are counted by their runs in the history of the job (`lost_runs`), on any
bus: a message that was prefetched but not started when its worker died does not count. For all other messages, a bus
with a row per message counts deliveries (`Standing.lost`). `LOST_MAX` is the limit. Where the handler counts itself,
the limit of the bus is twice that number, for a handler that dies before it can count.

Ages and delays are nanoseconds; where an age is measured from, and on which clock, is the bus's affair.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final, TypeAlias

from holdfast.core.backoff import Backoff, Draw, Grpc
from holdfast.errors import BackendError, LockBusy, RetryLater
from holdfast.types import MS, NS

UNREADABLE_MAX: Final = 3  # deliveries; another consumer may be of a newer version, and able to read it
LOST_MAX: Final = 10  # deliveries that were never reported again, as when a message kills its consumer
BURIAL_AGAIN_NS: Final = 5 * NS  # after which a dead letter that could not be written is tried again

ERROR_BACKOFF: Final = Grpc(500 * MS, 30 * NS, multiplier=2.0)
"""Between two deliveries of a message whose handler failed and did not say when to come again."""

_BUSY_NS: Final = (
    500 * MS
)  # for a handler that let the error through as it was; the same classes as `core.retry_delays`
_BACKEND_NS: Final = NS


class Kind(StrEnum):
    """How a delivery ended."""

    HANDLED = "handled"
    BUSY = "busy"  # another holder has the lock
    BACKEND = "backend"  # a store did not do its part
    RETRY = "retry"  # the handler asks for another time, for a reason of its own
    ERROR = "error"
    UNREADABLE = "unreadable"  # it was never handed over
    STOPPED = "stopped"  # the consumer is going away

    @property
    def counts(self) -> bool:
        """Whether it is a failure of the message, and not of its surroundings."""
        return self in {Kind.RETRY, Kind.ERROR, Kind.UNREADABLE}


class Code(StrEnum):
    """Why a message is a dead letter, for programs."""

    FAILURES = "max_failures"
    TOO_OLD = "too_old"
    UNREADABLE = "unreadable"
    LOST = "lost"
    TOO_LARGE = "too_large"


@dataclass(frozen=True, slots=True)
class Ended:
    """The end of one delivery. `delay_ns` is what the handler asked for; None: it did not say."""

    kind: Kind
    delay_ns: int | None = None
    text: str = ""


@dataclass(frozen=True, slots=True)
class Standing:
    """What is known of a message when a delivery begins or ends."""

    deliveries: int  # this one included
    failures: int  # before this one
    age_ns: int
    lost: int = 0  # earlier deliveries that neither succeeded nor failed; 0 where the bus cannot tell


@dataclass(frozen=True, slots=True)
class Limits:
    """When it is enough."""

    max_failures: int
    max_age_ns: int
    backoff: Backoff = ERROR_BACKOFF
    judges_lost: bool = False  # the handler counts lost deliveries itself


@dataclass(frozen=True, slots=True)
class Ack:
    """It is done with."""


@dataclass(frozen=True, slots=True)
class GiveBack:
    """It is to be delivered again, after exactly this time. `counts`: as a failure."""

    delay_ns: int
    counts: bool


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """It is to be put aside, with the reason for people and the code for programs."""

    reason: str
    code: Code


Verdict: TypeAlias = Ack | GiveBack | DeadLetter


def ended(error: Exception | None) -> Ended:
    """What the outcome of a handler says."""
    if error is None:
        return Ended(Kind.HANDLED)
    if isinstance(error, RetryLater):
        return Ended(_class_of(error.cause, error.__cause__, Kind.RETRY), round(error.delay * NS), str(error))
    kind = _class_of(error, None, Kind.ERROR)
    delay_ns = {Kind.BUSY: _BUSY_NS, Kind.BACKEND: _BACKEND_NS}.get(kind)
    return Ended(kind, delay_ns, f"{type(error).__name__}: {error}")


def before(standing: Standing, limits: Limits) -> DeadLetter | None:
    """Whether a message must not be handed over any more: only a redelivered one, for each gets its chance."""
    if (letter := given_up(standing.lost)) is not None and standing.lost >= LOST_MAX * (1 + limits.judges_lost):
        return letter
    if standing.deliveries > 1 and standing.age_ns > limits.max_age_ns:
        return _too_old(standing, limits, "it was never handled")
    return None


def given_up(lost: int) -> DeadLetter | None:
    """Whether something that so many have begun, and were not heard of again, must not be begun once more."""
    if lost < LOST_MAX:
        return None
    return DeadLetter(f"{lost} consumers took it and were not heard of again", Code.LOST)


def lost_runs(begun: int, given_back: int) -> int:
    """How many runs of an attempt that is not over were never heard of again, one that runs now included.

    A nacked run may not have reported its start: then it offsets no lost one.
    """
    return max(0, begun - given_back)


def decide(end: Ended, standing: Standing, limits: Limits, draw: Draw) -> Verdict:
    """What to do with a message, given how its delivery ended."""
    if end.kind is Kind.HANDLED:
        return Ack()
    if end.kind is Kind.STOPPED:
        return GiveBack(0, counts=False)
    if end.kind is Kind.UNREADABLE and standing.deliveries >= UNREADABLE_MAX:
        return DeadLetter(f"could not be read in {standing.deliveries} deliveries: {end.text}", Code.UNREADABLE)
    failures = standing.failures + end.kind.counts
    if end.kind.counts and failures >= limits.max_failures:
        return DeadLetter(f"failed {failures} times; the last time: {end.text}", Code.FAILURES)
    if standing.age_ns > limits.max_age_ns:
        return _too_old(standing, limits, f"the last time: {end.text}")
    if end.delay_ns is not None:
        return GiveBack(end.delay_ns, counts=end.kind.counts)
    return GiveBack(limits.backoff.delay_ns(standing.failures, 0, draw), counts=end.kind.counts)


def _class_of(cause: BaseException | str, chained: BaseException | None, other: Kind) -> Kind:
    causes = (cause, chained)
    if any(isinstance(each, LockBusy) for each in causes):
        return Kind.BUSY
    return Kind.BACKEND if any(isinstance(each, BackendError) for each in causes) else other


def _too_old(standing: Standing, limits: Limits, text: str) -> DeadLetter:
    reason = (
        f"is {standing.age_ns / NS:.0f} s old, and may be {limits.max_age_ns / NS:g}, "
        f"after {standing.deliveries} deliveries; {text}"
    )
    return DeadLetter(reason, Code.TOO_OLD)
