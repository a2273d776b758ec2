"""Bugs in scripts, statements and connections of real stores: Redis and SQLite."""

from __future__ import annotations

import hashlib
from asyncio import Future
from typing import Any

import pytest

from holdfast.runtime.connection_pool import ConnectionPool
from holdfast.stores.nats import revisions as nats_revisions
from holdfast.stores.postgres import schema
from holdfast.stores.postgres.url import PostgresAddress
from holdfast.stores.redis import store as redis_store
from holdfast.stores.redis.asyncio_driver import MuxConnection
from holdfast.stores.redis.protocol import RedisScript, pack
from holdfast.stores.redis.store import RedisStore
from holdfast.stores.sqlite import lease_table
from holdfast.types import AcquireRequest, Busy, Grant
from mutation.detectors import PostgresSentence, RedisSentence, Sentence, ServerTest, Test
from mutation.mutant import MutantGroup

group = MutantGroup()
keep = group.keep


def rewrite(patch: pytest.MonkeyPatch, script: RedisScript, *changes: tuple[str, str]) -> None:
    """Plant a bug in a Lua script, in memory. What is to be changed must be there."""
    text = script.body.decode()
    for old, new in changes:
        assert old in text, f"{script.name}.lua has changed: {old}"
        text = text.replace(old, new)
    patch.setattr(script, "body", text.encode())
    patch.setattr(script, "sha", hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest().encode())


def restate(patch: pytest.MonkeyPatch, name: str, old: str, new: str) -> None:
    """Plant a bug in a statement of the SQLite store, in memory."""
    statement: str = getattr(lease_table, name)
    assert old in statement, f"{name} has changed: {old}"
    patch.setattr(lease_table, name, statement.replace(old, new))


@keep(
    "redis-py #2624, #2665 (CVE-2023-28858, CVE-2023-28859)",
    where="stores/redis/asyncio_driver.py",
    found_by=RedisSentence(
        "a cancelled call does not leave its answer to the next", "after a cancellation", asynchronous=True
    ),
)
def a_cancelled_command_leaves_its_reply_to_the_next(patch: pytest.MonkeyPatch) -> None:
    """A task that stops waiting gives up its place among the replies, and the next one reads its answer."""
    submit, received = MuxConnection.submit, MuxConnection.data_received
    unread: dict[MuxConnection, bytes] = {}

    def and_step_out(self: MuxConnection, packed: bytes, count: int, deadline_ns: int) -> Future[Any]:
        future = submit(self, packed, count, deadline_ns)
        slot = self._slots[-1]
        self._loop.call_soon(received, self, unread.pop(self, b""))

        def over(done: Future[Any]) -> None:
            if done.cancelled() and slot in self._slots:
                self._slots.remove(slot)

        future.add_done_callback(over)
        return future

    def kept_for_the_next(self: MuxConnection, data: bytes) -> None:
        if self._slots or self.on_push is not None:
            received(self, data)
        else:
            unread[self] = unread.get(self, b"") + data

    patch.setattr(MuxConnection, "submit", and_step_out)
    patch.setattr(MuxConnection, "data_received", kept_for_the_next)


@keep(
    "redis-py #2664: the blocking side of the same",
    where="runtime/connection_pool.py",
    found_by=ServerTest(
        "integration.stores.test_redis_sharing",
        "test_an_interrupted_call_does_not_leave_its_answer_to_the_next",
        at='assert run_now(take(store, "other"))',
    ),
)
def an_interrupted_connection_is_used_again(patch: pytest.MonkeyPatch) -> None:
    """A connection whose answer was not read goes back into the pool."""
    patch.setattr(ConnectionPool, "drop", lambda self, connection, error: self.put_back(connection))


@keep(
    "many: release by key",
    where="stores/redis/lua/release.lua",
    found_by=RedisSentence(
        "a release with another token changes nothing", "a release with a token that is not the holder's"
    ),
    attacks=("R4", "R17"),
)
def a_script_that_releases_by_key(patch: pytest.MonkeyPatch) -> None:
    """The script deletes the key without comparing what it holds."""
    rewrite(
        patch,
        redis_store.RELEASE,
        ("if held ~= ARGV[1] then", "if false then"),
        ("elseif string.sub(held, -#ARGV[1]) ~= ARGV[1] then", "elseif false then"),
    )


