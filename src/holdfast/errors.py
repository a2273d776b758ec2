"""Every error that Holdfast raises, and what a caller may conclude from it.

    HoldfastError
    ├── BadInput (ValueError)           an argument, name, URL or file is wrong; nothing was sent anywhere
    ├── LockBusy                        another holder has the lock; `retry_after`: when to try again
    │   └── AcquireTimeout (TimeoutError)   the lock stayed busy for the whole `timeout`
    ├── AlreadyHeld (RuntimeError)      the caller holds the lock and would wait for itself; a bug, not contention
    ├── LeaseLost                       the lease has ended; `reason` is the cause; stop writing
    ├── NotOwner                        release or renewal with a token that does not hold the key
    ├── FencedOut                       the storage has seen a newer fence; nothing changed
    ├── NotEntered                      the section's registration is gone (rolled back, restored); enter again
    ├── Unfenced (TypeError)            a lease without a fence was given to a guard that does not allow it
    ├── RowMissing (LookupError)        no such row, and no newer holder deleted it; nothing changed
    ├── RowExists                       the row to insert exists already; nothing changed
    ├── BackendError                    the store failed; says nothing about the holder of the lock
    │   ├── Unavailable (ConnectionError)   not reached: the request had no effect, or was undone
    │   ├── Timeout (TimeoutError)          no answer: the request may or may not have taken effect
    │   └── Misconfigured                   reached, but its setup can never work
    │       └── FenceUnusable               its counter of fences cannot be used; nothing was granted
    ├── Closed (RuntimeError)           the `Locks` was closed; connect again
    ├── PolicyDenied                    the error policy of the risk class forbids running without the store
    ├── RetryLater                      try again after `delay`; a message bus carries it unchanged
    ├── BadExpression (ValueError)      a text in a workflow is not a valid expression
    └── ExpressionFailed                an expression has no value for its input; nothing else was done

"Busy" is never a store error, and a store error is never "busy": contention, store errors and failed releases stay
apart all the way from the wire to the caller.
"""

from __future__ import annotations

from collections.abc import Callable

LOCK_NOT_OWNED = "lock not owned"
LOCK_TOKEN_REQUIRED = "lock token required"  # noqa: S105 - a message, not a secret
LOCK_KEY_AND_TOKEN_REQUIRED = "lock key and token required"  # noqa: S105 - a message, not a secret


class HoldfastError(Exception):
    """Base of all errors that Holdfast raises. Each can be pickled and sent to another process unchanged.

    Its text can be printed and logged anywhere. Bytes of an environment variable or file name that are not UTF-8, which
    Python represents as lone surrogates, are shown as escapes.
    """

    def __str__(self) -> str:
        text = super().__str__()
        return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()

    def __reduce__(self) -> tuple[Callable[..., HoldfastError], tuple[object, ...]]:
        return _rebuilt, (type(self), self.args, dict(self.__dict__))


def _rebuilt(kind: type[HoldfastError], args: tuple[object, ...], state: dict[str, object]) -> HoldfastError:
    error = kind.__new__(kind)
    error.args = args  # some built-in bases do not take them in `__new__`
    error.__dict__.update(state)
    return error


class BadInput(HoldfastError, ValueError):
    """An argument is wrong. `field` names it, `fix` describes a correct value."""

    def __init__(self, field: str, problem: str, fix: str) -> None:
        super().__init__(f"{field}: {problem}; {fix}")
        self.field = field
        self.problem = problem
        self.fix = fix


class LockBusy(HoldfastError):
    """Another holder has the lock. Not a failure: contention is normal.

    `remaining`: seconds left of the holder's lease, by the store's clock. None: the store was not asked, or does not
    know.
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
    """The lock stayed busy until the caller's deadline."""


class AlreadyHeld(HoldfastError, RuntimeError):
    """The caller waits for a lock that its own thread or task holds: the wait would never end.

    This is a mistake in the program and not contention, so it is not a `LockBusy`: a retry does not help.
    """

    def __init__(self, message: str, *, key: str = "", holder: str | None = None) -> None:
        super().__init__(message)
        self.key = key
        self.holder = holder


