"""`ports.Store` on a Redis Cluster. What is asked of one lock is as on one server; this is what spans slots or nodes.

Promises: each lock has one node, its keys one slot, and each slot one fence counter, which moves with the slot: fences
of one key rise, as on one server. Requests for many locks are sent together to each node. Lists and the audit walk all
primaries. Does not promise: a list that is complete while slots move; exclusion across a failover, because replication
is asynchronous.

Clocks: those of the nodes. `once` uses the node that serves slot 0, the same for all clients.
"""

from __future__ import annotations

import asyncio
import heapq
import time
from collections.abc import Sequence
from typing import Final

from holdfast.core.diagnosis import Severity, StoreFinding
from holdfast.errors import BackendError, BadInput, Misconfigured
from holdfast.runtime.run_sync import run_now
from holdfast.stores.redis.asyncio_driver import Mux
from holdfast.stores.redis.asyncio_subscriber import AsyncioSubscriber
from holdfast.stores.redis.cluster import ClusterColor, ClusterCommands, ClusterNodes
from holdfast.stores.redis.commands import Driver
from holdfast.stores.redis.diagnosis import findings, probe
from holdfast.stores.redis.lock_value import audit_record, glob_escaped, holding, text_or_none
from holdfast.stores.redis.protocol import Reply, ReplyError, garbled, pack, refusal
from holdfast.stores.redis.slots import slot_of, tag_of
from holdfast.stores.redis.store import ACQUIRE, INSPECT, RELEASE, RENEW, ManyRedisStore, renewed
from holdfast.stores.redis.sync_driver import RedisConnectionPool
from holdfast.stores.redis.sync_subscriber import SyncSubscriber
from holdfast.stores.redis.url import RedisAddress, parse_cluster_url
from holdfast.stores.waiter import WakeupSubscriber, WakeupSubscription
from holdfast.types import NS, AcquireRequest, AuditRecord, Busy, Grant, Holding, Renewal

_SCAN: Final = "1000"


