"""Guarded Redis keys: what is accepted, what is refused and leaves everything as it was, and what is remembered."""

from __future__ import annotations

import time
from collections.abc import Callable
from random import Random
from typing import Any

import pytest

import holdfast
from holdfast.core import failpoints
from holdfast.core.history.events import EventKind, Record
from holdfast.core.lease.fencing import FENCE_MAX, accepts
from holdfast.errors import Closed, FencedOut, LeaseLost, Misconfigured, NotEntered, Unfenced
from support.fixtures.guards import carried
from support.fixtures.redis_guards import Stage, settled

pytestmark = [pytest.mark.server, pytest.mark.asyncio]

A, B = carried(1), carried(2)
LIMIT_S = 20.0


def fence_of(stage: Stage, key: str) -> Any:
    """What the server itself remembers about a plain key."""
    return stage.raw.get(f"holdfast:fence:{{{key}}}")


@pytest.mark.requires("R28", "R47")
async def test_a_section_reads_and_writes_a_string(stage: Stage, keys: Any) -> None:
    key = stage.name("counter")
    async with keys.section(A, key) as entry:
        assert (entry.exists, entry.value, entry.fields) == (False, None, {})
        await entry.set(41)
        assert (entry.exists, entry.value) == (True, stage.returned("41"))
    async with keys.section(B, key) as entry:
        await entry.set(int(entry.value) + 1)
    assert stage.raw.get(key) == b"42"
    assert fence_of(stage, key) == b"2"
    assert await keys.seen(key) == 2


@pytest.mark.requires("R28", "R47")
async def test_a_section_reads_and_writes_fields_of_a_hash(stage: Stage, keys: Any) -> None:
    key, shown = stage.name("cart"), stage.returned
    async with keys.section(A, key) as entry:
        await entry.hset({"apples": 1, "pears": 2.5, b"raw": b"x"})
    async with keys.section(B, key) as entry:
        assert entry.fields == {shown("apples"): shown("1"), shown("pears"): shown("2.5"), shown("raw"): shown("x")}
        await entry.hset({"apples": 7})
        assert await entry.hdel("pears", "raw", "never there") == 2
        assert entry.fields == {shown("apples"): shown("7")}
    assert stage.raw.hgetall(key) == {b"apples": b"7"}
    assert await keys.enter(B, key) == {shown("apples"): shown("7")}


async def test_what_is_read_is_what_the_client_itself_would_return(stage: Stage) -> None:
    string, table = stage.name("s"), stage.name("h")
    client = stage.client()
    keys = stage.guard(client)
    await keys.set(A, string, "grün 🙂")
    await keys.hset(A, table, {"größe": "ß"})
    assert await keys.enter(A, string) == await settled(client.get(string)) == stage.returned("grün 🙂")
    assert await keys.enter(A, table) == await settled(client.hgetall(table))
    assert await keys.enter(A, stage.name("nothing")) is None


STEPS: dict[str, Callable[[Any, Any, str], Any]] = {
    "enter": lambda keys, lease, key: keys.enter(lease, key),
    "set": lambda keys, lease, key: keys.set(lease, key, "stale"),
    "set with a time to live": lambda keys, lease, key: keys.set(lease, key, "stale", ttl=60),
    "hset": lambda keys, lease, key: keys.hset(lease, key, {"field": "stale"}, ttl=60),
    "hdel": lambda keys, lease, key: keys.hdel(lease, key, "field"),
    "delete": lambda keys, lease, key: keys.delete(lease, key),
}


@pytest.mark.requires("R29", "R34", "R47")
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("what", ["nothing", "string", "hash", "list"])
async def test_a_stale_step_is_refused_and_changes_nothing(stage: Stage, keys: Any, step: str, what: str) -> None:
    key = stage.name("k")
    await keys.delete(B, key)
    _put(stage, key, what)
    before = stage.content()
    with pytest.raises(FencedOut) as refused:
        await STEPS[step](keys, A, key)
    assert (refused.value.fence, refused.value.seen, refused.value.resource) == (1, 2, key)
    assert stage.content() == before
    assert keys.statistics().refused == 1


def _put(stage: Stage, key: str, what: str) -> None:
    if what == "string":
        stage.raw.set(key, "old")
    elif what == "hash":
        stage.raw.hset(key, "field", "old")
    elif what == "list":
        stage.raw.rpush(key, "old")


