"""The users that `holdfast access redis` makes: everything that each is for works, and nothing else does."""

from __future__ import annotations

import shlex
import threading
from collections.abc import Iterator

import pytest
import redis

import holdfast
from holdfast.errors import BadInput, FencedOut, LeaseLost
from holdfast.guards import CarriedFence
from holdfast.guards.redis import GuardedKeys
from holdfast.ops.access.redis import redis_access
from holdfast.plane.locks.registry import FAMILIES
from support.servers.redis import RedisExecutable, RedisServer, start_redis

pytestmark = [pytest.mark.server, pytest.mark.threat("X7")]

PASSWORD = "of-a-test"


@pytest.fixture(scope="module")
def restricted(redis_executable: RedisExecutable) -> Iterator[RedisServer]:
    """A server that was given the text, twice, and whose users were switched on as the page says."""
    with start_redis(redis_executable) as server:
        made = redis_access(prefix="app:", data="cart:", channel="news:")
        for line in (made.text * 2).splitlines():
            assert server.cli(*shlex.split(line)) in ("OK", True)
        for user in made.accounts:
            server.cli("ACL", "SETUSER", user, "on", f">{PASSWORD}")
        for name in ("fence", "other"):
            server.cli("SET", f"stranger:{name}", "theirs")
        yield server


def url_of(server: RedisServer, user: str, query: str = "?prefix=app:") -> str:
    return server.url.replace("redis://", f"redis://{user}:{PASSWORD}@") + query


def client_of(server: RedisServer, user: str) -> redis.Redis:
    return server.client(username=user, password=PASSWORD, decode_responses=True)


@pytest.mark.parametrize("db", ["", "/3"], ids=["db0", "db3"])
def test_locks_live_their_whole_life_and_an_operator_looks_and_breaks(restricted: RedisServer, db: str) -> None:
    query = f"{db}?prefix=app:"
    with (
        holdfast.connect(url_of(restricted, "holdfast-locks", query)) as locks,
        holdfast.connect(url_of(restricted, "holdfast-locks", query)) as others,
        holdfast.connect(url_of(restricted, "holdfast-operator", query)) as operators,
    ):
        for fair in (False, True):
            lease = locks.lock("job", ttl=30, fair=fair).acquire(timeout=5)
            got: list[int] = []

            def wait(fair: bool = fair, got: list[int] = got) -> None:
                with others.lock("job", ttl=30, timeout=30, fair=fair) as next_lease:
                    got.append(next_lease.fence)

            waiter = threading.Thread(target=wait)
            waiter.start()
            while not operators.lock("job", ttl=30).inspect().waiters:
                pass
            lease.renew()
            lease.release()  # the waiter is woken, and does not wait for 30 s
            waiter.join(25)
            assert got[0] > lease.fence
        held = locks.lock("stuck", ttl=30).acquire()
        assert [each.key for each in operators.list(prefix="stuck")] == ["stuck"]
        broken = operators.force_release("stuck", reason="drill")
        assert broken is not None
        assert broken.fence > held.fence
        with pytest.raises(LeaseLost):
            held.renew()
        assert [each.key for each in operators.audit()][:1] == ["stuck"]
        with locks.lock("stuck", ttl=30, timeout=5) as after:
            assert after.fence > broken.fence


DENIED = "(?i)permission|can't access|can't run this command"
REFUSED = [
    *(("FLUSHALL",), ("FLUSHDB",), ("KEYS", "*"), ("CONFIG", "GET", "*"), ("ACL", "LIST"), ("SCRIPT", "FLUSH")),
    *(("GET", "stranger:other"), ("SET", "stranger:other", "x"), ("DEL", "stranger:other"), ("SAVE",)),
    *(("MONITOR",), ("CLIENT", "LIST"), ("INFO",), ("DUMP", "app:job"), ("RENAME", "app:a", "stranger:b")),
    ("PUBLISH", "stranger", "x"),
    ("EVAL", "return redis.call('GET', 'stranger:other')", "0"),
    ("EVAL", "return redis.call('FLUSHALL')", "0"),
    ("EVAL", "return redis.call('KEYS', '*')", "0"),
]


@pytest.mark.parametrize("user", ["locks", "operator", "guards"])
def test_nothing_else_is_allowed(restricted: RedisServer, user: str) -> None:
    with client_of(restricted, f"holdfast-{user}") as client:
        for words in REFUSED:
            with pytest.raises(redis.exceptions.ResponseError, match=DENIED):
                client.execute_command(*words)
        others = {"locks": "cart:1", "operator": "cart:1", "guards": "app:job"}
        with pytest.raises(redis.exceptions.NoPermissionError):
            client.get(others[user])
    assert restricted.cli("GET", "stranger:other") == "theirs"


