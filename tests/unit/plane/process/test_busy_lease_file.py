"""A SQLite file that is busy is no outage, so nothing runs without a lease; one that stays locked is."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

import holdfast
from holdfast.errors import PolicyDenied, RetryLater, Unavailable
from holdfast.plane.locks.run_lock import run_lock
from holdfast.plane.process.components import open_components
from holdfast.plane.settings.settings import Settings


@pytest.mark.asyncio
@pytest.mark.parametrize("leases", ["plane.db", "leases.db"])
async def test_a_run_that_may_go_on_without_the_store_waits_for_a_busy_file(
    tmp_path: Path, leases: str, caplog: pytest.LogCaptureFixture
) -> None:
    settings = Settings(database=f"sqlite:///{tmp_path}/plane.db", leases=f"sqlite:///{tmp_path}/{leases}")
    async with open_components(settings, serving=True) as components:
        await components.locks.ping()
        other = sqlite3.connect(tmp_path / leases, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(RetryLater):
            async with run_lock(components.locks, "run-1", "low"):
                raise AssertionError("it ran without a lease")
        other.execute("ROLLBACK")
        other.close()
        async with run_lock(components.locks, "run-1", "low") as lease:
            assert lease.guaranteed
        assert components.locks.statistics().fallbacks == 0
    assert "local-only" not in caplog.text


def test_a_file_that_stays_locked_without_one_answer_is_an_outage(tmp_path: Path) -> None:
    url, policy = f"sqlite:///{tmp_path}/leases.db", {"low": "fail_open", "high": "fail_closed"}
    with holdfast.connect(url, policy=policy, request_timeout=0.2) as locks:
        locks.ping()
        with closing(sqlite3.connect(tmp_path / "leases.db", isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            with pytest.raises(Unavailable, match="locked by another writer"):
                locks.lock("crawl", risk="low").acquire()
            with locks.lock("crawl", risk="low") as lease:  # nothing was answered for the time of two requests
                assert not lease.guaranteed
            with pytest.raises(PolicyDenied):
                locks.lock("pay", risk="high").acquire()
        with locks.lock("crawl", risk="low") as lease:
            assert lease.guaranteed


def test_an_answer_in_between_shows_that_a_busy_file_is_no_outage(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/leases.db"
    with holdfast.connect(url, policy={"low": "fail_open"}, request_timeout=0.2) as locks:
        for _ in range(4):
            with locks.lock("other", ttl=30):
                pass
            with closing(sqlite3.connect(tmp_path / "leases.db", isolation_level=None)) as other:
                other.execute("BEGIN IMMEDIATE")
                with pytest.raises(Unavailable, match="locked by another writer"):
                    locks.lock("crawl", risk="low").acquire()
        assert locks.statistics().fallbacks == 0
        assert not locks.statistics().breaker_open
