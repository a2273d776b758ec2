"""The surroundings in which a conformance check runs: connections, time and company, in one color.

`BlockingWorld` never suspends: its checks are driven by `run_now`, its sleeps block, its company are threads.
`AsyncioWorld` runs on an event loop: its sleeps suspend, its company are tasks. Real time by default; a fake that has
virtual time passes its own `sleep` and `now`.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import secrets
import subprocess
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from holdfast.core.ports import Store
from holdfast.guards.conformance.environment import in_tasks, in_threads
from holdfast.runtime.run_sync import run_now
from holdfast.testing.conformance.check import Unproven, Violation, expect
from holdfast.types import MS, NS, AcquireRequest, Busy, Grant

T = TypeVar("T")

CALL_NS = 5 * NS  # the timeout of an ordinary call: far above what a healthy store needs
LONG_NS = 60 * NS  # a lease that does not expire while its check runs
POLL_NS = 5 * MS
PROCESS_S = 60.0  # for another process, which starts an interpreter
GRACE_S = 0.05  # of real time: a thread that is not asleep by then may wait for something other than time


class World(ABC):
    """Everything a check may use besides the store."""

    def __init__(
        self,
        opener: Callable[[], Store],
        *,
        short_ttl_ns: int = 80 * MS,
        patience_ns: int = 15 * NS,
        grain_ns: int = NS,
        elsewhere: str | None = None,
        restart: Callable[[], None] | None = None,
    ) -> None:
        """Describe the store under test.

        `opener` makes a new store over the same leases, as another process would. `short_ttl_ns` is the shortest lease
        worth waiting for; `patience_ns` bounds each wait; `grain_ns` is how coarsely the store may round a lease
        upwards. `elsewhere` (a Holdfast URL, or `module:function` that makes a blocking store) is how another process
        opens the same leases; without it the `shared` claim is `Unproven`. `restart` stops and starts the engine, for
        the `durable` claim; without it closing every connection has to do, which is right for a file.
        """
        self._opener = opener
        self._opened: list[Store] = []
        self.short_ttl_ns = short_ttl_ns
        self.patience_ns = patience_ns
        self.grain_ns = grain_ns
        self.elsewhere = elsewhere
        self._restart = restart
        self._name = f"kit:{secrets.token_hex(6)}"
        self._numbers = itertools.count()

    async def open(self) -> Store:
        """Open a new store over the same leases. It is closed after the check."""
        store = self._opener()
        self._opened.append(store)
        return store

    async def close(self) -> None:
        """Close every store that was opened here."""
        while self._opened:
            await self._opened.pop().close()

    async def restart(self) -> None:
        """Stop the engine and start it again. No store is open at that moment."""
        await self.close()
        if self._restart is not None:
            self._restart()

    @abstractmethod
    def drive(self, job: Coroutine[Any, Any, T]) -> T:
        """Run a job of this color to its end, from ordinary code."""

    @abstractmethod
    async def sleep(self, ns: int) -> None:
        """Let time pass."""

    @abstractmethod
    def now_ns(self) -> int:
        """Read the clock on which time passes here."""

    @abstractmethod
    async def together(self, jobs: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
        """Run all concurrently, and return their results in order. Raises the first error."""

    @abstractmethod
    async def interrupt(self, job: Coroutine[Any, Any, object], steps: int) -> None:
        """Begin the job and cancel it after so many turns of the loop; where nothing can be cancelled, finish it."""

    def fresh_key(self, tail: str = "") -> str:
        """Make a unique key that ends in `tail`."""
        return f"{self._name}:{next(self._numbers)}{tail}"

    def ask(
        self, key: str, ttl_ns: int = LONG_NS, ticket: str | None = None, ticket_ttl_ns: int = LONG_NS
    ) -> AcquireRequest:
        """Make a request of a new asker: its own token, its own owner."""
        owner = f"kit@host-{next(self._numbers)}:{next(self._numbers)}/{secrets.token_hex(3)}"
        lease = 0 if ticket is None else ticket_ttl_ns
        return AcquireRequest(key, secrets.token_hex(16), owner, "kit.family", ttl_ns, ticket, lease)

    async def grant(self, store: Store, ask: AcquireRequest) -> Grant:
        """Acquire, and insist on the grant."""
        answer = await store.acquire(ask, CALL_NS)
        if not isinstance(answer, Grant):
            raise Violation(f"{ask.key!r} should have been granted, but the answer was {answer!r}")
        expect(answer.key == ask.key, f"a grant of {ask.key!r} names {answer.key!r}")
        expect(answer.token == ask.token, f"a grant of {ask.key!r} carries a token that is not the asker's")
        return answer

    async def busy(self, store: Store, ask: AcquireRequest) -> Busy:
        """Acquire, and insist on being refused."""
        answer = await store.acquire(ask, CALL_NS)
        if not isinstance(answer, Busy):
            raise Violation(f"{ask.key!r} should have been busy, but it was granted with fence {answer.fence}")
        expect(answer.key == ask.key, f"a refusal of {ask.key!r} names {answer.key!r}")
        return answer

    async def until_granted(self, store: Store, ask: AcquireRequest) -> Grant:
        """Ask again and again until the key is granted, for as long as this world is patient."""
        deadline = self.now_ns() + self.patience_ns
        while True:
            answer = await store.acquire(ask, CALL_NS)
            if isinstance(answer, Grant):
                return answer
            expect(self.now_ns() < deadline, f"{ask.key!r} was never given away; the last answer was {answer!r}")
            await self.sleep(POLL_NS)

    async def until_free(self, store: Store, key: str) -> None:
        """Wait until the store shows the key without a holder, at most for the patience of this world."""
        deadline = self.now_ns() + self.patience_ns
        while (holding := await store.inspect(key, CALL_NS)) is not None:
            expect(self.now_ns() < deadline, f"{key!r} never expired; it is still shown as {holding!r}")
            await self.sleep(POLL_NS)

    def in_another_process(self, key: str, *, keep: bool = False) -> str:
        """Ask for the key in another process, which ends then; it says `granted FENCE` or `busy OWNER`.

        What it was granted it gives back, or with `keep` it leaves behind, as a lease that is to outlive its process.
        """
        if self.elsewhere is None:
            raise Unproven("the world was not told how another process opens this store (`elsewhere`)")
        verb = "keep" if keep else "try"
        command = [sys.executable, "-m", "holdfast.testing.conformance.subprocess", verb, self.elsewhere, key]
        done = subprocess.run(command, capture_output=True, text=True, timeout=PROCESS_S, check=False)  # noqa: S603 - our own interpreter and module
        expect(done.returncode == 0, f"the other process failed: {done.stderr.strip()[-800:]}")
        return str(json.loads(done.stdout))


class _Sleepers:
    """Replaced time for threads: it passes while all of them sleep.

    Otherwise a thread that the machine holds up between two steps would find that the others had slept through its
    lease, in no time at all.
    """

    def __init__(self, number: int, sleep: Callable[[int], None], now: Callable[[], int]) -> None:
        self._number = number
        self._pass = sleep
        self._now = now
        self._wakes: list[int] = []
        self._changed = threading.Condition()

    def sleep(self, ns: int) -> None:
        """Block until so much time has passed. The first who is due, or who has waited in vain, lets it pass."""
        with self._changed:
            wake = self._now() + ns
            self._wakes.append(wake)
            self._changed.notify_all()
            while (left := wake - self._now()) > 0:
                all_asleep = len(self._wakes) >= self._number and wake == min(self._wakes)
                if all_asleep or not self._changed.wait(GRACE_S):
                    self._pass(left)
                    self._changed.notify_all()
            self._wakes.remove(wake)

    def leave(self) -> None:
        """One thread less."""
        with self._changed:
            self._number -= 1
            self._changed.notify_all()


class BlockingWorld(World):
    """For stores that block. Nothing in it suspends."""

    def __init__(
        self,
        opener: Callable[[], Store],
        *,
        sleep: Callable[[int], None] | None = None,
        now: Callable[[], int] | None = None,
        **settings: Any,
    ) -> None:
        """See `World`. `sleep` and `now` (nanoseconds) replace real time."""
        super().__init__(opener, **settings)
        self._sleep = sleep or (lambda ns: time.sleep(ns / NS))
        self._now = now or time.monotonic_ns
        self._replaced = sleep is not None
        self._sleepers: _Sleepers | None = None

    def drive(self, job: Coroutine[Any, Any, T]) -> T:
        """Run a job here and now. One that suspends was given an asyncio store, and raises."""
        return run_now(job)

    async def sleep(self, ns: int) -> None:
        """Block for a while."""
        sleepers = self._sleepers
        (self._sleep if sleepers is None else sleepers.sleep)(ns)

    def now_ns(self) -> int:
        """Read the clock on which time passes here."""
        return self._now()

    async def together(self, jobs: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
        """Run each job in a thread of its own; all start together."""
        if not self._replaced:
            return in_threads(jobs, self.patience_ns / NS)
        sleepers = self._sleepers = _Sleepers(len(jobs), self._sleep, self._now)
        try:
            return in_threads(jobs, self.patience_ns / NS, sleepers.leave)
        finally:
            self._sleepers = None

    async def interrupt(self, job: Coroutine[Any, Any, object], steps: int) -> None:
        """Finish the job: blocking code cannot be cancelled."""
        await job


class AsyncioWorld(World):
    """For stores that live on an event loop."""

    def drive(self, job: Coroutine[Any, Any, T]) -> T:
        """Run a job on an event loop of its own."""
        return asyncio.run(job)

    async def sleep(self, ns: int) -> None:
        """Suspend for a while."""
        await asyncio.sleep(ns / NS)

    def now_ns(self) -> int:
        """Read the clock of the running loop, which may be virtual."""
        return int(asyncio.get_running_loop().time() * NS)

    async def together(self, jobs: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
        """Run each job as a task."""
        return await in_tasks(jobs, self.patience_ns / NS)

    async def interrupt(self, job: Coroutine[Any, Any, object], steps: int) -> None:
        """Cancel the job after so many turns of the loop, and wait until it is gone."""
        task = asyncio.ensure_future(job)
        for _ in range(steps):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task], timeout=self.patience_ns / NS)
        expect(task.done(), "a cancelled call did not come back")
        if not task.cancelled():
            task.result()
