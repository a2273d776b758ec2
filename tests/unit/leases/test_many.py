"""Many locks in one request: each as if it were alone, one request for all, and nothing left behind in trouble."""

from __future__ import annotations

import asyncio
import logging

import pytest

from holdfast.aio import batch as many
from holdfast.aio.lease import Lease
from holdfast.errors import BadInput, Timeout, Unavailable
from holdfast.types import Busy
from support.harness.leases import Stage

KEYS = [f"k{number}" for number in range(5)]


def leases_of(found: list[Lease | Busy]) -> list[Lease]:
    return [each for each in found if isinstance(each, Lease)]


async def test_those_that_are_free_are_had_by_one_request_and_given_back_by_one(tasks: Stage) -> None:
    locks, others = tasks.locks(), tasks.locks()
    theirs = await others.lock("k2", ttl=30).acquire()
    found = await many.try_acquire(locks, [locks.lock(key, ttl=30) for key in KEYS])
    assert [isinstance(each, Lease) for each in found] == [True, True, False, True, True]
    assert isinstance(found[2], Busy)
    assert found[2].owner == theirs.owner
    mine = leases_of(found)
    assert [(await others.inspect(lease.key)).fence for lease in mine if lease.held] == [each.fence for each in mine]
    assert await many.release(locks, mine) == [None] * 4
    assert not any([(await others.inspect(lease.key)).held for lease in mine])
    assert (tasks.plan.calls["acquire_many"], tasks.plan.calls["release_many"], tasks.plan.calls["release"]) == (
        1,
        1,
        0,
    )
    counts = locks.statistics()
    assert (counts.granted, counts.busy, counts.released, counts.held) == (4, 1, 4, 0)
    waited = locks.measurements().families["default"].wait
    assert {str(outcome): found.number for outcome, found in waited.items()} == {"granted": 4, "busy": 1}


async def test_one_that_another_task_of_this_process_holds_is_busy_and_not_asked_for(tasks: Stage) -> None:
    locks = tasks.locks()
    async with locks.lock("k1", ttl=30):
        found = await many.try_acquire(locks, [locks.lock(key, ttl=30) for key in ("k0", "k1")])
        assert [type(each) for each in found] == [Lease, Busy]
        assert tasks.plan.asked[-1] == ("acquire_many", "k0")
        assert [type(each) for each in await many.try_acquire(locks, [locks.lock("k1", ttl=30)])] == [Busy]
        assert tasks.plan.calls["acquire_many"] == 1, "there was nothing to ask for"
    await many.release(locks, leases_of(found))
    assert [type(each) for each in await many.try_acquire(locks, [locks.lock(key) for key in ("k0", "k1")])] == [
        Lease
    ] * 2


@pytest.mark.requires("R6")
@pytest.mark.parametrize("trouble", ["down", "silent"])
async def test_when_the_store_fails_nothing_is_had_and_nothing_stays_behind(tasks: Stage, trouble: str) -> None:
    locks, others = tasks.locks(), tasks.locks()
    getattr(tasks.plan, trouble)("acquire_many")
    with pytest.raises(Unavailable if trouble == "down" else Timeout):
        await many.try_acquire(locks, [locks.lock(key, ttl=30) for key in KEYS])
    tasks.plan.well()
    assert locks.statistics().store_errors == len(KEYS)

    async def all_free() -> bool:
        return not any([(await others.inspect(key)).held for key in KEYS])

    async with asyncio.timeout(20):
        while not await all_free():  # noqa: ASYNC110 - the reaper's thread gives them back
            await asyncio.sleep(0.01)
    again = await many.try_acquire(locks, [locks.lock(key, ttl=30) for key in KEYS])
    assert len(leases_of(again)) == len(KEYS), "the places in this process are free as well"
    await many.release(locks, leases_of(again))


