"""The nodes of a quorum: asks all of them concurrently, waits for as many as decide, and tracks which are healthy.

Every request has a deadline, on the monotonic clock of this host. When a majority has decided, the other nodes are
waited for a moment more, so that usually all of them have the decision. A node that failed, or took longer than that,
is asked last for a while, and is not waited for. When a caller is cancelled, jobs that have not begun are dropped; the
effect of the others is unknown, as with any other store.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TypeAlias, TypeVar

from holdfast.core.lease.quorum import majority
from holdfast.core.ports import Clock, Store
from holdfast.errors import BackendError, Timeout, Unavailable
from holdfast.stores.quorum.ballot import Afterwards, Answers, Ballot, no_quorum
from holdfast.stores.quorum.fan_out import NodeRunner
from holdfast.types import NS

T = TypeVar("T")
Call: TypeAlias = Callable[[Store, int], Awaitable[T]]
Enough: TypeAlias = Callable[[Answers[T]], bool]

SLOW_NS = 5 * NS  # for how long a slow node is asked last


class QuorumNodes:
    """Several stores of one color, and the runner that asks them."""

    def __init__(
        self, stores: Sequence[Store], runner: NodeRunner, clock: Clock, slow_until_ns: list[int], hedge_ns: int
    ) -> None:
        """`slow_until_ns`: until when each node is asked last; shared by the stores of one engine.

        `hedge_ns`: how much longer than the others a node may take before it is not waited for.
        """
        self.stores = stores
        self.hedge_ns = hedge_ns
        self.runner = runner
        self.number = len(stores)
        self.need = majority(self.number)
        self._clock = clock
        self._slow_until_ns = slow_until_ns

    def now_ns(self) -> int:
        """The clock of deadlines."""
        return self._clock.now().mono

    def in_order(self) -> list[int]:
        """All nodes, healthy ones first."""
        now = self.now_ns()
        return sorted(range(self.number), key=lambda node: self._slow_until_ns[node] > now)

    def mark_slow(self, node: int) -> None:
        """Ask this node last for a while."""
        self._slow_until_ns[node] = self.now_ns() + SLOW_NS

    async def ask_healthy(self, what: str, call: Call[T], timeout_ns: int) -> dict[int, T]:
        """The answer of each healthy node; at least a majority of them, or an error."""
        now = self.now_ns()
        healthy = [node for node, until in enumerate(self._slow_until_ns) if until <= now]

        def enough(answers: Answers[T]) -> bool:
            answered = sum(not isinstance(each, BackendError) for each in answers.values())
            return len(answers) == self.number or (answered >= self.need and all(node in answers for node in healthy))

        answers = await self.ask_all(range(self.number), call, now + timeout_ns, enough)
        good = {node: each for node, each in sorted(answers.items()) if not isinstance(each, BackendError)}
        if len(good) < self.need:
            raise self.failed(what, answers, harmless=True)
        return good

    async def ask_all(self, nodes: Iterable[int], call: Call[T], deadline: int, enough: Enough[T]) -> Answers[T]:
        """Ask these nodes at the same time; return when there are enough answers, or the time has ended."""
        return (await self.open(nodes, call, deadline, enough)).close()

    async def open(
        self,
        nodes: Iterable[int],
        call: Call[T],
        deadline: int,
        enough: Enough[T],
        *,
        wait_until: int | None = None,
        afterwards: Afterwards[T] | None = None,
    ) -> Ballot[T]:
        """The same, and the caller closes the ballot. `wait_until`: the caller's own deadline, if it is another."""
        wait_until = deadline if wait_until is None else wait_until
        ballot: Ballot[T] = Ballot(self.runner.signal(), enough, afterwards)
        try:
            for node in nodes:
                self.ask(ballot, node, call, deadline)
            if await ballot.signal.wait(wait_until - self.now_ns()):
                await self._linger(ballot, wait_until)
        except BaseException:
            self.abandon(ballot)
            raise
        return ballot

    async def _linger(self, ballot: Ballot[T], deadline: int) -> None:
        """It is decided. Wait a moment more for the healthy nodes; one that takes longer counts as slow from now on."""
        now = self.now_ns()
        healthy = [node for node in ballot.silent if self._slow_until_ns[node] <= now]
        if ballot.wait_for(healthy) and not await ballot.signal.wait(min(self.hedge_ns, deadline - now)):
            for node in healthy:
                if node in ballot.silent:
                    self.mark_slow(node)

    def ask(self, ballot: Ballot[T], node: int, call: Call[T], deadline: int) -> None:
        """Start to ask one node."""
        ballot.asked[node] = self.runner.start(node, self._asking(ballot, node, call, deadline))

    async def _asking(self, ballot: Ballot[T], node: int, call: Call[T], deadline: int) -> None:
        """One node's job. Every end of it is an answer."""
        answer: T | BackendError
        try:
            left = deadline - self.now_ns()
            if left <= 0:
                raise Unavailable(f"node {node + 1} was not asked: too many wait for it")
            answer = await call(self.stores[node], left)
        except BackendError as error:
            answer = error
            self.mark_slow(node)
        except Exception as error:  # noqa: BLE001 - a bug, or refused input: it belongs to the caller
            ballot.fail(error)
            return
        else:
            self._slow_until_ns[node] = 0
        afterwards = ballot.cast(node, answer)
        if afterwards is not None:
            await quietly(afterwards(node, answer))

    def abandon(self, ballot: Ballot[T]) -> None:
        """The caller is interrupted. Drop the jobs that have not begun; the caller releases what the others take."""
        for node in ballot.silent:
            self.runner.stop(ballot.asked[node])

    def failed(self, what: str, answers: Answers[T], *, harmless: bool) -> BackendError:
        """The error for too few answers. `harmless`: the answered requests have no effect."""
        errors = {node: each for node, each in answers.items() if isinstance(each, BackendError)}
        return no_quorum(what, self.number, errors, self.number - len(answers), harmless=harmless)

    async def close(self) -> None:
        """Wait a moment for running jobs, and close the stores."""
        await self.runner.close()
        for store in self.stores:
            await store.close()


def unanswered(node: int) -> Timeout:
    """The error of a node that has not answered in time."""
    return Timeout(f"node {node + 1} did not answer")


async def quietly(work: Awaitable[object]) -> None:
    """Best-effort work: when it fails, a key expires on its own."""
    try:
        await work
    except BackendError:
        return
