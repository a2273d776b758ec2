"""What only the etcd store does: etcd leases that are never kept alive, its fences, its queue, its conditions."""

from __future__ import annotations

import json
import shutil
import subprocess
from base64 import b64decode
from typing import Any

import pytest

import holdfast
from holdfast.core.ports import Store
from holdfast.errors import Misconfigured, Timeout
from holdfast.leases.ownership import KeyCondition
from holdfast.runtime.run_sync import run_now
from holdfast.stores.etcd import store as etcd_store
from holdfast.stores.registry import open_engine
from holdfast.types import MS, NS, Busy, Grant
from support.fixtures.etcd import StartEtcd
from support.fixtures.redis import Play
from support.harness.etcd_requests import LONG, SOON, LateHttp, ask, over, renewal, take
from support.servers.etcd import EtcdServer

pytestmark = pytest.mark.server


def prefix_of(url: str) -> str:
    return url.rpartition("/")[2]


def stored(server: EtcdServer, key: str) -> dict[str, Any]:
    """One key as etcdctl shows it."""
    (found,) = json.loads(server.ctl("get", key, "--write-out", "json"))["kvs"]
    return {**found, "key": b64decode(found["key"]).decode(), "value": b64decode(found.get("value", "")).decode()}


# Leases.


def test_a_lease_reads_as_json_that_begins_with_the_owner_and_has_no_secret_in_it(
    play: Play, etcd_server: EtcdServer, etcd_url: str
) -> None:
    async def scenario(store: Store) -> None:
        asked, grant = await take(store, "job")
        found = stored(etcd_server, f"{prefix_of(etcd_url)}/lock/job")
        assert found["value"].startswith(f'{{"owner": "{asked.owner}", "family": "test.family", ')
        assert asked.token not in found["value"] + grant.claim
        assert json.loads(found["value"])["base"] + found["create_revision"] == grant.fence
        assert found["lease"]
        await store.release("job", asked.token, grant.claim, 0, SOON)

    play(etcd_url, scenario)


@pytest.mark.parametrize("renewed", ["by the grant", "by the token alone"])
def test_a_renewal_that_is_delivered_late_does_not_shorten_the_lease(etcd_url: str, renewed: str) -> None:
    """A stopped member delivers it after a newer one: it would move the key back to an etcd lease that ends sooner."""

    async def scenario() -> None:
        asked, grant = await take(store, "job", 30 * NS)
        claim = grant.claim if renewed == "by the grant" else ""
        assert await store.renew_many([renewal(asked, grant, 10 * NS)._replace(claim=claim)], SOON) == [True]
        assert http.held
        assert await store.renew_many([renewal(asked, grant, 600 * NS)._replace(claim=claim)], SOON) == [True]
        status, _ = await http.deliver()
        assert status == 200
        seen = await store.inspect("job", SOON)
        assert seen is not None
        assert seen.remaining_ns is not None
        assert seen.remaining_ns > 500 * NS
        assert await store.release("job", asked.token, grant.claim, 0, SOON)

    http = LateHttp(etcd_url, lambda path, body: b"ignore_value" in body)
    store = over(etcd_url, http)
    run_now(scenario())


def test_a_repeated_ask_that_is_delivered_late_does_not_shorten_the_lease(etcd_url: str) -> None:
    async def scenario() -> None:
        asked, grant = await take(store, "job", 30 * NS)
        again = await store.acquire(asked._replace(ttl_ns=10 * NS), SOON)
        assert http.held
        assert again == grant
        assert await store.renew_many([renewal(asked, grant, 600 * NS)], SOON) == [True]
        await http.deliver()
        seen = await store.inspect("job", SOON)
        assert seen.remaining_ns > 500 * NS

    http = LateHttp(etcd_url, lambda path, body: b"ignore_value" in body)
    store = over(etcd_url, http)
    run_now(scenario())


def test_an_acquire_without_an_answer_that_took_effect_is_the_same_grant(etcd_url: str) -> None:
    async def scenario() -> None:
        asked = ask("job")
        grant = await store.acquire(asked, SOON)
        assert isinstance(grant, Grant)
        assert http.lost
        seen = await store.inspect("job", SOON)
        assert (seen.fence, seen.owner) == (grant.fence, asked.owner)
        assert await store.release("job", asked.token, grant.claim, 0, SOON)

    http = _AnswerLost(etcd_url, b"request_put")
    store = over(etcd_url, http)
    run_now(scenario())


