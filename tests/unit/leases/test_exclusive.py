"""The decorator: functions, coroutines and generators that run under a lock named after their arguments."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterator
from typing import Any

import pytest

import holdfast
from holdfast import AcquireTimeout, BadInput, Lease, LeaseLost, aio
from support.harness.leases import LIMIT_S, Stage, plain


def blocking(stage: Stage) -> holdfast.Locks:
    locks: holdfast.Locks = plain(stage.locks())
    return locks


def test_a_function_runs_under_a_lock_named_after_its_arguments(threads: Stage) -> None:
    locks = blocking(threads)

    @locks.exclusive("tenant:{tenant_id}:{kind}", ttl=5)
    def charge(tenant_id: str, amount: int, kind: str = "card", *, lease: Lease) -> tuple[str, int, bool]:
        """Charges."""
        assert locks.inspect(lease.key).held
        return lease.key, amount, lease.held

    assert charge("acme", 3) == ("tenant:acme:card", 3, True)
    assert charge(tenant_id="acme", amount=4, kind="cash") == ("tenant:acme:cash", 4, True)
    assert (charge.__name__, charge.__doc__) == ("charge", "Charges.")
    assert locks.list() == []
    with pytest.raises(TypeError):
        charge()


def test_a_function_that_does_not_ask_for_the_lease_does_not_get_it(threads: Stage) -> None:
    locks = blocking(threads)

    @locks.exclusive("nightly", ttl=5, timeout=0)
    def work() -> bool:
        return locks.inspect("nightly").held

    assert work()
    with locks.lock("nightly", ttl=5), pytest.raises(AcquireTimeout):
        work()


def test_methods_can_be_decorated(threads: Stage) -> None:
    locks = blocking(threads)

    class Account:
        @locks.exclusive("account:{number}", ttl=5)
        def close(self, number: int, *, lease: Lease) -> str:
            return lease.key

    assert Account().close(7) == "account:7"


def test_a_generator_holds_the_lock_while_it_is_being_read(threads: Stage) -> None:
    locks = blocking(threads)

    @locks.exclusive("feed:{name}", ttl=5)
    def feed(name: str, *, lease: Lease) -> Generator[bool]:
        try:
            yield lease.held
            yield lease.held
        finally:
            assert lease.held

    reading = feed("a")
    assert not locks.inspect("feed:a").held
    assert next(reading)
    assert locks.inspect("feed:a").held
    assert list(reading) == [True]
    assert not locks.inspect("feed:a").held
    stopped = feed("a")
    next(stopped)
    stopped.close()
    assert not locks.inspect("feed:a").held


def test_a_generator_that_is_closed_by_another_thread_gives_the_lock_back(threads: Stage) -> None:
    locks = blocking(threads)

    @locks.exclusive("feed", ttl=5)
    def feed() -> Generator[int]:
        yield 1
        yield 2

    reading = feed()
    next(reading)
    errors: list[BaseException] = []

    def close() -> None:
        try:
            reading.close()
        except BaseException as error:
            errors.append(error)

    closer = threading.Thread(target=close)
    closer.start()
    closer.join(LIMIT_S)
    assert errors == []
    assert not locks.inspect("feed").held


@pytest.mark.parametrize("template", ["tenant:{nobody}", "tenant:{", "tenant:{}", "tenant:{0}", "tenant:{tenant.id}"])
async def test_a_template_that_cannot_be_filled_is_refused_when_the_function_is_decorated(
    stage: Stage, template: str
) -> None:
    locks = stage.locks()

    async def function(tenant: str) -> None: ...

    with pytest.raises(BadInput) as raised:
        locks.exclusive(template, ttl=5)(function)
    assert raised.value.field == "name"


@pytest.mark.parametrize("ttl", [0, -1, "5"])
async def test_settings_are_checked_when_the_function_is_decorated(stage: Stage, ttl: Any) -> None:
    with pytest.raises(BadInput):
        stage.locks().exclusive("k", ttl=ttl)


async def test_a_name_that_comes_out_wrong_is_refused_when_it_is_called(stage: Stage) -> None:
    locks: Any = plain(stage.locks())

    @locks.exclusive("{name}", ttl=5)  # type: ignore[untyped-decorator] # either colour
    async def work(name: str) -> None: ...

    if stage.blocking:
        with pytest.raises(BadInput):
            asyncio.run(work(""))
    else:
        with pytest.raises(BadInput):
            await work("")


@pytest.mark.parametrize("bad", ["def f(lease, name): ...", "def f(lease, /, name): ...", "def f(lease, *names): ..."])
async def test_a_lease_parameter_that_cannot_be_filled_by_name_is_refused(stage: Stage, bad: str) -> None:
    space: dict[str, Any] = {}
    exec(f"async {bad}", space)
    with pytest.raises(BadInput) as raised:
        stage.locks().exclusive("k", ttl=5)(space["f"])
    assert raised.value.field == "lease"


async def test_a_coroutine_function_runs_under_the_lock(tasks: Stage) -> None:
    locks = tasks.locks()

    @locks.exclusive("tenant:{tenant_id}", ttl=5)
    async def charge(tenant_id: str, *, lease: aio.Lease) -> str:
        assert (await locks.inspect(lease.key)).held
        return lease.key

    assert await charge("acme") == "tenant:acme"
    assert await locks.list() == []
    with pytest.raises(BadInput, match="not a coroutine function"):
        locks.exclusive("k", ttl=5)(lambda: None)


async def test_a_coroutine_function_is_cancelled_when_its_lease_is_lost(tasks: Stage) -> None:
    locks = tasks.locks()

    @locks.exclusive("k", ttl=0.1, auto_renew=False)
    async def work() -> None:
        await asyncio.sleep(LIMIT_S)

    with pytest.raises(LeaseLost):
        await work()


async def test_an_asynchronous_generator_holds_the_lock_until_its_own_clean_up_is_done(tasks: Stage) -> None:
    locks = tasks.locks()
    held_in_finally: list[bool] = []

    @locks.exclusive("feed:{name}", ttl=5)
    async def feed(name: str, *, lease: aio.Lease) -> AsyncGenerator[int]:
        try:
            yield 1
            yield 2
        finally:
            await asyncio.sleep(0)
            held_in_finally.append(lease.held)

    assert [item async for item in feed("a")] == [1, 2]
    assert not (await locks.inspect("feed:a")).held
    async with contextlib.aclosing(feed("a")) as reading:
        async for _ in reading:
            assert (await locks.inspect("feed:a")).held
            break
    assert held_in_finally == [True, True]
    assert not (await locks.inspect("feed:a")).held


async def test_an_asynchronous_generator_that_is_dropped_gives_the_lock_back(tasks: Stage) -> None:
    """The event loop closes a dropped generator in a task of its own, not in the one that read it."""
    locks = tasks.locks()

    @locks.exclusive("feed", ttl=5)
    async def feed() -> AsyncIterator[int]:
        yield 1
        yield 2

    async for _ in feed():
        break
    gc.collect()
    await tasks.until(lambda: locks.statistics().held == 0, "it is released")
    assert not (await locks.inspect("feed")).held


async def test_blocking_locks_can_guard_a_coroutine_function_without_blocking_the_loop(tasks: Stage) -> None:
    with holdfast.connect("memory://") as locks:
        inside = asyncio.Event()
        go = asyncio.Event()

        @locks.exclusive("k", ttl=5)
        async def work(*, lease: Lease) -> bool:
            inside.set()
            await go.wait()
            return lease.held

        first = asyncio.create_task(work())
        await inside.wait()
        second = asyncio.create_task(work())
        await tasks.until(lambda: locks.statistics().waiting == 1, "the second waits on a thread")
        go.set()
        assert await first
        assert await second
        assert not locks.inspect("k").held


async def test_a_cancelled_wait_on_a_thread_gives_back_what_it_still_gets(tasks: Stage) -> None:
    with holdfast.connect("memory://") as locks:
        holder = locks.lock("k", ttl=30).acquire()

        @locks.exclusive("k", ttl=30)
        async def work() -> None:
            pytest.fail("the body must not run")

        waiting = asyncio.create_task(work())
        await tasks.until(lambda: locks.statistics().waiting == 1, "it waits")
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        holder.release()
        await tasks.until(lambda: locks.statistics().released == 2, "it is released")
        assert not locks.inspect("k").held


async def test_a_body_that_is_cancelled_on_the_loop_gives_the_blocking_lock_back(tasks: Stage) -> None:
    with holdfast.connect("memory://") as locks:
        inside = asyncio.Event()

        @locks.exclusive("k", ttl=30)
        async def work() -> None:
            inside.set()
            await asyncio.sleep(LIMIT_S)

        task = asyncio.create_task(work())
        await inside.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not locks.inspect("k").held


async def test_each_colour_refuses_the_functions_of_the_other(stage: Stage) -> None:
    async def stream() -> AsyncIterator[int]:
        yield 1

    def plain_function() -> None: ...

    def stream_of_the_other_colour() -> Iterator[int]:
        yield 1

    wrong = [stream] if stage.blocking else [plain_function, stream_of_the_other_colour]
    for function in wrong:
        with pytest.raises(BadInput) as raised:
            stage.locks().exclusive("k", ttl=5)(function)
        assert raised.value.field == "exclusive"
