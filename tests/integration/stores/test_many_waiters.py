"""Crowds cost those who come after them little: the same as `tools/crowds.py`, with numbers that a suite can bear."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

import crowds
from holdfast.runtime.run_sync import run_now
from holdfast.stores.sqlite.engine import open_engine
from holdfast.types import MS, NS, Grant
from support.fixtures.redis import StartRedis
from support.harness.redis_requests import ask, take

pytestmark = pytest.mark.threat("X15")

WAITERS, EXPIRED = 10_000, 10_000


@pytest.mark.asyncio
async def test_ten_thousand_waiters_stand_in_one_place_and_leave_nothing_behind() -> None:
    await crowds.waited("memory://crowds", "memory", 100, ttl=120, renewals=0)  # what is made once is made now
    found = await crowds.waited("memory://crowds", "memory", WAITERS, ttl=120, renewals=0)
    assert found._replace(kib_each=0.0).sound, found  # how much memory a process has is not the test's alone


def test_no_acquisition_pays_for_all_that_ran_out_in_a_file_and_in_the_end_nothing_is_left(tmp_path: Path) -> None:
    found = crowds.swept_file(tmp_path / "leases.db", EXPIRED)
    assert found.sound, found
    assert found.most_together == crowds.SWEPT_MAX, "as much as it may, while there is much of it"
    assert found.grants < EXPIRED


def test_nothing_is_left_in_a_redis(own_redis: StartRedis) -> None:
    assert crowds.swept_redis(own_redis().url, EXPIRED).sound


def test_a_sweep_goes_on_where_the_one_before_ended_in_whatever_process_and_spares_the_living(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/leases.db"
    first = open_engine(url)
    living = [run_now(take(first.blocking, f"gone:{place}", ttl_ns=600 * NS)) for place in ("", "5000x", "~")]
    run_now(first.blocking.acquire(ask("first", ttl_ns=MS), NS))
    first.close()
    with closing(sqlite3.connect(tmp_path / "leases.db", isolation_level=None)) as file:
        crowds._fill(file, EXPIRED)
        left = before = EXPIRED
        for number in range(12):  # programs that run briefly: each takes one lock, and ends
            engine = open_engine(url)
            assert isinstance(run_now(engine.blocking.acquire(ask(f"new:{number}"), 60 * NS)), Grant)
            engine.close()
            (count,) = file.execute(
                "SELECT count(*) FROM holdfast_lease WHERE expires_wall_ns < granted_wall_ns + 2000000"
            ).fetchone()
            before, left = left, count
            assert before - left <= crowds.SWEPT_MAX
        assert left == 0
    engine = open_engine(url)
    for grant in living:
        assert run_now(engine.blocking.release(grant.key, grant.token, None, 0, NS))
    engine.close()