@pytest.mark.requires("R4", "R26", "R27")
async def test_one_that_was_lost_is_not_given_back_and_says_so(tasks: Stage, caplog: pytest.LogCaptureFixture) -> None:
    locks, others = tasks.locks(), tasks.locks()
    mine = leases_of(await many.try_acquire(locks, [locks.lock(key, ttl=30) for key in KEYS[:3]]))
    await others.force_release("k1", reason="drill")
    newer = await others.lock("k1", ttl=30).acquire()
    losses = await many.release(locks, mine)
    assert [loss is None for loss in losses] == [True, False, True]
    assert "k1 was not ours any more" in str(losses[1])
    assert newer.held
    assert (await others.inspect("k1")).fence == newer.fence
    assert locks.statistics().not_owned == 1
    assert "lock release skipped: token mismatch" in caplog.text


@pytest.mark.requires("R83")
@pytest.mark.parametrize("trouble", ["down", "silent"])
async def test_a_release_that_fails_is_a_warning_for_each_and_the_reaper_has_them(
    tasks: Stage, trouble: str, caplog: pytest.LogCaptureFixture
) -> None:
    locks, others = tasks.locks(), tasks.locks()
    mine = leases_of(await many.try_acquire(locks, [locks.lock(key, ttl=30) for key in KEYS]))
    getattr(tasks.plan, trouble)("release_many")
    assert await many.release(locks, mine) == [None] * len(KEYS)
    assert locks.statistics().release_failures == len(KEYS)
    assert {record.levelno for record in caplog.records} == {logging.WARNING}
    tasks.plan.well()
    async with asyncio.timeout(20):
        while any([(await others.inspect(key)).held for key in KEYS]):  # noqa: ASYNC110 - the reaper's thread
            await asyncio.sleep(0.01)


async def test_whoever_is_cancelled_on_the_way_has_nothing_and_leaves_nothing(tasks: Stage) -> None:
    locks, others = tasks.locks(), tasks.locks()
    inside = asyncio.Event()

    async def hang() -> None:
        inside.set()
        await asyncio.Event().wait()

    tasks.plan.after["acquire_many"] = hang
    taking = asyncio.create_task(many.try_acquire(locks, [locks.lock(key, ttl=30) for key in KEYS]))
    await inside.wait()
    taking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await taking
    tasks.plan.well()
    async with asyncio.timeout(20):
        while any([(await others.inspect(key)).held for key in KEYS]):  # noqa: ASYNC110 - the reaper's thread
            await asyncio.sleep(0.01)
    assert len(leases_of(await many.try_acquire(locks, [locks.lock(key, ttl=30) for key in KEYS]))) == len(KEYS)


async def test_an_answer_that_took_longer_than_a_lease_may_be_trusted_is_none(tasks: Stage) -> None:
    tasks.stop_time()
    locks, others = tasks.locks(), tasks.locks()
    tasks.plan.once("after", "acquire_many", lambda: tasks.clock.move(9_950_000_000))
    with pytest.raises(Timeout, match="took longer than the leases may be trusted"):
        await many.try_acquire(locks, [locks.lock(key, ttl=10) for key in KEYS])
    assert locks.statistics().held == 0
    tasks.pass_time(2)
    assert not any([(await others.inspect(key)).held for key in KEYS])


async def test_locks_that_need_more_than_a_try_are_refused(tasks: Stage) -> None:
    locks = tasks.locks()
    for odd in (
        locks.lock("k", fair=True),
        locks.lock("k", at_least=1.0),
        locks.lock("k", risk="low"),
    ):
        with pytest.raises(BadInput, match="acquire it alone"):
            await many.try_acquire(locks, [odd])  # type: ignore[list-item]  # one of them may give a degraded lease


async def test_the_loss_of_a_lease_is_told_on_the_loop_and_its_end_is_not(tasks: Stage) -> None:
    locks, others = tasks.locks(), tasks.locks()
    told: list[str] = []
    kept, lost = leases_of(await many.try_acquire(locks, [locks.lock(key, ttl=1.0) for key in ("kept", "lost")]))
    for lease in (kept, lost):
        many.on_loss([lease], lambda name=lease.key: told.append(name))  # type: ignore[misc]
    called_off = many.on_loss([kept, lost], lambda: told.append("called off"))
    called_off()
    await others.force_release("lost", reason="drill")
    await tasks.until(lambda: told, "the renewal is refused")
    await many.release(locks, [kept, lost])
    assert told == ["lost"]
    many.on_loss([kept, lost], lambda: told.append("late"))
    assert told == ["lost", "late"]