@pytest.mark.parametrize(
    ("step", "what"),
    [("enter", "list"), ("set", "hash"), ("set", "list"), ("hset", "string"), ("hset", "list"), ("hdel", "string")],
)
async def test_data_of_the_wrong_type_is_left_alone_and_so_is_the_fence(
    stage: Stage, keys: Any, step: str, what: str
) -> None:
    key = stage.name("k")
    for met in (False, True):
        if met:
            await keys.delete(A, key)
        _put(stage, key, what)
        before = stage.content()
        with pytest.raises(Misconfigured, match=f"holds a {what}.*nothing was changed"):
            await STEPS[step](keys, B, key)
        assert stage.content() == before
        assert await keys.seen(key) == (1 if met else None)


async def test_a_key_of_any_type_can_be_deleted(stage: Stage, keys: Any) -> None:
    for number, what in enumerate(["string", "hash", "list"], start=1):
        key = stage.name(what)
        _put(stage, key, what)
        assert await keys.delete(carried(number), key) is True
        assert (stage.raw.exists(key), fence_of(stage, key)) == (0, str(number).encode())


@pytest.mark.parametrize("stored", [b"soon", b"007", b"", b"-1", b"1.5", b"1e3", b"9" * 20, [b"1"]])
async def test_a_fence_that_is_no_number_admits_no_write(stage: Stage, keys: Any, stored: bytes | list[bytes]) -> None:
    key = stage.name("k")
    stage.raw.set(key, "old")
    name = f"holdfast:fence:{{{key}}}"
    stage.raw.rpush(name, *stored) if isinstance(stored, list) else stage.raw.set(name, stored)
    before = stage.content()
    for step in ("enter", "set", "delete"):
        with pytest.raises(Misconfigured, match="is not a number"):
            await STEPS[step](keys, B, key)
    with pytest.raises(Misconfigured, match="is not a number"):
        await keys.seen(key)
    assert stage.content() == before


@pytest.mark.requires("R28")
async def test_fences_are_compared_exactly_over_all_64_bits(stage: Stage, keys: Any) -> None:
    """Lua has doubles: 2^53 and 2^53 + 1 are the same to it, and 2^63 - 1 is not to be had."""
    edges = [0, 1, 9, 10, 10**9, 10**10 - 1, 10**10, 2**53 - 1, 2**53, 2**53 + 1, 10**18, FENCE_MAX - 1, FENCE_MAX]
    key = stage.name("k")
    for seen in edges:
        for fence in edges:
            stage.raw.set(f"holdfast:fence:{{{key}}}", seen)
            if accepts(seen, fence):
                await keys.set(carried(fence), key, fence)
                assert (stage.raw.get(key), await keys.seen(key)) == (str(fence).encode(), fence)
            else:
                with pytest.raises(FencedOut) as refused:
                    await keys.set(carried(fence), key, fence)
                assert (refused.value.seen, await keys.seen(key)) == (seen, seen)


@pytest.mark.requires("R28", "R34")
@pytest.mark.parametrize("seed", range(3))
async def test_random_steps_are_decided_as_the_rule_says(stage: Stage, keys: Any, seed: int) -> None:
    random = Random(seed)
    key, value, seen = stage.name("k"), None, None
    for number in range(120):
        fence = random.choice([random.randrange(6), 2**53 + random.randrange(4), random.randrange(FENCE_MAX + 1)])
        fence = (
            fence if seen is None or random.random() < 0.5 else min(FENCE_MAX, max(0, seen + random.randrange(-2, 3)))
        )
        step, accepted = random.choice(["enter", "set", "delete", "section"]), accepts(seen, fence)
        refused = None
        try:
            if step == "enter":
                assert await keys.enter(carried(fence), key) == (None if value is None else stage.returned(value))
            elif step == "set":
                await keys.set(carried(fence), key, f"v{number}")
            elif step == "delete":
                assert await keys.delete(carried(fence), key) is (value is not None)
            else:
                async with keys.section(carried(fence), key) as entry:
                    await entry.set(f"v{number}")
        except FencedOut as error:
            refused = error.seen
        assert refused == (None if accepted else seen)
        if accepted:
            seen = fence
            value = value if step == "enter" else None if step == "delete" else f"v{number}"
        stored = stage.raw.get(key)
        assert (stored and stored.decode(), await keys.seen(key)) == (value, seen)