class LeaseLost(HoldfastError):
    """The lease has ended. The data that it protected must not be written any more; a guard would refuse the write."""

    def __init__(self, message: str, *, key: str = "", reason: str = "", fence: int | None = None) -> None:
        super().__init__(message)
        self.key = key
        self.reason = reason
        self.fence = fence


class NotOwner(HoldfastError):
    """Renewal or release with a token that does not hold this key. `str()` is `lock not owned`."""

    def __init__(self, message: str = LOCK_NOT_OWNED, *, key: str = "") -> None:
        super().__init__(message)
        self.key = key


class FencedOut(HoldfastError):
    """The storage refused a write because it has seen a newer fence. Nothing was changed."""

    def __init__(self, message: str, *, fence: int, seen: int, key: str = "", resource: str = "") -> None:
        super().__init__(message)
        self.fence = fence
        self.seen = seen
        self.key = key
        self.resource = resource


class NotEntered(HoldfastError):
    """A write inside a section found that the resource no longer carries the section's fence. Nothing was changed.

    The transaction that entered was rolled back, the data was restored from a backup, or other code replaced it without
    the guard. Data read before may be stale: enter again, and read again.
    """

    def __init__(self, message: str, *, fence: int, seen: int | None, resource: str = "") -> None:
        super().__init__(message)
        self.fence = fence
        self.seen = seen
        self.resource = resource


class Unfenced(HoldfastError, TypeError):
    """A degraded lease has no fence, and this guard does not allow that. Nothing was sent."""


class RowMissing(HoldfastError, LookupError):
    """The row to change does not exist, and no newer holder deleted it. Nothing was changed."""


class RowExists(HoldfastError):
    """The row to insert exists already, under a fence that is not newer. Nothing was changed."""


class BackendError(HoldfastError):
    """The store failed. This says nothing about the holder of the lock."""

    retry_after = 1.0
    congested = False
    """True: the store is up, but other requests kept it busy until the time limit. Nothing was changed.

    False when it has answered nothing for the time limit of two requests in a row: then it counts as failed."""


class Unavailable(BackendError, ConnectionError):
    """The store could not be reached, or answered that it cannot serve requests now."""


class Timeout(BackendError, TimeoutError):
    """The store did not answer in time: the request may have taken effect, or may do so later."""


class Misconfigured(BackendError):
    """The store was reached, but its setup can never serve this request."""


class FenceUnusable(Misconfigured):
    """The store's counter of fences cannot be used, so nothing was granted."""


class PolicyDenied(HoldfastError):
    """The store is down, and the error policy of this risk class forbids running without it."""

    def __init__(self, message: str, *, key: str, risk: str) -> None:
        super().__init__(message)
        self.key = key
        self.risk = risk


class Closed(HoldfastError, RuntimeError):
    """The `Locks` was closed, perhaps while a caller waited for one of its locks."""

    def __init__(self, message: str = "this Locks is closed; connect again") -> None:
        super().__init__(message)


class RetryLater(HoldfastError):
    """The work should be retried after `delay` seconds; the cause is contention or a store error."""

    def __init__(self, delay: float, cause: BaseException | str = "retry requested") -> None:
        self.delay = max(0.0, delay)
        self.cause = cause
        super().__init__(f"retry after {self.delay * 1000:g}ms: {cause}")
        if isinstance(cause, BaseException):
            self.__cause__ = cause


class BadExpression(HoldfastError, ValueError):
    """A text is not a valid expression. `position` is the index of the wrong character, from 0."""

    def __init__(self, text: str, problem: str, position: int = 0) -> None:
        super().__init__(f"{_quoted(text)}: {problem} (at character {position + 1})")
        self.text = text
        self.problem = problem
        self.position = position


class ExpressionFailed(HoldfastError):
    """An expression has no value for its input. It is deterministic, so a retry has the same result."""

    def __init__(self, text: str, problem: str, position: int = 0) -> None:
        super().__init__(f"{_quoted(text)}: {problem} (at character {position + 1})")
        self.text = text
        self.problem = problem
        self.position = position


def _quoted(text: str) -> str:
    shown = repr(text)
    return shown if len(shown) <= 120 else shown[:117] + "…"
