"""Leases through PgBouncer in transaction mode, where each request may reach another session."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

import holdfast
from holdfast.errors import Misconfigured
from holdfast.runtime.run_sync import run_now
from holdfast.stores.postgres.engine import open_engine
from holdfast.testing.conformance import (
    AsyncioWorld,
    BlockingWorld,
    Check,
    batch,
    fences,
    inspection,
    ownership,
    run_check,
)
from holdfast.types import NS
from support.servers.pgbouncer import PROGRAM, start_pgbouncer
from support.servers.postgres import PostgresServer

pytestmark = [
    pytest.mark.server,
    pytest.mark.skipif(PROGRAM is None, reason="no PgBouncer (Debian's package pgbouncer)"),
]

CHECKS = [*ownership.chapter.checks, *fences.chapter.checks, *batch.chapter.checks, *inspection.chapter.checks]


@pytest.fixture(scope="module")
def pooled_url(postgres_server: PostgresServer) -> Iterator[str]:
    with postgres_server.database() as url:
        database = url.partition("@/")[2].partition("?")[0]
        with start_pgbouncer(postgres_server, database) as pooled:
            yield pooled


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: str(check).replace(" ", "_"))
def test_the_contract_holds_through_a_pooler(check: Check, pooled_url: str) -> None:
    run_check(check, BlockingWorld(lambda: open_engine(pooled_url).blocking, elsewhere=pooled_url))
    run_check(check, AsyncioWorld(lambda: open_engine(pooled_url).asynchronous(), elsewhere=pooled_url))


def test_more_clients_than_sessions_never_overlap(pooled_url: str) -> None:
    inside: list[int] = []
    fences: list[int] = []

    def work(number: int) -> None:
        with holdfast.connect(pooled_url) as locks:
            for _ in range(5):
                with locks.lock("hot", ttl=30, timeout=60) as lease:
                    inside.append(number)
                    assert inside == [number]
                    fences.append(lease.fence)
                    inside.remove(number)

    with ThreadPoolExecutor(6) as threads:
        list(threads.map(work, range(6)))
    assert fences == sorted(set(fences))


def test_a_waiter_polls_because_a_pooler_delivers_no_notifications(pooled_url: str) -> None:
    engine = open_engine(pooled_url)
    with pytest.raises(Misconfigured, match="behind a pooler"):
        run_now(engine.blocking.watch("job", 5 * NS))
    engine.close()
    with holdfast.connect(pooled_url) as locks, ThreadPoolExecutor(1) as threads:
        lease = locks.lock("job", ttl=30).acquire()
        waiting = threads.submit(lambda: locks.lock("job", ttl=30).acquire(timeout=60).release())
        lease.release()
        assert waiting.result(60)
