"""Three members with a data directory each: leaders killed, minorities cut off, members that stop. Fences rise."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

import pytest

import holdfast
from holdfast.core.ports import Store
from holdfast.errors import BackendError
from holdfast.runtime.run_sync import run_now
from holdfast.stores.registry import open_engine
from holdfast.types import NS, Grant
from support.fixtures.etcd import StartCluster
from support.harness.etcd_requests import SOON, ask, renewal, take

pytestmark = [pytest.mark.server, pytest.mark.timeout(300)]

LIMIT_S = 60.0


def until(condition: Callable[[], bool], what: str) -> None:
    """Wait for a condition; a store error is none."""
    end = time.monotonic() + LIMIT_S
    pause = threading.Event()
    while True:
        try:
            if condition():
                return
        except BackendError:
            pass
        assert time.monotonic() < end, what
        pause.wait(0.05)


def granted(store: Store, key: str) -> Grant:
    """Acquire as soon as the cluster answers. Requests without an answer are undone, as the library does."""
    found: list[Grant] = []

    def try_once() -> bool:
        asked = ask(key)
        try:
            answer = run_now(store.acquire(asked, 2 * NS))
        except BackendError:
            until(lambda: run_now(_gone(store, key, asked.token)), "an orphan stays")
            return False
        if isinstance(answer, Grant):
            found.append(answer)
        return bool(found)

    until(try_once, f"{key} was never granted")
    return found[0]


async def _gone(store: Store, key: str, token: str) -> bool:
    await store.release(key, token, None, 0, SOON)
    return True


@pytest.mark.requires("R57")
def test_leases_and_fences_survive_the_leader_that_is_killed_in_the_middle_of_work(etcd_cluster: StartCluster) -> None:
    cluster = etcd_cluster()
    fences: list[int] = []
    stop = threading.Event()
    with holdfast.connect(cluster.url) as locks, holdfast.connect(cluster.url) as others:
        held = locks.lock("held", ttl=6).acquire()

        def work() -> None:
            """Grants of one key, before, during and after the failover."""
            while not stop.is_set():
                try:
                    with others.lock("counted", ttl=5, timeout=5) as lease:
                        fences.append(lease.fence)
                except (BackendError, holdfast.LeaseLost, holdfast.LockBusy):
                    continue

        worker = threading.Thread(target=work)
        worker.start()
        until(lambda: len(fences) > 10, "no grants before the failover")
        leader = cluster.leader()
        leader.kill()
        before = len(fences)
        until(lambda: len(fences) > before + 10, "no grants after the failover")
        assert held.held
        assert not held.lost.is_set()
        assert others.inspect("held").fence == held.fence
        leader.start()
        again = len(fences)
        until(lambda: len(fences) > again + 10, "no grants after the restart")
        stop.set()
        worker.join(LIMIT_S)
        assert held.held
        assert held.release()
    assert fences == sorted(set(fences))


@pytest.mark.requires("R57")
def test_a_leader_that_is_cut_off_grants_nothing_and_what_it_missed_stays(etcd_cluster: StartCluster) -> None:
    cluster = etcd_cluster(proxied=True)
    minority = cluster.leader()
    majority = "etcd://" + ",".join(f"127.0.0.1:{each.port}" for each in cluster.members if each is not minority)
    cut_off, rest = open_engine(minority.url).blocking, open_engine(majority).blocking
    asked, old = run_now(take(rest, "job", 60 * NS))
    cluster.cut_off(minority)
    # The majority elects another leader, and continues: the lease stays, ends with its release, and is granted again.
    until(lambda: run_now(rest.renew_many([renewal(asked, old)], SOON)) == [True], "no renewal by the majority")
    until(lambda: run_now(rest.release("job", asked.token, old.claim, 0, SOON)), "no release by the majority")
    new = granted(rest, "job")
    assert new.fence > old.fence
    # The minority answers nothing, not even a read: its copy still has the old lease.
    for call in (
        lambda: cut_off.acquire(ask("other"), NS),
        lambda: cut_off.inspect("job", NS),
        lambda: cut_off.renew_many([renewal(asked, old)], NS),
        lambda: cut_off.ping(NS),
    ):
        with pytest.raises(BackendError):
            run_now(call())
    cluster.join()
    until(lambda: minority.healthy(), "the member did not come back")
    until(lambda: run_now(cut_off.renew_many([renewal(asked, old)], SOON)) == [False], "the old lease came back")
    seen = run_now(cut_off.inspect("job", SOON))
    assert seen is not None
    assert seen.fence == new.fence
    run_now(cut_off.close())
    run_now(rest.close())


@pytest.mark.requires("R57")
@pytest.mark.parametrize("stopped", ["the leader", "a follower"])
def test_a_member_that_stops_and_goes_on_costs_no_lease(etcd_cluster: StartCluster, stopped: str) -> None:
    cluster = etcd_cluster()
    leader = cluster.leader()
    member = leader if stopped == "the leader" else cluster.followers()[0]
    others = [each for each in cluster.members if each is not member]
    # The stopped one is asked first: each new client meets it.
    url = "etcd://" + ",".join(f"127.0.0.1:{each.port}" for each in (member, *others))
    with holdfast.connect(url) as locks:
        held = locks.lock("held", ttl=9).acquire()
        os.kill(member.pid, 19)
        try:
            renewed = locks.statistics().renewed
            until(lambda: locks.statistics().renewed > renewed + 1, "no renewal while a member is stopped")
            with holdfast.connect(url) as late:
                until(lambda: late.inspect("held").fence == held.fence, "a new client was not served")
                lease = late.lock("job", ttl=9).acquire(timeout=LIMIT_S)
                assert lease.release()
        finally:
            member.resume()
        until(member.healthy, "the member did not come back")
        renewed = locks.statistics().renewed
        until(lambda: locks.statistics().renewed > renewed + 1, "no renewal after the member came back")
        assert held.held
        assert locks.inspect("held").fence == held.fence
        assert held.release()


@pytest.mark.requires("R57")
def test_without_a_majority_nothing_is_granted_and_a_lease_ends_at_its_deadline(etcd_cluster: StartCluster) -> None:
    cluster = etcd_cluster()
    with holdfast.connect(cluster.url, request_timeout=1) as locks:
        held = locks.lock("held", ttl=3).acquire()
        others = cluster.followers()
        for each in others:
            each.kill()
        with pytest.raises(BackendError):
            locks.lock("job", ttl=30).acquire(timeout=1)
        assert held.lost.wait(LIMIT_S)
        assert held.lost.reason == "unconfirmed"
        for each in others:
            each.launch()
        for each in others:
            assert each.wait_until_healthy()
        until(lambda: not locks.inspect("held").held, "the lease did not expire")
        again = locks.lock("held", ttl=30).acquire(timeout=LIMIT_S)
        assert again.fence > held.fence
        assert again.release()
