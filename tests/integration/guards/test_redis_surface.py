"""The surface of guarded Redis keys: two colors with one face, arguments with a defined answer, and what types say."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import redis

from holdfast.errors import BadInput, Misconfigured
from holdfast.guards import redis as blocking
from holdfast.guards.aio import redis as awaited
from holdfast.guards.redis_records import RedisRecord
from support.fixtures.guards import carried
from support.fixtures.redis_guards import MANNERS, Manner, Stage, settled
from support.type_program import disagreements

ROOT = Path(__file__).parents[3]
A = carried(1)


def members(kind: type) -> dict[str, Any]:
    """What a class offers, with its parameters and its sentence; color left out."""
    found = {name: getattr(kind, name) for name in dir(kind) if not name.startswith("_") or name == "__init__"}
    return {
        name: (_signature(each), inspect.getdoc(each)) if callable(each) else inspect.getdoc(each)
        for name, each in found.items()
    }


def _signature(function: Any) -> str:
    return str(inspect.signature(function)).replace("Async", "").replace("AwaitedClient", "BlockingClient")


@pytest.mark.parametrize("name", ["GuardedKeys", "GuardedEntry"])
def test_both_colours_have_the_same_face(name: str) -> None:
    assert members(getattr(blocking, name)) == members(getattr(awaited, name))
    assert blocking.__all__ == awaited.__all__


@pytest.mark.parametrize("name", ["enter", "set", "hset", "hdel", "delete", "publish", "received", "seen"])
def test_what_talks_to_the_server_is_awaited_in_one_colour_only(name: str) -> None:
    assert inspect.iscoroutinefunction(getattr(awaited.GuardedKeys, name))
    assert not inspect.iscoroutinefunction(getattr(blocking.GuardedKeys, name))


@pytest.fixture
def away(manner: Manner) -> Stage:
    """Nothing listens there, and nothing is sent: what is refused here is refused before that."""
    return Stage(manner, 1, None)


NOT_VALUES: list[Any] = [None, True, [1], {}, "\ud800"]
NOT_FIELDS: list[Any] = [{}, None, "ab", [1]]
KEYS = ["", b"bytes", 7, None, "a}b", "x{}y", "\ud800", "holdfast:fence:{x}"]


@pytest.mark.asyncio
@pytest.mark.parametrize("key", KEYS, ids=repr)
async def test_a_key_that_cannot_be_guarded_is_refused_before_anything_is_sent(away: Stage, key: Any) -> None:
    keys = away.guard()
    for step in (
        *(keys.enter(A, key), keys.set(A, key, "x"), keys.hset(A, key, {"a": 1}), keys.hdel(A, key, "a")),
        *(keys.delete(A, key), keys.seen(key)),
    ):
        with pytest.raises(BadInput) as refused:
            await step
        assert refused.value.field == "key"


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("step", "field"),
    [
        *[(lambda keys, value=value: keys.set(A, "k", value), "value") for value in NOT_VALUES],
        *[(lambda keys, ttl=ttl: keys.set(A, "k", "x", ttl=ttl), "ttl") for ttl in (0, -1, "1", True, float("nan"))],
        (lambda keys: keys.set(A, "k", "x", ttl=1e12), "ttl"),
        (lambda keys: keys.set(A, "k", "x", ttl=1, keep_ttl=True), "ttl"),
        *[(lambda keys, mapping=mapping: keys.hset(A, "k", mapping), "mapping") for mapping in NOT_FIELDS],
        (lambda keys: keys.hset(A, "k", {"a": None}), "mapping"),
        (lambda keys: keys.hset(A, "k", {None: "a"}), "mapping"),
        (lambda keys: keys.hset(A, "k", {"a": 1}, ttl=0), "ttl"),
        (lambda keys: keys.hdel(A, "k"), "fields"),
        (lambda keys: keys.hdel(A, "k", None), "fields"),
        *[
            (lambda keys, lease=lease: keys.set(lease, "k", "x"), "lease")
            for lease in (None, 7, "invoice:42", object())
        ],
        (lambda keys: keys.publish(object(), "channel", "x"), "lease"),
        (lambda keys: keys.received("channel", b"not an envelope"), "message"),
    ],
)
async def test_an_argument_that_cannot_be_right_is_refused_by_name(away: Stage, step: Any, field: str) -> None:
    with pytest.raises(BadInput) as refused:
        await step(away.guard())
    assert refused.value.field == field


@pytest.mark.asyncio
async def test_a_lease_of_another_lock_is_refused_where_the_lock_is_named(away: Stage) -> None:
    keys = away.guard(key="lock:{key}")
    with pytest.raises(BadInput, match="hold 'lock:invoice'"):
        await keys.set(A, "invoice", "x")


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"prefix": "{a}"}, "prefix"),
        ({"prefix": ""}, "prefix"),
        ({"key": "lock:{id}"}, "key"),
        ({"key": "lock:{"}, "key"),
        ({"key": 7}, "key"),
        ({"ttl": 7}, "ttl"),
    ],
)
def test_a_setting_that_cannot_be_right_is_refused_by_name(away: Stage, settings: dict[str, Any], field: str) -> None:
    with pytest.raises(BadInput) as refused:
        away.guard(**settings)
    assert refused.value.field == field


@pytest.mark.asyncio
@pytest.mark.parametrize("manner", [MANNERS[0], MANNERS[2]], ids=str)
async def test_a_client_that_cannot_answer_is_refused(manner: Manner) -> None:
    stage = Stage(manner, 1, None)
    client = stage.client()
    (other,) = (each.client(1) for each in MANNERS[:3:2] if each != manner)
    for wrong in (other, client.pipeline(), None, "redis://127.0.0.1"):
        with pytest.raises(BadInput) as refused:
            stage.guard(wrong) if wrong is not None else stage.kind(None)
        assert refused.value.field == "client"
    nonsense: list[Any] = [client.pipeline(), None, object()]
    for wrong in nonsense:
        with pytest.raises(BadInput) as refused:
            RedisRecord(wrong)
        assert refused.value.field == "client"
    await settled(other.aclose() if isinstance(client, redis.Redis) else other.close())
    await stage.close()


@pytest.mark.server
@pytest.mark.asyncio
async def test_a_string_has_no_fields_and_a_hash_no_value(stage: Stage, keys: Any) -> None:
    await keys.set(A, stage.name("s"), "secret")
    await keys.hset(A, stage.name("h"), {"a": "secret"})
    async with keys.section(A, stage.name("s")) as entry:
        with pytest.raises(Misconfigured, match="string"):
            _ = entry.inner.fields
        assert "secret" not in repr(entry.inner)
    async with keys.section(A, stage.name("h")) as entry:
        with pytest.raises(Misconfigured, match="hash"):
            _ = entry.inner.value
        assert "secret" not in repr(entry.inner)
        await entry.delete()
        await entry.set("now a string")
        assert entry.value == stage.returned("now a string")


def test_without_the_driver_the_error_says_how_to_get_it() -> None:
    code = (
        "import sys; sys.modules['redis'] = None\n"
        "import holdfast.guards\n"
        "from holdfast.errors import Misconfigured\n"
        "for name in ('guards.redis', 'guards.aio.redis', 'guards.redis_records'):\n"
        "    try: __import__('holdfast.' + name)\n"
        "    except Misconfigured as error: print(error)\n"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert (answer.returncode, answer.stderr) == (0, "")
    assert len(re.findall(r'pip install "holdfast\[redis\]"', answer.stdout)) == 3


# Each line that ends with "# error" must be refused by the checker, and no other.
PROGRAM = """
import redis
import redis.asyncio
import holdfast
from holdfast import aio
from holdfast.guards import Bearer, CarriedFence, Fenced
from holdfast.guards.aio.redis import GuardedKeys as AioKeys
from holdfast.guards.redis import GuardedKeys
from holdfast.guards.records import FenceRecord
from holdfast.guards.redis_records import RedisRecord

