"""What a lease in NATS is: a key of a bucket, a fence that is a sequence, an expiry without a clock of the server."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import nats.errors
import pytest
from nats.aio.client import Client
from nats.js import JetStreamContext

import holdfast
from holdfast import aio
from holdfast.core.failpoints import armed
from holdfast.errors import BackendError, Misconfigured, Timeout, Unavailable
from holdfast.runtime.run_sync import run_now
from holdfast.stores.blocking import BlockingStore as Store
from holdfast.stores.nats import revisions
from holdfast.stores.nats.engine import open_engine as nats_engine
from holdfast.stores.nats.requests import BucketRequests, Write
from holdfast.stores.nats.values import Free, mark_of
from holdfast.testing import faults
from holdfast.types import MS, NS, Grant, Guarantee
from support.fixtures.scheduling import holds
from support.harness.redis_requests import OWNER, SOON, ask, give_back, meet, renewal, take
from support.load.processes import until
from support.servers.nats import NatsExecutable, NatsServer, cluster_url, start_nats_cluster

pytestmark = pytest.mark.server

CLUSTER_S = 200.0  # below the time limit of a test


def bucket_of(url: str) -> str:
    return url.partition("bucket=")[2].partition("&")[0]


def on_server(url: str, work: Callable[[JetStreamContext], Awaitable[Any]]) -> Any:
    """Something that another client does."""

    async def main() -> Any:
        client = Client()
        # Without limits the client would try for two minutes, which is as long as a test may take.
        await client.connect([url.partition("?")[0]], allow_reconnect=False, max_reconnect_attempts=1)
        try:
            return await work(client.jetstream())
        finally:
            await client.close()

    return asyncio.run(main())


@pytest.fixture
def store(nats_leases: str) -> Iterator[Store]:
    store = nats_engine(nats_leases).blocking
    yield store
    run_now(store.close())


@pytest.fixture
def other(nats_leases: str) -> Iterator[Store]:
    """Another process, as far as the leases are concerned."""
    store = nats_engine(nats_leases).blocking
    yield store
    run_now(store.close())


# What others see.


@pytest.mark.requires("R22")
def test_the_key_of_the_bucket_names_the_owner_and_never_the_token(store: Store, nats_leases: str) -> None:
    grant = run_now(take(store, "invoice:42"))

    async def get(context: JetStreamContext) -> bytes:
        entry = await (await context.key_value(bucket_of(nats_leases))).get("invoice=3A42")
        assert entry.revision == grant.fence
        return entry.value or b""

    value = on_server(nats_leases, get)
    assert grant.token.encode() not in value
    words = json.loads(value)
    assert (words["owner"], words["family"], words["mark"]) == (OWNER, "billing", mark_of(grant.token))


def test_a_released_key_is_deleted_for_other_clients_and_is_forgotten_by_the_server(
    store: Store, nats_leases: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.stores.nats.requests.FREE_TTL_S", 1)
    assert run_now(give_back(store, run_now(take(store, "job"))))

    async def gone(context: JetStreamContext) -> bool:
        bucket = await context.key_value(bucket_of(nats_leases))

        async def empty() -> bool:
            return not (await bucket.status()).values

        await holds(empty)
        return True

    assert on_server(nats_leases, gone)
    again = run_now(take(store, "job"))  # this process still knows the message that is gone
    assert run_now(give_back(store, again))


def test_a_value_of_another_program_holds_the_key_until_an_operator_breaks_it(store: Store, nats_leases: str) -> None:
    run_now(store.ping(SOON))

    async def put(context: JetStreamContext) -> None:
        await (await context.key_value(bucket_of(nats_leases))).put("job", b"locked by hand")

    on_server(nats_leases, put)
    busy = run_now(meet(store, "job"))
    assert (busy.owner, busy.remaining_ns) == ("another program", None)
    holding = run_now(store.inspect("job", SOON))
    assert holding is not None
    assert (holding.fence, holding.remaining_ns) == (None, None)
    record = run_now(store.force_release("job", "ada", "left by hand", SOON))
    assert record is not None
    assert (record.previous_owner, record.previous_fence) == ("another program", None)
    assert run_now(take(store, "job")).fence > record.fence


def test_the_store_promises_fences_durability_and_no_queue(nats_leases: str) -> None:
    with holdfast.connect(nats_leases) as locks:
        can = locks.capabilities
        assert (can.guarantee, can.durable, can.shared, can.fair) == (Guarantee.FENCED, True, True, False)
        with pytest.raises(Misconfigured, match="fair"):
            locks.lock("job", fair=True)


# Fences and buckets.


def test_a_purged_bucket_ends_its_leases_and_fences_still_rise(store: Store, nats_leases: str) -> None:
    grant = run_now(take(store, "job"))

    async def purge(context: JetStreamContext) -> None:
        await context.purge_stream(f"KV_{bucket_of(nats_leases)}")

    on_server(nats_leases, purge)
    assert run_now(store.renew_many([renewal(grant)], SOON)) == [False]
    assert not run_now(give_back(store, grant))
    assert run_now(take(store, "job")).fence > grant.fence


def test_a_deleted_bucket_is_created_again_and_fences_start_above_the_old_ones(store: Store, nats_leases: str) -> None:
    grants = [run_now(take(store, f"job-{number}")) for number in range(5)]

    async def delete(context: JetStreamContext) -> None:
        await context.delete_stream(f"KV_{bucket_of(nats_leases)}")

    on_server(nats_leases, delete)
    with pytest.raises(Unavailable):  # the request that finds out
        run_now(store.renew_many([renewal(grants[0])], SOON))
    assert run_now(store.renew_many([renewal(each) for each in grants], SOON)) == [False] * 5
    assert run_now(take(store, "job-0")).fence > max(each.fence for each in grants)


@pytest.mark.parametrize("settings", [{"max_age": 60.0}, {"max_msgs_per_subject": 1}])
def test_a_bucket_of_someone_else_is_refused_with_the_reason(nats_leases: str, settings: dict[str, Any]) -> None:
    name = bucket_of(nats_leases)

    async def make(context: JetStreamContext) -> None:
        await context.add_stream(name=f"KV_{name}", subjects=[f"$KV.{name}.>"], allow_msg_ttl=True, **settings)

    on_server(nats_leases, make)
    with holdfast.connect(nats_leases) as locks, pytest.raises(Misconfigured, match=name):
        locks.lock("job").try_acquire()


def test_more_replicas_than_the_bucket_has_are_refused(nats_leases: str) -> None:
    with holdfast.connect(nats_leases) as locks:
        locks.ping()
    with holdfast.connect(f"{nats_leases}&replicas=3") as locks, pytest.raises(Misconfigured, match="has 1 replicas"):
        locks.ping()


# Expiry.


def test_a_process_that_has_watched_a_lease_for_its_ttl_takes_it_over(store: Store, other: Store) -> None:
    first = run_now(take(store, "job", ttl_ns=80 * MS))
    busy = run_now(meet(other, "job"))
    assert busy.remaining_ns is not None
    assert 0 < busy.remaining_ns <= 80 * MS

    while not isinstance(answer := run_now(other.acquire(ask("job"), SOON)), Grant):
        pass
    assert answer.fence > first.fence


def test_a_renewal_starts_the_time_of_a_watcher_again(store: Store, other: Store) -> None:
    grant = run_now(take(store, "job", ttl_ns=20 * NS))
    run_now(meet(other, "job"))
    assert run_now(store.renew_many([renewal(grant, 40 * NS)], SOON)) == [True]
    busy = run_now(meet(other, "job"))
    assert busy.remaining_ns is not None
    assert busy.remaining_ns > 20 * NS


def test_a_process_that_comes_late_needs_no_second_look(
    store: Store, other: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job of cron that does not wait would otherwise never get the lock of one that died."""
    monkeypatch.setattr(revisions, "CLOCKS_APART_NS", 50 * MS)
    first = run_now(take(store, "job", ttl_ns=60 * MS))
    stale_ns = run_now(store.time_ns(SOON)) + (60 + 50) * MS
    while run_now(store.time_ns(SOON)) < stale_ns:
        pass
    second = run_now(take(other, "job"))
    assert second.fence > first.fence
    assert run_now(store.renew_many([renewal(first)], SOON)) == [False]


