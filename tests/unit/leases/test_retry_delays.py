"""The delays with which refused work is sent back, and the shapes of back-off, as users see them."""

from __future__ import annotations

import pickle
import random

import pytest

from holdfast import AcquireTimeout, BackendError, BadInput, LockBusy, RetryDelays, RetryLater, Unavailable, backoff
from holdfast.types import MS, NS
from support.harness.leases import Stage

draw = random.Random(4).randrange


@pytest.mark.requires("R146", "R147", "R148", "R149", "R151", "R159")
async def test_a_busy_run_is_sent_back_after_exactly_500_ms_and_a_failing_store_after_1_s(stage: Stage) -> None:
    """TestReconcilerHandleJobResultLockBusy: `run-1` is taken; the result of `run-1:step@1` comes back in 500 ms."""
    locks, others = stage.locks(), stage.locks()
    delays = RetryDelays()
    taken = await others.lock("wf:run:lock:run-1", ttl=30, family="workflow.run").acquire()

    async def handle(job: str) -> None:
        run = job.partition(":")[0]
        lock = locks.lock(f"wf:run:lock:{run}", ttl=30, family="workflow.run")
        try:
            lease = await lock.acquire(timeout=0)
        except (LockBusy, BackendError) as error:
            raise delays.later(error, draw) from error
        raise AssertionError(f"no caller should get {lease}")

    with pytest.raises(RetryLater) as busy:
        await handle("run-1:step@1")
    assert busy.value.delay == 0.5
    assert str(busy.value).startswith("retry after 500ms: run lock busy")
    assert isinstance(busy.value.__cause__, AcquireTimeout)
    await taken.release()
    stage.plan.down("acquire")
    with pytest.raises(RetryLater) as failing:
        await handle("run-1:step@1")
    assert failing.value.delay == 1.0
    assert isinstance(failing.value.__cause__, Unavailable)
    for _ in range(200):
        assert delays.later(LockBusy("run lock busy"), draw).delay == 0.5


@pytest.mark.requires("R152", "R160", "R163", "R164", "R165", "R166")
def test_bounded_jitter_stays_between_300_and_700_ms_and_is_still_retryable() -> None:
    delays = RetryDelays().with_jitter()
    drawn = [delays.later(LockBusy("run lock busy"), draw) for _ in range(5_000)]
    assert all(isinstance(each, RetryLater) for each in drawn)
    assert all(str(each.cause) == "run lock busy" for each in drawn)
    seconds = sorted(each.delay for each in drawn)
    assert 0.3 <= seconds[0] < 0.31
    assert 0.69 < seconds[-1] < 0.7
    assert len(set(seconds)) > 4_000
    assert sum(seconds) / len(seconds) == pytest.approx(0.5, abs=0.01)
    assert delays.later(Unavailable("down"), draw).delay == 1.0  # the other class is as it was


@pytest.mark.requires("R152")
def test_the_bounds_of_the_jitter_are_exact() -> None:
    delays = RetryDelays().with_jitter()
    assert delays.later(LockBusy("run lock busy"), lambda n: 0).delay == 0.3
    assert delays.later(LockBusy("run lock busy"), lambda n: n - 1).delay < 0.7


@pytest.mark.requires("R165", "R168")
def test_jitter_is_a_flag_that_can_be_taken_back_at_once() -> None:
    before = RetryDelays()
    jittered = before.with_jitter()
    assert jittered != before
    assert jittered.without_jitter() == before
    assert before.later(LockBusy("run lock busy"), draw).delay == 0.5


@pytest.mark.requires("R158")
def test_delays_are_checked_against_the_lock_they_are_for() -> None:
    RetryDelays().with_jitter().check(30 * NS, 400 * MS)
    with pytest.raises(BadInput, match="safety budget"):
        RetryDelays().with_jitter().check(NS)
    with pytest.raises(BadInput, match="median hold"):
        RetryDelays().check(30 * NS, 600 * MS)


@pytest.mark.requires("R148")
def test_a_delay_is_never_negative_and_passed_on_unchanged() -> None:
    assert RetryLater(-1).delay == 0.0
    assert str(RetryLater(0)) == "retry after 0ms: retry requested"
    assert RetryLater(0.5, "run lock busy").delay == 0.5


@pytest.mark.requires("R161", "R162")
@pytest.mark.parametrize(
    ("shape", "low", "high"),
    [
        (backoff.fixed(0.5), 0.5, 0.5),
        (backoff.jittered(0.5, 0.2), 0.3, 0.7),
        (backoff.exponential(0.025, 1), 0.0, 1.0),
        (backoff.decorrelated(0.025, 1), 0.025, 1.0),
        (backoff.grpc(1, 120), 0.8, 120.0),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, float) else "",
)
def test_every_shape_stays_within_its_bounds_however_often_it_is_tried(
    shape: backoff.Backoff, low: float, high: float
) -> None:
    previous = 0
    for attempt in [*range(40), 10**6, 10**9]:
        previous = shape.delay_ns(attempt, previous, draw)
        assert low * NS <= previous <= high * NS
    assert (shape.shortest_ns(), shape.longest_ns()) >= (low * NS - 1, 0)
    assert pickle.loads(pickle.dumps(shape)) == shape


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: backoff.fixed(0), "delay"),
        (lambda: backoff.fixed(-1), "delay"),
        (lambda: backoff.jittered(0.5, 0.5), "spread"),
        (lambda: backoff.jittered(0, 0), "base"),
        (lambda: backoff.exponential(1, 0.5), "cap"),
        (lambda: backoff.exponential(factor=1), "factor"),
        (lambda: backoff.exponential(factor=float("nan")), "factor"),
        (lambda: backoff.decorrelated(1, 0.5), "cap"),
        (lambda: backoff.grpc(multiplier=1), "multiplier"),
        (lambda: backoff.grpc(jitter=1), "jitter"),
        (lambda: backoff.grpc(jitter=-0.1), "jitter"),
    ],
)
def test_a_shape_that_makes_no_sense_is_refused(make: object, field: str) -> None:
    with pytest.raises(BadInput) as raised:
        make()  # type: ignore[operator] # a lambda
    assert raised.value.field == field


def test_every_error_survives_the_way_between_processes() -> None:
    from holdfast import FencedOut, LeaseLost, NotOwner, PolicyDenied

    for error in (
        BadInput("ttl", "is wrong", "fix it"),
        LockBusy("busy", key="k", holder="x", retry_after=2.0),
        LeaseLost("lost", key="k", reason="stolen", fence=3),
        NotOwner(key="k"),
        FencedOut("stale", fence=1, seen=2),
        PolicyDenied("no", key="k", risk="low"),
        RetryLater(0.5, "run lock busy"),
    ):
        twin = pickle.loads(pickle.dumps(error))
        assert (type(twin), str(twin), vars(twin)) == (type(error), str(error), vars(error))
