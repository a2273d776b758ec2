"""Requests to a Redis Cluster: each goes to the node that serves the slot of its first key.

Promises: a request that meets the wrong node (`MOVED`) or a slot that is moving (`ASK`, `TRYAGAIN`) is repeated at the
right one within its deadline; such a reply means that nothing was done. A request whose node is away looks for the
successor once. The map of slots is read again after that, at most once a second. When slots have new nodes, followers
are notified: after a failover the new node may not know every lease.

Does not promise to grant a free key while its slot is moving: the lock and the fence counter are two keys, and a node
that has only one of them refuses both (`TRYAGAIN`). The request is repeated until its deadline; moving a slot usually
takes some milliseconds. Leases in the slot are renewed meanwhile, because that needs one key each.

Clock: the driver's.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any, Final, Protocol, TypeAlias

from holdfast.errors import BackendError, Timeout, Unavailable
from holdfast.stores.redis.commands import CommandRetrier, Driver
from holdfast.stores.redis.protocol import ConnectionBroken, RedisScript, Reply, ReplyError, Word, is_noscript, pack
from holdfast.stores.redis.slots import SLOTS, slot_of
from holdfast.stores.redis.url import RedisAddress
from holdfast.stores.waiter import WakeupSubscriber, WakeupSubscription
from holdfast.types import MS, NS

Node: TypeAlias = tuple[str, int]
Attempt: TypeAlias = Callable[[CommandRetrier], Awaitable[Reply]]

REDIRECTS_MAX: Final = 16
REFRESH_NS: Final = NS  # the map is read again at most so often
ASK_NS: Final = 500 * MS  # one node may take so long to say who serves which slots
PAUSE_NS: Final = 10 * MS  # before a slot that is moving is asked again


class ClusterColor(Protocol):
    """What differs between threads and an event loop."""

    def driver(self, address: RedisAddress) -> Driver:
        """A driver for one node."""
        ...

    def subscriber(self, address: RedisAddress) -> WakeupSubscriber:
        """A subscriber for one node."""
        ...

    async def sleep(self, ns: int) -> None:
        """Wait."""
        ...


class ClusterNodes:
    """The nodes of one cluster, as one store knows them."""

    def __init__(self, seeds: Sequence[RedisAddress], color: ClusterColor, moved: Callable[[], None]) -> None:
        self._template = seeds[0]
        self._seeds = [(seed.host, seed.port) for seed in seeds]
        self._color = color
        self._moved = moved
        self._slots: list[Node | None] = [None] * SLOTS
        self._drivers: dict[Node, Driver] = {}
        self._retriers: dict[Node, CommandRetrier] = {}
        self._subscribers: dict[Node, WakeupSubscriber] = {}
        self._stale = True
        self._read_ns: int | None = None

    def deadline(self, timeout_ns: int) -> int:
        """When a call that may take so long has to be over."""
        return self.driver(self._seeds[0]).deadline(timeout_ns)

    def driver(self, node: Node) -> Driver:
        """The connections to one node."""
        driver = self._drivers.get(node)
        if driver is None:
            driver = self._drivers[node] = self._color.driver(self._address(node))
        return driver

    def _address(self, node: Node) -> RedisAddress:
        return replace(self._template, host=node[0], port=node[1])

    def retrier(self, node: Node) -> CommandRetrier:
        """Asks one node."""
        retrier = self._retriers.get(node)
        if retrier is None:
            retrier = self._retriers[node] = CommandRetrier(self.driver(node))
        return retrier

    def subscriber(self, node: Node) -> WakeupSubscriber:
        """Listens at one node."""
        subscriber = self._subscribers.get(node)
        if subscriber is None:
            subscriber = self._subscribers[node] = self._color.subscriber(self._address(node))
        return subscriber

    async def node(self, slot: int, deadline: int) -> Node:
        """The node that serves a slot, as far as is known."""
        if self._stale or self._slots[slot] is None:
            await self.refresh(deadline)
        node = self._slots[slot]
        if node is None:
            raise Unavailable(f"redis cluster at {self._template}: no node serves slot {slot}")
        return node

    async def primaries(self, deadline: int) -> list[Node]:
        """All nodes that serve slots."""
        await self.node(0, deadline)
        return sorted({node for node in self._slots if node is not None})

    async def refresh(self, deadline: int) -> None:
        """Read the map from the first node that answers. One that was read just now is not read again."""
        now = self.deadline(0)
        if self._read_ns is not None and now - self._read_ns < REFRESH_NS and self._slots[0] is not None:
            return
        trouble: BackendError | None = None
        for node in dict.fromkeys([*(each for each in self._slots[:: SLOTS // 64] if each), *self._seeds]):
            limit = min(deadline, self.deadline(ASK_NS))
            try:
                reply = await self.driver(node).call(pack(("CLUSTER", "SLOTS")), limit)
            except BackendError as error:
                trouble = error
                continue
            fresh = _parsed(reply, node)
            if fresh is not None:
                self._take(fresh)
                return
            trouble = Unavailable(f"redis at {self._address(node)} is no node of a working cluster")
        raise trouble or Unavailable(f"redis cluster at {self._template} could not be reached")

    def _take(self, fresh: list[Node | None]) -> None:
        former, self._slots = self._slots, fresh
        self._stale = False
        self._read_ns = self.deadline(0)
        if any(old is not None and old != new for old, new in zip(former, fresh, strict=True)):
            self._moved()

    async def ask(self, key: str, attempt: Attempt, asking: Callable[[bool], bytes], deadline: int) -> Reply:
        """Make a request at the node of a key.

        `asking(whole)` is the request as bytes, with the body of its script or without, for a slot that is moving.
        """
        slot = slot_of(key)
        looked = False
        for _ in range(REDIRECTS_MAX * 1000):  # ended by the deadline; bounded all the same
            node = await self.node(slot, deadline)
            try:
                reply = await attempt(self.retrier(node))
            except ConnectionBroken:
                self._stale, self._read_ns = True, None
                raise
            except Unavailable:  # certainly not done: perhaps the node has a successor
                self._stale, self._read_ns = True, None
                if looked or self.deadline(0) >= deadline:
                    raise
                looked = True
                continue
            except Timeout:
                self._stale = True
                raise
            target = _redirected(reply, node)
            if target is not None and str(reply).startswith("ASK "):
                reply = await self._asking(target, asking, deadline)
            elif target is not None:
                self._slots[slot] = target
                self._stale = self._stale or self._read_ns is None or self.deadline(0) - self._read_ns > REFRESH_NS
                if self.deadline(0) >= deadline:
                    break
                continue
            if not _moving(reply):
                return reply
            if self.deadline(0) + PAUSE_NS >= deadline:
                break
            self._stale = True
            await self._color.sleep(PAUSE_NS)
        raise Unavailable(f"redis cluster at {self._template}: slot {slot} is moving or has no node; try again")

    async def _asking(self, node: Node, asking: Callable[[bool], bytes], deadline: int) -> Reply:
        """Ask the node that a slot is moving to. Both commands are sent together on one connection."""
        driver, prefix = self.driver(node), pack(("ASKING",))
        replies = await driver.call_all(prefix + asking(False), 2, deadline)
        if len(replies) > 1 and is_noscript(replies[1]):
            replies = await driver.call_all(prefix + asking(True), 2, deadline)
        if len(replies) < 2:
            raise Timeout(f"redis at {self._address(node)} did not answer; it may have taken effect")
        return replies[1]

    async def call(self, packed: bytes, deadline_ns: int) -> Reply:
        """See `Driver`: a command without a key is for the node that serves slot 0, the same for all clients."""
        return await self.driver(await self.node(0, deadline_ns)).call(packed, deadline_ns)

    async def call_all(self, packed: bytes, count: int, deadline_ns: int) -> list[Reply]:
        """See `Driver`."""
        return await self.driver(await self.node(0, deadline_ns)).call_all(packed, count, deadline_ns)

    async def distrust(self) -> None:
        """See `Driver`."""
        self._stale, self._read_ns = True, None

    async def open(self, timeout_ns: int) -> WakeupSubscription:
        """See `WakeupSubscriber`: at the node that serves slot 0."""
        return await self.subscriber(await self.node(0, self.deadline(timeout_ns))).open(timeout_ns)

    async def close(self) -> None:
        """Close idle connections."""
        for subscriber in list(self._subscribers.values()):
            await subscriber.close()
        for driver in list(self._drivers.values()):
            await driver.close()


class ClusterCommands(CommandRetrier):
    """A `CommandRetrier` for scripts whose first key says which node to ask."""

    __slots__ = ("_nodes",)

    def __init__(self, nodes: ClusterNodes) -> None:
        super().__init__(nodes)
        self._nodes = nodes

    async def run(self, script: RedisScript, keys: int, words: Sequence[Word], deadline_ns: int) -> Reply:
        """See `CommandRetrier.run`."""
        return await self._at(script, keys, words, deadline_ns, lambda at: at.run(script, keys, words, deadline_ns))

    async def run_once(self, script: RedisScript, keys: int, words: Sequence[Word], deadline_ns: int) -> Reply:
        """See `CommandRetrier.run_once`."""
        return await self._at(
            script, keys, words, deadline_ns, lambda at: at.run_once(script, keys, words, deadline_ns)
        )

    async def run_acknowledged(
        self, script: RedisScript, keys: int, words: Sequence[Word], replicas: int, wait_ns: int, deadline_ns: int
    ) -> tuple[Reply, Reply]:
        """See `CommandRetrier.run_acknowledged`."""
        acknowledged: list[Reply] = [None]

        async def attempt(at: CommandRetrier) -> Reply:
            reply, acknowledged[0] = await at.run_acknowledged(script, keys, words, replicas, wait_ns, deadline_ns)
            return reply

        return await self._at(script, keys, words, deadline_ns, attempt), acknowledged[0]

    async def once_more(
        self, severed: ConnectionBroken, script: RedisScript, keys: int, words: Sequence[Word], deadline_ns: int
    ) -> Reply:
        """See `CommandRetrier.once_more`."""
        return await self._at(
            script, keys, words, deadline_ns, lambda at: at.once_more(severed, script, keys, words, deadline_ns)
        )

    async def _at(
        self, script: RedisScript, keys: int, words: Sequence[Word], deadline_ns: int, attempt: Attempt
    ) -> Reply:
        key = words[0]

        def packed(whole: bool) -> bytes:
            return (script.whole if whole else script.by_hash)(keys, words)

        return await self._nodes.ask(key if isinstance(key, str) else key.decode(), attempt, packed, deadline_ns)


def _parsed(reply: Reply, asked: Node) -> list[Node | None] | None:
    """The map of CLUSTER SLOTS; None if it is none."""
    if not isinstance(reply, list) or not reply:
        return None
    slots: list[Node | None] = [None] * SLOTS
    for each in reply:
        match each:
            case [int(first), int(last), [host, int(port), *_], *_] if 0 <= first <= last < SLOTS:
                name = host.decode(errors="replace") if isinstance(host, bytes) else ""
                slots[first : last + 1] = [(name or asked[0], port)] * (last - first + 1)
            case _:
                return None
    return slots


def _redirected(reply: Reply, asked: Node) -> Node | None:
    """Where MOVED or ASK points to."""
    words = str(reply).split(" ") if isinstance(reply, ReplyError) else []
    if len(words) == 3 and words[0] in ("MOVED", "ASK"):
        host, _, port = words[2].rpartition(":")
        if port.isdigit():
            return host.strip("[]") or asked[0], int(port)
    return None


def _moving(reply: Any) -> bool:
    return isinstance(reply, ReplyError) and str(reply).startswith(("TRYAGAIN", "CLUSTERDOWN", "ASK ", "MOVED "))
