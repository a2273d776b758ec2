"""What was waited, held and left is measured however it ended, by family; and who waits is never counted wrong."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

import pytest

from holdfast import aio
from holdfast.core.histogram import Histogram, Measure, MeasuredOutcome
from holdfast.core.history.events import EventKind, Record
from holdfast.errors import AcquireTimeout, Closed, LeaseLost, PolicyDenied, Unavailable
from holdfast.runtime.recorder import FAMILIES_MAX, OTHER
from holdfast.runtime.statistics import FamilyMeasurements
from holdfast.types import MS, NS
from support.harness.leases import Stage

BILLING = "billing"


def of(locks: aio.Locks, family: str = BILLING) -> FamilyMeasurements:
    return locks.measurements().families[family]


def numbers(by_outcome: Any) -> dict[str, int]:
    return {str(outcome): found.number for outcome, found in by_outcome.items()}


async def test_a_wait_is_measured_however_it_ended(stage: Stage) -> None:
    """W44: also a wait in vain, with bounds on both sides of its limit."""
    stage.stop_time()
    locks, others = stage.locks(policy={"low": "fail_open", "high": "fail_closed"}), stage.locks()
    lock = locks.lock("k", ttl=30, family=BILLING)
    async with lock:
        pass
    held = await others.lock("k", ttl=30).acquire()
    assert await lock.try_acquire() is None
    with pytest.raises(AcquireTimeout):
        await lock.acquire(timeout=0)
    await held.release()
    stage.plan.down("acquire")
    with pytest.raises(Unavailable):
        await lock.acquire()
    with pytest.raises(Unavailable):
        await lock.try_acquire()
    with pytest.raises(PolicyDenied):
        await locks.lock("k", ttl=30, family=BILLING, risk="high").acquire()
    for attempt in ("acquire", "try_acquire"):
        degraded = await getattr(locks.lock("k", ttl=30, family=BILLING, risk="low"), attempt)()
        await degraded.release()
    assert numbers(of(locks).wait) == {"granted": 1, "busy": 2, "failed": 3, "degraded": 2}
    assert of(locks).fallbacks == {"low": 2}
    assert of(locks).denied == {"high": 1}
    assert of(locks).waiting == 0


async def test_a_wait_that_was_interrupted_is_given_up_and_measured(stage: Stage) -> None:
    locks = stage.locks()
    lock = locks.lock("k", ttl=30, family=BILLING)

    def interrupt() -> None:
        raise KeyboardInterrupt

    for ask in (lock.acquire, lock.try_acquire):
        stage.plan.once("after", "acquire", interrupt)
        with pytest.raises(KeyboardInterrupt):
            await ask()
    assert numbers(of(locks).wait) == {"given_up": 2}
    assert of(locks).waiting == 0


async def test_how_long_was_waited_and_held_is_what_the_clock_says(stage: Stage) -> None:
    stage.stop_time()
    locks = stage.locks()
    stage.plan.before["acquire"] = lambda: stage.clock.move(700 * MS)
    async with locks.lock("k", ttl=30, family=BILLING):
        stage.pass_time(12)
    assert of(locks).wait == {MeasuredOutcome.GRANTED: Histogram.of([700 * MS])}
    assert of(locks).hold[MeasuredOutcome.RELEASED] == Histogram.of([12_700 * MS]), "from before the request"
    assert of(locks).held_for.number == 1
    assert of(locks).left.number == locks.statistics().renewed == 1
    left = of(locks).left.quantile_ns(1.0)
    assert left is not None
    assert 15 * NS < left <= 20 * NS, "a third of the lease was over"
    assert numbers(locks.measurements().renewals) == {"answered": 1}


@pytest.mark.requires("R32", "R139")
async def test_losses_are_by_family_and_reason_and_what_was_not_owned_is_by_family(stage: Stage) -> None:
    stage.stop_time()
    locks, operator = stage.locks(), stage.locks()
    stolen = await locks.lock("stolen", ttl=30, family=BILLING).acquire()
    await operator.force_release("stolen", reason="drill")
    stage.pass_time(11)
    assert not stolen.held
    abandoned = await locks.lock("abandoned", ttl=30, family="mail").acquire()
    taken = await locks.lock("taken", ttl=30, family="approval").acquire()
    await operator.force_release("taken", reason="drill")
    assert not await taken.release()
    stage.plan.down("renew_many")
    stage.pass_time(30)
    assert not abandoned.held
    found = locks.measurements().families
    assert (found[BILLING].lost, found["mail"].lost) == ({"stolen": 1}, {"unconfirmed": 1})
    assert [found[name].counts.get(EventKind.RELEASE_REFUSED, 0) for name in (BILLING, "mail", "approval")] == [0, 0, 1]
    assert numbers(found[BILLING].hold) == numbers(found["mail"].hold) == {"lost": 1}
    assert numbers(found["approval"].hold) == {"released": 1}, "it was released, whatever the store answered"
    assert numbers(locks.measurements().renewals)["unanswered"] >= 3


async def test_who_waits_is_counted_while_it_waits_and_not_after(stage: Stage) -> None:
    locks = stage.locks()

    def waiting() -> list[int]:
        found = locks.measurements().families
        return [found[name].waiting if name in found else 0 for name in (BILLING, "mail")]

    async def cycle() -> None:
        await (await locks.lock("k", ttl=30, family=BILLING).acquire()).release()

    held = await locks.lock("k", ttl=30, family=BILLING).acquire()
    crowd = [stage.start(cycle()) for _ in range(3)]
    vain = stage.start(locks.lock("k", ttl=30, family="mail").acquire(timeout=0.3))
    await stage.until(lambda: waiting() in ([3, 1], [3, 0]), "all wait")
    with pytest.raises(AcquireTimeout):
        await vain.result()
    assert waiting() == [3, 0]
    await held.release()
    for each in crowd:
        await each.result()
    assert waiting() == [0, 0]
    assert (of(locks).held, of(locks).held_for.number, of(locks, "mail").held_for.number) == (0, 4, 0)


async def test_waiters_that_are_cancelled_are_no_waiters(tasks: Stage) -> None:
    locks = tasks.locks()
    held = await locks.lock("k", ttl=30, family=BILLING).acquire()
    crowd = [asyncio.create_task(locks.lock("k", ttl=30, family=BILLING).acquire()) for _ in range(20)]
    await tasks.until(lambda: of(locks).waiting == 20, "all wait")
    for each in crowd[::2]:
        each.cancel()
    await asyncio.wait(crowd[::2])
    assert of(locks).waiting == 10
    for each in crowd[1::2]:
        each.cancel()
    await asyncio.wait(crowd)
    await held.release()
    assert of(locks).waiting == 0
    assert numbers(of(locks).wait) == {"granted": 1, "given_up": 20}


async def test_waiters_of_many_threads_add_up_to_none(threads: Stage) -> None:
    locks = threads.locks()

    async def work(number: int) -> None:
        for _ in range(60):
            with contextlib.suppress(AcquireTimeout):
                await (await locks.lock("k", ttl=30, family=f"f{number % 2}").acquire(timeout=0.0005)).release()

    crowd = [threads.start(work(number)) for number in range(8)]
    for each in crowd:
        await each.result()
    found = [of(locks, family) for family in ("f0", "f1")]
    assert [each.waiting for each in found] == [0, 0]
    assert sum(sum(numbers(each.wait).values()) for each in found) == 8 * 60


async def test_waiters_that_are_sent_away_at_the_end_are_no_waiters(stage: Stage) -> None:
    locks = stage.locks()
    await locks.lock("k", ttl=30, family=BILLING).acquire()
    waiting = stage.start(locks.lock("k", ttl=30, family=BILLING).acquire())
    await stage.until(lambda: of(locks).waiting == 1, "one waits")
    await locks.close()
    with pytest.raises(Closed):
        await waiting.result()
    assert of(locks).waiting == 0
    assert numbers(of(locks).wait)["given_up"] == 1
    assert numbers(of(locks).hold) == {"lost": 1}, "what was still held is revoked"


async def test_families_beyond_a_hundred_share_a_name_and_nothing_is_left_out(stage: Stage) -> None:
    locks = stage.locks()
    for number in range(FAMILIES_MAX + 50):
        await (await locks.lock("k", ttl=30, family=f"invoice-{number}").acquire()).release()
    found = locks.measurements().families
    assert len(found) == FAMILIES_MAX + 1
    assert numbers(found[OTHER].wait) == {"granted": 50}
    assert (found[OTHER].counts[EventKind.GRANTED], found["invoice-7"].counts[EventKind.GRANTED]) == (50, 1)
    assert locks.statistics().granted == FAMILIES_MAX + 50
    await (await locks.lock("k", ttl=30, family="invoice-149").acquire()).release()
    assert locks.measurements().families[OTHER].held_for.number == 51


async def test_an_observer_that_gauges_is_told_too_and_one_that_fails_harms_nobody(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    class Gauge:
        def __init__(self, act: Callable[[], object]) -> None:
            self.told: list[tuple[Measure, str, MeasuredOutcome]] = []
            self._act = act

        def note(self, record: Record) -> None: ...

        def measured(self, measure: Measure, family: str, outcome: MeasuredOutcome, ns: int) -> None:
            self.told.append((measure, family, outcome))
            self._act()

    good, broken, late = Gauge(lambda: None), Gauge(lambda: 1 // 0), Gauge(lambda: None)
    locks = stage.locks(observers=[broken, good])
    lock = locks.lock("k", ttl=30, family=BILLING)
    async with lock:
        locks.manager.recorder.gauge(late)
    locks.manager.recorder.gauge_no_more(late)
    async with lock:
        pass
    cycle = [(Measure.WAIT, BILLING, MeasuredOutcome.GRANTED), (Measure.HOLD, BILLING, MeasuredOutcome.RELEASED)]
    assert good.told == broken.told == cycle * 2
    assert late.told == cycle[1:]
    assert caplog.text.count("an observer failed") == 1


async def test_a_lease_that_is_lost_inside_its_block_was_held_until_then(stage: Stage) -> None:
    stage.stop_time()
    locks, operator = stage.locks(), stage.locks()
    with pytest.raises(LeaseLost):
        async with locks.lock("k", ttl=30, family=BILLING) as lease:
            await operator.force_release("k", reason="drill")
            stage.pass_time(11)
            assert not lease.held
    assert numbers(of(locks).hold) == {"lost": 1}
