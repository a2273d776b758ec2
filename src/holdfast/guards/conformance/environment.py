"""The surroundings in which a check of the guard kit runs: connections, company and pauses, in one color.

`BlockingGuardWorld` never suspends: its checks are driven by `run_now`, its company are threads. `AsyncioGuardWorld`
runs on an event loop, its company are tasks. Clock: the monotonic one, to bound waiting and to number fences; nothing
is asserted about how long something took.
"""

from __future__ import annotations

import asyncio
import itertools
import secrets
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from holdfast.guards.conformance.adapter import Factory, OpenedSubject, settled
from holdfast.guards.conformance.checks import Violation, expect
from holdfast.runtime.run_sync import run_now

T = TypeVar("T")

PATIENCE_S = 60.0


class GuardWorld(ABC):
    """Everything a check may use besides the guard."""

    asynchronous: bool

    def __init__(
        self, factory: Factory, *, threads: int = 8, processes: int = 4, patience_s: float = PATIENCE_S
    ) -> None:
        """`threads` and `processes` are how many writers are concurrent; `patience_s` bounds each wait for them."""
        self.factory = factory
        self.threads = threads
        self.processes = processes
        self.patience_s = patience_s
        self._opened: list[OpenedSubject] = []
        self._name = f"kit-{secrets.token_hex(5)}"
        self._numbers = itertools.count()

    def fresh(self) -> str:
        """The name of an unused resource."""
        return f"{self._name}-{next(self._numbers)}"

    async def open(self, resource: str) -> OpenedSubject:
        """Open a resource through a connection of its own. It is closed after the check."""
        guarded = OpenedSubject(resource, await settled(self.factory(resource)))
        self._opened.append(guarded)
        return guarded

    async def open_new(self) -> OpenedSubject:
        """Open a resource that has never been met."""
        return await self.open(self.fresh())

    async def close(self) -> None:
        """Close all that was opened here and not in company."""
        while self._opened:
            await self._opened.pop().close()

    async def borrow(self, resource: str, use: Callable[[OpenedSubject], Coroutine[Any, Any, T]]) -> T:
        """Open, use and close in one place: what a job in company does, for some connections stay in their thread."""
        guarded = OpenedSubject(resource, await settled(self.factory(resource)))
        try:
            return await use(guarded)
        finally:
            await guarded.close()

    @abstractmethod
    def drive(self, job: Coroutine[Any, Any, T]) -> T:
        """Run a job of this color to its end, from ordinary code."""

    @abstractmethod
    async def sleep(self, seconds: float) -> None:
        """Let others go first."""

    @abstractmethod
    async def together(self, jobs: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
        """Run all concurrently, and return their results in order. Raises the first error."""


class BlockingGuardWorld(GuardWorld):
    """For guards that block. Nothing in it suspends."""

    asynchronous = False
    _never = threading.Event()

    def drive(self, job: Coroutine[Any, Any, T]) -> T:
        """Run a job here and now. One that suspends was given an awaited guard, and raises."""
        return run_now(job)

    async def sleep(self, seconds: float) -> None:
        """Block for a while."""
        self._never.wait(seconds)

    async def together(self, jobs: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
        """Run each job in a thread of its own; all start together."""
        return in_threads(jobs, self.patience_s)


class AsyncioGuardWorld(GuardWorld):
    """For guards that live on an event loop."""

    asynchronous = True

    def drive(self, job: Coroutine[Any, Any, T]) -> T:
        """Run a job on an event loop of its own."""
        return asyncio.run(job)

    async def sleep(self, seconds: float) -> None:
        """Suspend for a while."""
        await asyncio.sleep(seconds)

    async def together(self, jobs: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
        """Run each job as a task."""
        return await in_tasks(jobs, self.patience_s)


def in_threads(
    jobs: Sequence[Coroutine[Any, Any, T]], patience_s: float, ended: Callable[[], None] = lambda: None
) -> list[T]:
    """Run each job in a thread of its own; all start together. `ended` is called at the end of each."""
    results: dict[int, T] = {}
    errors: list[BaseException] = []
    start = threading.Barrier(len(jobs))

    def work(number: int, job: Coroutine[Any, Any, T]) -> None:
        try:
            start.wait()
            results[number] = run_now(job)
        except BaseException as error:  # noqa: BLE001 - it is raised again in the caller's thread
            errors.append(error)
        finally:
            ended()

    threads = [threading.Thread(target=work, args=item, daemon=True) for item in enumerate(jobs)]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + patience_s
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
        expect(not thread.is_alive(), f"a call did not come back within {patience_s:g} s")
    if errors:
        raise errors[0]
    return [results[number] for number in range(len(jobs))]


async def in_tasks(jobs: Sequence[Coroutine[Any, Any, T]], patience_s: float) -> list[T]:
    """Run each job as a task."""
    try:
        async with asyncio.timeout(patience_s):
            return list(await asyncio.gather(*jobs))
    except TimeoutError as error:
        raise Violation(f"a call did not come back within {patience_s:g} s") from error


def world_of(factory: Factory, *, asynchronous: bool, **settings: Any) -> GuardWorld:
    """The world of a color."""
    return AsyncioGuardWorld(factory, **settings) if asynchronous else BlockingGuardWorld(factory, **settings)