blocking: redis.Redis = redis.Redis()  # declared, because a call has no type in redis-py 6.0
awaiting: redis.asyncio.Redis = redis.asyncio.Redis()
strict = GuardedKeys(blocking, key="lock:{key}")
lenient = GuardedKeys(blocking, allow_degraded=True)
cluster = GuardedKeys(redis.RedisCluster("127.0.0.1"), prefix="fence:")
GuardedKeys(awaiting)  # error
GuardedKeys(blocking, prefixx="fence:")  # error
record: FenceRecord = RedisRecord(blocking)
other: FenceRecord = RedisRecord(awaiting)


def right(lease: holdfast.Lease, awaited: aio.Lease, fence: CarriedFence, weak: holdfast.DegradedLease) -> None:
    strict.set(lease, "k", "x", ttl=5)
    cluster.hset(awaited, "k", {"a": 1})
    lenient.delete(weak, "k")
    with strict.section(fence, "k") as entry:
        entry.set(1)


def wrong(lease: holdfast.Lease, weak: holdfast.DegradedLease, maybe: holdfast.Lease | None) -> None:
    strict.set(weak, "k", "x")  # error
    strict.enter(maybe, "k")  # error
    strict.publish("k", "x")  # error
    strict.set("k", "x")  # error
    strict.set(7, "k", "x")  # error
    strict.set(lease, b"k", "x")  # error
    with strict.section(weak, "k") as entry:  # error
        entry.set(1)


async def colour(lease: aio.Lease, weak: aio.DegradedLease) -> None:
    keys = AioKeys(awaiting)
    await keys.set(lease, "k", "x")
    await keys.set(weak, "k", "x")  # error
    await AioKeys(awaiting, allow_degraded=True).set(weak, "k", "x")
    AioKeys(blocking)  # error
    async with keys.section(lease, "k") as entry:
        await entry.hset({"a": 1})


def charge(keys: GuardedKeys[Fenced]) -> None: ...
def lend(keys: GuardedKeys[Bearer]) -> None: ...


charge(lenient)
lend(strict)  # error
"""


@pytest.mark.requires("R28", "R34")
def test_the_checker_refuses_a_forgotten_lease_and_a_degraded_one(tmp_path: Path) -> None:
    assert disagreements(PROGRAM, tmp_path) == ([], [])
