"""A Redis that goes away and comes back without anything it knew, while leases are held."""

from __future__ import annotations

import pytest

import holdfast
from support.load.processes import LIMIT_S, processes, until
from support.servers.redis import RedisServer


@pytest.mark.server
@pytest.mark.requires("R66", "R83", "R119", "R124")
def test_a_redis_that_restarts_empty_ends_the_leases_it_forgot_and_fences_go_on_rising(server: RedisServer) -> None:
    with processes(server.url, 2) as (holder, other):
        old = holder.do("acquire", name="k", ttl=1.5)
        server.restart(empty=True)
        new = other.do("acquire", name="k", ttl=30, timeout=LIMIT_S)
        assert new["fence"] > old["fence"]
        lost = holder.do("wait_lost", timeout=LIMIT_S)
        assert lost["lost"]
        assert lost["reason"] in {"stolen", "unconfirmed"}
        assert holder.do("release") == {"released": False}
        assert other.do("ensure")["error"] is None
        server.restart(empty=True)
        with holdfast.connect(server.url) as locks, locks.lock("k", ttl=5, timeout=LIMIT_S) as third:
            assert third.fence > new["fence"]


@pytest.mark.server
@pytest.mark.requires("R119", "R123", "R124", "R127")
def test_a_redis_that_stays_away_costs_the_lease_before_anybody_else_could_have_it(server: RedisServer) -> None:
    with processes(server.url, 1) as (holder,):
        holder.do("acquire", name="k", ttl=1.5)
        server.pause()
        lost = holder.do("wait_lost", timeout=LIMIT_S)
        assert lost == {"lost": True, "reason": "unconfirmed"}
        server.resume()
        assert holder.do("release") == {"released": False}
        until(lambda: "fence" in holder.do("acquire", name="k", ttl=5, timeout=1), "the store is trusted again")


@pytest.mark.server
@pytest.mark.requires("R74", "R80", "R90", "R97", "R101", "R103", "R105")
def test_an_outage_falls_back_counts_and_ends_with_a_full_lease(server: RedisServer) -> None:
    with holdfast.connect(server.url, policy={"low": "fail_open"}, request_timeout=0.5) as locks:
        lock = locks.lock("wf:run:1", ttl=3, risk="low", family="workflow.run")
        with lock as lease:
            assert lease.guaranteed
        server.kill()
        with lock as lease:
            assert (lease.guaranteed, lease.fence) == (False, None)
            assert locks.statistics().fallbacks == 1
            with pytest.raises(holdfast.BackendError):
                locks.lock("other", ttl=3).acquire()
            server.start()
            until(lambda: lease.guaranteed, "the lease is promoted")
            assert isinstance(lease.fence, int)
        with lock as lease:
            assert lease.guaranteed
        assert locks.statistics().fallbacks == 1


@pytest.mark.server
@pytest.mark.requires("R22", "R126")
def test_the_key_on_the_wire_is_what_a_runbook_expects(server: RedisServer) -> None:
    with holdfast.connect(server.url, service="scheduler") as locks, locks.lock("wf:run:42", ttl=60) as lease:
        value = server.cli("GET", "wf:run:42")
        assert value.startswith("scheduler@")
        assert lease.owner in value
        assert 30_000 < server.cli("PTTL", "wf:run:42") <= 60_000  # it is renewed every 20 s
        assert server.cli("TYPE", "wf:run:42") == "string"
        assert server.cli("SET", "wf:run:42", "another client", "NX", "PX", 60_000) is None
    assert server.cli("GET", "wf:run:42") is None


@pytest.mark.server
@pytest.mark.requires("R126")
def test_a_release_deletes_the_key_only_if_it_has_the_token(server: RedisServer) -> None:
    with holdfast.connect(server.url) as locks:
        lease = locks.lock("wf:run:42", ttl=60).acquire()
        server.cli("SET", "wf:run:42", "another client", "PX", 60_000)
        assert not lease.release()
        assert server.cli("GET", "wf:run:42") == "another client"
