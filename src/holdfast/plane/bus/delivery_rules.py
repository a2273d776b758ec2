"""The decision after a delivery: ack, nack with a delay, or dead-letter. Pure.

Promises: only handled messages are acked. A delay that a handler requests is used unchanged; zero means immediately.
Contention and store failures do not count as failures of the message; they are bounded by its age. Failures are bounded
by their number. So every message ends: handled, or as a dead letter.

**A message that kills its consumer** leaves no process that could count a failure. So lost deliveries are counted:
those that were started and never settled. A consumer that fails, is busy, drains or has lost a store reports
that, and it does not count. Attempts at jobs are counted by their runs in the history of the job (`lost_runs`), on any
bus: a message that was prefetched but not started when its worker died does not count. For all other messages, a bus
with a row per message counts deliveries (`DeliveryState.lost`). `LOST_MAX` is the limit. Where the handler counts
itself, the limit of the bus is twice that number, for a handler that dies before it can count.

Ages and delays are nanoseconds. The bus defines from when an age is measured, and on which clock.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final, TypeAlias

from holdfast.core.backoff import Backoff, Draw, Grpc
from holdfast.errors import BackendError, LockBusy, RetryLater
from holdfast.types import MS, NS

UNREADABLE_MAX: Final = 3  # deliveries; another consumer may have a newer version that can read it
LOST_MAX: Final = 10  # deliveries that were never settled, as when a message kills its consumer
DEAD_LETTER_RETRY_NS: Final = 5 * NS  # between two attempts to write a dead letter

ERROR_BACKOFF: Final = Grpc(500 * MS, 30 * NS, multiplier=2.0)
"""Between two deliveries of a message whose handler failed without requesting a delay."""

# For a handler that did not catch the error; the same classes as in `core.retry_delays`.
_BUSY_NS: Final = 500 * MS
_BACKEND_NS: Final = NS


class Kind(StrEnum):
    """How a delivery ended."""

    HANDLED = "handled"
    BUSY = "busy"  # another holder has the lock
    BACKEND = "backend"  # a store failed
    RETRY = "retry"  # the handler requested a retry, for a reason of its own
    ERROR = "error"
    UNREADABLE = "unreadable"  # no handler got it
    STOPPED = "stopped"  # the consumer is closing

    @property
    def counts(self) -> bool:
        """Whether it is a failure of the message, and not of a store or a lock."""
        return self in {Kind.RETRY, Kind.ERROR, Kind.UNREADABLE}


class DeadLetterCode(StrEnum):
    """Why a message is a dead letter, for programs."""

    FAILURES = "max_failures"
    TOO_OLD = "too_old"
    UNREADABLE = "unreadable"
    LOST = "lost"
    TOO_LARGE = "too_large"


@dataclass(frozen=True, slots=True)
class DeliveryEnd:
    """The end of one delivery. `delay_ns`: requested by the handler; None: it requested none."""

    kind: Kind
    delay_ns: int | None = None
    text: str = ""


@dataclass(frozen=True, slots=True)
class DeliveryState:
    """The history of a message when a delivery begins or ends."""

    deliveries: int  # this one included
    failures: int  # before this one
    age_ns: int
    lost: int = 0  # earlier deliveries that neither succeeded nor failed; 0 where the bus cannot tell


@dataclass(frozen=True, slots=True)
class Limits:
    """When a message becomes a dead letter."""

    max_failures: int
    max_age_ns: int
    backoff: Backoff = ERROR_BACKOFF
    judges_lost: bool = False  # the handler counts lost deliveries itself


@dataclass(frozen=True, slots=True)
class Ack:
    """The message is handled."""


@dataclass(frozen=True, slots=True)
class Nack:
    """Redeliver the message after exactly this time. `counts`: as a failure."""

    delay_ns: int
    counts: bool


@dataclass(frozen=True, slots=True)
class DeadLetterDecision:
    """Make the message a dead letter, with a reason for people and a code for programs."""

    reason: str
    code: DeadLetterCode


Settlement: TypeAlias = Ack | Nack | DeadLetterDecision


def end_of(error: Exception | None) -> DeliveryEnd:
    """The end of a delivery whose handler returned (None) or raised."""
    if error is None:
        return DeliveryEnd(Kind.HANDLED)
    if isinstance(error, RetryLater):
        return DeliveryEnd(_class_of(error.cause, error.__cause__, Kind.RETRY), round(error.delay * NS), str(error))
    kind = _class_of(error, None, Kind.ERROR)
    delay_ns = {Kind.BUSY: _BUSY_NS, Kind.BACKEND: _BACKEND_NS}.get(kind)
    return DeliveryEnd(kind, delay_ns, f"{type(error).__name__}: {error}")


def before(state: DeliveryState, limits: Limits) -> DeadLetterDecision | None:
    """Whether a redelivered message must not be handled again. Every message is delivered at least once."""
    if (letter := given_up(state.lost)) is not None and state.lost >= LOST_MAX * (1 + limits.judges_lost):
        return letter
    if state.deliveries > 1 and state.age_ns > limits.max_age_ns:
        return _too_old(state, limits, "it was never handled")
    return None


def given_up(lost: int) -> DeadLetterDecision | None:
    """The dead letter after this many lost deliveries; None: it may be delivered again."""
    if lost < LOST_MAX:
        return None
    return DeadLetterDecision(f"{lost} consumers took it and were not heard of again", DeadLetterCode.LOST)


def lost_runs(begun: int, given_back: int) -> int:
    """The number of lost runs of an attempt that has not ended, including one that runs now.

    A nacked run may not have reported its start: then it offsets no lost one.
    """
    return max(0, begun - given_back)


def decide(end: DeliveryEnd, state: DeliveryState, limits: Limits, draw: Draw) -> Settlement:
    """Decide how to settle a message after a delivery."""
    if end.kind is Kind.HANDLED:
        return Ack()
    if end.kind is Kind.STOPPED:
        return Nack(0, counts=False)
    if end.kind is Kind.UNREADABLE and state.deliveries >= UNREADABLE_MAX:
        reason = f"could not be read in {state.deliveries} deliveries: {end.text}"
        return DeadLetterDecision(reason, DeadLetterCode.UNREADABLE)
    failures = state.failures + end.kind.counts
    if end.kind.counts and failures >= limits.max_failures:
        return DeadLetterDecision(f"failed {failures} times; the last time: {end.text}", DeadLetterCode.FAILURES)
    if state.age_ns > limits.max_age_ns:
        return _too_old(state, limits, f"the last time: {end.text}")
    if end.delay_ns is not None:
        return Nack(end.delay_ns, counts=end.kind.counts)
    return Nack(limits.backoff.delay_ns(state.failures, 0, draw), counts=end.kind.counts)


def _class_of(cause: BaseException | str, chained: BaseException | None, other: Kind) -> Kind:
    causes = (cause, chained)
    if any(isinstance(each, LockBusy) for each in causes):
        return Kind.BUSY
    return Kind.BACKEND if any(isinstance(each, BackendError) for each in causes) else other


def _too_old(state: DeliveryState, limits: Limits, text: str) -> DeadLetterDecision:
    reason = (
        f"is {state.age_ns / NS:.0f} s old, and may be {limits.max_age_ns / NS:g}, "
        f"after {state.deliveries} deliveries; {text}"
    )
    return DeadLetterDecision(reason, DeadLetterCode.TOO_OLD)
