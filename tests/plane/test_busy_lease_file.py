"""A SQLite file that is busy is no outage: nothing runs without a lease because of it."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from holdfast.errors import RetryLater
from holdfast.plane.opening import opened
from holdfast.plane.runlock import run_lock
from holdfast.plane.settings import Settings


@pytest.mark.asyncio
@pytest.mark.parametrize("leases", ["plane.db", "leases.db"])
async def test_a_run_that_may_go_on_without_the_store_waits_for_a_busy_file(
    tmp_path: Path, leases: str, caplog: pytest.LogCaptureFixture
) -> None:
    settings = Settings(database=f"sqlite:///{tmp_path}/plane.db", leases=f"sqlite:///{tmp_path}/{leases}")
    async with opened(settings, works=True) as ground:
        await ground.locks.ping()
        other = sqlite3.connect(tmp_path / leases, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(RetryLater):
            async with run_lock(ground.locks, "run-1", "low"):
                raise AssertionError("it ran without a lease")
        other.execute("ROLLBACK")
        other.close()
        async with run_lock(ground.locks, "run-1", "low") as lease:
            assert lease.guaranteed
        assert ground.locks.statistics().fallbacks == 0
    assert "local-only" not in caplog.text
