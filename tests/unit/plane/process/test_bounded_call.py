"""A question has its answer in time, also when the store hangs and its driver does not let go."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from holdfast.plane.process.bounded_call import BoundedCall

pytestmark = pytest.mark.asyncio

LONG = 60.0


class Stubborn:
    """A request that takes no cancellation for an answer until it is let go."""

    def __init__(self) -> None:
        self.begun = 0
        self.let_go = asyncio.Event()

    async def ask(self) -> str:
        self.begun += 1
        while not self.let_go.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await self.let_go.wait()
        return "late"


async def plain() -> str:
    return "answer"


async def failing() -> str:
    raise OSError("gone")


async def test_an_answer_and_an_error_are_passed_on() -> None:
    asking = BoundedCall()
    assert await asking.within(LONG, plain) == "answer"
    with pytest.raises(OSError, match="gone"):
        await asking.within(LONG, failing)
    assert await asking.within(LONG, plain) == "answer"


async def test_who_waits_is_told_in_time_and_a_request_that_hangs_stays_the_only_one() -> None:
    asking, hanging = BoundedCall(), Stubborn()
    for _ in range(3):
        with pytest.raises(TimeoutError):
            await asking.within(0.0, hanging.ask)
    assert hanging.begun == 1
    waiting = asyncio.create_task(asking.within(LONG, plain))
    hanging.let_go.set()
    assert await waiting == "answer", "when the first is over, there is another"


async def test_who_does_not_wait_any_more_leaves_nothing_behind() -> None:
    asking, cancelled = BoundedCall(), asyncio.Event()

    async def waits() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    leaving = asyncio.create_task(asking.within(LONG, waits))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    leaving.cancel()
    await asyncio.wait((leaving,))
    await cancelled.wait()
    assert leaving.cancelled()