@keep(
    "many: release by key",
    where="stores/postgres/sql/release.sql",
    found_by=PostgresSentence(
        "a release with another token changes nothing", "a release with a token that is not the holder's"
    ),
    attacks=("R4", "R17"),
)
def a_function_that_releases_by_key(patch: pytest.MonkeyPatch) -> None:
    """The function deletes the row of the key without comparing the token."""
    whole = schema.sql
    compared = "DELETE FROM {schema}.holdfast_lease WHERE key = p_key AND token = p_token"

    def uncompared(name: str, address: PostgresAddress) -> str:
        old = compared.replace("{schema}", address.schema)
        text = whole(name, address)
        assert name != "release" or old in text
        return text.replace(old, old.removesuffix(" AND token = p_token"))

    patch.setattr(schema, "sql", uncompared)


@keep(
    "many: renew without an owner check",
    where="stores/redis/lua/renew.lua",
    found_by=RedisSentence(
        "a renewal with another token is refused and changes nothing", "a renewal with a token that is not the holder's"
    ),
    attacks=("R7",),
)
def a_script_that_renews_for_anybody(patch: pytest.MonkeyPatch) -> None:
    """The script sets the expiry of whatever the key holds."""
    rewrite(patch, redis_store.RENEW, ("if held == expected then", "if held then"))


@keep(
    "many: a time to live that is not the one asked for",
    where="stores/redis/lua/acquire.lua",
    found_by=RedisSentence("an expired key is given to the next and not before its time", "was never given away"),
    attacks=("R87", "R115"),
)
def a_script_that_keeps_the_key_for_ten_minutes(patch: pytest.MonkeyPatch) -> None:
    """The key outlives the lease, and what a dead holder left is not free when it should be."""
    rewrite(patch, redis_store.ACQUIRE, ("value, 'PX', ARGV[3], 'NX'", "value, 'PX', 600000, 'NX'"))


@keep(
    "many: the counter outside the script",
    where="stores/redis/store.py",
    found_by=RedisSentence("a repeated ask gets the same grant again", "the fence of a repeated ask"),
)
def a_counter_outside_the_script(patch: pytest.MonkeyPatch) -> None:
    """The key is taken by one command and the fence counted by the next, so that grant and fence come apart."""
    acquire = RedisStore.acquire

    async def and_count(self: RedisStore, ask: AcquireRequest, timeout_ns: int) -> Grant | Busy:
        answer = await acquire(self, ask, timeout_ns)
        if isinstance(answer, Busy):
            return answer
        count = await self._commands.call(pack(("INCR", self._fence_key)), self._driver.deadline(timeout_ns))
        return answer._replace(fence=int(count))

    patch.setattr(RedisStore, "acquire", and_count)


@keep(
    "many: the counter evicted, or lost in a restart",
    where="stores/redis/lua/acquire.lua",
    found_by=ServerTest(
        "integration.stores.test_redis_trouble",
        "test_a_flush_does_not_bring_the_fences_back",
        at="assert fences == sorted(set(fences))",
    ),
)
def a_counter_that_is_lost_begins_anew(patch: pytest.MonkeyPatch) -> None:
    """Fences are counted from one, with nothing below which they cannot fall when the counter is gone."""
    rewrite(patch, redis_store.ACQUIRE, ("local now = time[1] * 1000000 + time[2]", "local now = 1"))


@keep(
    "Holdfast itself, as its page of guarantees admitted",
    where="stores/redis/lua/fence.lua",
    found_by=ServerTest(
        "integration.stores.test_redis_lagging",
        "test_two_primaries_that_count_on_from_one_counter_ahead_of_the_clock_never_give_out_the_same_fence",
        at="a fence was given out twice",
    ),
    attacks=("R56",),
)
def a_script_that_counts_one_by_one(patch: pytest.MonkeyPatch) -> None:
    """While the clock is behind the counter a fence is one above the last one, on both sides of a split the same."""
    for script in (redis_store.ACQUIRE, redis_store._ACQUIRE_FAIR, redis_store._FORCE):
        rewrite(
            patch,
            script,
            ("step = 1 + tonumber(string.sub(redis.sha1hex(secret), 1, 5), 16)", "step = 1"),
            ("step = math.max(1, math.min(math.floor((now - clock) * 0.75), 3600000000))", "step = 1"),
        )


