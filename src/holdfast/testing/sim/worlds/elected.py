"""Elected worlds: every program is a candidate for one of a few leaderships, through the real `Leader`.

What must hold besides the rules of leases: when the store gives a leadership away, no work of an earlier term is still
under way, unless its process could not run, or the store had forgotten the lease, or an operator had broken it, or the
host was suspended: then all timers are late by that much, and who asks its lease is told the truth before it is
cancelled. What was started is stopped, once; terms begin with rising fences; a loss does not end a candidacy. And when
all is healed: a leader is found in time, one that resigns is followed without waiting for the TTL, and one that dies is
followed soon after it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from holdfast.aio.leader import Leader
from holdfast.aio.lease import Lease
from holdfast.core.history.events import EventKind, Record
from holdfast.core.history.invariants import Breach
from holdfast.errors import LeaseLost
from holdfast.leases.lease_base import is_loss_of
from holdfast.testing.sim.environment.host import SimHost
from holdfast.testing.sim.worlds.profile import Scene
from holdfast.testing.sim.worlds.sessions import EXPECTED, Session
from holdfast.types import MS, NS

if TYPE_CHECKING:
    from holdfast.testing.sim.worlds.world import SimWorld

RETRIES = 5  # a candidate asks so often in the time of one lease
PROMPT_NS = 500 * MS  # for what is sent to and fro when a leadership changes hands
GRACE_NS = NS
TERMS = 20  # a term is at most so many leases long


def candidate(host: SimHost, name: str, ttl_ns: int) -> Leader:
    """A candidate with the proportions of the defaults."""
    ttl = ttl_ns / NS
    return host.locks.leader(name, lease=ttl, renew_deadline=ttl * 2 / 3, retry=ttl / RETRIES)


@dataclass(slots=True)
class Term:
    """One time of leading, as its leader saw it."""

    host: str
    key: str
    fence: int
    began_ns: int
    held: bool  # when it was told so
    ended: int = 0  # how often it was told that it is over


class Candidacy(Session):
    """One program that wants to lead, does its work while it does, and resigns in the end."""

    CANCEL_AFTER_S: ClassVar[tuple[float, ...]] = (0.01, 0.5, 5, 30)

    def _kinds(self) -> list[Callable[[], Awaitable[None]]]:
        return [*[self._run] * 4, self._campaign, self._enter]

    async def run(self) -> None:
        """What a careful program expects, it expects from its group of tasks as well."""
        try:
            await super().run()
        except* EXPECTED as errors:
            self._world.trace(self._host.name, f"{self}: {errors!r}")

    async def _run(self) -> None:
        """Lead whenever elected, until it resigns."""
        election = self._election()
        begun: list[Term] = []

        def started(lease: Lease) -> None:
            begun.append(election.begin(self._host, lease))

        def stopped(lease: Lease) -> None:
            begun[-1].ended += 1
            if begun[-1].fence != lease.fence:
                self._world.complain(self._host.name, f"told of the end of {lease.fence} in term {begun[-1].fence}")

        try:
            await self._candidate().run(self._led, on_started=started, on_stopped=stopped)
        except (LeaseLost, ExceptionGroup) as error:
            if is_loss_of(error, self.key):
                self._world.complain(self._host.name, f"campaigns no more after a loss: {error!r}")
            raise
        finally:
            for term in begun:
                if term.ended != 1:
                    self._world.complain(self._host.name, f"{term} was stopped {term.ended} times")

    async def _campaign(self) -> None:
        """Wait for a limited time, and give back by hand."""
        lease = await self._candidate().campaign(self._draw.choice([0, 1, 20]))
        try:
            await self._term(lease)
        finally:
            await lease.release()

    async def _enter(self) -> None:
        async with self._candidate() as lease:
            await self._led(lease)

    async def _led(self, lease: Lease) -> None:
        """A term that is cancelled when it is lost. A program that campaigns by hand does that itself."""
        with self._election().working(self._host, lease):
            await self._term(lease)

    async def _term(self, lease: Lease) -> None:
        """What a leader does: a step every now and then, in some terms with a helper in a task of its own."""
        until_ns = self._world.loop.now_ns + self._draw.randrange(TERMS * self.ttl_ns)
        with self._world.believing(self._host, lease):
            if self._draw.random() < 0.5:
                await self._work(lease, until_ns)
                return
            async with asyncio.TaskGroup() as group:
                helper = group.create_task(self._help(lease))
                await self._work(lease, until_ns)
                helper.cancel()

    async def _work(self, lease: Lease, until_ns: int) -> None:
        world = self._world
        while world.loop.now_ns < until_ns and not world.stopping:
            await self._act(lease)
            await asyncio.sleep(self.ttl_ns / NS / 2 * self._draw.random())

    async def _help(self, lease: Lease) -> None:
        """Work beside the main one that changes nothing which the main one reads."""
        while True:  # ends when it is cancelled, or finds that the lease is lost
            lease.ensure_held()
            self._world.step(self._host, lease)
            await asyncio.sleep(self.ttl_ns / NS / 3)

    def _candidate(self) -> Leader:
        return candidate(self._host, self.key, self.ttl_ns)

    def _election(self) -> Election:
        scene = self._world.scene
        if not isinstance(scene, Election):
            raise TypeError("a candidate in a world without elections")
        return scene


class Election(Scene):
    """What is seen of all terms, and the elections after the healing."""

    sessions = Candidacy

    def __init__(self, world: SimWorld) -> None:
        super().__init__(world)
        self._terms: list[Term] = []
        self._works: list[tuple[SimHost, Lease, int]] = []  # the last: for how long the host had slept before
        self._unended: list[Breach] = []  # unless the store had forgotten, or an operator had broken, the lease

    def begin(self, host: SimHost, lease: Lease) -> Term:
        """A candidate was told that it leads."""
        held = lease.held
        term = Term(host.name, lease.key, lease.fence, self._world.loop.now_ns, held)
        self._terms.append(term)
        self._world.counts["term"] += 1
        self._world.trace(host.name, f"leads {lease.key} {lease.fence}{'' if held else ' no more'}")
        return term

    @contextmanager
    def working(self, host: SimHost, lease: Lease) -> Iterator[None]:
        """The work of a term is under way in this block, and is to be cancelled when the lease is lost."""
        work = (host, lease, host.clock.asleep_ns)
        self._works.append(work)
        try:
            yield
        finally:
            self._works.remove(work)

    def handed(self, record: Record) -> None:
        """No program may still work in an earlier term, unless it is stopped."""
        for host, lease, slept_ns in self._works:
            stopped = any(each.stopped for each in (host.domain, host.loop_thread, host.keeper_thread))
            stopped = stopped or host.clock.asleep_ns != slept_ns
            if not stopped and lease.key == record.key and lease.fence != record.fence:
                old = Record(EventKind.STEP, record.at_ns, record.key, owner=host.name, fence=lease.fence)
                text = f"the work of term {lease.fence} goes on when the leadership is given to another"
                self._unended.append(Breach("C4", record.key, text, record, old))

    def judge(self, history: Iterable[Record]) -> list[Breach]:
        """Leave out what no store can promise (`core.history.invariants`), and look at the order of terms."""
        handed: dict[tuple[str, int], int] = {}
        broken: list[tuple[int, str]] = []  # when, and of which key; of all keys: ""
        for record in history:
            if record.kind is EventKind.HANDED and record.fence is not None:
                handed[record.key, record.fence] = record.at_ns
            elif record.kind in (EventKind.FORGOT, EventKind.FORCED):
                broken.append((record.at_ns, record.key))

        def excused(key: str, fence: int, at_ns: int) -> bool:
            since = handed.get((key, fence), 0)
            return any(since <= when <= at_ns and whose in ("", key) for when, whose in broken)

        found = [each for each in self._unended if each.second and not _excused(excused, each.second)]
        top: dict[str, Term] = {}
        for term in self._terms:
            before = top.get(term.key)
            if before is not None and before.fence > term.fence and term.held:
                if not excused(term.key, term.fence, term.began_ns):
                    found.append(Breach("C2", term.key, f"{term} begins after {before}"))
            else:
                top[term.key] = term
        return found

    async def after_recovery(self) -> None:
        """Elections among all processes that are left, one leadership after the other."""
        for key in self._world.keys:
            await Succession(self._world, key).play()


def _excused(excused: Callable[[str, int, int], bool], record: Record) -> bool:
    return record.fence is not None and excused(record.key, record.fence, record.at_ns)


class Succession:
    """Three changes of one leadership in a world in which all is well: a first leader, a resignation, a death."""

    def __init__(self, world: SimWorld, key: str) -> None:
        self._world = world
        self._key = key
        self._ttl_ns = world.swarm.longest_ttl_ns()
        self._elected: asyncio.Queue[SimHost] = asyncio.Queue()
        self._resign: dict[str, asyncio.Event] = {}

    async def play(self) -> None:
        """See that each is followed in time."""
        world = self._world
        retry_ns = self._ttl_ns * 12 // 10 // RETRIES
        expiry_ns = world.server.clock.true_ns(self._ttl_ns) + retry_ns + GRACE_NS
        tasks = {host.name: world.loop.create_task(self._stand(host), context=host.context) for host in world.hosts[:4]}
        first = await self._next("a leader is to be found", expiry_ns)
        if first is not None:
            self._resign[first.name].set()
            second = await self._next("a leader has resigned", retry_ns + PROMPT_NS)
            if second is not None and len(tasks) > 2:
                world.crash(second)
                del tasks[second.name]
                await self._next("a leader has died", expiry_ns)
        for event in self._resign.values():
            event.set()
        await asyncio.wait(tasks.values(), timeout=(len(tasks) * expiry_ns) / NS)
        for name, task in tasks.items():
            if not task.done():
                world.complain(name, f"a candidate for {self._key} hangs though all is well")
            elif task.cancelled() or task.exception() is not None:
                world.complain(name, f"a candidate for {self._key} has ended, though all is well: {task!r}")

    async def _stand(self, host: SimHost) -> None:
        resign = self._resign[host.name] = asyncio.Event()

        async def main(lease: Lease) -> None:
            with self._world.believing(host, lease):
                self._world.step(host, lease)
                self._elected.put_nowait(host)
                await resign.wait()

        await candidate(host, self._key, self._ttl_ns).run(main)

    async def _next(self, what: str, within_ns: int) -> SimHost | None:
        try:
            async with asyncio.timeout(within_ns / NS):
                leader = await self._elected.get()
        except TimeoutError:
            self._world.complain(self._key, f"{what}, and there is no leader after {within_ns / NS:g} s")
            return None
        self._world.counts["succession"] += 1
        return leader
