"""A server in trouble: what the caller may conclude, and that a step which may have taken effect can be repeated."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import pytest_asyncio
from redis.backoff import NoBackoff
from redis.retry import Retry

from holdfast.errors import FencedOut, Misconfigured, NotEntered, Timeout, Unavailable
from holdfast.guards.redis import scripts
from holdfast.guards.redis.replies import COMMANDS
from holdfast.testing.proxy import FaultProxy
from support.fixtures.guards import carried
from support.fixtures.redis import StartRedis
from support.fixtures.redis_guards import MANNERS, Manner, Stage, settled
from support.servers.redis import RedisServer, free_port
from support.servers.scripted_redis import ScriptedRedis

pytestmark = [pytest.mark.server, pytest.mark.asyncio]

A, B = carried(1), carried(2)
KEY = "invoice"
SOON_S = 0.2


@pytest_asyncio.fixture
async def own_stage(manner: Manner, own_redis: StartRedis) -> AsyncIterator[tuple[Stage, RedisServer]]:
    """A stage on a server that the test may do anything to."""
    server = own_redis()
    with server.client() as raw:
        stage = Stage(manner, server.port, raw)
        yield stage, server
        await stage.close()


async def test_a_replica_is_unavailable(own_stage: tuple[Stage, RedisServer]) -> None:
    stage, server = own_stage
    keys = stage.guard()
    await keys.set(A, KEY, "x")
    server.cli("REPLICAOF", "127.0.0.1", free_port())
    with pytest.raises(Unavailable, match="READONLY"):
        await keys.set(B, KEY, "y")
    server.cli("CONFIG", "SET", "replica-serve-stale-data", "no")
    with pytest.raises(Unavailable, match="MASTERDOWN"):
        await keys.enter(B, KEY)
    server.cli("REPLICAOF", "NO", "ONE")
    assert (stage.raw.get(KEY), await keys.seen(KEY)) == (b"x", 1)


async def test_without_enough_replicas_nothing_is_written(own_stage: tuple[Stage, RedisServer]) -> None:
    stage, server = own_stage
    keys = stage.guard()
    await keys.set(A, KEY, "x")
    server.cli("CONFIG", "SET", "min-replicas-to-write", "1")
    with pytest.raises(Unavailable, match="NOREPLICAS"):
        await keys.set(B, KEY, "y")
    assert (stage.raw.get(KEY), await keys.seen(KEY)) == (b"x", 1)


async def test_out_of_memory_writes_nothing_and_can_still_delete(own_stage: tuple[Stage, RedisServer]) -> None:
    stage, server = own_stage
    keys = stage.guard()
    for key in ("one", "two"):
        await keys.set(A, key, "x")
    await keys.hset(A, "fields", {"a": 1})
    server.cli("CONFIG", "SET", "maxmemory", "1")  # and nothing is evicted, as is the default
    for step in (
        keys.set(B, "one", "y"),
        keys.enter(B, "one"),
        keys.hset(B, "fields", {"a": 2}),
        keys.set(A, "one", 3),
    ):
        with pytest.raises(Unavailable, match="OOM"):
            await step
    assert (stage.raw.get("one"), await keys.seen("one"), stage.raw.hget("fields", "a")) == (b"x", 1, b"1")
    assert await keys.enter(A, "one") == stage.returned(
        "x"
    )  # under the fence that is stored, nothing has to be written
    assert await keys.delete(B, "one") is True
    assert await keys.delete(A, "two") is True
    assert (stage.raw.exists("one", "two"), await keys.seen("one"), await keys.seen("two")) == (0, 2, 1)
    with pytest.raises(FencedOut):
        await keys.delete(A, "one")


async def test_a_server_that_has_forgotten_everything_ends_the_section(own_stage: tuple[Stage, RedisServer]) -> None:
    stage, server = own_stage
    keys = stage.guard(stage.client(retry=Retry(NoBackoff(), 1)))
    async with keys.section(B, KEY) as entry:
        await entry.set("x")
        server.restart(empty=True)
        with pytest.raises(NotEntered) as found:
            await entry.set("y")
    assert (found.value.fence, found.value.seen) == (2, None)
    async with keys.section(B, KEY) as entry:
        assert not entry.exists
        await entry.set("z")


async def test_what_was_synchronised_survives_a_crash(manner: Manner, own_redis: StartRedis) -> None:
    server = own_redis(persistent=True)
    with server.client() as raw:
        stage = Stage(manner, server.port, raw)
        keys = stage.guard()
        await keys.set(B, KEY, "x")
        await keys.delete(B, KEY)
        await stage.close()
        server.restart(empty=False)
        again = stage.guard()
        with pytest.raises(FencedOut):
            await again.set(A, KEY, "back")
        await stage.close()


@pytest.mark.parametrize(
    ("said", "expected", "shown"),
    [
        ("LOADING Redis is loading the dataset in memory", Unavailable, "LOADING"),
        ("MISCONF Redis is configured to save RDB snapshots", Unavailable, "MISCONF"),
        ("BUSY Redis is busy running a script", Unavailable, "BUSY"),
        ("TRYAGAIN Multiple keys request during rehashing of slot", Unavailable, "TRYAGAIN"),
        ("CLUSTERDOWN Hash slot not served", Unavailable, "CLUSTERDOWN"),
        ("MOVED 866 127.0.0.1:7001", Misconfigured, "RedisCluster"),
        ("NOAUTH Authentication required.", Misconfigured, "refused the user"),
        ("NOPERM this user has no permissions to run the 'evalsha' command", Misconfigured, "+evalsha"),
        ("ERR unknown command 'EVALSHA', with args beginning with: 'a' 'secret'", Misconfigured, "unknown command"),
        ("ERR Error running script (call to f_1): @user_script:9: @user_script: 9: -OOM no. ", Unavailable, "OOM"),
        ("ERR max number of clients reached", Unavailable, "max number of clients"),
    ],
)
async def test_a_refusal_of_the_server_says_what_to_conclude(
    manner: Manner, said: str, expected: type[Exception], shown: str
) -> None:
    def answer(command: list[bytes]) -> bytes:
        return b"-" + said.encode() + b"\r\n" if command[0] == b"EVALSHA" else b"+OK\r\n"

    with ScriptedRedis(answer) as server:
        stage = Stage(manner._replace(protocol=2), server.port, None)
        with pytest.raises(expected, match=shown.replace("+", r"\+")) as found:
            await stage.guard().set(A, KEY, "secret")
        assert "secret" not in str(found.value)
        await stage.close()


@pytest.mark.parametrize("said", [b"+OK\r\n", b"*0\r\n", b"$-1\r\n", b"*1\r\n$3\r\nwho\r\n", b":1\r\n"])
async def test_an_answer_that_makes_no_sense_is_no_answer(manner: Manner, said: bytes) -> None:
    with ScriptedRedis(lambda command: said if command[0] == b"EVALSHA" else b"+OK\r\n") as server:
        stage = Stage(manner._replace(protocol=2), server.port, None)
        with pytest.raises(Timeout, match="may have taken effect"):
            await stage.guard().set(A, KEY, "x")
        await stage.close()


async def test_a_server_that_is_away_is_unavailable_if_the_client_asked_but_once(manner: Manner) -> None:
    stage = Stage(manner, free_port(), None)
    with pytest.raises(Unavailable, match="could not be reached"):
        await stage.guard().set(A, KEY, "x")
    with pytest.raises(Timeout, match="an earlier try of this step may have taken effect"):
        await stage.guard(stage.client(retry=Retry(NoBackoff(), 1))).set(A, KEY, "x")
    await stage.close()


async def test_an_exhausted_pool_has_sent_nothing(stage: Stage) -> None:
    client = stage.client(max_connections=1)
    keys = stage.guard(client)
    await keys.set(A, stage.name(KEY), "x")
    taken = await settled(client.connection_pool.get_connection())
    with pytest.raises(Unavailable, match="was not asked"):
        await keys.set(B, stage.name(KEY), "y")
    await settled(client.connection_pool.release(taken))
    assert await keys.seen(stage.name(KEY)) == 1


@pytest.mark.requires("R34")
@pytest.mark.parametrize("lost", ["in time", "with the connection"])
async def test_a_step_whose_answer_was_lost_can_be_repeated(stage: Stage, lost: str) -> None:
    key = stage.name(KEY)
    steps: list[Callable[[Any], Any]] = [
        lambda keys: keys.set(A, key, "x"),
        lambda keys: keys.delete(A, key),
        lambda keys: keys.hset(A, key, {"a": 1}),
        lambda keys: keys.hdel(A, key, "a"),
        lambda keys: keys.enter(A, key),
    ]
    _load_scripts(stage)
    for step in steps:
        with FaultProxy(stage.port) as proxy:
            keys = stage.guard(stage.client(proxy.port, socket_timeout=SOON_S if lost == "in time" else None))
            await _answered(keys, key)
            proxy.stall("to_client")
            asked = asyncio.create_task(_in_thread_if_blocking(stage, step, keys))
            await asyncio.to_thread(proxy.wait_held, "to_client")
            after = stage.content()
            if lost == "with the connection":
                proxy.reset()
            with pytest.raises(Timeout, match="may have taken effect"):
                await asked
            await step(stage.guard())
            assert stage.content() == after


async def _answered(keys: Any, key: Any) -> None:
    """Connected, and asked once: a busy machine may need longer for that than the client is patient."""
    heard = False
    while not heard:
        with contextlib.suppress(Timeout):
            await keys.seen(key)
            heard = True


def _load_scripts(stage: Stage) -> None:
    """Or the answer that is lost is the one that says that a script is not known."""
    for script in vars(scripts).values():
        if isinstance(script, scripts.GuardScript):
            stage.raw.script_load(script.body)


async def _in_thread_if_blocking(stage: Stage, step: Callable[[Any], Any], keys: Any) -> Any:
    if stage.manner.colour == "asyncio":
        return await step(keys)
    return await asyncio.to_thread(lambda: asyncio.run(step(keys)))


@pytest.mark.parametrize("manner", [each for each in MANNERS if each.colour == "asyncio"], ids=str)
async def test_a_cancelled_step_can_be_repeated_and_its_answer_goes_to_no_other_caller(stage: Stage) -> None:
    key = stage.name(KEY)
    with FaultProxy(stage.port) as proxy:
        keys = stage.guard(stage.client(proxy.port))
        _load_scripts(stage)
        await keys.seen(key)
        proxy.stall("to_client")
        asked = asyncio.create_task(keys.set(A, key, "x"))
        await asyncio.to_thread(proxy.wait_held, "to_client")
        asked.cancel()
        # A bare client of redis-py ends such a call with its own time limit now and then; both leave it unanswered.
        with pytest.raises((asyncio.CancelledError, Timeout)):
            await asked
        proxy.resume()
        assert await keys.enter(A, key) == stage.returned("x")
        await keys.set(A, key, "y")
        assert await keys.enter(A, key) == stage.returned("y")


async def test_a_user_with_the_commands_that_are_named_can_do_every_step(own_stage: tuple[Stage, RedisServer]) -> None:
    stage, server = own_stage
    allowed = ["~data:*", "~holdfast:fence:*", *COMMANDS.split()]
    server.cli("ACL", "SETUSER", "app", "on", ">pw", "resetchannels", "&news", *allowed)
    client = stage.client(username="app", password="pw")
    keys = stage.guard(client)
    async with keys.section(A, "data:s") as entry:
        await entry.set("x", ttl=60)
        await entry.set("y", keep_ttl=True)
    await keys.hset(A, "data:h", {"a": 1, "b": 2}, ttl=60)
    assert await keys.hdel(A, "data:h", "a") == 1
    assert await keys.enter(B, "data:h") == {stage.returned("b"): stage.returned("2")}
    assert await keys.delete(B, "data:h") is True
    assert await keys.publish(A, "news", "x") == 0
    for step in (keys.set(A, "other", "x"), keys.publish(A, "secrets", "x")):
        with pytest.raises(Misconfigured, match="grant"):
            await step
    server.cli("ACL", "SETUSER", "app", "-hset")
    with pytest.raises(Misconfigured, match="grant"):
        await keys.hset(B, "data:new", {"a": 1})
    assert stage.raw.exists("data:new", "other") == 0
