"""Leases that a majority of nodes agrees on: several stores that know nothing of each other, as one store.

Promises, for 3, 5, 7 or 9 nodes of which a majority answers: a lease is granted when a majority has granted it, with a
fence that the same majority has settled on (`core.lease.quorum`), while enough of its time is left; it is renewed, and
released, by a majority as well. A minority of nodes may be dead, slow or cut off, and is not waited for. Fences
rise from grant to grant for as long as one node of the last majority remembers, so guards work with it:
`Guarantee.FENCED`. Every node that has lost a lease of ours gets it again with the next renewal.

Does not promise exclusion when a node *forgets*: a lease that exactly a majority has granted is gone with one node that
restarts without its memory, and the nodes that are free then may be a majority for another caller. The same happens
with a node whose clock jumps over the rest of a lease. Fences still tell the two apart, if the clocks of the nodes are
not further apart than the time for which the node was away; so what is guarded stays right, and what is not can
overlap. Either let nodes write before they answer (Redis: `appendonly yes`, `appendfsync always`), or let a node that
lost its memory stay away for as long as the longest lease: then whatever it has forgotten has expired.
Nor does it promise wake-ups (waiters poll) or fair queues.

Why a fence of its own, and not none: Redlock gives none, because numbers of different nodes have no order. Raising the
nodes to one number costs a second request to each of them, in the same round trip in which they are asked at all (the
first node is asked before the others), and makes the guards work. The `Store` port carries it with one field,
`AcquireRequest.floor`.

Clocks: each node judges expiry by its own; deadlines, hedging and validity are this host's.
"""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.core.lease.quorum import NODES_MAX, NODES_MIN
from holdfast.core.ports import Capabilities, Clock, Store
from holdfast.errors import BadInput
from holdfast.runtime.system import SystemClock
from holdfast.stores.quorum.fan_out import LoopRunner, NodeRunner, ThreadRunner
from holdfast.stores.quorum.late_replies import QuorumMemory
from holdfast.stores.quorum.nodes import QuorumNodes
from holdfast.stores.quorum.store import QuorumStore
from holdfast.stores.quorum.url import HEDGE_NS, parse_quorum_url
from holdfast.stores.registry import Engine
from holdfast.types import Guarantee

__all__ = ["QuorumEngine", "QuorumStore", "open_engine"]


class QuorumEngine:
    """Several engines as one, with its stores for sync and asyncio. Opening it sends nothing."""

    def __init__(self, engines: Sequence[Engine], *, hedge_ns: int = HEDGE_NS, clock: Clock | None = None) -> None:
        """`engines`: an odd number of them, each with memory of its own. They are asked in this order."""
        if not NODES_MIN <= len(engines) <= NODES_MAX or len(engines) % 2 == 0:
            raise BadInput(
                "engines", f"{len(engines)} nodes", f"give an odd number of them, from {NODES_MIN} to {NODES_MAX}"
            )
        self._engines = engines
        self._hedge_ns = hedge_ns
        self._clock = clock or SystemClock()
        self._slow_until_ns = [0] * len(engines)
        self._memory = QuorumMemory()
        names = [f"{number} of {len(engines)}" for number in range(1, len(engines) + 1)]
        self._blocking = self._store([each.blocking for each in engines], ThreadRunner(names))

    def _store(self, stores: Sequence[Store], runner: NodeRunner) -> QuorumStore:
        nodes = QuorumNodes(stores, runner, self._clock, self._slow_until_ns, self._hedge_ns)
        return QuorumStore(nodes, self._clock, self.capabilities, self._memory)

    @property
    def capabilities(self) -> Capabilities:
        """What the engine can do: what all of its nodes can, without wake-ups and queues."""
        return quorum_capabilities([engine.capabilities for engine in self._engines])

    @property
    def blocking(self) -> QuorumStore:
        """The store for sync code and for the lease manager, safe from any thread. Always the same one."""
        return self._blocking

    def asynchronous(self) -> QuorumStore:
        """Make a store for one event loop: the one that first uses it."""
        return self._store([each.asynchronous() for each in self._engines], LoopRunner())

    def __repr__(self) -> str:
        return f"<QuorumEngine of {', '.join(map(repr, self._engines))}>"


def quorum_capabilities(nodes: Sequence[Capabilities]) -> Capabilities:
    """What a majority of such stores can do."""
    return Capabilities(
        engine="quorum",
        guarantee=min((each.guarantee for each in nodes), key=list(Guarantee).index),
        wakeups=False,
        fair=False,
        durable=all(each.durable for each in nodes),
        shared=all(each.shared for each in nodes),
        renewal=all(each.renewal for each in nodes),
    )


def open_engine(url: str) -> QuorumEngine:
    """Open the engine that a URL names; see `stores.quorum.url` for its form."""
    from holdfast.stores.redis.engine import RedisEngine  # a quorum knows no engine; only this URL does

    address = parse_quorum_url(url)
    return QuorumEngine([RedisEngine(node) for node in address.nodes], hedge_ns=address.hedge_ns)