class ClusterStore(ManyRedisStore):
    """The store on all nodes of a cluster."""

    def __init__(self, seeds: Sequence[RedisAddress], color: ClusterColor) -> None:
        self._nodes = ClusterNodes(seeds, color, self._tell_followers)
        super().__init__(seeds[0], self._nodes, self._nodes, commands=ClusterCommands(self._nodes))
        self._audits = f"{self._audit_key}:"
        self._slot_fences = f"{seeds[0].namespace}:slot-fence:"

    def __repr__(self) -> str:
        return f"<ClusterStore at {self._address}>"

    def _fence(self, lock: str) -> str:
        # Not "<fence key>:{N}": guards keep the fence of a data key N there.
        return f"{self._slot_fences}{{{tag_of(slot_of(lock))}}}"

    def _audit(self, lock: str) -> str:
        return f"{self._audits}{{{tag_of(slot_of(lock))}}}"

    async def _together(self, locks: Sequence[str], calls: Sequence[bytes], deadline: int) -> list[Reply]:
        """One request for each lock, sent together to each node. None: no answer."""
        replies: list[Reply] = [None] * len(calls)
        by_node: dict[tuple[str, int], list[int]] = {}
        for at, lock in enumerate(locks):
            by_node.setdefault(await self._nodes.node(slot_of(lock), deadline), []).append(at)
        for node, places in by_node.items():
            packed = b"".join([calls[at] for at in places])
            try:
                answers = await self._nodes.retrier(node).call_all(packed, len(places), deadline)
            except BackendError:
                await self._nodes.refresh(deadline)  # its successor is asked the next time
                continue
            for at, reply in zip(places, answers, strict=False):
                replies[at] = reply
        return replies

    def _left(self, deadline: int) -> int:
        return max(1, deadline - self._commands.deadline(0))

    async def acquire_many(self, asks: Sequence[AcquireRequest], timeout_ns: int) -> list[Grant | Busy]:
        """See `ports.AcquiresMany`."""
        if any(ask.ticket is not None or ask.floor for ask in asks):
            raise BadInput("asks", "one has a ticket, or wants a fence from some number on", "ask for it alone")
        deadline = self._commands.deadline(timeout_ns)
        heads = [self._head(ask) for ask in asks]
        locks = [self._lock(ask.key) for ask in asks]
        calls = [ACQUIRE.by_hash(2, self._acquire_words(ask, head)) for ask, head in zip(asks, heads, strict=True)]
        replies: Sequence[Reply] = [None] * len(asks)
        if not self._address.wait_replicas:
            replies = await self._together(locks, calls, deadline)
        answers: list[Grant | Busy] = []
        for ask, head, reply in zip(asks, heads, replies, strict=True):
            if type(reply) is bytes:
                answers.append(self._granted(ask, head, reply))
            elif reply is None or isinstance(reply, ReplyError):
                answers.append(await self.acquire(ask, self._left(deadline)))
            else:
                answers.append(self._busy(ask, reply))
        return answers

    async def release_many(self, grants: Sequence[Grant], timeout_ns: int) -> list[bool | None]:
        """See `ports.AcquiresMany`."""
        deadline = self._commands.deadline(timeout_ns)
        locks = [self._lock(grant.key) for grant in grants]
        calls = [RELEASE.by_hash(2, self._release_words(grant)) for grant in grants]
        answers: list[bool | None] = []
        for grant, reply in zip(grants, await self._together(locks, calls, deadline), strict=True):
            if isinstance(reply, ReplyError):
                left = self._left(deadline)
                answers.append(await self.release(grant.key, grant.token, grant.claim, 0, left))
            else:
                answers.append(reply == 1 if type(reply) is int and reply in (0, 1) else None)
        return answers

    async def renew_many(self, renewals: Sequence[Renewal], timeout_ns: int) -> list[bool | None]:
        """See `ports.Store.renew_many`. One script for the leases of a slot; alone those whose slot is moving."""
        deadline = self._commands.deadline(timeout_ns)
        by_slot: dict[int, list[int]] = {}
        for at, renewal in enumerate(renewals):
            by_slot.setdefault(slot_of(self._prefix + renewal.key), []).append(at)
        chunks = [[renewals[at] for at in places] for places in by_slot.values()]
        words = [self._renewal_words(chunk) for chunk in chunks]
        calls = [RENEW.by_hash(len(chunk), call) for chunk, call in zip(chunks, words, strict=True)]
        replies = await self._together([self._prefix + chunk[0].key for chunk in chunks], calls, deadline)
        answers: list[bool | None] = [None] * len(renewals)
        trouble: BackendError | None = None
        for places, chunk, reply in zip(by_slot.values(), chunks, replies, strict=True):
            try:
                known = renewed(reply, len(chunk)) or await self._one_by_one(chunk, deadline)
            except BackendError as error:
                trouble = error
                continue
            for at, answer in zip(places, known, strict=True):
                answers[at] = answer
        if trouble is not None and not any(answer is not None for answer in answers):
            raise trouble
        return answers

    async def _one_by_one(self, chunk: Sequence[Renewal], deadline: int) -> list[bool | None]:
        answers: list[bool | None] = []
        for renewal in chunk:
            reply = await self._commands.run(RENEW, 1, self._renewal_words([renewal]), deadline)
            if isinstance(reply, ReplyError):
                raise refusal(reply, self._address)
            known = renewed(reply, 1)
            if known is None:
                raise garbled(self._address, "a renewal")
            answers += known
        return answers

    async def _scan(self, node: tuple[str, int], pattern: str, kind: str, deadline: int) -> list[str]:
        found: list[str] = []
        cursor: Reply = b"0"
        while True:
            scan = pack(("SCAN", cursor, "MATCH", pattern, "COUNT", _SCAN, "TYPE", kind))
            reply = await self._nodes.retrier(node).call(scan, deadline)
            if isinstance(reply, ReplyError):
                raise refusal(reply, self._address)
            match reply:
                case [bytes(cursor), list(names)] if all(type(name) is bytes for name in names):
                    found += [name for name in map(text_or_none, names) if name is not None]
                case _:
                    raise garbled(self._address, "a scan")
            if cursor == b"0":
                return found

    async def holdings(self, prefix: str, limit: int, timeout_ns: int, after: str = "") -> list[Holding]:
        """See `ports.Store.holdings`. Walks the keys of all primaries."""
        deadline = self._commands.deadline(timeout_ns)
        found: dict[str, Holding] = {}
        pattern = glob_escaped(self._prefix + prefix) + "*"
        for node in await self._nodes.primaries(deadline):
            names = await self._scan(node, pattern, "string", deadline)
            locks = [name for name in names if name.removeprefix(self._prefix) > after]
            calls = [INSPECT.by_hash(3, self._inspection([lock])) for lock in locks]
            for lock, first in zip(locks, await self._together(locks, calls, deadline), strict=True):
                reply = first
                if first is None or isinstance(first, ReplyError):
                    reply = await self._commands.run(INSPECT, 3, self._inspection([lock]), deadline)
                match reply:
                    case [[bytes(value), int(left_ms), int(tickets), int(listeners)]]:
                        known = holding(lock.removeprefix(self._prefix), value, left_ms, max(tickets, listeners))
                        if known.fence is not None:
                            found[known.key] = known
        return heapq.nsmallest(max(0, limit), found.values(), key=lambda each: each.key)

    async def audit(self, limit: int, timeout_ns: int) -> list[AuditRecord]:
        """See `ports.Store.audit`. Each slot has records of its own."""
        deadline = self._commands.deadline(timeout_ns)
        records: list[AuditRecord] = []
        if limit <= 0:
            return []
        for node in await self._nodes.primaries(deadline):
            streams = await self._scan(node, glob_escaped(self._audits) + "*", "stream", deadline)
            calls = [pack(("XREVRANGE", stream, "+", "-", "COUNT", str(limit))) for stream in streams]
            for stream, reply in zip(streams, await self._together(streams, calls, deadline), strict=True):
                try:
                    records += [audit_record(fields) for _id, fields in reply]
                except (KeyError, ValueError, TypeError, AttributeError):
                    raise Misconfigured(
                        f"redis at {self._address}: {stream} holds records that are not ours, or cannot be read; "
                        "url option namespace: use another one"
                    ) from None
        return sorted(records, key=lambda each: each.wall_ns, reverse=True)[:limit]

    async def _listen(self, lock: str, timeout_ns: int) -> WakeupSubscription:
        """Listen at the node of the lock: a release counts the listeners of its own node only."""
        node = await self._nodes.node(slot_of(lock), self._commands.deadline(timeout_ns))
        return await self._nodes.subscriber(node).open(timeout_ns)

    async def diagnose(self, timeout_ns: int) -> list[StoreFinding]:
        """See `ports.Diagnosable`. Of each check, the worst finding of all primaries."""
        deadline = self._commands.deadline(timeout_ns)
        worst: dict[str, StoreFinding] = {}
        order = list(Severity)
        for node in await self._nodes.primaries(deadline):
            driver = self._nodes.driver(node)
            facts = await probe(driver, deadline, sentinel=False, wait_replicas=self._address.wait_replicas)
            for each in findings(facts):
                known = worst.get(each.check)
                if known is None or order.index(each.severity) > order.index(known.severity):
                    worst[each.check] = each
        return list(worst.values())

    async def _release_by_compare(self, lock: str, claim: str, refused: ReplyError, deadline: int) -> Reply:
        """A cluster that forbids scripts cannot be used."""
        return refused


