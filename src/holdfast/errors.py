"""Every error Holdfast raises, and what the caller may conclude from it.

    HoldfastError
    ├── BadInput (ValueError)           an argument, name, URL or file is wrong; nothing was sent anywhere
    ├── LockBusy                        somebody else holds the lock; `retry_after` says when to try again
    │   └── AcquireTimeout (TimeoutError)   … and it stayed that way for the whole `timeout`
    ├── AlreadyHeld (RuntimeError)      the caller holds the lock and would wait for itself; a bug, not contention
    ├── LeaseLost                       it was ours and is no longer; `reason` says why; stop writing
    ├── NotOwner                        release or renewal of a lease that is not (or no longer) ours
    ├── FencedOut                       storage has seen a newer fence; this write changed nothing
    ├── NotEntered                      the section's registration is gone (rolled back, restored); enter again
    ├── Unfenced (TypeError)            a lease without a fence was given to a guard that does not allow it
    ├── RowMissing (LookupError)        there is nothing to write to, and nobody newer was there; nothing changed
    ├── RowExists                       there is something already where an insert was asked for; nothing changed
    ├── BackendError                    the store did not do its part; says nothing about who holds the lock
    │   ├── Unavailable (ConnectionError)   not reached: the request certainly had no effect, or we undid it
    │   ├── Timeout (TimeoutError)          no answer: the request may or may not have taken effect
    │   └── Misconfigured                   reached, and it can never work like this
    ├── Closed (RuntimeError)           the `Locks` was closed; connect again
    ├── PolicyDenied                    the error policy of the risk class says: do not run without the store
    ├── RetryLater                      come back after `delay`; carried unchanged by a message bus
    ├── BadExpression (ValueError)      a text of a workflow is no expression; it will never be one
    └── ExpressionFailed                an expression gives no value for what it was given; nothing else was done

Busy is never an error of the store, and an error of the store is never "busy": the three paths (contention, store
trouble, release trouble) stay apart from the wire to the caller.
"""

from __future__ import annotations

from collections.abc import Callable

LOCK_NOT_OWNED = "lock not owned"
LOCK_TOKEN_REQUIRED = "lock token required"  # noqa: S105 - a message, not a secret
LOCK_KEY_AND_TOKEN_REQUIRED = "lock key and token required"  # noqa: S105 - a message, not a secret


class HoldfastError(Exception):
    """Base of everything that Holdfast raises on purpose. Each error travels between processes as it is.

    Its text can be printed and logged anywhere: bytes of an environment or a file name that are no UTF-8, which Python
    hands on as halves of surrogate pairs, are shown as escapes.
    """

    def __str__(self) -> str:
        text = super().__str__()
        return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()

    def __reduce__(self) -> tuple[Callable[..., HoldfastError], tuple[object, ...]]:
        return _rebuilt, (type(self), self.args, dict(self.__dict__))


def _rebuilt(kind: type[HoldfastError], args: tuple[object, ...], state: dict[str, object]) -> HoldfastError:
    error = kind.__new__(kind)
    error.args = args  # not all of the built-in bases take them from `__new__`
    error.__dict__.update(state)
    return error


class BadInput(HoldfastError, ValueError):
    """An argument cannot be right. `field` names it, `fix` says what would be."""

    def __init__(self, field: str, problem: str, fix: str) -> None:
        super().__init__(f"{field}: {problem}; {fix}")
        self.field = field
        self.problem = problem
        self.fix = fix


class LockBusy(HoldfastError):
    """Somebody else holds the lock. Not a failure: contention is normal.

    `remaining`: seconds that the holder's lease still had, as the store saw it; None: the store was not asked or cannot
    tell.
    """

    def __init__(
        self,
        message: str,
        *,
        key: str = "",
        holder: str | None = None,
        retry_after: float = 0.0,
        remaining: float | None = None,
    ) -> None:
        super().__init__(message)
        self.key = key
        self.holder = holder
        self.retry_after = retry_after
        self.remaining = remaining


class AcquireTimeout(LockBusy, TimeoutError):
    """The lock stayed busy for the whole time the caller was willing to wait."""


class AlreadyHeld(HoldfastError, RuntimeError):
    """The thread or task that wants to wait for this lock holds it: the wait would never end.

    This is a mistake in the program and not contention, so it is no `LockBusy`: trying again later does not help.
    """

    def __init__(self, message: str, *, key: str = "", holder: str | None = None) -> None:
        super().__init__(message)
        self.key = key
        self.holder = holder


