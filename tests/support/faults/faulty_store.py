"""A store that does what it is told to: fail, hang, forget the answer, or interrupt its caller. And it counts.

It wraps the memory store, which is a verified fake, so everything that is not told otherwise is the real contract.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

from holdfast.core.ports import LISTEN_NS, AcquiresMany, Capabilities, Store, Watch
from holdfast.errors import Timeout, Unavailable
from holdfast.stores.memory.store import CAPABILITIES, MemoryStore, MemoryTable
from holdfast.types import AcquireRequest, AuditRecord, Busy, Grant, Holding, Renewal

T = TypeVar("T")
Act = Callable[[], object]


class Plan:
    """What happens to which operation, shared by all stores of one engine, and what was asked."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.asked: list[tuple[str, str]] = []
        self.before: dict[str, Act] = {}
        self.after: dict[str, Act] = {}
        self._mutex = threading.Lock()

    def down(self, *operations: str) -> None:
        """From now on these (by default all) fail without effect."""
        for operation in operations or OPERATIONS:
            self.before[operation] = _unavailable

    def silent(self, *operations: str) -> None:
        """From now on these take effect and their answer is lost."""
        for operation in operations or OPERATIONS:
            self.after[operation] = _no_answer

    def well(self) -> None:
        """All is well again."""
        self.before.clear()
        self.after.clear()

    def once(self, when: str, operation: str, act: Act) -> None:
        """Do this `before` or `after` the next such operation, and never again."""
        table: dict[str, Act] = getattr(self, when)

        def only_now() -> object:
            table.pop(operation, None)
            return act()

        table[operation] = only_now

    def heard(self, operation: str, key: str) -> None:
        with self._mutex:
            self.calls[operation] += 1
            self.asked.append((operation, key))


OPERATIONS = (
    *("acquire", "acquire_many", "renew_many", "release", "release_many", "inspect", "holdings"),
    *("force_release", "audit", "leave", "ping"),
)


def _unavailable() -> None:
    raise Unavailable("connection refused")


def _no_answer() -> None:
    raise Timeout("no answer within the limit")


class PlannedStore:
    """`ports.Store` over another store, with a plan."""

    def __init__(self, inner: Store, plan: Plan) -> None:
        self._inner = inner
        self._plan = plan

    @property
    def capabilities(self) -> Capabilities:
        return self._inner.capabilities

    async def _do(self, operation: str, key: str, call: Callable[[], Any]) -> Any:
        self._plan.heard(operation, key)
        before = self._plan.before.get(operation)
        if before is not None:
            result = before()
            if hasattr(result, "__await__"):
                await result
        answer = await call()
        after = self._plan.after.get(operation)
        if after is not None:
            result = after()
            if hasattr(result, "__await__"):
                await result
        return answer

    async def acquire(self, ask: AcquireRequest, timeout_ns: int) -> Grant | Busy:
        result: Grant | Busy = await self._do("acquire", ask.key, lambda: self._inner.acquire(ask, timeout_ns))
        return result

    async def renew_many(self, renewals: Sequence[Renewal], timeout_ns: int) -> list[bool | None]:
        keys = ",".join(renewal.key for renewal in renewals)
        result: list[bool | None] = await self._do(
            "renew_many", keys, lambda: self._inner.renew_many(renewals, timeout_ns)
        )
        return result

    async def release(self, key: str, token: str, claim: str | None, keep_ns: int, timeout_ns: int) -> bool:
        result: bool = await self._do(
            "release", key, lambda: self._inner.release(key, token, claim, keep_ns, timeout_ns)
        )
        return result

    async def acquire_many(self, asks: Sequence[AcquireRequest], timeout_ns: int) -> list[Grant | Busy]:
        keys = ",".join(ask.key for ask in asks)
        inner = cast("AcquiresMany", self._inner)
        result: list[Grant | Busy] = await self._do("acquire_many", keys, lambda: inner.acquire_many(asks, timeout_ns))
        return result

    async def release_many(self, grants: Sequence[Grant], timeout_ns: int) -> list[bool | None]:
        keys = ",".join(grant.key for grant in grants)
        inner = cast("AcquiresMany", self._inner)
        result: list[bool | None] = await self._do("release_many", keys, lambda: inner.release_many(grants, timeout_ns))
        return result

    async def inspect(self, key: str, timeout_ns: int) -> Holding | None:
        result: Holding | None = await self._do("inspect", key, lambda: self._inner.inspect(key, timeout_ns))
        return result

    async def holdings(self, prefix: str, limit: int, timeout_ns: int, after: str = "") -> list[Holding]:
        result: list[Holding] = await self._do(
            "holdings", prefix, lambda: self._inner.holdings(prefix, limit, timeout_ns, after)
        )
        return result

    async def force_release(self, key: str, actor: str, reason: str, timeout_ns: int) -> AuditRecord | None:
        result: AuditRecord | None = await self._do(
            "force_release", key, lambda: self._inner.force_release(key, actor, reason, timeout_ns)
        )
        return result

    async def audit(self, limit: int, timeout_ns: int) -> list[AuditRecord]:
        result: list[AuditRecord] = await self._do("audit", "", lambda: self._inner.audit(limit, timeout_ns))
        return result

    async def leave(self, key: str, ticket: str, timeout_ns: int) -> None:
        await self._do("leave", key, lambda: self._inner.leave(key, ticket, timeout_ns))

    async def watch(self, key: str, timeout_ns: int = LISTEN_NS) -> Watch:
        self._plan.heard("watch", key)
        return await self._inner.watch(key, timeout_ns)

    async def ping(self, timeout_ns: int) -> None:
        await self._do("ping", "", lambda: self._inner.ping(timeout_ns))

    async def close(self) -> None:
        await self._inner.close()


class PlannedEngine:
    """A memory table whose stores follow a plan."""

    def __init__(self, table: MemoryTable, plan: Plan) -> None:
        self.table = table
        self.plan = plan
        self._blocking = PlannedStore(MemoryStore(table), plan)

    @property
    def capabilities(self) -> Capabilities:
        return CAPABILITIES

    @property
    def blocking(self) -> PlannedStore:
        return self._blocking

    def asynchronous(self) -> PlannedStore:
        return PlannedStore(MemoryStore(self.table, asynchronous=True), self.plan)
