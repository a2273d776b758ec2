"""Calls that come together are answered together, and each gets its own answer."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from holdfast.errors import Timeout, Unavailable
from holdfast.plane.db.batcher import Batcher, Failed


class Counter:
    """Doubles numbers, batch by batch; what it does with a batch waits for `go`."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.began = asyncio.Event()
        self.go = asyncio.Event()
        self.go.set()
        self.broken: Exception | None = None
        self.cancelled: asyncio.Future[None] | None = None  # what the first batch awaits is cancelled
        self.poison: int | None = None

    async def together(self, items: Sequence[int]) -> Sequence[int | Failed]:
        self.batches.append(list(items))
        self.began.set()
        await self.go.wait()
        if self.cancelled is not None:
            waited_for, self.cancelled = self.cancelled, None
            waited_for.cancel()
            await waited_for
        if self.broken is not None:
            raise self.broken
        if self.poison in items:
            raise ValueError(f"{self.poison} is poison")
        return [Failed(KeyError(each)) if each < 0 else 2 * each for each in items]


@pytest.mark.asyncio
async def test_those_who_ask_in_one_turn_share_a_batch_and_get_their_own_answers() -> None:
    counter = Counter()
    gathering = Batcher(counter.together)
    answers = await asyncio.gather(*map(gathering.ask, (1, -2, 3)), return_exceptions=True)
    assert (answers[0], answers[2]) == (2, 6)
    assert isinstance(answers[1], KeyError)
    assert counter.batches == [[1, -2, 3]]
    assert (gathering.batches, gathering.items) == (1, 3)


@pytest.mark.asyncio
async def test_what_comes_while_a_batch_is_under_way_is_the_next_one() -> None:
    counter = Counter()
    counter.go.clear()
    gathering = Batcher(counter.together)
    first = asyncio.create_task(gathering.ask(1))
    await counter.began.wait()
    rest = [asyncio.create_task(gathering.ask(each)) for each in (2, 3)]
    await asyncio.sleep(0)
    counter.go.set()
    assert [await each for each in (first, *rest)] == [2, 4, 6]
    assert counter.batches == [[1], [2, 3]]


@pytest.mark.asyncio
async def test_two_of_the_same_name_are_never_in_one_batch_and_keep_their_order() -> None:
    counter = Counter()
    gathering = Batcher(counter.together, apart=lambda each: each % 10)
    await asyncio.gather(*map(gathering.ask, (1, 11, 2, 21)))
    assert counter.batches == [[1, 2], [11], [21]]


@pytest.mark.asyncio
async def test_a_batch_is_no_longer_than_it_may_be() -> None:
    counter = Counter()
    await asyncio.gather(*map(Batcher(counter.together, most=2).ask, range(5)))
    assert [len(batch) for batch in counter.batches] == [2, 2, 1]


@pytest.mark.asyncio
async def test_an_error_that_may_be_one_items_is_told_to_nobody_else() -> None:
    counter = Counter()
    counter.poison = 2
    answers = await asyncio.gather(*map(Batcher(counter.together).ask, (1, 2, 3)), return_exceptions=True)
    assert (answers[0], answers[2]) == (2, 6)
    assert isinstance(answers[1], ValueError)
    assert counter.batches == [[1, 2, 3], [1], [2], [3]]


@pytest.mark.asyncio
async def test_trouble_with_a_store_is_told_to_all_and_nothing_is_tried_again() -> None:
    counter = Counter()
    counter.broken = Unavailable("gone")
    answers = await asyncio.gather(*map(Batcher(counter.together).ask, (1, 2)), return_exceptions=True)
    assert [str(each) for each in answers] == ["gone", "gone"]
    assert all(isinstance(each, Unavailable) for each in answers)
    assert answers[0] is not answers[1]
    assert counter.batches == [[1, 2]]


@pytest.mark.asyncio
async def test_who_is_cancelled_before_its_turn_is_left_out_and_the_others_are_served() -> None:
    counter = Counter()
    counter.go.clear()
    gathering = Batcher(counter.together)
    first = asyncio.create_task(gathering.ask(1))
    await counter.began.wait()
    gone, kept = asyncio.create_task(gathering.ask(2)), asyncio.create_task(gathering.ask(3))
    await asyncio.sleep(0)
    gone.cancel()
    await asyncio.wait((gone,))
    counter.go.set()
    assert [await first, await kept] == [2, 6]
    assert counter.batches == [[1], [3]]


