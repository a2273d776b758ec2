"""One window of time, one caller: however many replicas there are, whatever their clocks say, and after a restart."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

import holdfast
from holdfast import BadInput, Unavailable
from holdfast.core import time_windows
from holdfast.runtime.system import SystemClock
from holdfast.types import NS, Instant
from support.harness.leases import ManualClock, Stage
from support.servers.redis import RedisServer

DAYS_S = 5 * 86_400


class Skewed(ManualClock):
    """A clock that shows another time than the one it follows."""

    def __init__(self, real: ManualClock, by_s: float) -> None:
        self._real, self._by_ns = real, round(by_s * NS)

    def now(self) -> Instant:
        real = self._real.now()
        return real._replace(wall=real.wall + self._by_ns)


def replica(stage: Stage, skew_s: float = 0) -> Any:
    real = stage.clock
    stage.clock = Skewed(real, skew_s)
    try:
        return stage.locks()
    finally:
        stage.clock = real


@pytest.mark.requires("R46", "R54")
@pytest.mark.parametrize("skews", [(0, 0, 0), (0, 59, -59), (40, -40, 5)])
async def test_every_window_is_taken_once(stage: Stage, skews: tuple[float, ...]) -> None:
    """Each replica asks seven times a minute, for ten minutes. At the edges a skewed clock is alone in its window."""
    stage.stop_time()
    replicas = [replica(stage, skew_s) for skew_s in skews]
    taken: list[str] = []
    for tick in range(70):
        for locks in replicas[tick % 3 :] + replicas[: tick % 3]:
            lease = await locks.once("report", window=60)
            if lease is not None:
                taken.append(lease.key)
        stage.pass_time(60 / 7)
    assert len(taken) == len(set(taken))
    assert 10 <= len(taken) <= 13
    first = 1_700_000_000 * NS
    sure = {time_windows.key("report", first + minute * 60 * NS, 60 * NS) for minute in range(10)}
    assert sure <= set(taken)
    assert stage.plan.calls["renew_many"] == stage.plan.calls["release"] == 0


async def test_a_window_is_not_run_again_after_a_restart(stage: Stage) -> None:
    stage.stop_time()
    locks, others = stage.locks(), stage.locks()
    lease = await locks.once("report", window=60)
    assert lease is not None
    await locks.close()
    stage.pass_time(1)
    assert await others.once("report", window=60) is None
    stage.pass_time(60)
    again = await others.once("report", window=60)
    assert again is not None
    assert again.fence > lease.fence


async def test_who_was_paused_for_too_long_does_not_take_a_window_again(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The key of the window has expired meanwhile, so the store would grant it a second time."""
    stage.stop_time()
    locks, others = stage.locks(), stage.locks()
    assert await others.once("report", window=60) is not None
    name = time_windows.key

    def slowly(*asked: Any) -> str:
        found = name(*asked)
        stage.stand_still(181)
        return found

    with monkeypatch.context() as paused:
        paused.setattr(time_windows, "key", slowly)
        assert await locks.once("report", window=60) is None
    assert await locks.once("report", window=60) is not None  # this window is another one


async def test_work_that_failed_can_be_given_to_another_replica(stage: Stage) -> None:
    locks, others = stage.locks(), stage.locks()
    lease = await locks.once("report", window=DAYS_S)
    assert lease is not None
    async with lease:  # the end of a block keeps it
        assert lease.held
    assert await others.once("report", window=DAYS_S) is None
    assert await lease.release()
    assert await others.once("report", window=DAYS_S) is not None


async def test_names_have_windows_of_their_own_and_a_bad_one_is_refused(stage: Stage) -> None:
    locks = stage.locks()
    for name in ("a", "b"):
        lease = await locks.once(name, window=DAYS_S)
        assert lease is not None
        assert lease.key.startswith(f"{name}@20")
    for window in (0, -1, 1e9, float("nan"), "60"):
        with pytest.raises(BadInput, match="window"):
            await locks.once("a", window=window)  # type: ignore[arg-type]  # on purpose
    with pytest.raises(BadInput, match="name"):
        await locks.once("", window=60)


async def test_a_store_that_fails_is_an_error_and_not_a_window(stage: Stage) -> None:
    locks = stage.locks(policy={"low": "fail_open"})
    stage.plan.down("acquire")
    with pytest.raises(Unavailable):
        await locks.once("report", window=60)


def test_a_window_is_named_after_its_beginning() -> None:
    now = 1_700_000_000 * NS + 777
    assert time_windows.key("n", now, 60 * NS) == "n@2023-11-14T22:13:00Z"
    assert time_windows.key("n", now, 86_400 * NS) == "n@2023-11-14T00:00:00Z"
    assert time_windows.key("n", now + NS * 3 // 5, NS // 2) == "n@2023-11-14T22:13:20.5Z"
    assert time_windows.key("n", now, 60 * NS) == time_windows.key("n", now + 39 * NS, 60 * NS)
    assert time_windows.key("n", now, 60 * NS) != time_windows.key("n", now + 40 * NS, 60 * NS)


class FarOff(SystemClock):
    """A host whose wall clock is a month off."""

    def now(self) -> Instant:
        real = super().now()
        return real._replace(wall=real.wall - 30 * 86_400 * NS)


@pytest.mark.server
def test_on_redis_the_clock_of_the_server_decides(redis_server: RedisServer, redis_url: str) -> None:
    with holdfast.connect(redis_url) as right, holdfast.connect(redis_url) as wrong:
        wrong.ports = dataclasses.replace(wrong.ports, clock=FarOff())
        lease = wrong.once("report", window=DAYS_S)
        assert lease is not None
        assert right.once("report", window=DAYS_S) is None
        seconds = int(redis_server.cli("TIME")[0])
        assert lease.key == time_windows.key("report", seconds * NS, DAYS_S * NS)
        assert right.inspect(lease.key).held