@pytest.mark.requires("R29", "R73")
async def test_a_holder_that_pauses_between_the_check_and_the_write_is_refused(stage: Stage, keys: Any) -> None:
    key = stage.name("k")
    await keys.set(A, key, "old")

    def newer_enters() -> None:
        stage.raw.set(f"holdfast:fence:{{{key}}}", 2)

    with failpoints.armed("guard.admitted", newer_enters), pytest.raises(FencedOut):
        await keys.set(A, key, "late")
    async with keys.section(B, key) as entry:
        stage.raw.set(f"holdfast:fence:{{{key}}}", 3)
        with pytest.raises(FencedOut):
            await entry.set("late")
        with pytest.raises(FencedOut):
            await entry.delete()
    assert (stage.raw.get(key), await keys.seen(key)) == (b"old", 3)


@pytest.mark.parametrize("left", [None, 1])
async def test_a_registration_that_was_lost_is_found_by_the_section(stage: Stage, keys: Any, left: int | None) -> None:
    """As after a failover to a replica that lags: the fence is an older one, or gone."""
    key = stage.name("k")
    fence = f"holdfast:fence:{{{key}}}"
    for write in ("set", "hset", "hdel", "delete"):
        async with keys.section(B, key) as entry:
            stage.raw.delete(fence) if left is None else stage.raw.set(fence, left)
            before = stage.content()
            with pytest.raises(NotEntered) as found:
                await {
                    "set": lambda entry=entry: entry.set("x"),
                    "hset": lambda entry=entry: entry.hset({"x": 1}),
                    "hdel": lambda entry=entry: entry.hdel("x"),
                    "delete": lambda entry=entry: entry.delete(),
                }[write]()
            assert (found.value.fence, found.value.seen) == (2, left)
            assert stage.content() == before


@pytest.mark.requires("R34")
async def test_deleting_leaves_the_fence_and_deleting_again_finds_nothing(stage: Stage, keys: Any) -> None:
    key = stage.name("k")
    async with keys.section(B, key) as entry:
        await entry.set("x")
        assert await entry.delete() is True
        assert (entry.exists, entry.value) == (False, None)
        assert await entry.delete() is False
    assert await keys.delete(B, key) is False
    assert stage.raw.exists(key) == 0
    with pytest.raises(FencedOut):
        await keys.set(A, key, "back")
    await keys.hset(B, key, {"field": "again"})
    assert await keys.hdel(B, key, "field") == 1
    assert (stage.raw.exists(key), await keys.seen(key)) == (0, 2)


@pytest.mark.requires("R57")
async def test_data_that_expires_leaves_its_fence(stage: Stage, keys: Any) -> None:
    string, table = stage.name("s"), stage.name("h")
    await keys.set(B, string, "x", ttl=0.001)
    await keys.hset(B, table, {"field": "x"}, ttl=0.001)
    limit = time.monotonic() + LIMIT_S
    while stage.raw.exists(string, table):
        assert time.monotonic() < limit
    for key in (string, table):
        assert (stage.raw.ttl(f"holdfast:fence:{{{key}}}"), await keys.seen(key)) == (-1, 2)
        with pytest.raises(FencedOut):
            await keys.enter(A, key)


async def test_a_time_to_live_is_set_kept_and_ended_as_the_caller_says(stage: Stage, keys: Any) -> None:
    string, table = stage.name("s"), stage.name("h")
    await keys.set(A, string, "x", ttl=100)
    async with keys.section(A, string) as entry:
        await entry.set("y", keep_ttl=True)
        assert 90 < stage.raw.ttl(string) <= 100
        await entry.set("z")
        assert stage.raw.ttl(string) == -1
        await entry.set("z", ttl=50)
        assert 40 < stage.raw.ttl(string) <= 50
    await keys.hset(A, table, {"a": 1})
    assert stage.raw.ttl(table) == -1
    async with keys.section(A, table) as entry:
        await entry.hset({"b": 2}, ttl=100)
        await entry.hset({"c": 3})
    assert 90 < stage.raw.ttl(table) <= 100


