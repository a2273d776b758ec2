"""Answers that no server should give, and error replies: none is read as a grant, none shows a secret."""

from __future__ import annotations

import contextlib

import pytest

from holdfast.core.ports import Store
from holdfast.errors import BackendError, Misconfigured, Timeout, Unavailable
from holdfast.types import MS, NS, Renewal
from support.fixtures.redis import Play
from support.harness.redis_requests import SOON, ask
from support.servers.scripted_redis import ScriptedRedis

BRIEF = 100 * MS  # for requests that are meant to go unanswered

GARBAGE = [
    b"$5\r\nhello\r\n",
    b"$0\r\n\r\n",
    b"$-1\r\n",
    b":1\r\n",
    b"+OK\r\n",
    b"*0\r\n",
    b"*2\r\n:1\r\n:2\r\n",
    b"*1\r\n$5\r\nhello\r\n",
    b"HTTP/1.1 400 Bad Request\r\n\r\n",
    b"\xff\xfe\x00garbage\r\n",
]


@pytest.mark.threat("X17")
@pytest.mark.parametrize("garbage", GARBAGE, ids=repr)
def test_garbage_is_never_read_as_a_grant_or_an_answer(play: Play, garbage: bytes) -> None:
    async def scenario(store: Store) -> None:
        lease = Renewal("job", "aa", "o hf1 f 1 1 aa", NS)
        with pytest.raises(Timeout):
            await store.acquire(ask("job"), SOON)
        with pytest.raises(Timeout):
            await store.renew_many([lease, lease], SOON)
        if garbage != b":1\r\n":  # for a release that is an answer
            with pytest.raises(Timeout):
                await store.release("job", "aa", lease.claim, 0, SOON)

    with ScriptedRedis(lambda _command: garbage) as server:
        play(server.url, scenario)


@pytest.mark.threat("X17")
@pytest.mark.parametrize("spoil", ["token", "owner", "fence", "extra"])
def test_a_grant_that_is_not_the_one_asked_for_is_no_grant(play: Play, spoil: str) -> None:
    def answer(command: list[bytes]) -> bytes:
        head, token = command[5], command[6]
        parts = {"token": token, "owner": head, "fence": b"7", "extra": b""}
        parts[spoil] = {"token": b"f" * 32, "owner": b"x hf1 y", "fence": b"7e3", "extra": b" x"}[spoil]
        value = parts["owner"] + b" 5 " + parts["fence"] + b" " + parts["token"] + parts["extra"]
        return b"$%d\r\n%s\r\n" % (len(value), value)

    async def scenario(store: Store) -> None:
        with pytest.raises(Timeout, match="makes no sense"):
            await store.acquire(ask("job"), SOON)

    with ScriptedRedis(answer) as server:
        play(server.url, scenario)


def test_an_answer_too_many_is_not_given_to_the_next_request(play: Play) -> None:
    async def scenario(store: Store) -> None:
        with contextlib.suppress(Timeout):
            await store.ping(SOON)
        with pytest.raises(Timeout):  # the server is silent about it; ":1" would be a yes
            await store.release("job", "aa", "o hf1 f 1 1 aa", 0, BRIEF)

    def answer(command: list[bytes]) -> bytes | None:
        return b"+PONG\r\n:1\r\n" if command == [b"PING"] else None

    with ScriptedRedis(answer) as server:
        play(server.url, scenario)


