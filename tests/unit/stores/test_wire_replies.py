"""Whatever a server answers, byte for byte: a lease is held only if the answer is exactly what was requested."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from holdfast.core.ports import Store
from holdfast.errors import BackendError
from holdfast.runtime.run_sync import run_now
from holdfast.stores.redis.engine import open_engine
from holdfast.stores.registry import Engine
from holdfast.types import MS, NS, AcquireRequest, Busy, Grant, Renewal
from support.harness.redis_requests import ask
from support.servers.scripted_redis import ScriptedRedis

pytestmark = pytest.mark.threat("X17")

BRIEF = 20 * MS  # an answer that never ends is not waited for


@dataclass
class Liar:
    """A server whose next answers a test chooses, and a store that believes it is talking to Redis."""

    store: Store
    run: Callable[[Coroutine[Any, Any, Any]], Any]
    answer: Callable[[list[bytes]], bytes | None] = field(default=lambda _: None)

    def says(self, command: list[bytes]) -> bytes | None:
        return self.answer(command)


@pytest.fixture(scope="module", params=["blocking", "asyncio"])
def liar(request: pytest.FixtureRequest) -> Iterator[Liar]:
    made: list[Liar] = []
    with ScriptedRedis(lambda command: made[0].says(command)) as server:
        engine = open_engine(server.url)
        if request.param == "blocking":
            made.append(Liar(engine.blocking, run_now))
            yield made[0]
        else:
            with asyncio.Runner() as runner:
                store = runner.run(opened(engine))
                made.append(Liar(store, runner.run))
                yield made[0]
                runner.run(store.close())
        engine.close()


async def opened(engine: Engine) -> Store:
    """A store of the event loop that runs."""
    return engine.asynchronous()


def resp(value: Any) -> bytes:
    """A value as a server of this protocol would say it."""
    if value is None:
        return b"$-1\r\n"
    if isinstance(value, bool | int):
        return b":%d\r\n" % value
    if isinstance(value, bytes):
        return b"$%d\r\n%s\r\n" % (len(value), value)
    if isinstance(value, str):
        return b"+" + value.encode().replace(b"\r", b"").replace(b"\n", b"") + b"\r\n"
    return b"*%d\r\n" % len(value) + b"".join(map(resp, value))


def granted(asked: AcquireRequest, fence: bytes = b"7") -> bytes:
    """The one right answer."""
    return f"{asked.owner} hf1 {asked.family} 5 ".encode() + fence + b" " + asked.token.encode()


WORDS = st.one_of(st.none(), st.integers(-(2**70), 2**70), st.binary(max_size=20), st.text("aOK1 -", max_size=6))
VALUES = st.recursive(WORDS, lambda inner: st.lists(inner, max_size=4), max_leaves=8)
BYTES = st.one_of(VALUES.map(resp), st.binary(max_size=40), VALUES.map(resp).map(lambda said: said[:-1]))


async def tried(store: Store, asked: AcquireRequest) -> Grant | Busy | None:
    try:
        return await store.acquire(asked, BRIEF)
    except BackendError:
        return None  # an unknown or a refused outcome, which is never a grant


@given(said=BYTES)
@example(said=b"$5\r\nhello\r\n")
@example(said=b"*2\r\n$0\r\n\r\n:0\r\n")
@example(said=b"*-1\r\n")
@example(said=b"$9223372036854775807\r\n")
@example(said=b"*1000000\r\n" * 3)
def test_no_answer_by_chance_is_a_grant(liar: Liar, said: bytes) -> None:
    liar.answer = lambda _: said
    assert not isinstance(liar.run(tried(liar.store, ask("job"))), Grant)


@given(at=st.integers(0, 10_000), by=st.integers(0, 255), how=st.sampled_from(["change", "drop", "add", "double"]))
def test_an_answer_that_is_almost_right_is_no_grant(liar: Liar, at: int, by: int, how: str) -> None:
    asked = ask("job")
    right = granted(asked)
    at %= len(right)
    changed = {
        "change": right[:at] + bytes([by]) + right[at + 1 :],
        "drop": right[:at] + right[at + 1 :],
        "add": right[:at] + bytes([by]) + right[at:],
        "double": right + right,
    }[how]
    liar.answer = lambda _: resp(changed)
    found = liar.run(tried(liar.store, asked))
    if isinstance(found, Grant):  # then it says the same in all that was requested
        head, granted_us, fence, token = changed.decode().rsplit(" ", 3)
        assert (head, token) == (f"{asked.owner} hf1 {asked.family}", asked.token)
        assert granted_us.isdecimal()
        assert fence == str(found.fence)
        assert found.token == asked.token


@given(said=BYTES)
@example(said=b":2\r\n")
@example(said=b"$1\r\n2\r\n")
@example(said=b"$3\r\n111\r\n")
def test_no_answer_by_chance_renews_or_releases(liar: Liar, said: bytes) -> None:
    liar.answer = lambda _: said
    lease = Renewal("job", "aa", "o hf1 f 1 1 aa", NS)

    async def renewed() -> list[bool | None]:
        try:
            return await liar.store.renew_many([lease, lease], BRIEF)
        except BackendError:
            return []

    found = liar.run(renewed())
    assert found in ([], [True, True], [True, False], [False, True], [False, False])
    if found and any(found):
        assert said in (b"$2\r\n11\r\n", b"$2\r\n10\r\n", b"$2\r\n01\r\n")


@given(
    fence=st.integers(-(2**80), 2**80).map(str)
    | st.sampled_from(["", "1e3", "0x7", "+7", " 7", "7 ", "٧", "NaN", "-0"])
)
def test_a_fence_is_a_number_that_guards_can_compare_or_there_is_no_grant(liar: Liar, fence: str) -> None:
    asked = ask("job")
    liar.answer = lambda _: resp(granted(asked, fence.encode()))
    found = liar.run(tried(liar.store, asked))
    if isinstance(found, Grant):
        assert str(found.fence) == fence.lstrip("0")
        assert 1 <= found.fence < 2**63
