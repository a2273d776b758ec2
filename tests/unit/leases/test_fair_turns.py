"""A fair lock goes around: a process with waiters is queued at the store at every moment, or holds the lock."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from holdfast import aio
from support.harness.leases import LIMIT_S, Company, Stage

EACH = 4


async def line_up(stage: Stage, locks: aio.Locks, name: str, order: list[str], many: int) -> list[Company]:
    """So many waiters of one process. When this returns, the first of them has its ticket, and listens."""

    async def take() -> None:
        async with locks.lock("k", ttl=30, fair=True, timeout=LIMIT_S):
            order.append(name)

    watched = stage.plan.calls["watch"]
    company = [stage.start(take()) for _ in range(many)]
    await stage.until(
        lambda: locks.statistics().waiting == many - 1 and stage.plan.calls["watch"] > watched, f"{name} is queued"
    )
    return company


@pytest.mark.requires("R48")
async def test_a_process_that_learns_late_of_its_own_release_misses_no_turn(stage: Stage) -> None:
    """As one that the system does not run for a while: the release has happened, and the process does not know yet."""
    order: list[str] = []
    holder = await stage.locks().lock("k", ttl=30).acquire()
    company = await line_up(stage, stage.locks(), "first", order, 1)
    for name in ("one", "two"):
        company += await line_up(stage, stage.locks(), name, order, EACH)
    everyone = 1 + 2 * EACH

    def two_later() -> Coroutine[Any, Any, None]:
        """Keep the answer back until the lock was had twice more, or by all."""
        return _until_had(order, min(everyone, len(order) + 2))

    if (
        not stage.blocking
    ):  # of threads the system runs which it likes, so a turn may be missed: all have theirs, at least
        stage.plan.after["release"] = two_later
    await holder.release()
    for each in company:
        await each.result()
    assert sorted(order) == sorted(["first", *["one", "two"] * EACH])
    if not stage.blocking:  # where the next ask is sent before the release
        assert order == ["first", *["one", "two"] * EACH]


async def _until_had(order: list[str], enough: int) -> None:
    async with asyncio.timeout(LIMIT_S):
        while len(order) < enough:  # noqa: ASYNC110 - the waiters of the scenario know nothing of events
            await asyncio.sleep(0)


async def test_a_fair_lock_that_no_other_process_wants_costs_two_requests_a_turn(stage: Stage) -> None:
    """No early ticket is taken without other processes."""
    locks = stage.locks()
    lock = locks.lock("k", ttl=30, fair=True)
    lease = await lock.acquire()

    async def take() -> None:
        async with lock:
            pass

    company = [stage.start(take()) for _ in range(EACH)]
    await stage.until(lambda: locks.statistics().waiting == EACH, "all are queued")
    await lease.release()
    for each in company:
        await each.result()
    assert (stage.plan.calls["acquire"], stage.plan.calls["release"]) == (EACH + 1, EACH + 1)
