"""The event loop on virtual time: asyncio works on it, time costs nothing, and stopped hosts stand still."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from holdfast.leases.lock_spec import LockSettings
from holdfast.testing.sim.environment.domain import Domain
from holdfast.testing.sim.environment.host import virtual_locks, virtual_table
from holdfast.testing.sim.environment.loop import Deadlock, Livelock, SimLoop, due_ns, run_virtual
from holdfast.types import NS
from support.harness.small_world import SmallWorld


def test_a_day_passes_at_once() -> None:
    async def sleeps() -> float:
        await asyncio.sleep(86_400)
        return asyncio.get_running_loop().time()

    assert run_virtual(sleeps()) == 86_400


def test_timeouts_groups_and_waits_work_as_in_asyncio() -> None:
    async def main() -> list[str]:
        seen: list[str] = []

        async def late(name: str, seconds: float) -> None:
            await asyncio.sleep(seconds)
            seen.append(name)

        async with asyncio.TaskGroup() as group:
            group.create_task(late("second", 2))
            group.create_task(late("first", 1))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await late("never", 1)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(late("never", 1), 0.5)
        seen.append(await asyncio.to_thread(lambda: "inline"))
        return seen

    assert run_virtual(main()) == ["first", "second", "inline"]


def test_sleeping_for_what_is_left_ends_in_spite_of_floats() -> None:
    async def main() -> int:
        loop, rounds = asyncio.get_running_loop(), 0
        for part in range(1, 200):
            until = loop.time() + 1 / part / 3
            while (left := until - loop.time()) > 0:
                rounds += 1
                await asyncio.sleep(left)
        return rounds

    assert run_virtual(main()) == 199


@pytest.mark.parametrize("when", [0.0, 0.1, 1 / 3, 1e-9, 0.3 + 1e-10, 12_345.678_901_234, 1e6 + 1 / 7])
def test_a_timer_is_due_at_the_first_nanosecond_that_is_not_before_it(when: float) -> None:
    due = due_ns(when)
    assert due / NS >= when
    assert (due - 1) / NS < when


def test_timers_of_one_instant_fire_in_the_order_of_their_creation() -> None:
    async def main() -> list[int]:
        loop, seen = asyncio.get_running_loop(), list[int]()
        for number in range(5):
            loop.call_later(1, seen.append, number)
        await asyncio.sleep(1)
        return seen

    assert run_virtual(main()) == [0, 1, 2, 3, 4]


def test_waiting_for_nothing_is_found_and_does_not_hang() -> None:
    with pytest.raises(Deadlock, match="nothing is due"):
        run_virtual(asyncio.Event().wait())


def test_being_busy_without_letting_time_pass_is_found() -> None:
    async def spin() -> None:
        for _ in itertools.count():  # ended by the loop
            await asyncio.sleep(0)

    with pytest.raises(Livelock, match="time does not pass"):
        run_virtual(spin())


def test_what_is_left_behind_is_cancelled_and_awaited() -> None:
    seen: list[str] = []

    async def background() -> None:
        try:
            await asyncio.sleep(1e6)
        finally:
            await asyncio.sleep(1)
            seen.append("cleaned up")

    async def main() -> None:
        asyncio.get_running_loop().create_task(background())
        await asyncio.sleep(1)

    run_virtual(main())
    assert seen == ["cleaned up"]


def test_an_exception_that_nobody_caught_ends_the_run() -> None:
    async def main() -> None:
        asyncio.get_running_loop().call_soon(lambda: 1 // 0)
        await asyncio.sleep(1)

    with pytest.raises(ZeroDivisionError):
        run_virtual(main())


def test_the_network_is_refused_with_a_reason() -> None:
    async def main() -> None:
        await asyncio.open_connection("localhost", 80)

    with pytest.raises(NotImplementedError, match="no sockets"):
        run_virtual(main())


def test_a_runner_of_the_standard_library_accepts_it() -> None:
    with asyncio.Runner(loop_factory=SimLoop) as runner:
        assert runner.run(asyncio.sleep(3600, "done")) == "done"


def test_a_stopped_domain_stands_still_while_time_goes_on_and_then_catches_up_in_order() -> None:
    async def main() -> list[tuple[str, float]]:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimLoop)
        host = Domain("host")
        thread = Domain("host/thread", host)
        seen: list[tuple[str, float]] = []

        async def ticks() -> None:
            for number in range(3):
                await asyncio.sleep(1)
                seen.append((f"tick {number}", loop.time()))

        task = loop.create_task(ticks(), context=thread.context())
        await asyncio.sleep(1.5)
        host.stop()
        assert thread.stopped
        await asyncio.sleep(5)
        assert len(seen) == 1
        host.resume(loop)
        await task
        return seen

    assert run_virtual(main()) == [("tick 0", 1.0), ("tick 1", 6.5), ("tick 2", 7.5)]


def test_a_cancelled_timer_of_a_stopped_domain_does_not_fire_later() -> None:
    async def main() -> list[str]:
        loop, seen, host = asyncio.get_running_loop(), list[str](), Domain("host")
        assert isinstance(loop, SimLoop)
        timer = loop.call_later(1, seen.append, "fired", context=host.context())
        host.stop()
        await asyncio.sleep(2)
        timer.cancel()
        host.resume(loop)
        await asyncio.sleep(1)
        return seen

    assert run_virtual(main()) == []


@pytest.mark.parametrize("settings", [{"auto_renew": False}, {"max_hold": 0.513}, {"stall_after": 0.377}])
def test_the_alarm_sleeps_until_a_loss_and_does_not_look_over_and_over(settings: LockSettings) -> None:
    """Found by the simulation at seed 0: an alarm that rang a moment early was set again for the same moment."""
    world = SmallWorld()

    async def main() -> int:
        host = world.host("host")
        settings["ttl"] = 0.7
        lease = await host.locks.lock("job", **settings).acquire()
        before = world.loop.steps
        assert await lease.lost.wait(timeout=2)
        return world.loop.steps - before

    assert world.run(main()) < 60


def test_users_can_test_their_own_programs_on_virtual_time() -> None:
    async def scenario() -> tuple[int, bool]:
        table = virtual_table()
        first, second = virtual_locks(table, name="first"), virtual_locks(table, name="second")
        async with first.lock("job", ttl=30) as lease:
            await asyncio.sleep(3600)
            lease.ensure_held()
            busy = await second.lock("job", ttl=30).try_acquire() is None
        async with second.lock("job", ttl=30, timeout=0) as after:
            assert after.fence > lease.fence
        renewed = first.statistics().renewed
        await first.close()
        await second.close()
        return renewed, busy

    renewed, busy = run_virtual(scenario())
    assert renewed >= 350
    assert busy


def test_virtual_locks_need_a_virtual_loop() -> None:
    async def elsewhere() -> None:
        virtual_locks()

    with pytest.raises(RuntimeError, match="run_virtual"):
        asyncio.run(elsewhere())