@keep(
    "Holdfast itself, as its page of guarantees admitted",
    where="stores/redis/lua/fence.lua",
    found_by=ServerTest(
        "integration.stores.test_redis_lagging",
        "test_a_replica_that_missed_the_last_grants_gives_out_higher_fences_though_the_clock_is_behind",
        at="a fence went back",
    ),
    attacks=("R56",),
)
def a_script_that_forgets_the_time_while_it_is_ahead(patch: pytest.MonkeyPatch) -> None:
    """The counter does not say when it was raised: fences differ by chance, and those of a lagging replica go back."""
    for script in (redis_store.ACQUIRE, redis_store._ACQUIRE_FAIR, redis_store._FORCE):
        rewrite(patch, script, ("return fence_text, fence_text .. '.' .. now_text", "return fence_text, fence_text"))


@keep(
    "many: a grant read from a garbled answer",
    where="stores/redis/store.py",
    found_by=Test(
        "unit.stores.test_redis_answers",
        "test_a_grant_that_is_not_the_one_asked_for_is_no_grant",
        at="with pytest.raises(Timeout, match=",
        given={"spoil": "token"},
    ),
)
def any_string_is_taken_for_a_grant(patch: pytest.MonkeyPatch) -> None:
    """Whatever text the server answers with counts as a grant."""
    patch.setattr(RedisStore, "_granted", lambda self, ask, head, value: Grant(ask.key, ask.token, 1, value.decode()))


@keep(
    "many: release by key",
    where="stores/sqlite/sql/release.sql",
    found_by=Sentence(
        "a release with another token changes nothing", "a release with a token that is not the holder's"
    ),
    attacks=("R4", "R17"),
)
def a_statement_that_releases_by_key(patch: pytest.MonkeyPatch) -> None:
    """The row is deleted by its key alone."""
    restate(patch, "RELEASE", "WHERE key = :key AND token = :token", "WHERE key = :key")


@keep(
    "many: an expired lease brought back by a late renewal",
    where="stores/sqlite/sql/renew.sql",
    found_by=Sentence("an expired lease cannot be renewed", "the renewal of an expired lease"),
    attacks=("R18",),
)
def a_statement_that_renews_the_expired(patch: pytest.MonkeyPatch) -> None:
    """The owner is compared and the time is not, so a lease that ran out comes back to life."""
    restate(patch, "_RENEW", "THEN expires_ns > ? ELSE expires_wall_ns > ?", "THEN ? > 0 ELSE ? > 0")


@keep(
    "many: the next number taken from the rows that are there",
    where="stores/sqlite/sql/acquire.sql",
    found_by=Sentence("fences rise from grant to grant on every connection", "came after"),
    attacks=("R28",),
)
def a_fence_counted_from_the_present_rows(patch: pytest.MonkeyPatch) -> None:
    """The next fence is one above the highest in the table, which a release deletes."""
    counter = "(SELECT max(value + 1, :fence_floor) FROM holdfast_fence)"
    restate(patch, "ACQUIRE", counter, "(SELECT coalesce(max(fence), 0) + 1 FROM holdfast_lease)")


@keep(
    "many: the deadline of another host compared with one's own clock",
    where="stores/nats/revisions.py",
    found_by=Test(
        "unit.stores.test_nats_values",
        "test_by_the_servers_clock_it_takes_as_much_longer_as_their_clocks_may_differ",
        at="assert left(30 * NS) == 10 * NS",
    ),
    attacks=("R2",),
)
def a_lease_that_is_over_by_the_first_clock_at_hand(patch: pytest.MonkeyPatch) -> None:
    """On NATS a lease may be replaced as soon as the timestamps of the servers say that its TTL is over."""
    patch.setattr(nats_revisions, "CLOCKS_APART_NS", 0)


@keep(
    "many: a watcher's time that is not started again",
    where="stores/nats/revisions.py",
    found_by=Test(
        "unit.stores.test_nats_values",
        "test_a_message_that_is_seen_again_keeps_the_time_of_its_first_sight",
        at="Revision(6, HELD, 950)",
    ),
    attacks=("R2", "R7"),
)
def a_watcher_that_does_not_notice_renewals(patch: pytest.MonkeyPatch) -> None:
    """On NATS a client counts from the first message of a key that it saw, and takes a lease that is renewed."""
    learned = nats_revisions.Revisions.learned

    def stubborn(self: Any, key: str, revision: Any) -> Any:
        known = self.get(key)
        return learned(self, key, revision if known is None else revision._replace(since_ns=known.since_ns))

    patch.setattr(nats_revisions.Revisions, "learned", stubborn)
