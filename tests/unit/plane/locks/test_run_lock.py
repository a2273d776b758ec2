"""The lock of one run as everything that moves a run takes it: two replicas, renewal, takeover, each error policy."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

import holdfast.aio
from holdfast.aio.client import Locks
from holdfast.core.retry_delays import RetryDelays
from holdfast.errors import BackendError, LockBusy, RetryLater
from holdfast.plane.bus.delivery_rules import Kind, end_of
from holdfast.plane.locks.item_lock import ItemLockStatistics
from holdfast.plane.locks.registry import WORKFLOW_RUN
from holdfast.plane.locks.run_lock import run_lock

pytestmark = pytest.mark.asyncio

POLICY = {"low": "fail_open", "high": "fail_closed", "patient": "wait"}


@pytest.fixture
def place(tmp_path: Path) -> Path:
    folder = tmp_path / "leases"
    folder.mkdir()
    return folder


@pytest_asyncio.fixture
async def pair(place: Path) -> AsyncIterator[tuple[Locks, Locks]]:
    url = f"sqlite:///{place / 'leases.db'}"
    async with (
        holdfast.aio.connect(url, policy=POLICY, instance="a") as one,
        holdfast.aio.connect(url, policy=POLICY, instance="b") as other,
    ):
        yield one, other


@pytest_asyncio.fixture
async def cut_off() -> AsyncIterator[Locks]:
    """Locks whose store cannot be reached: no server listens on its port."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # without listening: connections are refused, and no other process gets it
        async with holdfast.aio.connect(f"redis://127.0.0.1:{taken.getsockname()[1]}", policy=POLICY) as locks:
            yield locks


@pytest.mark.requires("R52", "R86")
async def test_of_two_replicas_one_at_a_time_is_inside(pair: tuple[Locks, Locks]) -> None:
    inside = most = entries = 0

    async def go_in(locks: Locks) -> None:
        nonlocal inside, most, entries
        for _ in range(5):
            async with run_lock(locks, "run-1", "low") as lease:
                assert lease.guaranteed
                inside += 1
                most = max(most, inside)
                entries += 1
                await asyncio.sleep(0)
                inside -= 1

    async with asyncio.TaskGroup() as tasks:
        for locks in pair * 2:
            tasks.create_task(go_in(locks))
    assert (most, entries) == (1, 20)
    assert (WORKFLOW_RUN.key(run="run-1"), WORKFLOW_RUN.ttl) == ("holdfast:wf:run:lock:run-1", 30.0)
    assert (WORKFLOW_RUN.renew_every, WORKFLOW_RUN.acquire_timeout) == (10.0, 2.0)


@pytest.mark.requires("R87")
async def test_after_the_ttl_of_a_holder_that_is_gone_another_replica_gets_in(pair: tuple[Locks, Locks]) -> None:
    one, other = pair
    key = WORKFLOW_RUN.key(run="run-1")
    gone = await one.hold(key, ttl=0.3)  # neither renewed nor released
    assert gone is not None
    with pytest.raises(RetryLater, match="run lock busy"):
        async with run_lock(other, "run-1", "low", timeout=0.0):
            raise AssertionError("two holders")
    async with run_lock(other, "run-1", "low", timeout=30.0) as lease:
        assert lease.fence is not None
        assert lease.fence > gone.fence


@pytest.mark.requires("R48", "R81", "R88")
async def test_without_a_store_between_processes_the_local_path_still_works() -> None:
    async with holdfast.aio.connect("memory://", policy=POLICY) as locks:
        async with run_lock(locks, "run-1", "low") as lease:
            assert lease.held
            with pytest.raises(RetryLater, match="run lock busy"):
                async with run_lock(locks, "run-1", "low", timeout=0.0):
                    raise AssertionError("two holders")
        async with run_lock(locks, "run-1", "low", timeout=0.0) as again:
            assert again.held


@pytest.mark.requires("R78", "R82", "R89")
async def test_a_holder_that_works_for_longer_than_a_ttl_keeps_the_lock(pair: tuple[Locks, Locks]) -> None:
    one, other = pair
    async with run_lock(one, "run-1", "low", family=WORKFLOW_RUN.timed(0.6)) as lease:
        await asyncio.sleep(0.9)  # what must hold is that time alone takes nothing away
        assert lease.held
        with pytest.raises(RetryLater, match="run lock busy"):
            async with run_lock(other, "run-1", "low", timeout=0.0):
                raise AssertionError("two holders")


@pytest.mark.requires("R146", "R151", "R152")
async def test_busy_is_given_back_for_exactly_half_a_second_or_with_bounded_jitter(pair: tuple[Locks, Locks]) -> None:
    one, other = pair
    counts = ItemLockStatistics()
    jitter = RetryDelays().with_jitter()
    async with WORKFLOW_RUN.lock(one, run="run-1"):
        for delays, low, high in ((RetryDelays(), 0.5, 0.5), (jitter, 0.3, 0.7)):
            with pytest.raises(RetryLater) as later:
                async with run_lock(other, "run-1", "low", delays, statistics=counts, timeout=0.0):
                    raise AssertionError("two holders")
            assert low <= later.value.delay <= high
            assert str(later.value).endswith("run lock busy")
            assert isinstance(later.value.__cause__, LockBusy)
            assert end_of(later.value).kind is Kind.BUSY
    assert (counts.busy, counts.degraded) == (2, 0)


@pytest.mark.requires("R80", "R85", "R90", "R98", "R101")
async def test_fail_open_goes_on_under_the_local_lock_is_counted_and_says_so(
    cut_off: Locks, caplog: pytest.LogCaptureFixture
) -> None:
    counts = ItemLockStatistics()
    with caplog.at_level(logging.WARNING, logger="holdfast"):
        async with run_lock(cut_off, "run-1", "low", statistics=counts) as lease:
            assert not lease.guaranteed
            assert lease.fence is None
            with pytest.raises(RetryLater, match="run lock busy"):  # the local lock still keeps this process in order
                async with run_lock(cut_off, "run-1", "low", statistics=counts, timeout=0.0):
                    raise AssertionError("two holders")
    assert (counts.degraded, counts.busy, counts.backend_errors) == (1, 1, 0)
    assert any("distributed lock failed — using local-only lock" in line for line in caplog.messages)


@pytest.mark.requires("R74", "R75", "R99", "R147")
@pytest.mark.parametrize("risk", ["high", "patient", "never heard of"])
async def test_the_other_classes_do_not_run_without_the_store(cut_off: Locks, risk: str) -> None:
    counts = ItemLockStatistics()
    risk = risk.replace(" ", "-")
    with pytest.raises(RetryLater) as later:
        async with run_lock(cut_off, "run-1", risk, statistics=counts, timeout=0.2):
            raise AssertionError("without a lock")
    assert later.value.delay == 1.0
    assert isinstance(later.value.__cause__, BackendError)
    assert (counts.degraded, counts.backend_errors) == (0, 1)


@pytest.mark.requires("R104")
async def test_the_class_is_switched_while_it_runs(cut_off: Locks) -> None:
    cut_off.policy.set("low", "fail_closed", reason="the test says so")
    with pytest.raises(RetryLater):
        async with run_lock(cut_off, "run-1", "low"):
            raise AssertionError("without a lock")
    cut_off.policy.set("high", "fail_open", reason="the test says so")
    async with run_lock(cut_off, "run-1", "high") as lease:
        assert not lease.guaranteed
