"""What a lease in Redis is: a plain string, a fence, exclusion with other libraries; both colors, real servers."""

from __future__ import annotations

from typing import Any

import pytest
import redis

import holdfast
from holdfast.core.ports import Store
from holdfast.errors import BadInput, FenceUnusable, Misconfigured
from holdfast.types import MS, NS
from support.fixtures.redis import Play
from support.harness.redis_requests import OWNER, SOON, ask, aux_name, give_back, lock_name, meet, renewal, take
from support.servers.redis import RedisServer

pytestmark = pytest.mark.server


@pytest.mark.requires("R22")
def test_get_and_pttl_tell_the_owner_and_the_remaining_time(play: Play, redis_url: str, redis_raw: Any) -> None:
    async def scenario(store: Store) -> None:
        grant = await take(store, "job", ttl_ns=30 * NS)
        value = redis_raw.get(lock_name(redis_url, "job"))
        owner, mark, family, granted, fence, token = value.split(" ")
        assert (owner, mark, family, token) == (OWNER, "hf1", "billing", grant.token)
        assert (int(fence), value) == (grant.fence, grant.claim)
        assert int(granted) <= int(fence)
        assert 0 < redis_raw.pttl(lock_name(redis_url, "job")) <= 30_000

    play(redis_url, scenario)


def test_without_a_prefix_the_key_is_the_name(play: Play, redis_server: RedisServer, redis_url: str) -> None:
    name = f"plain:{lock_name(redis_url, 'job')}"

    async def scenario(store: Store) -> None:
        grant = await take(store, name)
        assert redis_server.cli("GET", name) == grant.claim
        assert await give_back(store, grant)

    play(redis_server.url, scenario)


@pytest.mark.requires("R24", "R3")
def test_a_lock_of_redis_py_excludes_ours(play: Play, redis_url: str, redis_raw: Any) -> None:
    async def scenario(store: Store) -> None:
        theirs = redis_raw.lock(lock_name(redis_url, "shared"), timeout=20)
        assert theirs.acquire(blocking=False)
        busy = await meet(store, "shared")
        assert busy.owner == "another library"
        assert busy.remaining_ns is not None
        assert 0 < busy.remaining_ns <= 20 * NS
        holding = await store.inspect("shared", SOON)
        assert holding is not None
        assert (holding.owner, holding.fence) == ("another library", None)
        assert theirs.local.token.decode() not in repr((busy, holding))
        theirs.release()
        assert await give_back(store, await take(store, "shared"))

    play(redis_url, scenario)


@pytest.mark.requires("R24")
def test_our_lock_excludes_redis_py(play: Play, redis_url: str, redis_raw: Any) -> None:
    async def scenario(store: Store) -> None:
        grant = await take(store, "shared")
        theirs = redis_raw.lock(lock_name(redis_url, "shared"), timeout=20)
        assert not theirs.acquire(blocking=False)
        theirs.local.token = b"not the token"
        with pytest.raises(redis.exceptions.LockError):
            theirs.release()
        assert await give_back(store, grant)
        assert theirs.acquire(blocking=False)
        theirs.release()

    play(redis_url, scenario)


def test_a_key_without_expiry_has_no_remaining_time(play: Play, redis_url: str, redis_raw: Any) -> None:
    async def scenario(store: Store) -> None:
        redis_raw.set(lock_name(redis_url, "forever"), "x")
        assert (await meet(store, "forever")).remaining_ns is None

    play(redis_url, scenario)


def test_an_empty_foreign_value_is_a_lock_too(play: Play, redis_url: str, redis_raw: Any) -> None:
    async def scenario(store: Store) -> None:
        redis_raw.set(lock_name(redis_url, "empty"), "", px=30_000)
        assert (await meet(store, "empty")).owner == "another library"
        holding = await store.inspect("empty", SOON)
        assert holding is not None
        assert holding.owner == "another library"

    play(redis_url, scenario)


def test_a_key_of_another_type_is_named_with_its_type_and_left_alone(
    play: Play, redis_url: str, redis_raw: Any
) -> None:
    async def scenario(store: Store) -> None:
        name = lock_name(redis_url, "list")
        redis_raw.delete(name)
        redis_raw.rpush(name, "precious")
        for call in (
            store.acquire(ask("list"), SOON),
            store.acquire(ask("list", ticket="t"), SOON),
            store.inspect("list", SOON),
            store.force_release("list", "ops", "why", SOON),
        ):
            with pytest.raises(Misconfigured, match=r"list'? holds other data \(list\).*name: "):
                await call
        assert not await store.release("list", "token", None, 0, SOON)
        grant = await take(store, "other")
        assert await store.renew_many([renewal(grant)._replace(key="list"), renewal(grant)], SOON) == [False, True]
        assert redis_raw.lrange(name, 0, -1) == ["precious"]

    play(redis_url, scenario)


