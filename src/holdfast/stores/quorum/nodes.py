"""The nodes of a quorum: asks all of them concurrently, waits for as many as decide, and tracks which are healthy.

Every question has a deadline, on the monotonic clock of this host, which each node's request keeps as well. When a
majority has decided, the other nodes are heard for a moment more, so that usually all of them have what was decided. A
node that failed, or took longer than that, is asked last for a while, and is not waited for. A caller that is cancelled
while it asks takes back what has not been answered; what may have come of it is unknown, as with any other store.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TypeAlias, TypeVar

from holdfast.core.lease.quorum import majority
from holdfast.core.ports import Clock, Store
from holdfast.errors import BackendError, Timeout, Unavailable
from holdfast.stores.quorum.ballot import Answers, Ballot, no_quorum
from holdfast.stores.quorum.fan_out import Crew
from holdfast.types import NS

T = TypeVar("T")
Call: TypeAlias = Callable[[Store, int], Awaitable[T]]
Enough: TypeAlias = Callable[[Answers[T]], bool]

SHY_NS = 5 * NS  # for how long a slow node is asked last


class Nodes:
    """Several stores of one colour, and the crew that asks them."""

    def __init__(
        self, stores: Sequence[Store], crew: Crew, clock: Clock, shy_until_ns: list[int], hedge_ns: int
    ) -> None:
        """`shy_until_ns`: until when each node is asked last; shared by the stores of one engine.

        `hedge_ns`: how much longer than the others a node may take before it is not waited for.
        """
        self.stores = stores
        self.hedge_ns = hedge_ns
        self.crew = crew
        self.number = len(stores)
        self.need = majority(self.number)
        self._clock = clock
        self._shy_until_ns = shy_until_ns

    def now_ns(self) -> int:
        """The clock of deadlines."""
        return self._clock.now().mono

    def in_order(self) -> list[int]:
        """All nodes, those that are well first."""
        now = self.now_ns()
        return sorted(range(self.number), key=lambda node: self._shy_until_ns[node] > now)

    def is_slow(self, node: int) -> None:
        """It has kept a caller waiting."""
        self._shy_until_ns[node] = self.now_ns() + SHY_NS

    async def all_that_are_well(self, what: str, call: Call[T], timeout_ns: int) -> dict[int, T]:
        """What each node says that is well; at least a majority of them, or an error."""
        now = self.now_ns()
        well = [node for node, until in enumerate(self._shy_until_ns) if until <= now]

        def enough(answers: Answers[T]) -> bool:
            heard = sum(not isinstance(each, BackendError) for each in answers.values())
            return len(answers) == self.number or (heard >= self.need and all(node in answers for node in well))

        answers = await self.canvass(range(self.number), call, now + timeout_ns, enough)
        said = {node: each for node, each in sorted(answers.items()) if not isinstance(each, BackendError)}
        if len(said) < self.need:
            raise self.failed(what, answers, harmless=True)
        return said

    async def canvass(self, nodes: Iterable[int], call: Call[T], deadline: int, enough: Enough[T]) -> Answers[T]:
        """Ask these nodes at the same time; return when it is enough, or the time is over."""
        return (await self.open(nodes, call, deadline, enough)).close()

    async def open(
        self, nodes: Iterable[int], call: Call[T], deadline: int, enough: Enough[T], wait_until: int | None = None
    ) -> Ballot[T]:
        """The same, and the caller closes the ballot. `wait_until`: the caller's own deadline, if it is another."""
        wait_until = deadline if wait_until is None else wait_until
        ballot: Ballot[T] = Ballot(self.crew.signal(), enough)
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
        """It is decided. Those that are well are heard for a moment more; who takes longer is slow from now on."""
        now = self.now_ns()
        well = [node for node in ballot.silent if self._shy_until_ns[node] <= now]
        if ballot.wait_for(well) and not await ballot.signal.wait(min(self.hedge_ns, deadline - now)):
            for node in well:
                if node in ballot.silent:
                    self.is_slow(node)

    def ask(self, ballot: Ballot[T], node: int, call: Call[T], deadline: int) -> None:
        """Begin to ask one node."""
        ballot.asked[node] = self.crew.start(node, self._asking(ballot, node, call, deadline))

    async def _asking(self, ballot: Ballot[T], node: int, call: Call[T], deadline: int) -> None:
        """One node's job. Every end of it is an answer, and none goes unheard."""
        answer: T | BackendError
        try:
            left = deadline - self.now_ns()
            if left <= 0:
                raise Unavailable(f"node {node + 1} was not asked: too many wait for it")
            answer = await call(self.stores[node], left)
        except BackendError as error:
            answer = error
            self.is_slow(node)
        except Exception as error:  # noqa: BLE001 - a bug, or refused input: it belongs to the caller
            ballot.fail(error)
            return
        else:
            self._shy_until_ns[node] = 0
        afterwards = ballot.cast(node, answer)
        if afterwards is not None:
            await quietly(afterwards(node, answer))

    def abandon(self, ballot: Ballot[T]) -> None:
        """The caller is gone, and releases what may have come of its requests."""
        for node in ballot.silent:
            self.crew.stop(ballot.asked[node])

    def failed(self, what: str, answers: Answers[T], *, harmless: bool) -> BackendError:
        """The error that these answers are: too few. `harmless`: nothing can have come of what was answered."""
        errors = {node: each for node, each in answers.items() if isinstance(each, BackendError)}
        return no_quorum(what, self.number, errors, self.number - len(answers), harmless=harmless)

    async def close(self) -> None:
        """Wait a moment for what is under way, and close the stores."""
        await self.crew.close()
        for store in self.stores:
            await store.close()


def unanswered(node: int) -> Timeout:
    """What it is when a node has not answered in time."""
    return Timeout(f"node {node + 1} did not answer")


async def quietly(work: Awaitable[object]) -> None:
    """Best-effort work: when it fails, a key expires on its own."""
    try:
        await work
    except BackendError:
        return
