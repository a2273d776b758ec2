"""Concurrent calls: each has an answer within the limit, whatever the others do."""

from __future__ import annotations

import asyncio

import pytest

from holdfast.errors import Timeout, Unavailable
from holdfast.runtime.gather import together, within
from holdfast.types import MS, NS

pytestmark = pytest.mark.asyncio


async def test_an_answer_an_error_and_a_silence_are_told_apart_in_the_order_of_the_calls() -> None:
    ended: list[str] = []

    async def silent() -> str:
        await asyncio.Event().wait()
        return "never"

    async def failing() -> str:
        raise Unavailable("gone")

    async def answering() -> str:
        return "here"

    calls = {"silent": silent, "failing": failing, "answering": answering}
    found = await together(calls, 50 * MS, ended.append)
    assert list(found) == list(calls)
    assert isinstance(found["silent"], Timeout)
    assert isinstance(found["failing"], Unavailable)
    assert found["answering"] == "here"
    assert sorted(ended) == sorted(calls)
    assert await together({}, NS) == {}


async def test_one_that_does_not_listen_to_its_cancellation_is_left_behind() -> None:
    let_go = asyncio.Event()

    async def stubborn() -> None:
        while not let_go.is_set():
            try:
                await let_go.wait()
            except asyncio.CancelledError:
                continue
        raise Unavailable("the caller is gone")

    found = await together({"it": stubborn}, 10 * MS)
    assert isinstance(found["it"], Timeout)
    let_go.set()
    await asyncio.sleep(0)


async def test_one_call_alone_raises_what_it_ends_in() -> None:
    async def failing() -> None:
        raise Unavailable("gone")

    with pytest.raises(Unavailable, match="gone"):
        await within(NS, failing)
    with pytest.raises(Timeout, match=r"no answer within 0\.01 s"):
        await within(10 * MS, asyncio.Event().wait)