ERRORS = [
    (b"READONLY You can't write against a read only replica.", Unavailable),
    (b"LOADING Redis is loading the dataset in memory", Unavailable),
    (b"MASTERDOWN Link with MASTER is down", Unavailable),
    (b"CLUSTERDOWN The cluster is down", Unavailable),
    (b"TRYAGAIN Multiple keys request during rehashing of slot", Unavailable),
    (b"BUSY Redis is busy running a script.", Unavailable),
    (b"OOM command not allowed when used memory > 'maxmemory'.", Unavailable),
    (b"NOREPLICAS Not enough good replicas to write.", Unavailable),
    (b"MISCONF Errors writing to the AOF file", Unavailable),
    (b"ERR max number of clients reached", Unavailable),
    (b"ERR Error running script (call to f_abc): @user_script:21: -OOM command not allowed", Unavailable),
    (b"ERR Error running script (call to f_abc): @user_script: 4: READONLY You can't write", Unavailable),
    (b"NOAUTH Authentication required.", Misconfigured),
    (b"WRONGPASS invalid username-password pair", Misconfigured),
    (b"NOPERM this user has no permissions to run the 'evalsha' command", Misconfigured),
    (b"NOPERM this user has no permissions to access one of the keys used as arguments", Misconfigured),
    (b"MOVED 3999 127.0.0.1:6381", Misconfigured),
    (b"ERR unknown command `EVALSHA`, with args beginning with: `SHA`, `SECRET`", Misconfigured),
]


@pytest.mark.parametrize(
    ("text", "kind"), ERRORS, ids=lambda value: value.decode()[:24] if isinstance(value, bytes) else ""
)
def test_each_error_reply_says_what_the_caller_may_conclude(play: Play, text: bytes, kind: type[BackendError]) -> None:
    async def scenario(store: Store) -> None:
        request = ask("job")
        with pytest.raises(kind) as caught:
            await store.acquire(request, SOON)
        assert "SECRET" not in str(caught.value)
        assert request.token not in str(caught.value)
        with pytest.raises(kind):
            await store.renew_many([Renewal("job", request.token, "claim " + request.token, NS)], SOON)
        with pytest.raises(kind):
            await store.release("job", request.token, None, 0, SOON)

    with ScriptedRedis(lambda _command: b"-" + text + b"\r\n") as server:
        play(server.url, scenario)


# Where scripts are forbidden: the compare commands of newer servers, which none of the test servers has.

FORBIDDEN = b"-NOPERM this user has no permissions to run the 'evalsha' command\r\n"
UNKNOWN = b"-ERR unknown command 'DELEX', with args beginning with: 'job'\r\n"


@pytest.mark.parametrize("verb", [b"DELEX", b"DELIFEQ"])
def test_without_scripts_release_and_renewal_use_compare_commands(play: Play, verb: bytes) -> None:
    def answer(command: list[bytes]) -> bytes:
        if command[0] in (b"EVALSHA", b"EVAL"):
            return FORBIDDEN
        if command[0] == b"SET":
            return b"+OK\r\n" if command[1] == b"job" else b"$-1\r\n"
        return b":1\r\n" if command[0] == verb else UNKNOWN

    claim = "o hf1 f 1 1 aa"

    async def scenario(store: Store) -> None:
        lease = Renewal("job", "aa", claim, 2 * NS)
        assert await store.renew_many([lease, lease._replace(key="other")], SOON) == [True, False]
        assert [b"SET", b"job", claim.encode(), b"IFEQ", claim.encode(), b"PX", b"2000"] in server.heard
        assert await store.release("job", "aa", claim, 0, SOON)
        compared = [b"DELEX", b"job", b"IFEQ", claim.encode()] if verb == b"DELEX" else [verb, b"job", claim.encode()]
        assert server.heard[-1] == compared
        with pytest.raises(Misconfigured, match="eval"):
            await store.acquire(ask("job"), SOON)

    with ScriptedRedis(answer) as server:
        play(server.url, scenario)


def test_without_scripts_and_without_compare_commands_the_error_names_the_permission(play: Play) -> None:
    def answer(command: list[bytes]) -> bytes:
        return (
            FORBIDDEN
            if command[0] in (b"EVALSHA", b"EVAL")
            else b"-ERR syntax error\r\n"
            if command[0] == b"SET"
            else UNKNOWN
        )

    async def scenario(store: Store) -> None:
        with pytest.raises(Misconfigured, match=r"url user: grant .* \+eval"):
            await store.release("job", "aa", "o hf1 f 1 1 aa", 0, SOON)
        with pytest.raises(Misconfigured, match=r"url user: grant .* \+eval"):
            await store.renew_many([Renewal("job", "aa", "o hf1 f 1 1 aa", NS)], SOON)

    with ScriptedRedis(answer) as server:
        play(server.url, scenario)
