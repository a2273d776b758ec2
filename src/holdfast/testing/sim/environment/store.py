"""The store of a simulated world: the memory store's own table, on the clock of a server, behind the network.

`LeaseServer` is also the witness of the truth: it records what it hands out, extends and ends; no client can know that.
`SimStore` is `ports.Store` as one connection of one host sees it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from holdfast.core.history.events import EventKind, Record
from holdfast.core.ports import LISTEN_NS, Capabilities, Watch
from holdfast.errors import Timeout
from holdfast.stores.memory.store import CAPABILITIES
from holdfast.stores.memory.table import MemoryTable, TableSnapshot
from holdfast.testing.sim.environment.clock import SimClock
from holdfast.testing.sim.environment.loop import SimLoop
from holdfast.testing.sim.environment.network import Network, Server
from holdfast.types import NS, AcquireRequest, AuditRecord, Busy, Grant, Holding, Renewal

Note = Callable[[Record], None]


class LeaseServer(Server):
    """The engine: a table that can restart, forget, and go back to an older state."""

    def __init__(self, loop: SimLoop, clock: SimClock, note: Note, name: str = "store") -> None:
        super().__init__(name)
        self.loop = loop
        self.clock = clock
        self.table = MemoryTable(clock)
        self.fences: dict[tuple[str, str], int] = {}  # (key, token) -> the fence of its latest grant
        self.tenancy = Tenancy()
        self._note = note
        self._backup: TableSnapshot | None = None
        self._unlisten: list[Callable[[], None]] = []

    def acquire(self, ask: AcquireRequest) -> Grant | Busy:
        """One step on the table."""
        answer = self.table.acquire(ask)
        if isinstance(answer, Grant):
            self.tenancy.taken(ask.key, self.loop.now_ns, self.clock.true_ns(ask.ttl_ns))
        if isinstance(answer, Grant) and self.fences.get((ask.key, ask.token)) != answer.fence:
            self.fences[ask.key, ask.token] = answer.fence
            self.record(EventKind.HANDED, ask.key, answer.fence, ask.owner)
        return answer

    def renew(self, renewals: Sequence[Renewal]) -> list[bool | None]:
        """One step on the table."""
        answers = self.table.renew(renewals)
        for renewal, answer in zip(renewals, answers, strict=True):
            if answer:
                self.tenancy.taken(renewal.key, self.loop.now_ns, self.clock.true_ns(renewal.ttl_ns))
                self.record(EventKind.EXTENDED, renewal.key, self.fences.get((renewal.key, renewal.token)))
        return answers

    def release(self, key: str, token: str, keep_ns: int) -> bool:
        """One step on the table."""
        ours = self.table.release(key, token, keep_ns)
        if ours:
            self.tenancy.freed(key, self.loop.now_ns)
            self.record(EventKind.ENDED, key, self.fences.get((key, token)))
        return ours

    def force_release(self, key: str, actor: str, reason: str) -> AuditRecord | None:
        """One step on the table."""
        record = self.table.force_release(key, actor, reason)
        if record is not None:
            self.tenancy.freed(key, self.loop.now_ns)
            self.record(EventKind.FORCED, key, record.fence, actor)
        return record

    def listen(self, key: str, listener: Callable[[], None]) -> Callable[[], None]:
        """An ear at the table, until a restart."""
        unlisten = self.table.listen(key, listener)
        self._unlisten.append(unlisten)
        return unlisten

    def step(self, by_ns: int) -> None:
        """Set its wall clock. Others take locks all the time: the counter of fences knows the time before and after."""
        self._serve_others()
        self.clock.step(by_ns)
        self._serve_others()

    def back_up(self) -> None:
        """Remember the present state, as a replica that lags from now on does."""
        self._backup = self.table.snapshot()

    def forget(self, *, to_backup: bool) -> None:
        """Lose everything, or what came after the backup."""
        if to_backup and self._backup is not None:
            self.table.restore(self._backup)
        else:
            self.table.forget()
        self.tenancy.all_freed(self.loop.now_ns)
        self.record(EventKind.FORGOT, "", None)

    def hang_up(self) -> None:
        """Drop every connection: who listened hears nothing any more."""
        for unlisten in self._unlisten:
            unlisten()
        self._unlisten = []

    def _serve_others(self) -> None:
        """Grant a lock that has nothing to do with this world."""
        self.table.acquire(AcquireRequest("a lock of others", "no waiter", "others", "", ttl_ns=0))

    def record(self, kind: EventKind, key: str, fence: int | None, owner: str = "") -> None:
        """Write down what happened here, now."""
        self._note(Record(kind, self.loop.now_ns, key, owner=owner, fence=fence))


class Tenancy:
    """For how long keys were taken, all in all: what the store knew of it, without what it has forgotten."""

    def __init__(self) -> None:
        self._since: dict[str, tuple[int, int]] = {}  # key -> from when, and until when at the latest
        self._total_ns = 0

    def taken(self, key: str, now_ns: int, for_ns: int) -> None:
        """A holder has it from now on, or for longer."""
        since = self._since.get(key)
        if since is None or since[1] <= now_ns:
            self.freed(key, now_ns)
            since = now_ns, now_ns
        self._since[key] = since[0], now_ns + for_ns

    def freed(self, key: str, now_ns: int) -> None:
        """It has no holder from now on, unless its lease had expired before."""
        since = self._since.pop(key, None)
        if since is not None:
            self._total_ns += min(now_ns, since[1]) - since[0]

    def all_freed(self, now_ns: int) -> int:
        """No key has a holder. Returns for how long all keys were held until now."""
        for key in list(self._since):
            self.freed(key, now_ns)
        return self._total_ns


class SimStore:
    """`ports.Store` over the simulated network. Every connection of a host (its loop's, its renewer's) has its own."""

    def __init__(self, network: Network, server: LeaseServer, host: str) -> None:
        self._network = network
        self._server = server
        self._host = host
        self.sent_ns: dict[tuple[str, str], int] = {}  # (key, token) -> true time of the last confirmed request
        self.refused_ns: dict[tuple[str, str], int] = {}  # (key, token) -> when a refusal arrived
        self.asked_ns: dict[tuple[str, int], int] = {}  # (key, fence) -> true time at which the grant was requested
        self.failpoint: Callable[[str], object] = _pass
        self.dead = False

    @property
    def capabilities(self) -> Capabilities:
        """What it can do: the same as the memory store."""
        return CAPABILITIES

    async def acquire(self, ask: AcquireRequest, timeout_ns: int) -> Grant | Busy:
        """See `ports.Store.acquire`."""
        sent = self._network.loop.now_ns
        answer: Grant | Busy = await self.call("acquire", ask.key, lambda: self._server.acquire(ask), timeout_ns)
        if isinstance(answer, Grant):
            self.sent_ns[ask.key, ask.token] = sent
            self.asked_ns.setdefault((ask.key, answer.fence), sent)
        return answer

    async def renew_many(self, renewals: Sequence[Renewal], timeout_ns: int) -> list[bool | None]:
        """See `ports.Store.renew_many`."""
        sent = self._network.loop.now_ns
        asked = list(renewals)
        answers: list[bool | None] = await self.call(
            "renew", asked[0].key, lambda: self._server.renew(asked), timeout_ns
        )
        for renewal, answer in zip(asked, answers, strict=True):
            if answer:
                self.sent_ns[renewal.key, renewal.token] = sent
            elif answer is False:
                self.refused_ns[renewal.key, renewal.token] = self._network.loop.now_ns
        return answers

    async def release(self, key: str, token: str, claim: str | None, keep_ns: int, timeout_ns: int) -> bool:
        """See `ports.Store.release`."""
        answer: bool = await self.call("release", key, lambda: self._server.release(key, token, keep_ns), timeout_ns)
        return answer

    async def acquire_many(self, asks: Sequence[AcquireRequest], timeout_ns: int) -> list[Grant | Busy]:
        """See `ports.AcquiresMany`."""
        sent, asked = self._network.loop.now_ns, list(asks)
        answers: list[Grant | Busy] = await self.call(
            "acquire", asked[0].key, lambda: [self._server.acquire(ask) for ask in asked], timeout_ns
        )
        for answer in answers:
            if isinstance(answer, Grant):
                self.sent_ns[answer.key, answer.token] = sent
                self.asked_ns.setdefault((answer.key, answer.fence), sent)
        return answers

    async def release_many(self, grants: Sequence[Grant], timeout_ns: int) -> list[bool | None]:
        """See `ports.AcquiresMany`."""
        given = list(grants)
        answers: list[bool | None] = await self.call(
            "release",
            given[0].key,
            lambda: [self._server.release(each.key, each.token, 0) for each in given],
            timeout_ns,
        )
        return answers

    async def inspect(self, key: str, timeout_ns: int) -> Holding | None:
        """See `ports.Store.inspect`."""
        found: Holding | None = await self.call("inspect", key, lambda: self._server.table.inspect(key), timeout_ns)
        return found

    async def holdings(self, prefix: str, limit: int, timeout_ns: int, after: str = "") -> list[Holding]:
        """See `ports.Store.holdings`."""
        found: list[Holding] = await self.call(
            "holdings", prefix, lambda: self._server.table.holdings(prefix, limit, after), timeout_ns
        )
        return found

    async def force_release(self, key: str, actor: str, reason: str, timeout_ns: int) -> AuditRecord | None:
        """See `ports.Store.force_release`."""
        record: AuditRecord | None = await self.call(
            "force", key, lambda: self._server.force_release(key, actor, reason), timeout_ns
        )
        return record

    async def audit(self, limit: int, timeout_ns: int) -> list[AuditRecord]:
        """See `ports.Store.audit`."""
        records: list[AuditRecord] = await self.call("audit", "", lambda: self._server.table.audit(limit), timeout_ns)
        return records

    async def leave(self, key: str, ticket: str, timeout_ns: int) -> None:
        """See `ports.Store.leave`."""
        await self.call("leave", key, lambda: self._server.table.leave(key, ticket), timeout_ns)

    async def watch(self, key: str, timeout_ns: int = LISTEN_NS) -> Watch:
        """See `ports.Store.watch`."""
        watch = SimWatch(self._network, self._server, self._host, key)
        try:
            await self.call("watch", key, watch.open, timeout_ns)
        except BaseException:
            watch.drop()  # it is not returned, so no caller will close it
            raise
        return watch

    async def ping(self, timeout_ns: int) -> None:
        """See `ports.Store.ping`."""
        await self.call("ping", "", lambda: None, timeout_ns)

    async def close(self) -> None:
        """See `ports.Store.close`."""

    async def call(self, verb: str, key: str, act: Callable[[], Any], timeout_ns: int) -> Any:
        """One request and its reply, or `Timeout`."""
        what = f"{verb} {key}"
        if self.dead:
            raise Timeout(f"{what}: the world is over")
        self.failpoint(f"before {verb}")
        answer = self._network.call(self._host, self._server, what, act)
        outcome = await answered(self._network.loop, answer, what, timeout_ns)
        self.failpoint(f"after {verb}")
        return outcome


class SimWatch:
    """An ear at a key, at the far end of the network: hints come late, or never."""

    def __init__(self, network: Network, server: LeaseServer, host: str, key: str) -> None:
        self._network = network
        self._server = server
        self._host = host
        self._key = key
        self._hint = asyncio.Event()
        self._unlisten: Callable[[], None] | None = None
        self._closed = False

    def open(self) -> None:
        """Runs at the server."""
        if self._unlisten is None and not self._closed:
            self._unlisten = self._server.listen(self._key, self._heard)

    def _heard(self) -> None:
        self._network.tell(self._server.name, self._host, self._hint.set)

    async def wait(self, timeout_ns: int) -> bool:
        """See `ports.Watch.wait`."""
        if not self._hint.is_set():
            try:
                async with asyncio.timeout(max(0, timeout_ns) / NS):
                    await self._hint.wait()
            except TimeoutError:
                return False
        self._hint.clear()
        return True

    async def close(self) -> None:
        """See `ports.Watch.close`. Suspends once, as a driver that tells its server does."""
        self.drop()
        await asyncio.sleep(0)

    def drop(self) -> None:
        """Stop listening, now or when the request to listen arrives after all."""
        self._closed = True
        if self._unlisten is not None:
            self._unlisten()


class SimEngine:
    """`stores.registry.Engine` of one host: its connections to the simulated store."""

    def __init__(self, network: Network, server: LeaseServer, host: str) -> None:
        self._blocking = SimStore(network, server, host)
        self._asynchronous = SimStore(network, server, host)
        self._know_the_same()

    def _know_the_same(self) -> None:
        """The renewer renews what the loop has acquired: what is known of a lease is known to both connections."""
        self._asynchronous.sent_ns = self._blocking.sent_ns
        self._asynchronous.asked_ns = self._blocking.asked_ns
        self._asynchronous.refused_ns = self._blocking.refused_ns

    @property
    def capabilities(self) -> Capabilities:
        """What its stores can do."""
        return CAPABILITIES

    @property
    def blocking(self) -> SimStore:
        """The renewer's connection. It suspends here, because the simulated keeper runs on the loop."""
        return self._blocking

    def asynchronous(self) -> SimStore:
        """The connection of the host's event loop."""
        return self._asynchronous


def _pass(_: str) -> None:
    """No failpoint."""


async def answered(loop: SimLoop, answer: asyncio.Future[Any], what: str, timeout_ns: int) -> Any:
    """Wait for a reply; `Timeout` when it takes too long."""
    timer = loop.call_after_ns(timeout_ns, _expire, answer, what)
    try:
        return await answer
    finally:
        timer.cancel()
        if answer.done() and not answer.cancelled():
            answer.exception()  # seen: a caller that is cancelled at this very moment does not leave it unretrieved


def _expire(answer: asyncio.Future[Any], what: str) -> None:
    if not answer.done():
        answer.set_exception(Timeout(f"{what}: no answer"))