def test_an_event_loop_that_ended_in_the_middle_of_a_batch_leaves_nothing_to_the_next() -> None:
    batches: list[Sequence[int]] = []
    begun: asyncio.Event | None = asyncio.Event()

    async def together(items: Sequence[int]) -> Sequence[int]:
        batches.append(items)
        if begun is not None:
            begun.set()
            await asyncio.Event().wait()
        return [2 * each for each in items]

    gathering = Batcher(together)

    async def leave() -> None:
        asking = [asyncio.ensure_future(gathering.ask(1))]
        assert begun is not None
        await begun.wait()
        asking.append(asyncio.ensure_future(gathering.ask(2)))
        await asyncio.sleep(0)
        assert not any(each.done() for each in asking)

    async def ask() -> int:
        return await gathering.ask(4)

    asyncio.run(leave())
    begun = None
    assert asyncio.run(ask()) == 8
    assert batches == [(1,), (4,)]


@pytest.mark.asyncio
async def test_one_who_asks_for_many_gets_all_answers_and_an_error_is_one_of_them() -> None:
    counter = Counter()
    gathering = Batcher(counter.together)
    answers = await gathering.ask_all([1, -2, 3])
    assert [each for each in answers if not isinstance(each, Failed)] == [2, 6]
    assert [type(each.error) for each in answers if isinstance(each, Failed)] == [KeyError]
    assert counter.batches == [[1, -2, 3]]
    counter.broken = Unavailable("away")
    assert all(
        isinstance(each, Failed) and isinstance(each.error, Unavailable) for each in await gathering.ask_all([1, 2])
    )
    assert await gathering.ask_all([]) == []


@pytest.mark.asyncio
async def test_one_who_asks_for_many_and_is_cancelled_leaves_nobody_behind() -> None:
    counter = Counter()
    counter.go.clear()
    gathering = Batcher(counter.together, most=2)
    asking = asyncio.create_task(gathering.ask_all([1, 2, -3, 4]))
    await counter.began.wait()
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    counter.go.set()
    assert await gathering.ask(5) == 10
    assert counter.batches == [[1, 2], [5]], "what had not begun was never done"


@pytest.mark.asyncio
async def test_a_batch_that_is_cancelled_from_within_is_an_error_of_its_own_and_the_next_one_is_served() -> None:
    """Something that the batch awaited was cancelled from elsewhere: the callers were not."""
    counter = Counter()
    counter.go.clear()
    counter.cancelled = asyncio.get_running_loop().create_future()
    gathering = Batcher(counter.together)
    first = [asyncio.create_task(gathering.ask(each)) for each in (1, 2)]
    await counter.began.wait()
    next_one = asyncio.create_task(gathering.ask(3))
    await asyncio.sleep(0)
    counter.go.set()
    async with asyncio.timeout(30):
        ends = await asyncio.gather(*first, return_exceptions=True)
        assert [type(each) for each in ends] == [Timeout, Timeout], "it may have happened"
        assert await next_one == 6
    assert counter.batches == [[1, 2], [3]]


@pytest.mark.asyncio
@pytest.mark.parametrize("begun", [True, False])
async def test_when_the_serving_is_cancelled_nobody_is_left_waiting_and_the_next_who_asks_is_served(
    begun: bool,
) -> None:
    counter = Counter()
    counter.go.clear()
    gathering = Batcher(counter.together)
    before = asyncio.all_tasks()
    asking = [asyncio.create_task(gathering.ask_all([1, 2]))]
    await asyncio.sleep(0)  # they have asked, and the serving begins in the next turn
    serving = asyncio.all_tasks() - before - {*asking}
    assert serving
    if begun:
        await counter.began.wait()
        asking.append(asyncio.create_task(gathering.ask_all([3])))
        await asyncio.sleep(0)
    for each in serving:
        each.cancel()
    async with asyncio.timeout(30):
        ends = await asyncio.gather(*asking, return_exceptions=True)
        assert all(isinstance(each, asyncio.CancelledError) for each in ends)
        counter.go.set()
        assert await gathering.ask(5) == 10
    assert counter.batches == ([[1, 2], [5]] if begun else [[5]])


@pytest.mark.asyncio
async def test_what_one_asks_for_goes_with_others_in_as_few_batches_as_names_and_room_allow() -> None:
    counter = Counter()
    gathering = Batcher(counter.together, apart=lambda each: each % 10, most=4)
    asked = await asyncio.gather(
        gathering.ask_all([1, 2, 12]), gathering.ask_all([3, 4, 5]), gathering.ask(11), gathering.ask_all(range(6, 10))
    )
    assert list(asked) == [[2, 4, 24], [6, 8, 10], 22, [12, 14, 16, 18]]
    assert counter.batches == [[1, 2], [12, 3, 4, 5], [11], [6, 7, 8, 9]]
