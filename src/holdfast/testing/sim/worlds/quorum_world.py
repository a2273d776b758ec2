"""Quorum worlds: leases are kept by three or five nodes, through the real `QuorumStore`, each with faults of its own.

No node can observe what a majority has decided, so the observer is at the client, at the moment of the answer of the
quorum: a key is *handed* when an acquire returns its grant, and from that instant no other owner may act on it.
Besides the rules of leases: at each node only the owner of a lease renews and releases it; an acquire that is told that
a key is busy, and not that its token is spent, has left no vote behind; and where no message is lost, a released lease
is gone from all nodes soon.

No leave is given to a node that forgets, which other worlds give to their store: it stays away for as long as the
longest lease, and then exclusion must hold. (`Swarm.stays_away` off: it does not, which tests show.) In a world in
which nodes forget, their clocks are apart by less than that; in all others they may say anything. See
`core.lease.quorum`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from holdfast.core.history.events import EventKind, Record
from holdfast.core.history.invariants import Breach, check
from holdfast.core.ports import LISTEN_NS, Capabilities, Watch
from holdfast.leases.lock_spec import LockSettings
from holdfast.stores.memory.store import CAPABILITIES
from holdfast.stores.quorum.engine import quorum_capabilities
from holdfast.stores.quorum.fan_out import LoopRunner
from holdfast.stores.quorum.late_replies import QuorumMemory
from holdfast.stores.quorum.nodes import QuorumNodes
from holdfast.stores.quorum.store import QuorumStore
from holdfast.testing.sim.environment.clock import SimClock
from holdfast.testing.sim.environment.store import LeaseServer, SimEngine, SimStore, Tenancy
from holdfast.testing.sim.worlds.faults import Fault
from holdfast.testing.sim.worlds.node_faults import NodeTrouble
from holdfast.testing.sim.worlds.profile import Scene
from holdfast.testing.sim.worlds.sessions import Session
from holdfast.types import NS, AcquireRequest, AuditRecord, Busy, Grant, Holding, Renewal

if TYPE_CHECKING:
    from holdfast.testing.sim.worlds.world import SimWorld

SOON_NS = 6 * NS  # a slow request, a slow answer, and the same for the release of its grant
AT_A_NODE = {"C8"}  # what must hold at each single node


class QuorumSession(Session):
    """One visit. It takes longer than elsewhere, so that leases are renewed while nodes come and go."""

    def _settings(self) -> LockSettings:
        settings = super()._settings()
        settings.pop("fair", None)  # a quorum has no queue
        return settings

    def _pause_s(self) -> float:
        return self._draw.randrange(3 * self.ttl_ns) / NS if self._draw.random() < 0.3 else super()._pause_s()


class SimQuorumStore(SimStore):
    """One connection of one host to all nodes: the real store, and a record of what it answers."""

    def __init__(
        self, scene: QuorumScene, host: str, clock: SimClock, slow_until_ns: list[int], memory: QuorumMemory
    ) -> None:
        world = scene.world
        self._parts = [SimStore(world.network, server, host) for server in world.servers]
        super().__init__(world.network, world.server, host)
        self._scene = scene
        nodes = QuorumNodes(self._parts, LoopRunner(), clock, slow_until_ns, world.swarm.hedge_ns)
        self._quorum = QuorumStore(nodes, clock, self.capabilities, memory)

    def __setattr__(self, name: str, value: object) -> None:
        """What is set on the whole is set on its parts: failpoints, and its death."""
        super().__setattr__(name, value)
        if name in ("failpoint", "dead"):
            for part in self._parts:
                setattr(part, name, value)

    @property
    def capabilities(self) -> Capabilities:
        """What a quorum of such nodes can do."""
        return quorum_capabilities([CAPABILITIES] * len(self._parts))

    async def acquire(self, ask: AcquireRequest, timeout_ns: int) -> Grant | Busy:
        """See `ports.Store.acquire`."""
        sent = self._network.loop.now_ns
        try:
            answer = await self._quorum.acquire(ask, timeout_ns)
        except BaseException:
            self._scene.unknown.add((ask.key, ask.token))
            raise
        if isinstance(answer, Grant):
            self.sent_ns[ask.key, ask.token] = sent
            self.asked_ns.setdefault((ask.key, answer.fence), sent)
            self._scene.handed_out(ask, answer, sent)
        elif not answer.spent:
            self._scene.left_nothing(ask)
        return answer

    async def renew_many(self, renewals: Sequence[Renewal], timeout_ns: int) -> list[bool | None]:
        """See `ports.Store.renew_many`."""
        sent = self._network.loop.now_ns
        answers = await self._quorum.renew_many(renewals, timeout_ns)
        for renewal, answer in zip(renewals, answers, strict=True):
            if answer:
                self.sent_ns[renewal.key, renewal.token] = sent
                self._scene.tenancy.taken(renewal.key, sent, renewal.ttl_ns)
            elif answer is False:
                self.refused_ns[renewal.key, renewal.token] = self._network.loop.now_ns
        return answers

    async def release(self, key: str, token: str, claim: str | None, keep_ns: int, timeout_ns: int) -> bool:
        """See `ports.Store.release`."""
        released = await self._quorum.release(key, token, claim, keep_ns, timeout_ns)
        if released:
            self._scene.tenancy.freed(key, self._network.loop.now_ns)
            self._scene.given_back(key, token)
        return released

    async def inspect(self, key: str, timeout_ns: int) -> Holding | None:
        """See `ports.Store.inspect`."""
        return await self._quorum.inspect(key, timeout_ns)

    async def holdings(self, prefix: str, limit: int, timeout_ns: int, after: str = "") -> list[Holding]:
        """See `ports.Store.holdings`."""
        return await self._quorum.holdings(prefix, limit, timeout_ns, after)

    async def force_release(self, key: str, actor: str, reason: str, timeout_ns: int) -> AuditRecord | None:
        """See `ports.Store.force_release`."""
        return await self._quorum.force_release(key, actor, reason, timeout_ns)

    async def audit(self, limit: int, timeout_ns: int) -> list[AuditRecord]:
        """See `ports.Store.audit`."""
        return await self._quorum.audit(limit, timeout_ns)

    async def leave(self, key: str, ticket: str, timeout_ns: int) -> None:
        """See `ports.Store.leave`."""
        await self._quorum.leave(key, ticket, timeout_ns)

    async def watch(self, key: str, timeout_ns: int = LISTEN_NS) -> Watch:
        """See `ports.Store.watch`."""
        return await self._quorum.watch(key, timeout_ns)

    async def ping(self, timeout_ns: int) -> None:
        """See `ports.Store.ping`."""
        await self._quorum.ping(timeout_ns)


class SimQuorumEngine(SimEngine):
    """The connections of one host: its loop's and its renewer's, which know the same of the nodes' health."""

    def __init__(self, scene: QuorumScene, host: str, clock: SimClock) -> None:
        super().__init__(scene.world.network, scene.world.server, host)
        slow_until_ns, memory = [0] * len(scene.world.servers), QuorumMemory()
        self._blocking = SimQuorumStore(scene, host, clock, slow_until_ns, memory)
        self._asynchronous = SimQuorumStore(scene, host, clock, slow_until_ns, memory)
        self._know_the_same()

    @property
    def capabilities(self) -> Capabilities:
        """What its stores can do."""
        return self._blocking.capabilities


