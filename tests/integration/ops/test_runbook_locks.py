"""Runbooks about locks, on real stores with really induced trouble: not owned, before a TTL is changed, retry waves."""

from __future__ import annotations

import asyncio
import re
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from functools import cache
from itertools import count
from pathlib import Path

import pytest
import pytest_asyncio
from prometheus_client import CollectorRegistry, start_http_server

import holdfast.aio
from holdfast.aio.client import Locks
from holdfast.observe import prometheus
from holdfast.observe.ledger.writer import Ledger
from holdfast.ops.runbooks.books.before_ttl_change import PREFIX
from holdfast.ops.runbooks.books.retry_waves import GROWTH
from holdfast.ops.runbooks.books.store_outage import LOG_TEXT
from holdfast.ops.runbooks.evidence.locks import ProofFact, StoreFact
from holdfast.ops.runbooks.evidence.metrics import MetricsFact
from holdfast.ops.runbooks.evidence.plane import PendingFact
from holdfast.ops.runbooks.model import FindingSeverity
from holdfast.plane.model import messages as subjects
from holdfast.plane.model.records import Message
from holdfast.plane.process.components import open_components
from holdfast.plane.settings.settings import Settings
from support.fixtures.redis import NEWEST
from support.fixtures.scheduling import holds
from support.ops.runbook_harness import found, reported
from support.servers.redis import RedisExecutable, RedisServer, start_redis

pytestmark = pytest.mark.asyncio


@pytest.fixture(scope="module")
def _leases_server() -> Iterator[Callable[[RedisExecutable], RedisServer]]:
    """A server that the tests of this file share, each under names of its own; started when it is first asked for."""
    with ExitStack() as stack:
        yield cache(lambda executable: stack.enter_context(start_redis(executable)))


