"""`failover --store …`: a store loses its leader, or is restarted, while a lock is held and another worker waits.

On Postgres, etcd and NATS no acknowledged grant is lost, so nothing is excused: exclusion must hold (C4). A holder that
is stopped meanwhile is taken over within the SLO, its late write is refused by the guard, and a lease that lasts longer
than the failover outlives it. On Redis with Sentinels the grant is lost with the primary: see `failover`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final

from holdfast.drills.env.processes import LIMIT_S, StartOptions, WorkerHandle
from holdfast.drills.env.sentinels import sentinel_pair
from holdfast.drills.env.stage import DrillHarness, SceneHarness
from holdfast.drills.env.store_servers import StoreServers, store_servers
from holdfast.drills.model import Guard, ReportFigure
from holdfast.drills.scenarios.failover import lose_primary
from holdfast.drills.scenarios.pause import TITLES, round_of
from holdfast.types import NS

KEPT_TTL_S: Final = 60.0  # of a lease that must outlive a failover


def play(stage: DrillHarness, guards: Sequence[Guard] = (Guard.OFF, Guard.ON)) -> None:
    """All scenes of the store that the plan names."""
    if stage.plan.own == "sentinel":
        for guard in guards:
            _play_sentinels(stage, guard)
        return
    with store_servers(stage.plan.own, stage.directory / "servers") as servers:
        for guard in guards:
            _play_stopped(stage, servers, guard)


def _play_sentinels(stage: DrillHarness, guard: Guard) -> None:
    """One failover: the late write comes after the new owner's, or with guards between his read and write."""
    words = (
        "the replica is cut off, ada is granted the lock, and the primary is killed; the Sentinels promote the replica "
        "without ada's grant; ben is granted the lock, and then ada writes"
    )
    with (
        sentinel_pair(stage.directory / f"sentinels-{len(stage.scenes)}") as pair,
        stage.scene(f"primary lost, Sentinels, {TITLES[guard]}", f"{words}.", guard, url=pair.url) as it,
    ):
        it.scene.excuses = frozenset({"C4"})
        key = it.key("account")
        ada, ben = it.crew.enter("ada", "ben")
        if not lose_primary(it, pair, key, ada, ben, between=guard is Guard.ON):
            it.claim("the lease lasts until the failover", False, "it was lost before; use a longer --ttl")
        _balance(it, key)


def _play_stopped(stage: DrillHarness, servers: StoreServers, guard: Guard) -> None:
    """A stopped holder is taken over while the store fails over. With guards, a running holder keeps its lease too."""
    words = f"ada is stopped between check and write, {servers.lost} is killed and comes back, and ben takes over"
    title = f"{servers.lost} lost, {TITLES[guard]}"
    with stage.scene(title, f"{words}; then ada writes.", guard, url=servers.url) as it:
        key = it.key("account")
        ada, ben = it.crew.enter("ada", "ben")

        def lose() -> None:
            it.moment("failover", servers.lose())
            servers.recover()

        between = guard is Guard.ON
        it.played(partial(round_of, it, key, ada, ben, between=between, meanwhile=lose))
        _balance(it, key)
        if guard is Guard.ON:
            it.crew.dismiss(ada)
            [kim] = it.crew.enter("kim", start=StartOptions({"ttl": KEPT_TTL_S}))
            _keep(it, servers, kim, ben)


def _keep(it: SceneHarness, servers: StoreServers, kim: WorkerHandle, ben: WorkerHandle) -> None:
    """A lease that is longer than the failover outlives it, and the waiter gets the lock with its release."""
    key = it.key("kept")
    old = it.ask(kim, "take", "granted", key=key)["fence"]
    ben.order("take", key=key)
    it.crew.next("asking", ben)
    it.moment("failover", servers.lose())
    servers.recover()
    it.ask(kim, "read", "read")
    it.claim("a held lease outlives the failover", it.write(kim), "its holder writes after it")
    released_ns = it.moment("released")
    it.ask(kim, "release", "released")
    granted = it.crew.next("granted", ben, it.stage.plan.slo_seconds + LIMIT_S)
    took = it.takeover("a release after a failover", released_ns, granted.at_ns)
    it.report(f"kim kept the lock through it, and ben got it {took.took_ns / NS:.2f} s after the release", good=True)
    new = granted.fields["fence"]
    it.claim("the fence after the failover is above the one before", new > old, f"{old} and then {new}")
    it.ask(ben, "release", "released")


def _balance(it: SceneHarness, key: str) -> None:
    it.scene.figures += [
        ReportFigure("additions acknowledged", str(it.acknowledged)),
        ReportFigure("balance at the end", str(it.account.inspect(key).balance), "each addition is 1"),
    ]