def test_a_release_without_an_answer_stays_unknown(etcd_url: str) -> None:
    """A second request finds nothing to delete, which would read as a refusal."""

    async def scenario() -> None:
        asked, grant = await take(store, "job")
        with pytest.raises(Timeout):
            await store.release("job", asked.token, grant.claim, 0, SOON)
        assert http.lost
        assert await store.inspect("job", SOON) is None

    http = _AnswerLost(etcd_url, b"request_delete_range")
    store = over(etcd_url, http)
    run_now(scenario())


class _AnswerLost(LateHttp):
    """Sends everything, and loses the answer to the first request that contains a text."""

    def __init__(self, url: str, containing: bytes) -> None:
        super().__init__(url, lambda path, body: False)
        self.lost = False
        self._containing = containing

    async def post(self, endpoint: Any, path: str, body: bytes, token: Any, deadline_ns: int) -> tuple[int, bytes]:
        answer = await super().post(endpoint, path, body, token, deadline_ns)
        if not self.lost and b"/lock/" not in body and self._containing in body and _of_a_lock(body):
            self.lost = True
            raise Timeout("the answer was lost by a test")
        return answer


def _of_a_lock(body: bytes) -> bool:
    message = json.loads(body)
    names = [each["key"] for each in message.get("compare", ())]
    return any(b"/lock/" in b64decode(each) for each in names)


def test_an_etcd_lease_that_an_operator_revoked_is_replaced(play: Play, etcd_server: EtcdServer, etcd_url: str) -> None:
    async def scenario(store: Store) -> None:
        asked, grant = await take(store, "job")
        lease = stored(etcd_server, f"{prefix_of(etcd_url)}/lock/job")["lease"]
        etcd_server.ctl("lease", "revoke", f"{lease:x}")
        assert await store.inspect("job", SOON) is None
        assert await store.renew_many([renewal(asked, grant)], SOON) == [False]
        _, new = await take(store, "job")
        assert new.fence > grant.fence

    play(etcd_url, scenario)


def test_requests_of_one_moment_share_an_etcd_lease(play: Play, etcd_url: str) -> None:
    async def scenario(store: Store) -> None:
        engine: Any = store
        await take(store, "warm")
        before = engine._leases.ready(LONG)
        held = [await take(store, f"job-{number}") for number in range(5)]
        assert await store.renew_many([renewal(*each) for each in held], SOON) == [True] * 5
        assert before is None or len(engine._leases._leases) == 1

    play(etcd_url, scenario)


def test_a_key_of_another_program_is_busy_and_is_not_shown_as_a_lease(
    play: Play, etcd_server: EtcdServer, etcd_url: str
) -> None:
    etcd_server.ctl("put", f"{prefix_of(etcd_url)}/lock/theirs", "not json")

    async def scenario(store: Store) -> None:
        busy = await store.acquire(ask("theirs"), SOON)
        assert busy == Busy("theirs", "another program", None)
        seen = await store.inspect("theirs", SOON)
        assert seen is not None
        assert (seen.owner, seen.fence) == ("another program", None)
        assert await store.holdings("", 10, SOON) == []

    play(etcd_url, scenario)


# Fences.


@pytest.mark.requires("R57")
def test_a_fence_is_the_revision_at_which_consensus_granted_the_lease(
    play: Play, etcd_server: EtcdServer, etcd_url: str
) -> None:
    async def scenario(store: Store) -> None:
        asked, grant = await take(store, "job")
        found = stored(etcd_server, f"{prefix_of(etcd_url)}/lock/job")
        base = int(stored(etcd_server, f"{prefix_of(etcd_url)}/fence")["value"].split()[0])
        assert grant.fence == base + found["create_revision"]
        assert await store.release("job", asked.token, grant.claim, 0, SOON)

    play(etcd_url, scenario)