class LeaseLost(HoldfastError):
    """The lease is gone. Whatever it protected must not be written any more; a guard would refuse it."""

    def __init__(self, message: str, *, key: str = "", reason: str = "", fence: int | None = None) -> None:
        super().__init__(message)
        self.key = key
        self.reason = reason
        self.fence = fence


class NotOwner(HoldfastError):
    """Renewal or release with a token that the store does not know for this key. `str()` is `lock not owned`."""

    def __init__(self, message: str = LOCK_NOT_OWNED, *, key: str = "") -> None:
        super().__init__(message)
        self.key = key


class FencedOut(HoldfastError):
    """Storage refused a write because it has seen a newer fence. Nothing was changed."""

    def __init__(self, message: str, *, fence: int, seen: int, key: str = "", resource: str = "") -> None:
        super().__init__(message)
        self.fence = fence
        self.seen = seen
        self.key = key
        self.resource = resource


class NotEntered(HoldfastError):
    """A write inside a section found that the resource no longer carries the section's fence. Nothing was changed.

    The transaction that entered was rolled back, the data was restored from a copy, or it was replaced behind the
    guard's back. What was read before may be stale: enter again, and read again.
    """

    def __init__(self, message: str, *, fence: int, seen: int | None, resource: str = "") -> None:
        super().__init__(message)
        self.fence = fence
        self.seen = seen
        self.resource = resource


class Unfenced(HoldfastError, TypeError):
    """A degraded lease has no fence, and this guard was not told to allow that. Nothing was sent."""


class RowMissing(HoldfastError, LookupError):
    """What was to be changed is not there, and no newer holder has been there either. Nothing was changed."""


class RowExists(HoldfastError):
    """What was to be inserted is there already, under a fence that is not newer. Nothing was changed."""


class BackendError(HoldfastError):
    """The store failed. This says nothing about who holds the lock."""

    retry_after = 1.0
    congested = False
    """True: the store is up, and other requests kept it busy for all of the time. Nothing was changed.

    False once it has answered nothing for the time of two requests in a row: then it counts as failed."""


class Unavailable(BackendError, ConnectionError):
    """The store could not be reached, or it answered that it cannot serve now."""


class Timeout(BackendError, TimeoutError):
    """The store did not answer in time: the request may have taken effect, or may still."""


class Misconfigured(BackendError):
    """The store was reached and can never do what was asked, as it is set up."""


class PolicyDenied(HoldfastError):
    """The store is down and the error policy of this risk class is to stop rather than to run unprotected."""

    def __init__(self, message: str, *, key: str, risk: str) -> None:
        super().__init__(message)
        self.key = key
        self.risk = risk


class Closed(HoldfastError, RuntimeError):
    """The `Locks` was closed, or is being closed while somebody waits for one of its locks."""

    def __init__(self, message: str = "this Locks is closed; connect again") -> None:
        super().__init__(message)


class RetryLater(HoldfastError):
    """The work should be tried again after `delay` seconds; the cause says whether it was contention or the store."""

    def __init__(self, delay: float, cause: BaseException | str = "retry requested") -> None:
        self.delay = max(0.0, delay)
        self.cause = cause
        super().__init__(f"retry after {self.delay * 1000:g}ms: {cause}")
        if isinstance(cause, BaseException):
            self.__cause__ = cause


class BadExpression(HoldfastError, ValueError):
    """A text cannot be read as an expression. `position` is the character where it goes wrong, from 0."""

    def __init__(self, text: str, problem: str, position: int = 0) -> None:
        super().__init__(f"{_quoted(text)}: {problem} (at character {position + 1})")
        self.text = text
        self.problem = problem
        self.position = position


class ExpressionFailed(HoldfastError):
    """An expression gives no value for what it reads. The same again gives the same: it is deterministic."""

    def __init__(self, text: str, problem: str, position: int = 0) -> None:
        super().__init__(f"{_quoted(text)}: {problem} (at character {position + 1})")
        self.text = text
        self.problem = problem
        self.position = position


def _quoted(text: str) -> str:
    shown = repr(text)
    return shown if len(shown) <= 120 else shown[:117] + "…"
