"""`failover`, third part: the nodes of a quorum are lost.

First a failure that a quorum survives: while a lock is held, every node is lost and comes back empty, one after the
other. Nothing is excused: the lease outlives all of them, each new node gets it again with a renewal, and no other
worker is granted the lock meanwhile.

Then a failure that no quorum survives: an exact majority has granted a lease, and one of those nodes loses it and
answers immediately. The free nodes are then a majority for another worker, so exclusion is broken (C4 is excused).
Required: the second fence is above the first, because its majority contains a node of the first one or continues from
the clock; the guard refuses the late write; and the first holder notices.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from holdfast.drills.env.processes import LIMIT_S, StartOptions, WorkerHandle
from holdfast.drills.env.redis_quorum import NODES, NodeProxies, QuorumServers, voting
from holdfast.drills.env.redis_server import RedisServer
from holdfast.drills.env.stage import DrillHarness, SceneHarness
from holdfast.drills.model import Guard, ReportFigure
from holdfast.drills.scenarios.failover import overtake, rises
from holdfast.drills.scenarios.pause import TITLES
from holdfast.types import NS

_AWAY_TTLS: Final = 1.5  # how long the first node stays unreachable: longer than the lease lives without renewals


def play_replaced(stage: DrillHarness) -> None:
    """Every node is replaced by an empty one, while a lock is held."""
    words = (
        f"ada holds a lock on {NODES} servers, of which a majority decides, and ben waits for it; each server is "
        "killed and comes back empty, one after the other; then ada writes, and ben gets the lock"
    )
    with voting(stage.directory / f"quorum-{len(stage.scenes)}") as nodes:
        url = nodes.doors().url
        with stage.scene("quorum, nodes replaced one by one", f"{words}.", Guard.ON, url=url) as it:
            key = it.key("account")
            ada, ben = it.crew.enter("ada", "ben")
            it.played(partial(_replace_all, it, nodes, key, (ada, ben)))


def _replace_all(it: SceneHarness, nodes: QuorumServers, key: str, actors: tuple[WorkerHandle, WorkerHandle]) -> bool:
    """One after the other. False: a lease was lost for another reason."""
    ada, ben = actors
    old = it.ask(ada, "take", "granted", key=key)["fence"]
    it.ask(ada, "read", "read")
    ben.order("take", key=key)
    it.crew.next("asking", ben)
    for node in range(NODES):
        it.breathe()
        it.moment(f"node {node + 1} lost", nodes.lose(node))
        if node == 0:
            it.wait(_AWAY_TTLS * it.stage.plan.ttl_s)
        it.breathe()
        nodes.replace(node)
        it.moment(f"node {node + 1} back")
        it.until(partial(_settled, it, nodes.servers[node], key, ada), f"node {node + 1} to get the lease")
    held = not _has_lost(it, ada)
    written = it.write(ada)
    it.breathe()
    if held:
        it.ask(ada, "release", "released")
    granted = it.crew.next("granted", ben, it.stage.plan.slo_seconds + LIMIT_S).fields["fence"]
    if not held or not written:
        it.ask(ben, "release", "released")
        return False
    it.report(f"all {NODES} nodes were replaced, and ada's lease is on every one of them", good=True)
    it.claim("a lease outlives every node, one after the other", held, "ada still held it, and wrote")
    rises(it, old, granted, "the next fence is above the first, whose servers are all gone")
    it.ask(ben, "read", "read")
    written = it.write(ben)
    it.ask(ben, "release", "released")
    it.claim("the current owner can write", written, f"ben's write was {'accepted' if written else 'refused'}")
    it.scene.figures += [
        ReportFigure("nodes replaced", str(NODES)),
        ReportFigure("additions acknowledged", str(it.acknowledged)),
        ReportFigure("balance at the end", str(it.account.inspect(key).balance), "each addition is 1"),
    ]
    return True


def _settled(it: SceneHarness, server: RedisServer, key: str, holder: WorkerHandle) -> bool:
    """Whether a node has the lease of the holder, or the lease no longer exists.

    A new node may first have a vote of another worker, who is outvoted and releases it.
    """
    with it.stage.locks(url=server.url) as locks:
        owner = locks.inspect(key).owner
    return (owner is not None and owner.startswith(f"{holder.name}@")) or _has_lost(it, holder)


def _has_lost(it: SceneHarness, actor: WorkerHandle) -> bool:
    return not it.ask(actor, "standing", "standing")["held"]


def play_forgotten(stage: DrillHarness, guard: Guard, rounds: int) -> None:
    """Rounds of the same failure: the late write comes after the new owner's, and then before it."""
    words = (
        "ada cannot reach node 1, and is granted the lock by nodes 2 and 3; node 3 is killed and comes back empty; "
        "nodes 1 and 3 grant the lock to ben, and then ada writes"
    )
    with voting(stage.directory / f"quorum-{len(stage.scenes)}") as nodes:
        hers, his = nodes.doors(), nodes.doors()
        with stage.scene(f"quorum, a node forgets, {TITLES[guard]}", f"{words}.", guard, url=his.url) as it:
            it.scene.excuses = frozenset({"C4"})
            key = it.key("account")
            [ada] = it.crew.enter("ada", start=StartOptions({"url": hers.url}))
            [ben] = it.crew.enter("ben")
            for number in range(rounds):
                it.played(partial(_forget, it, nodes, hers, key, (ada, ben), between=number % 2 == 1))
                hers.mend()
            it.scene.figures += [
                ReportFigure("nodes that forgot", str(len(it.scene.moments))),
                ReportFigure("additions acknowledged", str(it.acknowledged)),
                ReportFigure("balance at the end", str(it.account.inspect(key).balance), "each addition is 1"),
            ]


def _forget(
    it: SceneHarness,
    nodes: QuorumServers,
    hers: NodeProxies,
    key: str,
    actors: tuple[WorkerHandle, WorkerHandle],
    *,
    between: bool,
) -> bool:
    """One node forgets. False: it must be repeated, because a lease was lost for another reason."""
    ada, ben = actors
    empty = nodes.prepare()  # started now, since ada's lease does not wait for it
    hers.mend()
    hers.cut(0)
    old = it.ask(ada, "take", "granted", key=key)["fence"]
    it.ask(ada, "read", "read")
    it.breathe()
    if not it.hold_up(ada):
        return False
    hers.cut(1, 2)  # so that no renewal restores it before ben asks the others
    died_ns = it.moment("node 3 forgets", nodes.lose(2))
    nodes.replace(2, by=empty)
    ben.order("take", key=key)
    granted = it.crew.next("granted", ben, it.stage.plan.slo_seconds + LIMIT_S)
    took = it.takeover("a node that forgot", died_ns, granted.at_ns)
    it.report(f"node 3 has forgotten ada; ben got the lock from nodes 1 and 3 after {took.took_ns / NS:.2f} s")
    rises(it, old, granted.fields["fence"], "the new majority's fence is above the old one's")
    return overtake(it, ada, ben, between=between)
