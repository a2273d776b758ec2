"""A quorum of five nodes in memory to which things can happen, in both colours."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from holdfast.core.ports import Store
from holdfast.errors import BackendError
from holdfast.runtime.run_sync import run_now
from holdfast.stores.memory.store import MemoryEngine, MemoryStore, MemoryTable
from holdfast.stores.quorum.engine import QuorumEngine
from holdfast.types import NS, Ask, Busy, Grant, Renewal

LONG = 60 * NS
CALL = 60 * NS  # nothing here depends on how quick anything is


class NodeStore(MemoryStore):
    """A node in memory to which things can happen."""

    def __init__(self, node: Node, *, asynchronous: bool) -> None:
        super().__init__(node.table, asynchronous=asynchronous)
        self._node = node
        self._asynchronous = asynchronous

    async def acquire(self, ask: Ask, timeout_ns: int) -> Grant | Busy:
        await self._reach()
        while self._node.delays:
            if self._asynchronous:
                await asyncio.sleep(0.001)
            else:
                self._node.woken.wait()
        return await super().acquire(ask, timeout_ns)

    async def renew_many(self, renewals: Sequence[Renewal], timeout_ns: int) -> list[bool | None]:
        await self._reach()
        return await super().renew_many(renewals, timeout_ns)

    async def release(self, key: str, token: str, claim: str | None, keep_ns: int, timeout_ns: int) -> bool:
        await self._reach()
        return await super().release(key, token, claim, keep_ns, timeout_ns)

    async def inspect(self, key: str, timeout_ns: int) -> Any:
        await self._reach()
        return await super().inspect(key, timeout_ns)

    async def ping(self, timeout_ns: int) -> None:
        await self._reach()

    async def _reach(self) -> None:
        self._node.asked += 1
        if self._node.error is not None:
            raise self._node.error
        while self._node.hangs:
            if self._asynchronous:
                await asyncio.sleep(0.001)
            else:
                self._node.woken.wait()


class Node(MemoryEngine):
    """One engine of a quorum. It can fail, hang until it is told not to, and its leases can be looked at."""

    def __init__(self, number: int) -> None:
        super().__init__(MemoryTable(), url=f"memory://{number}")
        self.error: BackendError | None = None
        self.hangs = False
        self.delays = False  # acquires alone: what is asked later is answered first
        self.woken = threading.Event()
        self.asked = 0
        self._here = NodeStore(self, asynchronous=False)

    @property
    def blocking(self) -> NodeStore:
        return self._here

    def asynchronous(self) -> NodeStore:
        return NodeStore(self, asynchronous=True)

    def wake(self) -> None:
        """What was hanging goes on."""
        self.hangs = self.delays = False
        self.woken.set()

    def holder(self, key: str) -> str | None:
        holding = self.table.inspect(key)
        return None if holding is None else holding.owner


Scenario = Callable[[Store, list[Node]], Awaitable[None]]
Play = Callable[[Scenario], None]


@pytest.fixture(params=["blocking", "asyncio"])
def play_quorum(request: pytest.FixtureRequest) -> Play:
    """Run a scenario on a quorum of five nodes, in one colour; the test runs once for each."""

    def run(scenario: Scenario) -> None:
        nodes = [Node(number) for number in range(5)]
        engine = QuorumEngine(nodes, hedge_ns=10**7)

        async def main(store: Store) -> None:
            try:
                await scenario(store, nodes)
            finally:
                for node in nodes:
                    node.wake()
                await store.close()

        async def on_a_loop() -> None:
            await main(engine.asynchronous())

        if request.param == "asyncio":
            asyncio.run(on_a_loop())
        else:
            run_now(main(engine.blocking))

    return run


def ask(token: str = "mine", ttl_ns: int = LONG) -> Ask:
    return Ask("k", token * 4, f"{token}@host:1/a", "family", ttl_ns)


async def granted(store: Store, wanted: Ask) -> Grant:
    answer = await store.acquire(wanted, CALL)
    assert isinstance(answer, Grant)
    return answer


def fail(nodes: Sequence[Node], error: BackendError) -> None:
    for node in nodes:
        node.error = error
