"""Taking a lock: what `acquire`, `try_acquire` and `with` give, and what they say when they cannot."""

from __future__ import annotations

import pytest

from holdfast import AcquireTimeout, LockBusy
from support.harness.leases import Stage, plain


@pytest.mark.requires("R55", "R78")
async def test_a_lease_carries_key_owner_fence_and_ttl(stage: Stage) -> None:
    locks = stage.locks()
    lease = await locks.lock("invoice:42", ttl=5, family="billing").acquire()
    assert (lease.key, lease.ttl, lease.family, lease.guaranteed) == ("invoice:42", 5.0, "billing", True)
    assert lease.owner.startswith("stage@")
    assert isinstance(lease.fence, int)
    assert lease.held
    assert lease.state == "held"
    assert await lease.release()
    assert lease.state == "released"
    assert not lease.held


@pytest.mark.requires("R2", "R56", "R57")
async def test_every_grant_has_a_token_of_its_own_and_a_higher_fence(stage: Stage) -> None:
    locks, others = stage.locks(), stage.locks()
    fences, marks = [], set()
    for turn in range(20):
        lease = await (others if turn % 2 else locks).lock("k", ttl=5).acquire()
        fences.append(lease.fence)
        marks.add(lease.fingerprint)
        await lease.release()
    assert fences == sorted(set(fences))
    assert len(marks) == 20


@pytest.mark.requires("R3", "R24", "R79", "R86")
async def test_a_busy_lock_is_none_for_try_acquire_and_not_an_error(stage: Stage) -> None:
    """TestDistributedRunLock_MutualExclusion: two managers on one backend, only one inside at a time."""
    one, two = stage.locks(), stage.locks()
    lease = await one.lock("run:1", ttl=5).acquire()
    assert await two.lock("run:1", ttl=5).try_acquire() is None
    assert await one.lock("run:1", ttl=5).try_acquire() is None
    assert two.statistics().store_errors == 0
    await lease.release()
    second = await two.lock("run:1", ttl=5).try_acquire()
    assert second is not None
    assert second.fence > lease.fence


@pytest.mark.requires("R146")
@pytest.mark.parametrize(
    ("family", "text"),
    [
        ("workflow.run", "run lock busy"),
        ("approval", "approval lock busy"),
        ("scheduler.job", "job lock busy"),
        ("default", "lock busy"),
    ],
)
async def test_the_end_of_a_wait_is_both_busy_and_a_timeout_and_names_the_kind_of_lock(
    stage: Stage, family: str, text: str
) -> None:
    one, two = stage.locks(), stage.locks()
    held = await one.lock("k", ttl=5, family=family).acquire()
    with pytest.raises(AcquireTimeout) as raised:
        await two.lock("k", ttl=5, family=family).acquire(timeout=0)
    assert isinstance(raised.value, LockBusy)
    assert isinstance(raised.value, TimeoutError)
    assert str(raised.value).startswith(f"{text}: k is held by {held.owner}")
    assert raised.value.holder == held.owner
    assert 0 < raised.value.retry_after <= 5
    assert two.statistics().timed_out == 1


async def test_the_locks_own_timeout_is_used_by_with_and_a_waiter_gets_the_lock_when_it_is_released(
    stage: Stage,
) -> None:
    one, two = stage.locks(), stage.locks()
    lease = await one.lock("k", ttl=5).acquire()
    with pytest.raises(AcquireTimeout):
        async with two.lock("k", ttl=5, timeout=0.02):
            pytest.fail("the body must not run")

    async def wait() -> int:
        async with two.lock("k", ttl=5) as mine:
            assert mine.held
            return mine.fence

    waiting = stage.start(wait())
    await stage.until(lambda: stage.plan.calls["watch"] > 0, "the waiter listens")
    assert not waiting.done()
    await lease.release()
    assert await waiting.result() > lease.fence


@pytest.mark.requires("R87", "R115")
async def test_after_the_ttl_of_a_holder_that_is_gone_another_gets_in(stage: Stage) -> None:
    """TestDistributedRunLock_TTLExpiry: after the run-lock TTL another manager can acquire."""
    one, two = stage.locks(), stage.locks()
    lease = await one.lock("run:1", ttl=0.15, auto_renew=False).acquire()
    taken = await two.lock("run:1", ttl=5).acquire(timeout=20)
    assert not lease.held
    assert lease.lost.reason == "expired"
    assert taken.fence > lease.fence


async def test_remaining_is_counted_from_before_the_request_and_less_than_the_ttl(stage: Stage) -> None:
    stage.stop_time()
    locks = stage.locks()
    stage.plan.once("before", "acquire", lambda: stage.clock.move(400_000_000))
    lease = await locks.lock("k", ttl=10, auto_renew=False).acquire()
    # 10 s less 400 ms on the way, less 1 % and 2 ms of drift
    assert lease.remaining() == pytest.approx(10 - 0.4 - 0.1 - 0.002)
    seen = (await locks.inspect("k")).remaining
    assert seen is not None
    assert lease.remaining() < seen
    stage.pass_time(9)
    assert lease.remaining() == pytest.approx(0.498)
    stage.pass_time(1)
    assert lease.remaining() == 0.0


async def test_an_answer_that_took_longer_than_the_lease_is_not_a_lease(stage: Stage) -> None:
    from holdfast import Timeout

    stage.stop_time()
    locks = stage.locks()
    stage.plan.once("after", "acquire", lambda: stage.clock.move(9_950_000_000))
    with pytest.raises(Timeout):
        await locks.lock("k", ttl=10).acquire()
    assert not (await locks.inspect("k")).held
    assert await locks.lock("k", ttl=10).try_acquire() is not None


async def test_anyone_can_see_who_holds_a_lock(stage: Stage) -> None:
    one, two = stage.locks(), stage.locks()
    lease = await one.lock("k", ttl=5, family="billing").acquire()
    assert await two.lock("k").locked()
    seen = await two.lock("k").inspect()
    assert (seen.held, seen.owner, seen.fence, seen.family) == (True, lease.owner, lease.fence, "billing")
    assert seen.since is not None
    assert seen.remaining is not None
    assert [each.key for each in await two.list("k")] == ["k"]
    assert await two.list("other") == []
    await lease.release()
    assert not await two.lock("k").locked()
    assert (await two.lock("k").inspect()).as_dict()["owner"] is None


async def test_a_lease_belongs_to_nobody_but_the_one_who_holds_the_object(stage: Stage) -> None:
    """Many callers may share one `Lock`: the state is in the lease, never in the lock."""
    locks = stage.locks()
    lock = locks.lock("k", ttl=5)
    first = await lock.acquire()
    assert await lock.try_acquire() is None
    await first.release()
    second = await lock.acquire()
    assert not first.held
    assert second.held
    assert not await first.release()
    assert second.held
    assert (await lock.inspect()).fence == second.fence


async def test_a_closed_locks_says_so(stage: Stage) -> None:
    locks = stage.locks()
    lock = locks.lock("k")
    await locks.close()
    await locks.close()
    with pytest.raises(RuntimeError, match="closed"):
        await lock.acquire()
    with pytest.raises(RuntimeError, match="closed"):
        locks.lock("other")
    assert "closed" in repr(plain(locks))
