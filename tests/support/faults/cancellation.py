"""Cancels a task at each of its suspensions, one after the other, on a store that really is there.

A task can only be cancelled where it is suspended, so its suspensions are all the points that there are. They are
counted while the task runs: it is cancelled at the first, then, in another run, at the second, until it gets through
without having been suspended so often. Nothing is drawn by chance.

After each run the store is asked, through another client, who holds the key, and the client of the victim is asked for
things whose answers are known: a reply that went to the wrong request would show there.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from holdfast import AcquireTimeout, aio
from holdfast.core.failpoints import armed
from support.harness.small_world import Probe

KEY = "job"
POINTS_MAX = 80
LIMIT_S = 20.0
AT_ONCE, TWICE, WITH_THE_ANSWER = "immediately", "twice", "as the answer arrives"
WAYS = (AT_ONCE, TWICE, WITH_THE_ANSWER)

Scenario = Callable[[aio.Locks], Coroutine[Any, Any, Any]]


async def acquire_and_release(locks: aio.Locks) -> None:
    lease = await locks.lock(KEY, ttl=30).acquire()
    await lease.release()


async def try_and_release(locks: aio.Locks) -> None:
    lease = await locks.lock(KEY, ttl=30).try_acquire()
    if lease is not None:
        await lease.release()


async def wait_and_release(locks: aio.Locks) -> None:
    lease = await locks.lock(KEY, ttl=30).acquire(timeout=LIMIT_S)
    await lease.release()


async def wait_in_turn(locks: aio.Locks) -> None:
    lease = await locks.lock(KEY, ttl=30, fair=True).acquire(timeout=LIMIT_S)
    await lease.release()


async def renew_by_hand(locks: aio.Locks) -> None:
    lease = await locks.lock(KEY, ttl=30, auto_renew=False).acquire()
    try:
        await lease.renew()
    finally:
        await lease.release()


async def work_in_a_block(locks: aio.Locks) -> None:
    async with locks.lock(KEY, ttl=30) as lease:
        await lease.renew()
        lease.ensure_held()
        await asyncio.sleep(0)


async def bare_token(locks: aio.Locks) -> str:
    """What is returned is known to the caller, who then releases it; the result of a cancelled call is unknown."""
    return await locks.acquire_token(KEY, 30)


async def bare_token_and_fence(locks: aio.Locks) -> str:
    """The same, with a fence."""
    token, _ = await locks.acquire_fenced_token(KEY, 30)
    return token


FREE: tuple[Scenario, ...] = (
    acquire_and_release,
    try_and_release,
    renew_by_hand,
    work_in_a_block,
    bare_token,
    bare_token_and_fence,
)
CONTENDED: tuple[Scenario, ...] = (wait_and_release, wait_in_turn, work_in_a_block, try_and_release)


@dataclass
class Findings:
    """What was tried, and what was found. Nothing may be found."""

    points: int = 0
    cancelled: int = 0
    wrong: list[str] = field(default_factory=list)
    orphans: list[str] = field(default_factory=list)

    def note(self, good: bool, what: str) -> None:
        if not good:
            self.wrong.append(what)

    def __str__(self) -> str:
        found = "; ".join([*self.orphans, *self.wrong]) or "nothing"
        return f"{self.points} points tried, {self.cancelled} cancelled, {len(self.orphans)} orphans; found: {found}"


class Canceller:
    """Cancels its task at the n-th suspension, in one of the ways in which that can happen. 0: before it begins."""

    def __init__(self, way: str, point: int) -> None:
        self.task: asyncio.Task[Any] | None = None
        self.reached = point == 0
        self.asked = False  # the task was not over when it was cancelled
        self._way = way
        self._point = point

    def begun(self, task: asyncio.Task[Any]) -> None:
        self.task = task
        if self._point == 0:
            self._cancel()

    def suspended(self, count: int, awaited: Any) -> None:
        if count == self._point or (self._way == TWICE and self.reached and count == self._point + 1):
            self.reached = True
            if self._way == WITH_THE_ANSWER and awaited is not None:
                # Told before the task is: the answer is there, and the task will never see it.
                awaited.add_done_callback(lambda _: self._cancel())
            else:
                asyncio.get_running_loop().call_soon(self._cancel)

    def _cancel(self) -> None:
        assert self.task is not None
        self.asked |= self.task.cancel()


@dataclass
class Clients:
    """The victim, and another client that holds, contends and looks."""

    victim: aio.Locks
    other: aio.Locks


async def cancel_everywhere(
    opened: Callable[[], aio.Locks],
    scenario: Scenario,
    way: str,
    *,
    contended: bool,
    afresh: bool = False,
    cleanup_s: float = 0.0,
) -> Findings:
    """Cancel the scenario at each of its points, or until something is wrong.

    `again`: each time with a new client, which has yet to connect. `cleanup_s`: what cleanup may take where it is
    slower than a cancelled caller waits for it: less than the lease lasts.
    """
    found = Findings()
    threads = _threads()
    clients = Clients(opened(), opened())
    try:
        await acquire_and_release(clients.other)
        if not afresh:
            await acquire_and_release(clients.victim)
        for point in range(POINTS_MAX):
            if afresh and point:
                await clients.victim.close()
                clients.victim = opened()
            where = f"{scenario.__name__}, point {point}, {way}"
            canceller = Canceller(way, point)
            more = await _one(clients, scenario, canceller, found, where, contended=contended, cleanup_s=cleanup_s)
            if not more or found.wrong:
                break
        else:
            raise AssertionError(f"{scenario.__name__} has more than {POINTS_MAX} points")
    finally:
        await clients.victim.close()
        await clients.other.close()
    for each in _threads() - threads:
        each.join(LIMIT_S)  # one that was told to end needs a moment
    left = _threads() - threads
    found.note(not left, f"{scenario.__name__}, {way}: threads are left: {left}")
    return found


def _threads() -> set[threading.Thread]:
    return {each for each in threading.enumerate() if each.name.startswith("holdfast")}


async def _one(
    clients: Clients,
    scenario: Scenario,
    canceller: Canceller,
    found: Findings,
    where: str,
    *,
    contended: bool,
    cleanup_s: float,
) -> bool:
    """Cancel once, and look at what is left. False: the scenario has fewer points than that."""
    held = await clients.other.lock(KEY, ttl=30).acquire() if contended else None
    before = asyncio.all_tasks()
    waits = asyncio.Event()
    with armed("flow.acquire.sleep", waits.set):
        task: asyncio.Task[Any] = asyncio.get_running_loop().create_task(
            Probe(scenario(clients.victim), canceller.suspended)
        )
        canceller.begun(task)
        if held is not None:
            waiting = asyncio.create_task(waits.wait())
            await asyncio.wait([task, waiting], return_when=asyncio.FIRST_COMPLETED)
            waiting.cancel()
            await asyncio.wait([waiting])
            await held.release()
        await asyncio.wait([task], timeout=LIMIT_S)
    found.points += canceller.reached
    found.note(task.done(), f"{where}: hangs")
    if not task.done():
        task.cancel()
        return False
    found.cancelled += task.cancelled()
    if not task.cancelled():
        found.note(not canceller.asked, f"{where}: the cancellation was swallowed")
        error = task.exception()
        found.note(error is None, f"{where}: {error!r} came out")
        if error is None and isinstance(task.result(), str):
            await clients.victim.release_token(KEY, task.result())
    await _cleaned(clients, before, cleanup_s)
    await _look(clients, found, where, before)
    return canceller.reached


async def _cleaned(clients: Clients, before: set[asyncio.Task[Any]], limit_s: float) -> None:
    """Wait until the cleanup in the background is done, or its time has ended."""
    until = time.monotonic() + limit_s
    while time.monotonic() < until:
        held = (await clients.other.inspect(KEY)).held
        if not held and not _tasks_since(before):
            return
        await asyncio.sleep(0.002)  # between two questions, not instead of one


async def _look(clients: Clients, found: Findings, where: str, before: set[asyncio.Task[Any]]) -> None:
    victim, other = clients.victim, clients.other
    seen = await other.inspect(KEY)  # one round trip, and it was released before that
    if seen.held:
        found.orphans.append(f"{where}: {seen.owner} holds the key under fence {seen.fence}")
        await other.force_release(KEY, reason="an orphan of a test")
    if "turn" in where:  # a waiter behind an abandoned ticket would wait for it
        try:
            await (await other.lock(KEY, ttl=30, fair=True).acquire(timeout=0)).release()
        except AcquireTimeout:
            found.wrong.append(f"{where}: a place in the queue is left")
    found.note(victim.runtime.mutexes.queues == {}, f"{where}: the local mutex is taken")
    found.note(victim.manager.renewer.lease_records() == [], f"{where}: the keeper looks after something")
    found.note(victim.statistics().held == 0, f"{where}: something is held")
    await _crossed(victim, found, where)
    left = _tasks_since(before)
    slower = {each for each in left if each.get_name().startswith(("quorum node", "etcd request"))}
    if slower:  # a quorum does not wait for its slower nodes, nor a cancelled caller for its request; they end alone
        ended, _ = await asyncio.wait(slower, timeout=LIMIT_S)
        left -= ended
    found.note(not left, f"{where}: tasks are left: {left}")


def _tasks_since(before: set[asyncio.Task[Any]]) -> set[asyncio.Task[Any]]:
    """The tasks of this run. Those of a connection that it opened stay, and do not belong to it."""
    left = {each for each in asyncio.all_tasks() - before if "_open" not in repr(each)}
    return left - _of_nats_connections(left)


def _of_nats_connections(tasks: set[asyncio.Task[Any]]) -> set[asyncio.Task[Any]]:
    """The tasks of a NATS client: some of its own, and one for the answers. Any more are of waiters, and are left."""
    own = {each for each in tasks if "coro=<Client._" in repr(each)}
    subscriptions = [each for each in tasks if "coro=<Subscription._wait_for_msgs" in repr(each)]
    return own.union(subscriptions[: sum("Client._read_loop" in repr(each) for each in own)])


async def _crossed(victim: aio.Locks, found: Findings, where: str) -> None:
    """Send several requests together. Each reply can only belong to its own request."""
    names = [f"nonce-{found.points}-{number}" for number in range(3)]
    leases = await asyncio.gather(*(victim.lock(name, ttl=30).try_acquire() for name in names))
    found.note(all(lease is not None for lease in leases), f"{where}: a key without a holder is busy")
    got = [lease for lease in leases if lease is not None]
    looks: list[Awaitable[Any]] = [victim.inspect(lease.key) for lease in got]
    answers = await asyncio.gather(*looks, victim.inspect(KEY), victim.ping())
    for lease, seen in zip(got, answers, strict=False):
        found.note((seen.key, seen.fence) == (lease.key, lease.fence), f"{where}: {seen} is the answer to {lease.key}")
    found.note(len({lease.fence for lease in got}) == len(got), f"{where}: two grants have one fence")
    found.note(not answers[len(got)].held, f"{where}: the victim sees the key held")
    released = await asyncio.gather(*(lease.release() for lease in got))
    found.note(all(released), f"{where}: a release was refused")
