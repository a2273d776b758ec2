"""One request to the nodes of a quorum: which were asked, their answers, and the handling of late answers.

The caller waits until it has enough answers, closes the ballot and continues; the nodes that have not answered by then
are not waited for. `afterwards` handles answers in the job that asked the node: there a late grant of a lost election
is released, and a node that has lost a lease gets it again.

The same for sync and asyncio: it knows jobs and a signal (`fan_out`). `cast` is safe from any thread.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Generic, TypeAlias, TypeVar

from holdfast.core.lease.quorum import Vote, majority
from holdfast.errors import BackendError, Misconfigured, Timeout, Unavailable
from holdfast.runtime.thread_runtime import Mutex
from holdfast.stores.quorum.fan_out import Signal
from holdfast.types import Busy, Grant

T = TypeVar("T")
Answers: TypeAlias = Mapping[int, T | BackendError]
Afterwards: TypeAlias = Callable[[int, T | BackendError], Awaitable[None]]


class Ballot(Generic[T]):
    """The answers to one request."""

    def __init__(
        self, signal: Signal, enough: Callable[[Answers[T]], bool], afterwards: Afterwards[T] | None = None
    ) -> None:
        """`afterwards` gets every answer, after it was counted or came too late."""
        self.signal = signal
        self.answers: dict[int, T | BackendError] = {}
        self.asked: dict[int, object] = {}  # node -> its job
        self.broken: Exception | None = None  # a bug, or input that a node refuses: nothing that a vote could be
        self._enough = enough
        self._mutex = Mutex()
        self._afterwards = afterwards
        self._closed = False

    def cast(self, node: int, answer: T | BackendError) -> Afterwards[T] | None:
        """Count a node's answer, unless the ballot is closed. Returns what is to be done with it then."""
        with self._mutex:
            if not self._closed:
                self.answers[node] = answer
                if self._enough(self.answers):
                    self.signal.set()
            return self._afterwards

    def so_far(self) -> dict[int, T | BackendError]:
        """The answers until now. More may come, until the ballot is closed."""
        with self._mutex:
            if self.broken is not None:
                raise self.broken
            return dict(self.answers)

    def wait_for(self, nodes: Iterable[int]) -> bool:
        """Wait for the answers of these as well. False: they are all there."""
        with self._mutex:
            missing = [node for node in nodes if node not in self.answers]
            self._enough = lambda answers: all(node in answers for node in missing)
            if missing and self.broken is None:
                self.signal.clear()
        return bool(missing)

    def fail(self, error: Exception) -> None:
        """Asking has failed in a way that is no answer; the waiting caller raises it."""
        self.broken = error
        self.signal.set()

    def close(self, late: Afterwards[T] | None = None) -> Answers[T]:
        """Count no more. The answers until now are the result; `late` gets those that come later."""
        with self._mutex:
            self._closed = True
            if late is not None:
                self._afterwards = late
        if self.broken is not None:
            raise self.broken
        return self.answers

    @property
    def silent(self) -> list[int]:
        """The nodes that were asked and have not answered."""
        return [node for node in self.asked if node not in self.answers]


def vote_of(answer: Grant | Busy | BackendError) -> Vote:
    """The vote that is the answer to an acquire."""
    if isinstance(answer, Grant):
        return Vote.YES
    if isinstance(answer, Busy):
        return Vote.NO
    return failure(answer)


def failure(error: BackendError) -> Vote:
    """The vote that is an error of a node."""
    return Vote.UNKNOWN if isinstance(error, Timeout) else Vote.FAILED


def no_quorum(
    what: str, nodes: int, errors: Mapping[int, BackendError], silent: int, *, harmless: bool
) -> BackendError:
    """The error for too few answers: each node's reason, and what the caller may conclude.

    `silent`: how many have not answered by now. `harmless`: the request has no effect at any node.
    """
    reasons = "; ".join(dict.fromkeys(str(errors[node]) for node in sorted(errors)))
    missing = f"{silent} without an answer" if silent else ""
    text = f"{what}: no majority of {nodes} nodes, {len(errors)} failed: {'; '.join(filter(None, [reasons, missing]))}"
    enough = nodes - majority(nodes)
    if sum(isinstance(error, Misconfigured) for error in errors.values()) > enough:
        return Misconfigured(text)
    if harmless and sum(not isinstance(error, Timeout) for error in errors.values()) > enough:
        return Unavailable(text)
    return Timeout(text)
