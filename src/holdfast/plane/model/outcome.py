"""How an attempt ended, as its worker says it to the scheduler. Pure: values in, values out.

Promises: what is said is JSON and bounded, whatever a function returned or raised. An error is told by its type and its
message, on one line. The end of its traceback goes with it (`plane.worker.failure_trace`); the log of the worker has
the whole.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from holdfast.errors import BadInput, HoldfastError, RetryLater
from holdfast.plane.model.records import encoded
from holdfast.types import NS

ERROR_CHARS_MAX: Final = 500
_LOOKED_AT_MAX: Final = 20 * ERROR_CHARS_MAX  # of a text that may be mostly white space
DELAY_NS_MAX: Final = 365 * 24 * 3600 * NS


class Fatal(HoldfastError):
    """Raised by a job function: this job cannot succeed, however often it is tried. The reason is kept with it."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Quarantine(HoldfastError):
    """Raised by a job function: the work is done, and its output must not be used. The reason is kept with the job.

    The plane stores no output of such a job. If people are to review it, store it elsewhere and name the place.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Status(StrEnum):
    """The ways in which an attempt ends. One that was stopped or lost says nothing: others have decided."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    QUARANTINED = "quarantined"  # it succeeded, and its result must not be used
    RETURNED = "returned"  # this worker could not begin it, and another may


@dataclass(frozen=True, slots=True)
class Outcome:
    """What is published about an attempt that has ended."""

    status: Status
    result: Any = None
    error: str | None = None
    retryable: bool = False
    retry_after_ns: int | None = None
    size: int = 0  # of the result, in characters of JSON
    traceback: str | None = None  # the end of it

    def body(self) -> Mapping[str, Any]:
        """As it stands in the message."""
        trace = {} if self.traceback is None else {"traceback": self.traceback}
        return {
            "status": str(self.status),
            "result": self.result,
            "error": self.error,
            "retryable": self.retryable,
            "retry_after_ns": self.retry_after_ns,
            **trace,
        }


_WHOLE_MAX: Final = 2**63  # beyond it, a number may be too long to be written down


def returned(value: Any) -> Outcome:
    """A function returned: a success, if what it returned can be kept."""
    if inspect.isawaitable(value):
        if inspect.iscoroutine(value):
            value.close()
        return failed("the function returned something to be awaited; declare it with async def", retryable=False)
    if value is None or type(value) is bool or (type(value) is int and -_WHOLE_MAX < value < _WHOLE_MAX):
        return Outcome(Status.SUCCEEDED, value, size=len(repr(value)))  # as it is: it is immutable
    try:
        text = encoded("result", value)
    except BadInput as error:
        return failed(str(error), retryable=False)
    return Outcome(Status.SUCCEEDED, json.loads(text), size=len(text))  # a copy, as its readers will see it


def raised(error: BaseException) -> Outcome:
    """A function raised: another attempt may help, unless it says otherwise."""
    if isinstance(error, Fatal):
        return failed(_line(error.reason), retryable=False)
    if isinstance(error, Quarantine):
        return Outcome(Status.QUARANTINED, error=_line(error.reason))
    if isinstance(error, RetryLater):
        delay_ns = round(error.delay * NS) if error.delay * NS < DELAY_NS_MAX else DELAY_NS_MAX
        return Outcome(Status.FAILED, error=error_text(error), retryable=True, retry_after_ns=delay_ns)
    return failed(error_text(error), retryable=True)


def failed(reason: str, *, retryable: bool) -> Outcome:
    """A failure with a reason for people."""
    return Outcome(Status.FAILED, error=_line(reason), retryable=retryable)


def error_text(error: BaseException) -> str:
    """The type and the message of an error, on one line of bounded length."""
    try:
        message = str(error)
    except Exception:  # noqa: BLE001 - the error of a user may be unable to describe itself, and must be told all the same
        message = "(it cannot be described)"
    name = type(error).__qualname__
    return _line(f"{name}: {message}" if message else name)


def _line(text: object) -> str:
    begun = str(text)[:_LOOKED_AT_MAX]  # a message may have megabytes, and the loop that renews leases waits meanwhile
    cleaned = " ".join("".join(each if each.isprintable() else " " for each in begun).split())
    return cleaned if len(cleaned) <= ERROR_CHARS_MAX else cleaned[: ERROR_CHARS_MAX - 1] + "…"