class QuorumScene(Scene):
    """The nodes of a quorum world, and what is seen of them."""

    sessions = QuorumSession

    def __init__(self, world: SimWorld) -> None:
        super().__init__(world)
        self.world = world
        self.tenancy = Tenancy()
        self.unknown: set[tuple[str, str]] = set()  # (key, token) of asks whose outcome the asker was not told
        self._handed: dict[tuple[str, str], int] = {}  # (key, token) -> the fence of its grant
        self._highest: dict[str, int] = {}  # key -> the highest fence that was handed out
        self._forced_ns: dict[str, int] = {}  # key -> when an operator last broke it
        self._histories: dict[str, list[Record]] = {}

    def servers(self) -> list[LeaseServer]:
        """The nodes."""
        names = [f"node-{number}" for number in range(1, self.world.swarm.nodes + 1)]
        return [LeaseServer(self.world.loop, self._clock(name), partial(self._note, name), name) for name in names]

    def _clock(self, name: str) -> SimClock:
        """Where nodes forget, a clock that is kept right: by another's, and never far off."""
        swarm = self.world.swarm
        if not {Fault.SERVER_FORGETS, Fault.SERVER_LAGS} & {*swarm.faults}:
            return self.world.make_clock(name)
        chance = self.world.entropy(f"clock/{name}").random
        off = chance.randrange(-swarm.apart_ns, swarm.apart_ns + 1) // 2
        return SimClock(self.world.loop, boot_offset_ns=chance.randrange(10**15), wall_offset_ns=off)

    def _note(self, node: str, record: Record) -> None:
        """What a node has seen is a history of its own."""
        self._histories.setdefault(node, []).append(record)
        self.world.counts[f"node {record.kind}"] += 1
        self.world.trace(node, f"{record.kind} {record.key} {record.fence}")

    def engine(self, host: str, clock: SimClock) -> SimEngine:
        """The connections of a host to all nodes."""
        return SimQuorumEngine(self, host, clock)

    def trouble(self) -> NodeTrouble:
        """What goes wrong, at one node or another."""
        return NodeTrouble(self.world, self.force)

    def held_ns(self) -> int:
        """For how long keys were taken, as far as their holders were told."""
        return self.tenancy.all_freed(self.world.loop.now_ns)

    def handed_out(self, ask: AcquireRequest, grant: Grant, sent_ns: int) -> None:
        """The quorum has granted a key. The same grant reported twice is one.

        If an operator broke the lock during the acquire, votes of this very grant are broken. Another owner may have
        had the key before this grant is reported; then the grant had ended before, and is no later one.
        """
        now = self.world.loop.now_ns
        self.tenancy.taken(ask.key, now, ask.ttl_ns)
        if self._handed.get((ask.key, ask.token)) != grant.fence:
            self._handed[ask.key, ask.token] = grant.fence
            forced_ns = self._forced_ns.get(ask.key, -1)
            forced = forced_ns >= sent_ns
            at_ns = forced_ns if forced and grant.fence < self._highest.get(ask.key, 0) else now
            self._highest[ask.key] = max(grant.fence, self._highest.get(ask.key, 0))
            self.world.note(Record(EventKind.HANDED, at_ns, ask.key, owner=ask.owner, fence=grant.fence))
            if forced:
                self.world.note(Record(EventKind.FORCED, at_ns, ask.key, owner="operator", fence=grant.fence))

    def force(self, key: str) -> None:
        """An operator breaks a lock: at all nodes together, as the quorum does."""
        now = self.world.loop.now_ns
        records = [server.force_release(key, "operator", "drill") for server in self.world.servers]
        fences = [record.fence for record in records if record is not None]
        if fences:
            self._forced_ns[key] = now
            self.world.note(Record(EventKind.FORCED, now, key, owner="operator", fence=max(fences)))

    def left_nothing(self, ask: AcquireRequest) -> None:
        """An acquire was refused, with the promise that no vote of it is left.

        A request that the network repeats may leave something, and so may an earlier one that was given up.
        """
        if self.world.swarm.weather.repeated or (ask.key, ask.token) in self.unknown:
            return
        self._look_for(ask.key, ask.token)

    def given_back(self, key: str, token: str) -> None:
        """A lease was released. What is slow may still come; what is lost, or was given up, may leave a vote behind."""
        swarm = self.world.swarm
        troubled = swarm.faults or swarm.weather.lost or swarm.weather.repeated or swarm.cancels or swarm.failpoints
        if not troubled and (key, token) not in self.unknown:
            self.world.loop.call_later(SOON_NS / NS, self._look_for, key, token)

    def _look_for(self, key: str, token: str) -> None:
        """Complain if a node has a vote that must be gone."""
        mark = hashlib.sha256(token.encode()).hexdigest()[:6]
        for server in self.world.servers:
            holding = server.table.inspect(key)
            if holding is not None and holding.fingerprint == mark:
                self.world.complain(server.name, f"a vote for {key} was left behind by {holding.owner}")

    def judge(self, history: Iterable[Record]) -> list[Breach]:
        """What is wrong at a node."""
        found = [each for records in self._histories.values() for each in check(records)]
        return [each for each in found if each.rule in AT_A_NODE]
