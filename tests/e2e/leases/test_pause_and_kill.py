"""Real processes that stand still, wake up, or die: the lock continues, and what is stale stays out."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

import pytest

import holdfast
from support.load.processes import LIMIT_S, processes, until
from support.load.worker import make_table
from support.servers.nats import has_waiters


@pytest.mark.requires("R1", "R4", "R7", "R19", "R28", "R29", "R47", "R58", "R65", "R69")
def test_a_paused_holder_wakes_up_to_refusals_and_the_new_owner_keeps_the_lock(url: str, tmp_path: Path) -> None:
    table = tmp_path / "table.db"
    make_table(str(table))
    with processes(url, 2, table) as (stale, newer):
        old = stale.do("acquire", name="k", ttl=1.0)
        assert stale.do("write", value="first")["accepted"]
        stale.pause()
        new = newer.do("acquire", name="k", ttl=30, timeout=LIMIT_S)  # the store gave the key away
        assert new["fence"] > old["fence"]
        assert newer.do("write", value="second")["accepted"]
        assert newer.do("write", value="third")["accepted"]  # the same grant writes as often as it likes
        stale.tell("ensure")  # the very first thing it does when it wakes up
        stale.resume()
        found = stale.answer()
        assert found["error"] == "LeaseLost"
        assert found["reason"] in {"expired", "stolen", "unconfirmed"}
        assert stale.do("renew")["error"] == "LeaseLost"
        assert stale.do("release") == {"released": False}
        assert stale.do("write", value="stale")["accepted"] is False
        assert newer.do("state")["held"]
        assert newer.do("ensure")["error"] is None
    with contextlib.closing(sqlite3.connect(table)) as connection:
        row = connection.execute("SELECT value, fence, writes FROM guarded").fetchone()
    assert row == ("third", new["fence"], 3)


@pytest.mark.requires("R1", "R4", "R7", "R17", "R18", "R19", "R27")
def test_the_bare_token_of_a_paused_process_is_refused_by_the_store_itself(url: str) -> None:
    with processes(url, 2) as (stale, newer):
        assert stale.do("take", name="k", ttl=0.5)["token"]
        assert newer.do("take", name="k", ttl=30)["token"] == ""
        stale.pause()
        until(lambda: newer.do("take", name="k", ttl=30)["token"], "the key expires")
        stale.resume()
        for verb, more in (("release_token", {}), ("renew_token", {"ttl": 60})):
            refused = stale.do(verb, name="k", **more)
            assert (refused["error"], refused["text"]) == ("NotOwner", "lock not owned")
        assert newer.do("renew_token", name="k", ttl=30)["error"] is None
        assert newer.do("release_token", name="k")["error"] is None


@pytest.mark.requires("R115", "R121")
def test_a_killed_holder_is_taken_over_by_the_one_who_waits(url: str) -> None:
    """The bound is the TTL and one retry; the waiter is given just that, and some grace for a busy machine."""
    ttl = 1.5
    with processes(url, 2) as (victim, heir):
        old = victim.do("acquire", name="k", ttl=ttl)
        heir.tell("acquire", name="k", ttl=30, timeout=ttl + ttl / 3 + 10)
        victim.kill()
        new = heir.answer()
        assert new.get("fence", 0) > old["fence"], new


@pytest.mark.requires("R115", "R116")
def test_a_dead_process_on_this_host_is_taken_over_long_before_its_lease_runs_out(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/leases.db"
    with processes(url, 2) as (victim, heir):
        old = victim.do("acquire", name="k", ttl=3600)
        assert "busy" in heir.do("acquire", name="k", ttl=30, timeout=0)
        victim.kill()
        new = heir.do("acquire", name="k", ttl=30, timeout=LIMIT_S)
        assert new["fence"] > old["fence"]


@pytest.mark.requires("R46", "R67")
def test_a_hold_outlives_the_process_that_took_it(tmp_path: Path) -> None:
    """A window is a window: the death of its holder admits no other before it is over."""
    url = f"sqlite:///{tmp_path}/leases.db"
    import subprocess
    import sys

    from support.load.processes import environment

    code = f"import holdfast; assert holdfast.connect({url!r}).hold('tick', ttl=3600) is not None"
    subprocess.run([sys.executable, "-c", code], check=True, env=environment(), timeout=LIMIT_S)
    with holdfast.connect(url) as locks:
        assert locks.hold("tick", ttl=3600) is None
        assert locks.inspect("tick").held


@pytest.mark.requires("R89", "R15")
def test_a_holder_that_is_alive_is_renewed_far_beyond_its_ttl(url: str) -> None:
    with processes(url, 2) as (holder, other):
        fence = holder.do("acquire", name="k", ttl=0.6)["fence"]
        until(lambda: holder.do("statistics")["renewed"] >= 6, "six renewals, so two lifetimes")
        assert holder.do("state") == {"held": True, "reason": None, "state": "held"}
        assert "busy" in other.do("acquire", name="k", ttl=30, timeout=0)
        with holdfast.connect(url) as locks:
            assert locks.inspect("k").fence == fence
        assert holder.do("release") == {"released": True}


def test_ctrl_c_in_a_wait_and_in_a_block_leaves_nothing_behind(url: str) -> None:
    with holdfast.connect(url) as locks, processes(url, 2) as (waiter, holder):
        fair = locks.engine.capabilities.fair

        def waits() -> bool:
            """NATS has no queue: there a waiter is a subscription that the server knows."""
            return locks.inspect("k").waiters == 1 if fair else has_waiters(url, "k")

        holder.tell("work", name="k", ttl=3600)
        until(lambda: locks.inspect("k").held, "it works")
        waiter.tell("acquire", name="k", ttl=3600, fair=fair)
        until(waits, "the other waits")
        assert "\nKeyboardInterrupt" in waiter.interrupted()
        until(lambda: not waits(), "it left the queue")
        assert locks.inspect("k").held
        assert "\nKeyboardInterrupt" in holder.interrupted()
        with locks.lock("k", ttl=5, fair=fair, timeout=0) as lease:  # the key is free and no ticket is in the way
            assert lease.held