@pytest.fixture(params=["sqlite", *NEWEST])
def lease_place(
    request: pytest.FixtureRequest, tmp_path: Path, _leases_server: Callable[[RedisExecutable], RedisServer]
) -> str:
    """An empty lease store of this test's own, on each engine."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'leases.db'}"
    space = uuid.uuid4().hex[:10]
    return f"{_leases_server(request.param).url}?prefix={space}:&namespace=aux-{space}"


@pytest_asyncio.fixture
async def opened_locks(lease_place: str) -> AsyncIterator[Locks]:
    async with holdfast.aio.connect(lease_place) as locks:
        await locks.ping()
        yield locks


def settings_at(tmp_path: Path, leases: str) -> Settings:
    return Settings(database=f"sqlite:///{tmp_path / 'nowhere.db'}", leases=leases)


@pytest.mark.requires("R20", "R21", "R22", "R23", "R24")
async def test_before_a_ttl_is_changed_ownership_expiry_and_exclusion_are_proved_on_a_key_of_its_own(
    opened_locks: Locks, lease_place: str, tmp_path: Path
) -> None:
    async with opened_locks.lock("another:key", ttl=30):
        report = await reported("before-ttl-change", settings_at(tmp_path, lease_place))
        assert [look.key for look in await opened_locks.list()] == ["another:key"]
    assert report.severity is FindingSeverity.FINE
    facts = {each.what: each.fact for each in report.evidence}
    release, exclusion = facts["stale release"], facts["exclusion"]
    assert isinstance(release, ProofFact)
    assert isinstance(exclusion, ProofFact)
    assert release.seen[0] == "answer: lock not owned"
    assert release.seen[1].startswith(f"log: lock release skipped: token mismatch: key={PREFIX}")
    assert exclusion.seen == ("8 of 8 got an empty token while it was held", "1 of 8 got it when it was free")
    assert any("tune --family" in step.command for step in report.next)
    assert await opened_locks.audit() == []


@pytest.mark.requires("R31", "R36")
async def test_leases_that_an_operator_broke_are_told_from_a_burst(
    lease_place: str, opened_locks: Locks, tmp_path: Path
) -> None:
    ledger = tmp_path / "ledger"
    with Ledger(ledger) as written:
        async with holdfast.aio.connect(lease_place, observers=[written]) as holders, AsyncExitStack() as stack:
            leases = [await holders.lock(f"job:{each}", ttl=0.9).acquire() for each in range(3)]
            for lease in leases:
                await opened_locks.force_release(lease.key, reason="the host is gone", actor="ada")
            for lease in leases:
                await lease.lost.wait()
            stack.pop_all()
    place = settings_at(tmp_path, lease_place)
    report = await reported("not-owned", place, ledger=str(ledger))
    forced = found(report, "forced")
    assert "3 leases were lost, each of a lock that was broken by force (ada)" in forced.sentence
    assert report.severity is FindingSeverity.WATCH
    assert any(step.command.startswith("holdfast audit --url") for step in report.next)


@pytest.mark.requires("R25")
async def test_handlers_that_outlive_an_unrenewed_lease_are_named_as_the_cause(
    lease_place: str, opened_locks: Locks, tmp_path: Path
) -> None:
    ledger = tmp_path / "ledger"
    with Ledger(ledger) as written:
        async with holdfast.aio.connect(lease_place, observers=[written]) as holders:
            names = [f"job:{each}" for each in range(3)]
            leases = [await holders.lock(name, ttl=0.2, auto_renew=False, family="crawl").acquire() for name in names]
            for lease in leases:
                await lease.lost.wait()
    report = await reported("not-owned", settings_at(tmp_path, lease_place), ledger=str(ledger))
    burst = found(report, "burst: outlived")
    assert "3 leases were lost or refused" in burst.sentence
    commands = [step.command for step in report.next]
    assert "holdfast tune --family crawl" in commands
    assert any(f"--ledger {ledger}" in each for each in commands)  # the place that was looked at, to be typed as it is
    assert (await opened_locks.list()) == []


@contextmanager
def metrics_of(locks: Locks) -> Iterator[str]:
    """The address of the metrics of these locks alone."""
    registry = CollectorRegistry()
    collector = prometheus.register(locks, registry=registry)
    server, thread = start_http_server(0, "127.0.0.1", registry=registry)
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        collector.end()
        server.shutdown()
        server.server_close()
        thread.join()


@asynccontextmanager
async def contended(url: str, runs: int, *, each_alone: bool = False) -> AsyncIterator[tuple[Locks, tuple[str, ...]]]:
    """Contenders for as many runs, in step, and the addresses of their metrics. `each_alone`: an address for each."""
    async with holdfast.aio.connect(url) as holder, AsyncExitStack() as stack:
        for each in range(runs):
            await stack.enter_async_context(holder.lock(f"run:{each}", ttl=30))
        clients = [await stack.enter_async_context(holdfast.aio.connect(url)) for _ in range(runs if each_alone else 1)]
        served = [metrics_of(client) for client in clients]
        addresses = tuple(each.__enter__() for each in served)

        async def end() -> None:  # together: a server ends at its next look at its sockets, which is half a second away
            await asyncio.gather(*(asyncio.to_thread(each.__exit__, None, None, None) for each in served))

        stack.push_async_callback(end)
        stop = asyncio.Event()

        async def contend(locks: Locks, name: str) -> None:
            while not stop.is_set():
                assert await locks.lock(name, ttl=30, family="workflow.run").try_acquire() is None
                await asyncio.sleep(0.5)  # the fixed delay, in step with all others

        async with asyncio.TaskGroup() as tasks:
            for each in range(runs):
                tasks.create_task(contend(clients[each % len(clients)], f"run:{each}"))
            yield clients[0], addresses
            stop.set()


@pytest.mark.requires("R154", "R156", "R157", "R167")
async def test_contenders_with_a_fixed_delay_are_seen_to_come_in_waves(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'leases.db'}"
    async with contended(url, 20) as (locks, addresses):

        async def busy() -> bool:
            return locks.statistics().busy >= 60

        await holds(busy)
        report = await reported("retry-waves", settings_at(tmp_path, url), metrics=addresses, spacing=1.2)
    assert "each is retried after 0.5 s exactly" in found(report, "waves").sentence
    assert any("policy set busy_jitter 0.2" in step.command for step in report.next)
    lines = [line for each in report.evidence if each.fact is not None for line in each.fact.lines()]
    assert any(line.startswith("the bus kept the delay of 0.5 s") for line in lines)
    missing = next(each for each in report.evidence if each.what == "pending")
    assert not missing.given


@pytest.mark.requires("R141", "R154")
async def test_a_wave_of_which_each_process_has_one_retry_is_seen_in_the_sum(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'leases.db'}"
    async with contended(url, 30, each_alone=True) as (locks, addresses):

        async def in_step() -> bool:
            return locks.statistics().busy >= 2

        await holds(in_step)
        settings = settings_at(tmp_path, url)
        all_of_them, one = await asyncio.gather(
            reported("retry-waves", settings, metrics=addresses, spacing=2.2),
            reported("retry-waves", settings, metrics=addresses[:1], spacing=2.2),
        )
    assert "over all processes together" in found(all_of_them, "waves").sentence
    assert "too few were counted to exclude a wave" in found(one, "busy, evenly").sentence


@pytest.mark.requires("R155")
async def test_messages_that_pile_up_while_run_locks_are_busy_are_said_with_both_rates(tmp_path: Path) -> None:
    """Results of steps arrive on a bus from which no engine takes them, and every run is locked."""
    leases = f"sqlite:///{tmp_path / 'leases.db'}"
    settings = Settings(database=f"sqlite:///{tmp_path / 'plane.db'}?synchronous=normal", leases=leases)
    async with open_components(settings) as components, contended(leases, 4) as (_, addresses):
        over = asyncio.Event()

        async def results() -> None:
            for batch in count():
                ids = [f"run.result:{batch}:{each}" for each in range(GROWTH)]
                await components.bus.publish([Message(each, subjects.RUN_RESULT, {"run": "r"}) for each in ids])
                if over.is_set():
                    return
                await asyncio.sleep(0.05)

        publishing = asyncio.ensure_future(results())
        report = await reported("retry-waves", settings, metrics=addresses, spacing=1.2)
        over.set()
        await publishing
    fact = next(each.fact for each in report.evidence if each.what == "pending")
    assert isinstance(fact, PendingFact)
    assert fact.last[subjects.RUN_RESULT] - fact.first[subjects.RUN_RESULT] == fact.growth
    assert fact.growth >= GROWTH
    piled = found(report, "messages pile up")
    assert re.match(rf"Messages pile up: \+{fact.growth} in 1\.2 s while [\d.]+ attempts per second", piled.sentence)
    assert any(line.startswith("run.result: ") for line in fact.lines())


@pytest.mark.requires("R94", "R95")
@pytest.mark.parametrize("executable", NEWEST)
async def test_a_redis_that_stands_still_or_is_gone_is_evidence_and_holds_nothing_up(
    executable: RedisExecutable, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with start_redis(executable) as server:
        await _check_outage(server, settings_at(tmp_path, server.url))
        async with holdfast.aio.connect(server.url, policy={"low": "fail_open"}) as locks:
            await (await locks.lock("run:1", ttl=30, risk="low").acquire()).release()
    assert LOG_TEXT in caplog.text  # what the runbook tells people to look for
    assert not (tmp_path / "nowhere.db").exists()


async def _check_outage(server: RedisServer, place: Settings) -> None:
    report = await reported("store-outage", place)
    store = next(each.fact for each in report.evidence if each.what == "store")
    assert isinstance(store, StoreFact)
    assert store.about is not None
    assert store.about["role"] == "master"
    server.pause()
    for name in ("store-outage", "before-ttl-change"):
        stuck = await reported(name, place, patience=2.0)
        assert stuck.severity in {FindingSeverity.ACT, FindingSeverity.UNKNOWN}
    server.resume()
    server.kill()
    report = await reported("store-outage", place)
    assert "The lease store does not answer" in found(report, "down").sentence


async def test_a_process_that_does_not_answer_is_named_and_the_others_count(tmp_path: Path) -> None:
    registry = CollectorRegistry()
    async with holdfast.aio.connect(f"sqlite:///{tmp_path / 'leases.db'}") as locks:
        collector = prometheus.register(locks, families=("scheduler.job",), registry=registry)
        server, thread = start_http_server(0, "127.0.0.1", registry=registry)
        try:
            await locks.ping()
            place = settings_at(tmp_path, f"sqlite:///{tmp_path / 'leases.db'}")
            here = f"http://127.0.0.1:{server.server_port}/metrics"
            report = await reported("not-owned", place, metrics=(here, "http://127.0.0.1:1"))
        finally:
            collector.end()
            server.shutdown()
            server.server_close()
            thread.join()
    fact = next(each.fact for each in report.evidence if each.what == "rates")
    assert isinstance(fact, MetricsFact)
    assert fact.processes == 1
    assert "127.0.0.1:1" in fact.silent[0]
    assert fact.get("not owned", "scheduler.job") == 0.0