async def test_scripts_that_the_server_has_forgotten_are_sent_again(stage: Stage, keys: Any) -> None:
    key = stage.name("k")
    async with keys.section(A, key) as entry:
        stage.raw.script_flush()
        await entry.set("x")
    for step in STEPS.values():
        stage.raw.delete(key)
        stage.raw.script_flush()
        await step(keys, A, key)
    stage.raw.script_flush()
    assert await keys.seen(key) == 1
    stage.raw.script_flush()
    assert await keys.publish(A, stage.name("channel"), "x") == 0


async def test_each_step_is_one_request(stage: Stage, keys: Any) -> None:
    key = stage.name("k")
    for step in STEPS.values():
        stage.raw.delete(key)
        await step(keys, A, key)
    with stage.raw.monitor() as monitor:
        for step in STEPS.values():
            stage.raw.delete(key)
            await step(keys, A, key)
        stage.raw.echo("end")
        heard = []
        while (command := monitor.next_command())["command"] != "ECHO end":
            heard.append(command)
    sent = [each for each in heard if each["client_type"] != "lua" and key in each["command"]]
    assert sum(each["command"].startswith("EVALSHA") for each in sent) == len(STEPS)
    assert all(each["command"].startswith(("EVALSHA", "DEL")) for each in sent)


async def test_a_hash_of_many_fields_is_written_read_and_emptied_in_one_step(stage: Stage, keys: Any) -> None:
    key, many = stage.name("k"), {f"field {number}": number for number in range(20_001)}
    await keys.hset(A, key, many)
    async with keys.section(B, key) as entry:
        assert len(entry.fields) == len(many)
        assert entry.fields[stage.returned("field 20000")] == stage.returned("20000")
        assert await entry.hdel(*many) == len(many)
        assert not entry.exists
    assert stage.raw.exists(key) == 0


async def test_a_section_that_is_over_can_be_looked_at_and_not_written_from(stage: Stage, keys: Any) -> None:
    key = stage.name("k")
    async with keys.section(A, key) as entry:
        await entry.set("x")
    assert entry.value == stage.returned("x")
    for write in (entry.set("y"), entry.hset({"a": 1}), entry.hdel("a"), entry.delete()):
        with pytest.raises(Closed):
            await write
    assert stage.raw.get(key) == b"x"


@pytest.mark.requires("R34")
async def test_a_degraded_lease_is_refused_unless_allowed_and_then_leaves_the_fence(
    stage: Stage, keys: Any, degraded: holdfast.DegradedLease
) -> None:
    key = stage.name("k")
    await keys.set(B, key, "x")
    for step in STEPS.values():
        with pytest.raises(Unfenced):
            await step(keys, degraded, key)
    assert stage.raw.get(key) == b"x"
    lenient = stage.guard(allow_degraded=True)
    async with lenient.section(degraded, key) as entry:
        assert entry.value == stage.returned("x")
        await entry.set("unprotected")
    assert (stage.raw.get(key), await keys.seen(key)) == (b"unprotected", 2)
    assert (lenient.statistics().unfenced, keys.statistics().unfenced_refused) == (2, len(STEPS))


@pytest.mark.requires("R34")
async def test_a_lost_lease_is_refused_before_anything_is_written(
    stage: Stage, keys: Any, released: holdfast.Lease
) -> None:
    key = stage.name("k")
    for step in STEPS.values():
        with pytest.raises(LeaseLost):
            await step(keys, released, key)
    await keys.set(carried(released.fence + 1), key, "newer")
    before = stage.content()
    for step in STEPS.values():
        with pytest.raises(FencedOut):
            await step(keys, released, key)
    assert stage.content() == before
    assert (keys.statistics().lost, keys.statistics().refused) == (len(STEPS), len(STEPS))


async def test_what_was_decided_is_counted_and_told(stage: Stage) -> None:
    class Notes(list[Record]):
        def note(self, record: Record) -> None:
            self.append(record)

    notes, key = Notes(), stage.name("k")
    keys = stage.guard(observer=notes)
    async with keys.section(B, key) as entry:
        await entry.set("x")
    with pytest.raises(FencedOut):
        await keys.set(A, key, "y")
    await keys.publish(B, stage.name("channel"), "x")
    assert [(each.kind, each.fence, each.ok) for each in notes] == [
        *(
            (EventKind.READ, 2, True),
            (EventKind.WRITE, 2, True),
            (EventKind.WRITE, 1, False),
            (EventKind.WRITE, 2, True),
        ),
    ]
    counted = keys.statistics()
    assert (counted.entered, counted.accepted, counted.refused) == (1, 2, 1)