@pytest.mark.requires("R57")
def test_fences_rise_when_a_cluster_has_lost_everything(play: Play, own_etcd: StartEtcd) -> None:
    """Its revisions begin at 1 again."""
    server = own_etcd()

    async def scenario(store: Store) -> None:
        asked, old = await take(store, "job")
        await store.release("job", asked.token, old.claim, 0, SOON)
        server.kill()
        shutil.rmtree(server.directory / server.name)
        server.start()
        asked, new = await take(store, "job")
        assert new.fence > old.fence
        await store.release("job", asked.token, new.claim, 0, SOON)

    play(server.url, scenario)


def test_fences_rise_when_an_operator_has_deleted_their_base(
    play: Play, etcd_server: EtcdServer, etcd_url: str
) -> None:
    async def scenario(store: Store) -> None:
        _, old = await take(store, "job")
        etcd_server.ctl("del", f"{prefix_of(etcd_url)}/fence")
        etcd_server.ctl("del", f"{prefix_of(etcd_url)}/lock/job")
        asked, new = await take(store, "job")
        assert new.fence > old.fence
        await store.release("job", asked.token, new.claim, 0, SOON)

    play(etcd_url, scenario)


def test_a_base_of_another_cluster_is_replaced_by_a_higher_one(
    play: Play, etcd_server: EtcdServer, etcd_url: str
) -> None:
    """A backup was restored into a new cluster: it brings a base, and an older revision."""
    prefix, far = prefix_of(etcd_url), 10**16

    async def scenario(store: Store) -> None:
        etcd_server.ctl("put", f"{prefix}/fence", f"{far} 4711")
        _, grant = await take(store, "job")
        assert grant.fence > far
        assert not stored(etcd_server, f"{prefix}/fence")["value"].endswith(" 4711")
        etcd_server.ctl("del", "--prefix", f"{prefix}/")

    play(etcd_url, scenario)


def test_a_base_that_is_none_is_named_with_its_key(play: Play, etcd_server: EtcdServer, etcd_url: str) -> None:
    etcd_server.ctl("put", f"{prefix_of(etcd_url)}/fence", "garbage")

    async def scenario(store: Store) -> None:
        with pytest.raises(Misconfigured, match="/fence holds no base of fences; delete it"):
            await store.acquire(ask("job"), SOON)

    play(etcd_url, scenario)


# Conditions.


def test_a_condition_is_a_compare_that_fails_when_the_lease_has_gone(etcd_server: EtcdServer, etcd_url: str) -> None:
    key = f"{prefix_of(etcd_url)}-data"

    def write(value: str, compare: str) -> str:
        """A transaction of a user's own, with etcdctl."""
        command = [str(etcd_server.executable.path).replace("bin/etcd", "bin/etcdctl"), "txn"]
        text = f"{compare}\n\nput {key} {value}\n\n\n"
        done = subprocess.run(
            [*command, f"--endpoints=127.0.0.1:{etcd_server.port}"],
            input=text,
            capture_output=True,
            text=True,
            timeout=30,
            check=True,
        )
        return done.stdout.split()[0]

    with holdfast.connect(etcd_url) as locks:
        lease = locks.lock("job", ttl=30).acquire()
        condition = lease.condition()
        assert isinstance(condition, KeyCondition)
        (compare,) = condition.compares
        assert b64decode(compare["key"]).decode() == f"{prefix_of(etcd_url)}/lock/job"
        created = f'create("{prefix_of(etcd_url)}/lock/job") = "{condition.revision}"'
        assert write("first", created) == "SUCCESS"
        locks.force_release("job", reason="test")
        assert write("second", created) == "FAILURE"
    assert stored(etcd_server, key)["value"] == "first"


def test_a_condition_on_etcd_is_no_sql(etcd_url: str) -> None:
    with holdfast.connect(etcd_url) as locks, locks.lock("job", ttl=30) as lease:
        with pytest.raises(Misconfigured, match="compares"):
            _ = lease.condition().sql
        assert "job" in repr(lease.condition())


# Operators.


