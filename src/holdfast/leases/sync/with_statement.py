"""The end of a `with` statement on a lock or a lease, also where an interrupt skips `__exit__`.

CPython delivers signals at the start of every Python function. If a signal handler raises there (Ctrl-C) when
`__exit__` begins, none of its code runs, and the statement is left with the lease held. A lock that lives
on, or a variable of the block, would then keep that lease renewed, and all other callers out, forever.

Promises: a lease that a `with` statement acquired is released before the first handler of the interrupt runs. The
`__exit__` of a statement is an object of its own, to which only the running statement refers, so the object is dropped
when the statement is left in any way. It is called as C code, so that no frame in a traceback refers to it. (A
`contextlib.ExitStack` refers to it from a frame, so there the lease is released when the exception is gone.)

Does not promise: a release when a second interrupt comes while the object is dropped. Then the lease expires when no
variable refers to it any more. Calls of `__enter__` and `__exit__` by hand are not statements.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol, TypeVar, cast

F = TypeVar("F", bound=Callable[..., Any])


class _Lease(Protocol):
    def _leave_block(self, error: BaseException | None) -> None: ...

    def _release_unless_detached(self) -> None: ...


class WithStatement:
    """One `with` statement: the lease that its end releases."""

    __slots__ = ("_by_hand", "_lease", "over")

    def __init__(self, by_hand: Callable[..., Any]) -> None:
        self.over = False
        self._by_hand = by_hand
        self._lease: _Lease | None = None

    def entered(self, lease: _Lease) -> None:
        """From here on the end of the statement releases this lease."""
        self._lease = lease

    def leave(self, *about: Any) -> None:
        """`__exit__`: with the lock or lease first, if it was looked up in the class."""
        lease = self._lease
        if lease is None:
            self._by_hand(*about)
            return
        lease._leave_block(about[-2])  # noqa: SLF001 - locks and leases are one implementation
        self._lease = None  # if this line is not reached, `drop` completes the release

    def drop(self) -> None:
        """The statement has ended. Its lease is still here only if an interrupt skipped or cut the end."""
        self.over = True
        lease = self._lease
        if lease is not None:
            lease._release_unless_detached()  # noqa: SLF001 - as above


class _Exit(partial[None]):
    """What the interpreter keeps while the block runs, and calls at its end."""

    def __del__(self) -> None:
        self.func.__self__.drop()  # type: ignore[attr-defined]  # it is always the method of a statement


class _Begun(threading.local):
    """The statement of this thread that has looked up its `__exit__`, and calls its `__enter__` next."""

    statement: WithStatement | None = None


_begun = _Begun()


def begun() -> WithStatement | None:
    """For `__enter__`: the statement that calls it. None: it was called by hand."""
    statement, _begun.statement = _begun.statement, None
    return None if statement is None or statement.over else statement


class _ExitOfEachStatement:
    """Makes the `__exit__` of a statement when the statement looks it up, which it does before it calls `__enter__`."""

    def __init__(self, by_hand: Callable[..., Any]) -> None:
        self._by_hand = by_hand
        self.__doc__ = by_hand.__doc__

    def __get__(self, lock: object | None, kind: type) -> _Exit:
        by_hand = self._by_hand if lock is None else partial(self._by_hand, lock)
        statement = _begun.statement = WithStatement(by_hand)
        return _Exit(statement.leave)


def exit_of_each_statement(by_hand: F) -> F:
    """Decorates an `__exit__`: what runs when it is called by hand. Its `__enter__` asks for `begun()`."""
    return cast("F", _ExitOfEachStatement(by_hand))