def test_the_stores_own_records_are_not_lock_names(play: Play, redis_server: RedisServer, redis_url: str) -> None:
    space = aux_name(redis_url, "").rstrip(":")

    async def scenario(store: Store) -> None:
        for name in (f"{space}:fence", f"{space}:audit"):
            with pytest.raises(BadInput, match="own records"):
                await store.acquire(ask(name), SOON)

    play(f"{redis_server.url}?namespace={space}", scenario)


def test_an_owner_with_a_space_is_refused_before_anything_is_sent(play: Play, redis_url: str) -> None:
    async def scenario(store: Store) -> None:
        good = ask("job")
        for broken in (good._replace(owner="a b"), good._replace(family="a b"), good._replace(token="a b")):
            with pytest.raises(BadInput, match="space"):
                await store.acquire(broken, SOON)
        assert await store.inspect("job", SOON) is None

    play(redis_url, scenario)


@pytest.mark.requires("R7")
def test_times_to_live_are_milliseconds_and_never_rounded_down(play: Play, redis_url: str, redis_raw: Any) -> None:
    async def scenario(store: Store) -> None:
        await take(store, "brief", ttl_ns=1)  # a nanosecond is still a millisecond, and not an error of the server
        grant = await take(store, "exact", ttl_ns=60 * NS)
        assert await store.renew_many([renewal(grant, 90 * NS)], SOON) == [True]
        assert 60_000 < redis_raw.pttl(lock_name(redis_url, "exact")) <= 90_000

    play(redis_url, scenario)


@pytest.mark.requires("R56")
def test_fences_rise_over_every_key_of_a_database_and_leave_one_counter(
    play: Play, redis_url: str, redis_raw: Any
) -> None:
    async def scenario(store: Store) -> None:
        fences = [(await take(store, f"key:{n}")).fence for n in range(300)]
        assert fences == sorted(set(fences))
        assert int(redis_raw.get(aux_name(redis_url, "fence"))) == fences[-1]
        assert redis_raw.keys(f"{aux_name(redis_url, '')}*") == [aux_name(redis_url, "fence")]

    play(redis_url, scenario)


def test_a_counter_ahead_of_the_clock_is_followed_and_not_the_clock(play: Play, redis_url: str, redis_raw: Any) -> None:
    async def scenario(store: Store) -> None:
        ahead = 8_000_000_000_000_000
        redis_raw.set(aux_name(redis_url, "fence"), ahead)
        fences = [(await take(store, f"k{n}")).fence for n in range(3)]
        assert fences == sorted({ahead, *fences})[1:]
        count, _, clock = redis_raw.get(aux_name(redis_url, "fence")).partition(".")
        assert int(count) == fences[-1] < ahead + 3_600_000_000
        assert clock == redis_raw.get(lock_name(redis_url, "k2")).split()[3], "when it was granted"
        redis_raw.delete(*[lock_name(redis_url, f"k{n}") for n in range(3)])

    play(redis_url, scenario)


@pytest.mark.requires("R56")
@pytest.mark.parametrize("junk", ["soup", "9007199254740991", "-5", "1e400", "8000000000000000.x"])
def test_an_unusable_counter_grants_nothing_and_says_so(play: Play, redis_url: str, redis_raw: Any, junk: str) -> None:
    async def scenario(store: Store) -> None:
        redis_raw.set(aux_name(redis_url, "fence"), junk)
        for request in (ask("job"), ask("job", ticket="t")):
            with pytest.raises(Misconfigured, match=r"aux-\w+:fence is not a usable number"):
                await store.acquire(request, SOON)
        assert redis_raw.exists(lock_name(redis_url, "job")) == 0

    play(redis_url, scenario)


@pytest.mark.requires("R56")
def test_a_fence_that_cannot_be_counted_is_named_and_no_key_is_left_behind(redis_url: str, redis_raw: Any) -> None:
    redis_raw.set(aux_name(redis_url, "fence"), "soup")
    with holdfast.connect(redis_url) as locks:
        with pytest.raises(FenceUnusable, match=r"^fence token: .*:fence is not a usable number") as raised:
            locks.acquire_fenced_token("job", 30)
        assert isinstance(raised.value.__cause__, FenceUnusable)
        assert redis_raw.exists(lock_name(redis_url, "job")) == 0
        redis_raw.delete(aux_name(redis_url, "fence"))
        token, fence = locks.acquire_fenced_token("job", 30)
        assert int(redis_raw.get(aux_name(redis_url, "fence")).partition(".")[0]) == fence
        locks.release_token("job", token)