def test_only_an_operator_reaches_what_was_written_down(restricted: RedisServer) -> None:
    with client_of(restricted, "holdfast-locks") as client:
        for words in (("DEL", "holdfast:audit"), ("XADD", "holdfast:audit", "*", "a", "b")):
            with pytest.raises(redis.exceptions.NoPermissionError):
                client.execute_command(*words)
        forged = "return redis.call('XADD', KEYS[1], '*', 'a', 'b')"
        with pytest.raises(redis.exceptions.ResponseError):
            client.eval(forged, 1, "holdfast:audit")


def test_guards_write_their_keys_and_refuse_a_stale_holder(restricted: RedisServer) -> None:
    with (
        holdfast.connect(url_of(restricted, "holdfast-locks")) as locks,
        client_of(restricted, "holdfast-guards") as client,
    ):
        guard = GuardedKeys(client)
        first = locks.lock("cart:1", ttl=30).acquire()
        with guard.section(first, "cart:1") as entry:
            entry.hset({"apples": 1}, ttl=60)
            entry.hdel("apples")
        guard.set(first, "cart:2", "x")
        guard.publish(first, "news:1", "hello")
        first.release()
        second = locks.lock("cart:1", ttl=30).acquire()
        late = CarriedFence(first.key, first.fence)
        guard.enter(second, "cart:1")
        with pytest.raises(FencedOut):
            guard.set(late, "cart:1", "late")
        assert guard.delete(second, "cart:1") is False
        assert guard.seen("cart:1") == second.fence
        second.release()


def test_without_a_prefix_the_locks_of_a_plane_and_no_others_are_reached(restricted: RedisServer) -> None:
    (line, _) = redis_access(name="only").text.splitlines()
    restricted.cli(*shlex.split(line))
    restricted.cli("ACL", "SETUSER", "only-locks", "on", f">{PASSWORD}")
    with holdfast.connect(url_of(restricted, "only-locks", "")) as locks:
        for family in FAMILIES.values():
            key = family.key(**dict.fromkeys(family.places, "j-1"))
            with locks.lock(key, ttl=30, timeout=5) as lease:
                assert lease.fence
        with pytest.raises(holdfast.HoldfastError, match="url user: grant"):
            locks.lock("app:job", ttl=30).acquire(timeout=1)


def test_a_new_user_is_disabled_and_applying_again_locks_no_user_out(restricted: RedisServer) -> None:
    (line, _) = redis_access(prefix="late:", name="late").text.splitlines()
    restricted.cli(*shlex.split(line))
    with pytest.raises(redis.exceptions.AuthenticationError), client_of(restricted, "late-locks") as client:
        client.ping()
    restricted.cli("ACL", "SETUSER", "late-locks", "on", f">{PASSWORD}")
    restricted.cli(*shlex.split(line))
    with client_of(restricted, "late-locks") as client:
        assert client.ping()


@pytest.mark.parametrize("prefix", ["a*", "a?[b]", "a\\"])
def test_a_prefix_is_taken_as_it_is_and_not_as_a_pattern(restricted: RedisServer, prefix: str) -> None:
    (line, _) = redis_access(prefix=prefix, name="odd").text.splitlines()
    restricted.cli(*line.split(" "))
    restricted.cli("ACL", "SETUSER", "odd-locks", "on", f">{PASSWORD}")
    with client_of(restricted, "odd-locks") as client:
        assert client.get(f"{prefix}:x") is None
        for other in ("abc", "axb", "stranger:other", "a"):
            with pytest.raises(redis.exceptions.NoPermissionError):
                client.get(other)


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"prefix": "a b"}, "--prefix"),
        ({"prefix": "a\n"}, "--prefix"),
        ({"prefix": 'a"'}, "--prefix"),
        ({"data": ""}, "--data"),
        ({"channel": "news:"}, "--channel"),
        ({"name": "a b"}, "--name"),
        ({"name": "x; FLUSHALL"}, "--name"),
        ({"namespace": "a b"}, "--namespace"),
    ],
)
def test_what_could_become_a_word_of_its_own_is_refused(wrong: dict[str, str], field: str) -> None:
    with pytest.raises(BadInput) as refused:
        redis_access(**wrong)
    assert refused.value.field == field