def test_by_the_servers_clock_alone_nothing_is_taken_soon_after_its_ttl(store: Store, other: Store) -> None:
    run_now(take(store, "job", ttl_ns=50 * MS))
    over_ns = run_now(store.time_ns(SOON)) + 50 * MS
    while run_now(store.time_ns(SOON)) < over_ns:
        pass
    busy = run_now(meet(other, "job"))  # its first look
    assert busy.remaining_ns is not None
    assert 0 < busy.remaining_ns <= 50 * MS


def test_the_store_reads_nothing_when_nobody_else_uses_the_key(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    run_now(store.ping(SOON))
    reads: list[str] = []
    read = BucketRequests.read

    async def counted(self: BucketRequests, key: str, deadline_ns: int) -> object:
        reads.append(key)
        return await read(self, key, deadline_ns)

    monkeypatch.setattr(BucketRequests, "read", counted)
    for _ in range(3):
        grant = run_now(take(store, "job"))
        assert run_now(store.renew_many([renewal(grant)], SOON)) == [True]
        assert run_now(give_back(store, grant))
    assert reads == []


# Requests whose answer is lost.


def test_an_acquire_on_its_way_cannot_take_a_key_that_was_released_meanwhile(store: Store, nats_leases: str) -> None:
    """The release of an unknown grant finds the key free; the acquire that arrives after it is refused."""
    wanted = ask("job")
    assert not run_now(store.release("job", wanted.token, None, 0, SOON))

    async def late(context: JetStreamContext) -> str:
        headers = {"Nats-Expected-Last-Subject-Sequence": "0"}
        try:
            await context.publish(f"$KV.{bucket_of(nats_leases)}.job", b"{}", headers=headers)
        except Exception as error:
            return str(error)
        return "stored"

    assert "wrong last sequence" in on_server(nats_leases, late)


@pytest.mark.asyncio
async def test_a_lost_answer_is_an_unknown_outcome_and_the_same_token_gets_the_same_grant(nats_leases: str) -> None:
    store = nats_engine(nats_leases).asynchronous()
    await store.ping(SOON)
    wanted = ask("job")
    with armed("store.nats.replied", faults.lose(), hit=1), pytest.raises(Timeout):
        await store.acquire(wanted, SOON)
    holding = await store.inspect("job", SOON)
    assert holding is not None
    grant = await store.acquire(wanted, SOON)
    assert (grant.key, getattr(grant, "fence", None)) == ("job", holding.fence)
    await store.close()


@pytest.mark.asyncio
async def test_a_forced_release_that_broke_off_is_recorded_by_the_next_holder(nats_leases: str) -> None:
    engine = nats_engine(nats_leases)
    store = engine.asynchronous()
    grant = await take(store, "job")
    with armed("store.nats.send", faults.lose(), hit=3), pytest.raises(Timeout):  # read, free, record
        await store.force_release("job", "ada", "stuck", SOON)
    later = nats_engine(nats_leases).asynchronous()
    assert await later.audit(10, SOON) == []
    assert (await take(later, "job")).fence > grant.fence
    (record,) = await later.audit(10, SOON)
    assert (record.key, record.actor, record.previous_fence) == ("job", "ada", grant.fence)
    await store.close()
    await later.close()


@pytest.mark.asyncio
async def test_a_write_that_replaces_something_else_is_refused(nats_leases: str) -> None:
    """What every decision rests on, tried at the server itself."""
    store = nats_engine(nats_leases).asynchronous()
    grant = await take(store, "job")
    bucket = store._bucket
    deadline_ns = store._link.deadline(SOON)
    for expected in (0, 1, grant.fence - 1, grant.fence + 1):
        assert await bucket.write(Write("job", expected, Free()), deadline_ns) is None
    assert (await bucket.write(Write("job", grant.fence, Free()), deadline_ns) or 0) > grant.fence
    await store.close()


# Waiters.


@pytest.mark.asyncio
async def test_one_release_wakes_one_waiter_of_all_processes(nats_leases: str) -> None:
    stores = [nats_engine(nats_leases).asynchronous() for _ in range(5)]
    grant = await take(stores[0], "job")
    watches = [await store.watch("job") for store in stores for _ in range(2)]
    waits = {asyncio.create_task(watch.wait(60 * NS)): watch for watch in watches}
    for _ in range(len(watches)):
        assert await give_back(stores[0], grant)
        woken, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.gather(*(store.ping(SOON) for store in stores))  # whatever else was sent has arrived
        assert [each for each in waits if each.done()] == list(woken)
        assert [each.result() for each in woken] == [True]
        await waits.pop(woken.pop()).close()  # it has the lock
        grant = await take(stores[0], "job")
    await asyncio.gather(*(store.close() for store in stores))


@pytest.mark.asyncio
async def test_a_hint_of_a_waiter_that_gives_up_goes_to_the_next(nats_leases: str) -> None:
    first, second = (nats_engine(nats_leases).asynchronous() for _ in range(2))
    grant = await take(first, "job")
    early = await second.watch("job")
    assert await give_back(first, grant)
    assert await early.wait(60 * NS)
    grant = await take(first, "job")
    assert await give_back(first, grant)
    await second.ping(SOON)  # the hint has arrived, and is not used
    late = await first.watch("job")
    await early.close()
    assert await late.wait(60 * NS)
    await late.close()
    await first.close()
    await second.close()


# A cluster.


def leader(url: str, servers: list[NatsServer]) -> NatsServer:
    """The leader of the bucket, as soon as there is one."""

    async def ask_for_it(context: JetStreamContext) -> str:
        info = await context.stream_info(f"KV_{bucket_of(url)}")
        return "" if info.cluster is None else info.cluster.leader or ""

    alive = next(server for server in servers if server.process is not None)
    found: list[str] = []

    def known() -> bool:
        with contextlib.suppress(nats.errors.Error):
            found.append(on_server(alive.url, ask_for_it))
        return bool(found and found[-1])

    until(known, "the bucket has a leader")
    return servers[int(found[-1].removeprefix("n"))]


def test_leases_survive_the_death_of_the_leader_and_others_are_still_excluded(nats_executable: NatsExecutable) -> None:
    end = time.monotonic() + CLUSTER_S  # of all waits together: one that is too long is the one that fails

    def granted(lock: holdfast.Lock[holdfast.Lease]) -> holdfast.Lease:
        """JetStream may not have a leader yet, or not any more."""
        return lock.acquire(timeout=max(0.0, end - time.monotonic()))

    with start_nats_cluster(nats_executable) as servers:
        url = cluster_url(servers)
        with holdfast.connect(url, policy={"patient": "wait"}) as locks, holdfast.connect(url) as others:
            patient: Any = {"ttl": 600, "risk": "patient"}
            first = granted(locks.lock("first", **patient))
            held = [granted(locks.lock(f"held-{number}", **patient)) for number in range(5)]
            victim = leader(url, servers)
            victim.kill()
            assert first.held
            later = granted(locks.lock("later", **patient))
            assert later.fence is not None
            assert first.fence is not None
            assert later.fence > first.fence
            first.renew()
            assert all(lease.held for lease in held)
            assert others.lock("first", ttl=60).try_acquire() is None
            assert others.inspect("first").fence == first.fence
            for lease in [first, later, *held]:
                assert lease.release()
            victim.start()
            again = granted(others.lock("first", ttl=60))
            assert again.fence is not None
            assert again.fence > later.fence
            again.release()


@pytest.mark.asyncio
async def test_a_client_moves_to_another_server_of_the_url(nats_executable: NatsExecutable) -> None:
    with start_nats_cluster(nats_executable) as servers:
        async with aio.connect(cluster_url(servers), policy={"patient": "wait"}) as locks:
            lease = await locks.lock("job", ttl=60, risk="patient").acquire(timeout=60)
            servers[0].kill()  # the first of the url, which the client uses

            async def renewed() -> bool:
                try:
                    await lease.renew()
                except BackendError:  # it was the leader of the bucket too
                    return False
                return True

            await holds(renewed)
            assert await lease.release()
