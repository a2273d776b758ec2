"""Where attempts get their leases: together where they come together, and nothing is left behind."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

import holdfast.aio
from holdfast.aio.client import Locks
from holdfast.errors import Unavailable
from holdfast.plane.locks.registry import WORKER_JOB
from holdfast.plane.worker.attempt_leases import AttemptLeases

pytestmark = pytest.mark.asyncio


@pytest_asyncio.fixture
async def locks(tmp_path: Path) -> AsyncIterator[Locks]:
    async with holdfast.aio.connect(f"sqlite:///{tmp_path / 'leases.db'}") as opened:
        yield opened


class Counted:
    """The sizes of batches, and a point to stop at."""

    def __init__(self, locks: Locks, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[int] = []
        self.inside = asyncio.Event()
        self.go = asyncio.Event()
        self.go.set()
        self._acquire_many: Any = locks.ports.store.acquire_many  # type: ignore[attr-defined]
        monkeypatch.setattr(locks.ports.store, "acquire_many", self)

    async def __call__(self, asks: Sequence[Any], timeout_ns: int) -> Any:
        self.asked.append(len(asks))
        answers = await self._acquire_many(asks, timeout_ns)
        self.inside.set()
        await self.go.wait()
        return answers


async def test_those_who_come_together_share_a_request_and_each_has_its_own(
    locks: Locks, monkeypatch: pytest.MonkeyPatch
) -> None:
    batcher, counted = AttemptLeases(locks), Counted(locks, monkeypatch)
    busy = await WORKER_JOB.lock(locks, job="3").acquire(1)
    found = await asyncio.gather(*(batcher.acquire(WORKER_JOB.lock(locks, job=str(at))) for at in range(6)))
    assert counted.asked == [5], "one is held in this very process"
    assert [None if each is None else each.key for each in found] == [
        None if at == 3 else WORKER_JOB.key(job=str(at)) for at in range(6)
    ]
    await asyncio.gather(*(batcher.release(each) for each in found if each is not None))
    assert [each.key for each in await locks.list(WORKER_JOB.key(job=""))] == [busy.key]
    await busy.release()


@pytest.mark.parametrize("when", ["before the answer", "after the answer", "queued"])
async def test_whoever_is_cancelled_leaves_no_lease_behind(
    locks: Locks, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    batcher, counted = AttemptLeases(locks), Counted(locks, monkeypatch)
    counted.go.clear()
    take = batcher._acquire

    async def answered(asking: Any) -> Any:
        leases = await take(asking)
        if when == "after the answer":
            first.cancel()  # which has not heard of it yet
        return leases

    monkeypatch.setattr(batcher._acquisitions, "_together", answered)
    first = asyncio.create_task(batcher.acquire(WORKER_JOB.lock(locks, job="first")))
    await counted.inside.wait()
    taking = first
    if when == "queued":
        taking = asyncio.create_task(batcher.acquire(WORKER_JOB.lock(locks, job="second")))
        await asyncio.sleep(0)
    if when == "after the answer":
        counted.go.set()
    else:
        taking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await taking
    counted.go.set()
    if taking is not first:
        lease = await first
        assert lease is not None
        await batcher.release(lease)

    async def nothing_held() -> bool:
        return not await locks.list(WORKER_JOB.key(job=""))

    async with asyncio.timeout(20):
        while not await nothing_held():  # noqa: ASYNC110 - what the batcher gives back takes a turn or two
            await asyncio.sleep(0.005)
    again = await batcher.acquire(WORKER_JOB.lock(locks, job="first"))
    assert again is not None
    await batcher.release(again)


async def test_trouble_with_the_store_is_told_to_each(locks: Locks, monkeypatch: pytest.MonkeyPatch) -> None:
    batcher = AttemptLeases(locks)

    async def away(*_: Any) -> Any:
        raise Unavailable("no store")

    with monkeypatch.context() as patch:
        patch.setattr(locks.ports.store, "acquire_many", away)
        ends = await asyncio.gather(
            *(batcher.acquire(WORKER_JOB.lock(locks, job=str(at))) for at in range(3)), return_exceptions=True
        )
    assert [type(each) for each in ends] == [Unavailable] * 3
    assert len({id(each) for each in ends}) == 3
    lease = await batcher.acquire(WORKER_JOB.lock(locks, job="0"))
    assert lease is not None
    await batcher.release(lease)
    await batcher.release(lease)  # safe in `finally`, twice


async def test_a_store_that_answers_for_one_lock_at_a_time_is_asked_so(
    locks: Locks, monkeypatch: pytest.MonkeyPatch
) -> None:
    batcher, counted = AttemptLeases(locks), Counted(locks, monkeypatch)
    monkeypatch.setattr("holdfast.aio.batch.takes_many", lambda _: False)
    found = await asyncio.gather(*(batcher.acquire(WORKER_JOB.lock(locks, job=str(at))) for at in range(3)))
    assert all(each is not None and each.held for each in found)
    for each in found:
        assert each is not None
        await batcher.release(each)
    assert (counted.asked, await locks.list(WORKER_JOB.key(job=""))) == ([], [])
