"""Holds that are not released, and leaders that stay leaders."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable
from typing import Any

import pytest

from holdfast import BadInput, LeaseLost
from support.harness.leases import LIMIT_S, Stage


@pytest.mark.requires("R46", "R51", "R54", "R67")
async def test_a_hold_is_taken_once_per_window_by_whoever_comes_first(stage: Stage) -> None:
    stage.stop_time()
    replicas = [stage.locks() for _ in range(3)]
    taken: list[tuple[int, int]] = []
    for tick in range(9):
        for number, locks in enumerate(replicas):
            lease = await locks.hold("reconciler", ttl=60, family="reconciler")
            if lease is not None:
                taken.append((tick, number))
        stage.pass_time(20)
    assert [tick for tick, _ in taken] == [0, 3, 6]  # a window of 60 s, ticks of 20 s
    assert stage.plan.calls["renew_many"] == stage.plan.calls["release"] == 0


@pytest.mark.requires("R46", "R54")
async def test_a_hold_excludes_its_own_holder_and_is_not_a_loss_when_it_runs_out(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    stage.stop_time()
    locks = stage.locks()
    lease = await locks.hold("nightly", ttl=60)
    assert lease is not None
    assert await locks.hold("nightly", ttl=60) is None
    assert lease.state == "held"
    assert lease.guaranteed
    stage.pass_time(30)
    assert lease.remaining() == pytest.approx(60 - 30 - 0.602)
    stage.pass_time(31)
    assert not lease.held
    again = await locks.hold("nightly", ttl=60)
    assert again is not None
    assert again.fence > lease.fence
    assert locks.statistics().lost == 0
    assert "lost" not in caplog.text
    assert locks.statistics().held == 0  # it is not renewed


@pytest.mark.requires("R67")
async def test_a_hold_outlives_the_one_who_took_it(stage: Stage) -> None:
    stage.stop_time()
    locks, others = stage.locks(), stage.locks()
    assert await locks.hold("nightly", ttl=60) is not None
    await locks.close()
    assert await others.hold("nightly", ttl=60) is None
    stage.pass_time(60)
    assert await others.hold("nightly", ttl=60) is not None


async def test_a_hold_that_meets_a_store_error_raises_it(stage: Stage) -> None:
    from holdfast import Unavailable

    locks = stage.locks(policy={"low": "fail_open"})
    stage.plan.down("acquire")
    with pytest.raises(Unavailable):
        await locks.hold("nightly", ttl=60)


async def test_a_leader_leads_until_it_is_done(stage: Stage) -> None:
    locks = stage.locks()
    leader = locks.leader("scheduler", lease=3, renew_deadline=2, retry=0.5)
    seen: list[str] = []

    async def main(lease: Any) -> str:
        seen.append("main")
        return "done"

    result = await leader.run(
        _coloured(stage, main), on_started=lambda _: seen.append("started"), on_stopped=lambda _: seen.append("stopped")
    )
    assert (result, seen, leader.name) == ("done", ["started", "main", "stopped"], "scheduler")
    assert not (await leader.current()).held


async def test_only_one_candidate_leads_and_the_next_one_takes_over(stage: Stage) -> None:
    first = stage.locks().leader("scheduler", lease=3, renew_deadline=2, retry=0.1)
    second = stage.locks().leader("scheduler", lease=3, renew_deadline=2, retry=0.1)
    lease = await first.campaign()
    waiting = stage.start(second.campaign(LIMIT_S))
    await stage.until(lambda: stage.plan.calls["watch"] > 0, "it campaigns")
    assert (await second.current()).owner == lease.owner
    await lease.release()
    taken = await waiting.result()
    assert taken.fence > lease.fence
    async with stage.locks().leader("other", lease=3, renew_deadline=2, retry=0.1) as mine:
        assert mine.held


async def test_a_leader_that_lost_campaigns_again(stage: Stage) -> None:
    locks, operator = stage.locks(), stage.locks()
    fences: list[int] = []
    stopped: list[str | None] = []
    leading = threading.Event()

    async def main(lease: Any) -> int:
        fences.append(lease.fence)
        if len(fences) == 1:
            leading.set()
            if stage.blocking:
                assert lease.lost.wait(LIMIT_S)
                return -1  # what is returned after the loss does not count
            await asyncio.sleep(LIMIT_S)
        return len(fences)

    leader = locks.leader("scheduler", lease=0.6, renew_deadline=0.4, retry=0.1)
    running = stage.start(
        leader.run(_coloured(stage, main), on_stopped=lambda lease: stopped.append(lease.lost.reason))
    )
    await stage.until(leading.is_set, "it leads")
    await operator.force_release("scheduler", reason="drill")
    assert await running.result() == 2
    assert fences[1] > fences[0]
    assert stopped[1:] == [None]
    assert stopped[0] in {"stolen", "expired", "unconfirmed"}  # the last two when the machine is very busy


async def test_what_a_leader_raises_ends_its_run(stage: Stage) -> None:
    locks = stage.locks()
    leader = locks.leader("scheduler", lease=3, renew_deadline=2, retry=0.5)

    async def explode(lease: Any) -> None:
        raise ZeroDivisionError

    async def lost_elsewhere(lease: Any) -> None:
        raise LeaseLost("lock lost: other", key="other")

    with pytest.raises(ZeroDivisionError):
        await leader.run(_coloured(stage, explode))
    with pytest.raises(LeaseLost, match="other"):
        await leader.run(_coloured(stage, lost_elsewhere))
    assert not (await leader.current()).held


@pytest.mark.parametrize(
    ("lease", "deadline", "retry", "field"),
    [
        (15, 15, 2, "renew_deadline"),
        (15, 10, 10, "renew_every"),
        (15, 2.3, 2, "renew_every"),
        (15, 10, 0, "retry"),
        (0, 10, 2, "ttl"),
    ],
)
async def test_a_leader_whose_times_cannot_be_safe_is_refused(
    stage: Stage, lease: float, deadline: float, retry: float, field: str
) -> None:
    locks = stage.locks()
    with pytest.raises(BadInput) as raised:
        locks.leader("scheduler", lease=lease, renew_deadline=deadline, retry=retry)
    assert raised.value.field == field
    assert locks.leader("scheduler").name == "scheduler"  # 15, 10, 2: the defaults of kube-scheduler


def _coloured(stage: Stage, main: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A body for `run` in the stage's color."""
    if not stage.blocking:
        return main

    def blocking(lease: Any) -> object:
        from holdfast.runtime.run_sync import run_now

        work = main(lease)
        return run_now(work) if inspect.iscoroutine(work) else work

    return blocking