class ClusterEngine:
    """One cluster and its sync and asyncio stores. Opening it sends nothing; a store connects at its first use."""

    def __init__(self, seeds: Sequence[RedisAddress]) -> None:
        self._seeds = seeds
        self._blocking = ClusterStore(seeds, ThreadClusterColor())
        self.capabilities = self._blocking.capabilities

    @property
    def blocking(self) -> ClusterStore:
        """The store for ordinary code and for the renewer, safe from any thread. Always the same one."""
        return self._blocking

    def asynchronous(self) -> ClusterStore:
        """Make a store for one event loop: the one that first uses it."""
        return ClusterStore(self._seeds, LoopClusterColor())

    def close(self) -> None:
        """Close the idle connections of the blocking store. Asyncio stores are closed by their users."""
        run_now(self._blocking.close())

    def __repr__(self) -> str:
        return f"<ClusterEngine at {', '.join(map(str, self._seeds))}>"


def open_engine(url: str) -> ClusterEngine:
    """Open the engine that a URL names; see `stores.redis.url` for its form."""
    return ClusterEngine(parse_cluster_url(url))


class ThreadClusterColor:
    """For threads."""

    def driver(self, address: RedisAddress) -> Driver:
        """See `ClusterColor`."""
        return RedisConnectionPool(address)

    def subscriber(self, address: RedisAddress) -> WakeupSubscriber:
        """See `ClusterColor`."""
        return SyncSubscriber(address)

    async def sleep(self, ns: int) -> None:
        """See `ClusterColor`."""
        time.sleep(ns / NS)  # noqa: ASYNC251 - the blocking color


class LoopClusterColor:
    """For one event loop."""

    def driver(self, address: RedisAddress) -> Driver:
        """See `ClusterColor`."""
        return Mux(address)

    def subscriber(self, address: RedisAddress) -> WakeupSubscriber:
        """See `ClusterColor`."""
        return AsyncioSubscriber(address)

    async def sleep(self, ns: int) -> None:
        """See `ClusterColor`."""
        await asyncio.sleep(ns / NS)