@pytest.mark.requires("R4", "R17")
def test_release_of_an_unseen_grant_finds_it_by_its_token(play: Play, redis_url: str) -> None:
    async def scenario(store: Store) -> None:
        grant = await take(store, "unseen")
        assert not await store.release("unseen", "0" * 32, None, 0, SOON)
        assert not await store.release("unseen", grant.token[1:], None, 0, SOON)
        assert await store.release("unseen", grant.token, None, 0, SOON)
        assert not await store.release("unseen", grant.token, None, 0, SOON)

    play(redis_url, scenario)


def test_a_kept_key_has_no_owner_and_expires(play: Play, redis_url: str, redis_raw: Any) -> None:
    async def scenario(store: Store) -> None:
        grant = await take(store, "kept", ttl_ns=60 * NS)
        assert await store.release("kept", grant.token, grant.claim, 20 * NS, SOON)
        assert grant.token not in redis_raw.get(lock_name(redis_url, "kept"))
        assert 0 < redis_raw.pttl(lock_name(redis_url, "kept")) <= 20_000
        busy = await meet(store, "kept", token=grant.token)
        assert busy.owner == OWNER
        assert not await give_back(store, grant)
        assert await store.renew_many([renewal(grant)], SOON) == [False]
        holding = await store.inspect("kept", SOON)
        assert holding is not None
        assert (holding.fence, holding.fingerprint) == (grant.fence, "")
        redis_raw.delete(lock_name(redis_url, "kept"))

    play(redis_url, scenario)


def test_a_key_is_never_kept_beyond_its_lease(play: Play, redis_url: str, redis_raw: Any) -> None:
    async def scenario(store: Store) -> None:
        for key, claim in (("seen", True), ("unseen", False)):
            grant = await take(store, key, ttl_ns=10 * NS)
            assert await store.release(key, grant.token, grant.claim if claim else None, 50 * NS, SOON)
            assert 0 < redis_raw.pttl(lock_name(redis_url, key)) <= 10_000

    play(redis_url, scenario)


def test_scripts_forgotten_by_the_server_are_sent_again(play: Play, redis_url: str, redis_raw: Any) -> None:
    async def scenario(store: Store) -> None:
        redis_raw.script_flush()
        grant = await take(store, "job")
        redis_raw.script_flush()
        assert await store.renew_many([renewal(grant)] * 600, SOON) == [True] * 600
        redis_raw.script_flush()
        assert await store.inspect("job", SOON) is not None
        redis_raw.script_flush()
        assert await give_back(store, grant)
        fair = await take(store, "fair", ticket="t1")
        redis_raw.script_flush()
        await store.leave("fair", "t2", SOON)
        redis_raw.script_flush()
        assert await store.force_release("fair", "ops", "why", SOON) is not None
        assert not await give_back(store, fair)

    play(redis_url, scenario)


@pytest.mark.requires("R68")
def test_ten_thousand_renewals_are_forty_requests(play: Play, redis_url: str, redis_raw: Any) -> None:
    async def scenario(store: Store) -> None:
        grant = await take(store, "job")
        renewals = [renewal(grant) if n % 3 else renewal(grant)._replace(key=f"absent:{n}") for n in range(10_000)]
        await store.renew_many(renewals[:1], SOON)  # so that the server knows the script
        before = _calls(redis_raw, "evalsha")
        answers = await store.renew_many(renewals, SOON)
        assert _calls(redis_raw, "evalsha") - before == 40
        assert answers == [bool(n % 3) for n in range(10_000)]
        assert await store.renew_many([], SOON) == []

    play(redis_url, scenario)


def _calls(redis_raw: Any, command: str) -> int:
    return int(redis_raw.info("commandstats").get(f"cmdstat_{command}", {"calls": 0})["calls"])


def test_an_acquire_and_a_release_are_one_request_each(play: Play, redis_url: str, redis_raw: Any) -> None:
    async def scenario(store: Store) -> None:
        await give_back(store, await take(store, "warm"))
        with redis_raw.monitor() as log:
            grant = await take(store, "counted")
            await give_back(store, grant)
            await store.ping(SOON)
            seen = []
            for entry in log.listen():
                if entry["client_type"] != "lua" and entry["command"].startswith(("EVAL", "PING")):
                    seen.append(entry["command"].split()[0])
                if seen[-1:] == ["PING"]:
                    break
        assert seen == ["EVALSHA", "EVALSHA", "PING"]

    play(redis_url, scenario)


@pytest.mark.requires("R87", "R18", "R19")
def test_an_expired_holder_can_neither_renew_nor_release_what_the_next_one_has(
    play: Play, redis_url: str, redis_raw: Any
) -> None:
    async def scenario(store: Store) -> None:
        first = await take(store, "job", ttl_ns=50 * MS)
        redis_raw.pexpire(lock_name(redis_url, "job"), 0)  # its time has ended
        second = await take(store, "job")
        assert second.fence > first.fence
        assert await store.renew_many([renewal(first)], SOON) == [False]
        assert not await give_back(store, first)
        assert await give_back(store, second)

    play(redis_url, scenario)