def test_only_the_newest_records_of_forced_releases_are_kept(
    play: Play, etcd_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(etcd_store, "AUDIT_MAX", 3)

    async def scenario(store: Store) -> None:
        for number in range(5):
            await take(store, "job")
            assert await store.force_release("job", "op", f"number {number}", SOON)
        reasons = [record.reason for record in await store.audit(100, SOON)]
        assert reasons == ["number 4", "number 3", "number 2"]

    play(etcd_url, scenario)


def test_holdings_are_read_in_pages(play: Play, etcd_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(etcd_store, "PAGE", 2)

    async def scenario(store: Store) -> None:
        for number in range(5):
            await take(store, f"job-{number}")
        shown = [each.key for each in await store.holdings("job-", 4, SOON, after="job-0")]
        assert shown == ["job-1", "job-2", "job-3", "job-4"]

    play(etcd_url, scenario)


# Waiters.


@pytest.mark.requires("R58")
def test_a_release_wakes_the_first_waiter_and_no_other(etcd_url: str) -> None:
    async def scenario() -> None:
        asked, grant = await take(holder, "job")
        watches = []
        for waiter in waiters:
            watches.append(await waiter.watch("job"))
            assert isinstance(await waiter.acquire(ask("job"), SOON), Busy)
        seen = await holder.inspect("job", SOON)
        assert seen is not None
        assert seen.waiters == len(waiters)
        assert await holder.release("job", asked.token, grant.claim, 0, SOON)
        woken = [await each.wait(50 * MS) for each in watches]
        assert woken == [True, False, False, False]
        # The first one acquires: its place goes, and the next one is then woken by its release.
        first = ask("job")
        held = await waiters[0].acquire(first, SOON)
        assert isinstance(held, Grant)
        assert await watches[1].wait(50 * MS) is False
        assert await waiters[0].release("job", first.token, held.claim, 0, SOON)
        assert await watches[1].wait(5 * NS) is True
        for each in watches:
            await each.close()
        seen = await holder.inspect("job", SOON)
        assert seen is None

    holder = open_engine(etcd_url).blocking
    waiters = [open_engine(etcd_url).blocking for _ in range(4)]
    run_now(scenario())
    for each in [holder, *waiters]:
        run_now(each.close())


def test_a_waiter_that_gives_up_wakes_the_one_behind_it(play: Play, etcd_url: str) -> None:
    async def scenario(store: Store) -> None:
        asked, grant = await take(store, "job")
        first, second = open_engine(etcd_url).blocking, open_engine(etcd_url).blocking
        early, late = run_now(first.watch("job")), run_now(second.watch("job"))
        for waiter in (first, second):
            assert isinstance(run_now(waiter.acquire(ask("job"), SOON)), Busy)
        run_now(early.close())
        assert await store.release("job", asked.token, grant.claim, 0, SOON)
        assert run_now(late.wait(5 * NS))
        run_now(late.close())
        run_now(first.close())
        run_now(second.close())

    play(etcd_url, scenario)


def test_a_compaction_during_a_watch_costs_no_release(own_etcd: StartEtcd) -> None:
    server = own_etcd()
    with holdfast.connect(server.url) as locks, holdfast.connect(server.url) as other:
        held = locks.lock("job", ttl=60).acquire()
        watch = run_now(other.engine.blocking.watch("job"))
        assert isinstance(run_now(other.engine.blocking.acquire(ask("job"), SOON)), Busy)
        assert run_now(watch.wait(20 * MS)) is False
        for number in range(20):
            server.ctl("put", "other", str(number))
        revision = server.status()["header"]["revision"]
        server.ctl("compact", str(revision))
        held.release()
        assert run_now(watch.wait(5 * NS)) is True
        run_now(watch.close())


def test_a_watch_that_begins_at_a_compacted_revision_says_so(own_etcd: StartEtcd) -> None:
    server = own_etcd()
    store: Any = open_engine(server.url).blocking
    asked, grant = run_now(take(store, "job"))
    revision = server.status()["header"]["revision"]
    for number in range(20):
        server.ctl("put", "other", str(number))
    server.ctl("compact", str(revision + 20))
    gateway = store._gateway
    with pytest.raises(holdfast.Unavailable, match="ended a watch"):
        run_now(gateway.gone(b"holdfast/lock/job", 1, gateway.deadline(SOON)))
    assert run_now(store.release("job", asked.token, grant.claim, 0, SOON))
    run_now(store.close())
