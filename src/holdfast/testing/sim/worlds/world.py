"""A simulated world: hosts with the real locks, a store, a network, trouble, and a history that the checkers read.

One seed is one world: same seed, same trace, in any process. First everything that the seed allows goes wrong; then all
is healed, the programs come to their end, and every key must be had again in time.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from holdfast.aio.lease import AnyLease
from holdfast.core.history.events import EventKind, Record
from holdfast.core.history.invariants import Breach, check
from holdfast.errors import BackendError, LockBusy
from holdfast.testing.sim.environment.clock import SimClock, SimEntropy, drawing
from holdfast.testing.sim.environment.host import SimHost
from holdfast.testing.sim.environment.logs import listening
from holdfast.testing.sim.environment.loop import SimLoop, end_tasks
from holdfast.testing.sim.environment.network import Network
from holdfast.testing.sim.environment.observer import Restamper
from holdfast.testing.sim.worlds.elected import Election
from holdfast.testing.sim.worlds.faults import Profile, Swarm, draw_swarm
from holdfast.testing.sim.worlds.guarded import GuardedScene
from holdfast.testing.sim.worlds.long_sessions import LongScene
from holdfast.testing.sim.worlds.profile import Scene
from holdfast.testing.sim.worlds.quorum_world import QuorumScene
from holdfast.testing.sim.worlds.sessions import BETWEEN, visits
from holdfast.types import NS

GRACE_NS = NS  # how long after the TTL a key may still be taken
DRAIN_NS = 120 * NS
RECOVERY_NS = 60 * NS
LINES_AT_ONCE = 500
POLICY = {"low": "fail_open", "patient": "wait"}
_SCENES: Final[dict[Profile, type[Scene]]] = {
    Profile.BUSY: Scene,
    Profile.LONG: LongScene,
    Profile.GUARDED: GuardedScene,
    Profile.ELECTED: Election,
    Profile.QUORUM: QuorumScene,
}
_CHECKED = {
    *(
        EventKind.GRANTED,
        EventKind.PROMOTED,
        EventKind.LOST,
        EventKind.RELEASED,
        EventKind.RELEASE_REFUSED,
        EventKind.RELEASE_FAILED,
    ),
    *(
        EventKind.READ,
        EventKind.WRITE,
        EventKind.STEP,
        EventKind.BELIEVED,
        EventKind.HANDED,
        EventKind.EXTENDED,
        EventKind.ENDED,
        EventKind.FORGOT,
    ),
    *(EventKind.FORCED, EventKind.HEALED),
}


@dataclass(frozen=True, slots=True)
class WorldOutcome:
    """The outcome of one world."""

    seed: int
    violations: list[Breach]
    digest: str  # of the whole trace: equal digests are equal runs
    virtual_ns: int
    lock_ns: int  # virtual time times number of locks
    steps: int
    counts: Counter[str]
    profile: Profile = Profile.BUSY
    held_ns: int = 0  # of the lock_ns: for how long the store had granted them


class SimWorld:
    """One world. `trace` is told every line of what happens, for people; the digest is over the same lines."""

    def __init__(self, seed: int, swarm: Swarm | None = None, trace: Callable[[str], object] | None = None) -> None:
        self.seed = seed
        self.swarm = swarm or draw_swarm(seed)
        self.loop = SimLoop()
        self.history: list[Record] = []
        self.found: list[Breach] = []
        self.counts: Counter[str] = Counter()
        self.stopping = False
        self._over = False
        self._show = trace
        self._digest = hashlib.blake2b(digest_size=16)
        self._lines: list[str] = []  # not in the digest yet
        self._chances = str(seed) if self.swarm.profile is Profile.BUSY else f"{self.swarm.profile}/{seed}"
        self.chance = self.entropy("world").random
        self._below = drawing(self.chance)
        self.network = Network(self.loop, self.entropy("network").random, self.trace)
        self.keys = [f"key-{number}" for number in range(self.swarm.keys)]
        self.scene = _SCENES[self.swarm.profile](self)
        self.servers = self.scene.servers()
        self.server = self.servers[0]
        self.resources = {key: self.scene.resource(key) for key in self.keys}
        self.hosts: list[SimHost] = []
        self._gone: list[SimHost] = []
        self._clients: dict[asyncio.Task[None], SimHost] = {}
        self.believers: dict[str, list[tuple[SimHost, AnyLease]]] = {}
        self._born = 0

    # What its parts are made of.

    def entropy(self, name: str) -> SimEntropy:
        """A stream of chance of this world's own."""
        return SimEntropy(f"{self._chances}/{name}")

    def make_clock(self, name: str) -> SimClock:
        """Clocks that start anywhere, within the drift that leases allow for."""
        chance = self.entropy(f"clock/{name}").random
        drift = chance.choice([-1, 1]) * self.swarm.drift_ppb
        return SimClock(
            self.loop,
            drift_ppb=drift,
            boot_offset_ns=chance.randrange(10**6 * NS),
            wall_offset_ns=chance.randrange(-60 * NS, 60 * NS),
        )

    def add_host(self) -> SimHost:
        """Start a process on a new host."""
        self._born += 1
        name = f"host-{self._born}"
        clock = self.make_clock(name)
        host = SimHost(
            name,
            self.loop,
            self.network,
            self.server,
            clock=clock,
            entropy=self.entropy(name),
            observer=(restamper := Restamper(self.loop, self.note, name)),
            policy=POLICY,
            request_timeout_ns=self.swarm.request_timeout_ns,
            on_crash=lambda error: self.complain(name, f"the keeper crashed: {error!r}"),
            engine=self.scene.engine(name, clock),
        )
        restamper.asked_ns = host.engine.blocking.asked_ns
        for store in (host.engine.blocking, host.engine.asynchronous()):
            store.failpoint = partial(self.failpoint, host)
        self.hosts.append(host)
        return host

    def populate(self, host: SimHost) -> None:
        """Start the programs of a host."""
        make = self.scene.sessions
        for _ in range(self.swarm.clients):
            task = self.loop.create_task(visits(self, host, make), name=f"client of {host.name}", context=host.context)
            self._clients[task] = host

    def crash(self, host: SimHost) -> None:
        """A process dies; another takes its place."""
        host.crash()
        self.hosts.remove(host)
        self._gone.append(host)
        for task in [task for task, owner in self._clients.items() if owner is host]:
            del self._clients[task]
        self.populate(self.add_host())

    # What it sees.

    def trace(self, who: str, what: str) -> None:
        """One line of what happens."""
        if self._over:
            return
        line = f"{self.loop.now_ns} {who} {what}"
        self._lines.append(line)
        if len(self._lines) >= LINES_AT_ONCE:
            self._digest_lines()
        if self._show is not None:
            self._show(line)

    def _digest_lines(self) -> None:
        """In batches, which costs half as much as one by one."""
        self._digest.update("".join(self._lines).encode())
        self._lines.clear()

    def note(self, record: Record) -> None:
        """One record for the checkers, at true time."""
        if self._over:
            return
        self.counts[record.kind] += 1
        detail = f" {record.detail}" if record.detail else ""
        self.trace(record.owner or "store", f"{record.kind} {record.key} {record.fence} {record.reason or ''}{detail}")
        if record.kind in _CHECKED:
            self.history.append(record)
        if record.kind is EventKind.HANDED:
            self._ask_believers(record)
            self.scene.handed(record)
        elif record.kind is EventKind.LOST:
            self.counts[f"lost {record.reason}"] += 1
        elif not record.ok and record.kind in (EventKind.READ, EventKind.WRITE):
            self.counts[f"refused {record.kind}"] += 1

    def _ask_believers(self, handed: Record) -> None:
        """The store has just granted a key. Record every other host that still believes to hold it."""
        for host, lease in self.believers.get(handed.key, ()):
            lease_record = lease._lease_record  # noqa: SLF001 - asked without the side effect that a public question has
            if host.crashed or lease_record.grant is None or lease_record.grant.fence == handed.fence:
                continue
            if lease_record._judge(lease_record.recorded, host.clock.now()).live:  # noqa: SLF001 - as above
                self.note(
                    Record(
                        EventKind.BELIEVED,
                        self.loop.now_ns,
                        handed.key,
                        owner=host.name,
                        fence=lease_record.grant.fence,
                    )
                )

    @contextlib.contextmanager
    def believing(self, host: SimHost, lease: AnyLease) -> Iterator[None]:
        """A program works under this lease."""
        believers = self.believers.setdefault(lease.key, [])
        believer = (host, lease)
        believers.append(believer)
        try:
            yield
        finally:
            believers.remove(believer)

    def step(self, host: SimHost, lease: AnyLease) -> None:
        """A program has checked its lease and acts. Its deadline is worked out here from what it can know at best."""
        lease_record = lease._lease_record  # noqa: SLF001 - the simulator looks behind the scenes
        known, name = host.engine.blocking, (lease_record.key, lease_record.token)
        until = None
        if lease_record.grant is not None and name in known.sent_ns:
            until = known.sent_ns[name] + host.clock.true_ns(lease_record.timing.loss_age_ns())
            until = min(until, known.refused_ns.get(name, until))
        fence = None if lease_record.grant is None else lease_record.grant.fence
        self.note(
            Record(EventKind.STEP, self.loop.now_ns, lease_record.key, owner=host.name, fence=fence, until_ns=until)
        )

    def left_ns(self) -> int:
        """How long it still continues before all is healed."""
        return self.swarm.phase_ns - self.loop.now_ns

    def failpoint(self, host: SimHost, where: str) -> bool:
        """A named place at which a pause hurts most. True: the host is paused there, from its next step on."""
        between = self.swarm.between is not None and where == BETWEEN
        likely = self.swarm.between if between else self.swarm.failpoints
        if self._over or self.stopping or not likely:
            return False
        if self._below(1000) >= likely:
            return False
        pause = self.chance.randrange(2 * self.swarm.longest_ttl_ns())
        self.trace(host.name, f"paused for {pause} {where}")
        self.counts[f"failpoint {where.partition(' ')[0]}"] += 1
        host.stop_for(pause)
        return True

    def lateness_ns(self, host: SimHost) -> int:
        """By how much a guarded write is late, beyond what the weather does: it is stuck in some proxy."""
        if self._over or self.stopping or not self.swarm.late or self._below(1000) >= self.swarm.late:
            return 0
        late = self._below(2 * self.swarm.longest_ttl_ns())
        self.trace(host.name, f"writes, and it is late by {late}")
        self.counts["late write"] += 1
        return late

    def complain(self, who: str, what: str) -> None:
        """Something happened that no careful program has to expect."""
        if not self._over:
            self.trace(who, what)
            self.found.append(Breach("C0", who, what))

    def judge_session(self, host: SimHost, session: str, task: asyncio.Task[None], cancelled: bool) -> None:
        """A session has ended: it may have been cancelled only by its own client, and raises nothing unexpected."""
        if task.cancelled():
            if not cancelled:
                self.complain(host.name, f"{session}: cancelled without a request")
        elif (error := task.exception()) is not None:
            self.complain(host.name, f"{session}: {error!r}")

    # Its life.

    def run(self) -> WorldOutcome:
        """Live through it."""
        self.loop.set_exception_handler(self._unhandled)
        with listening(self.complain):
            try:
                self.loop.run_until_complete(self._live())
                self.found += [*check(self.history), *self.scene.judge(self.history)]
            except RuntimeError as error:  # Deadlock and Livelock are findings, not crashes of the simulator
                self.complain("world", f"{type(error).__name__}: {error}")
            finally:
                self._end()
        now = self.loop.now_ns
        held = self.scene.held_ns()
        self._digest_lines()
        return WorldOutcome(
            seed=self.seed,
            violations=self.found,
            digest=self._digest.hexdigest(),
            virtual_ns=now,
            lock_ns=now * len(self.keys),
            steps=self.loop.steps,
            counts=self.counts,
            profile=self.swarm.profile,
            held_ns=held,
        )

    async def _live(self) -> None:
        self.network.weather = replace(self.swarm.weather)
        for _ in range(self.swarm.hosts):
            self.populate(self.add_host())
        trouble = self.scene.trouble()
        await trouble.rage(self.swarm.phase_ns)
        self.stopping = True
        trouble.heal()
        # By then what was stopped continues again, and what was sent in bad weather has arrived.
        await asyncio.sleep((self.swarm.weather.latest_ns() + 2 * self.swarm.longest_ttl_ns()) / NS)
        if self._clients:
            await asyncio.wait(list(self._clients), timeout=DRAIN_NS / NS)
        for task, host in self._clients.items():
            if not task.done():
                self.complain(host.name, f"{task.get_name()} hangs though all is well: {task.get_stack(limit=1)}")
        await self._have_every_key()
        await self._recover()
        await self.scene.after_recovery()

    async def _have_every_key(self) -> None:
        """A newcomer must get every key in time."""
        now = self.loop.now_ns
        longest = max(server.clock.true_ns(self.swarm.longest_ttl_ns()) for server in self.servers)
        self.note(Record(EventKind.HEALED, now, "", until_ns=now + longest + GRACE_NS))
        newcomer = self.add_host()
        for key in self.keys:
            with contextlib.suppress(LockBusy, BackendError):
                lease = await newcomer.locks.lock(key, ttl=0.5, timeout=(longest + GRACE_NS) / NS).acquire()
                await lease.release()

    async def _recover(self) -> None:
        """Every process that lived through it must be able to work again without a restart, and has kept nothing."""
        for host in self.hosts:
            until = self.loop.now_ns + RECOVERY_NS
            while True:  # ends with a lease, or when patience does
                try:
                    lease = await host.locks.lock("recovery", ttl=0.5, timeout=1).acquire()
                    await lease.release()
                    break
                except (LockBusy, BackendError) as error:
                    if self.loop.now_ns > until:
                        self.complain(host.name, f"does not recover: {error!r}")
                        break
                    await asyncio.sleep(0.5)
            if kept := host.locks.manager.renewer.lease_records():
                self.complain(host.name, f"the renewer still keeps {len(kept)} leases without a holder")
            if lines := host.locks.runtime.mutexes.queues:
                self.complain(host.name, f"the local mutex is still taken: {list(lines)}")

    def _end(self) -> None:
        """Let every task end, without recording it."""
        self._over = True
        for host in [*self.hosts, *self._gone]:
            host.bury()
        end_tasks(self.loop)
        self.loop.close()
        self.scene.close()

    def _unhandled(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self.complain("loop", f"{context.get('message')}: {context.get('exception')!r}")


def run_seed(
    seed: int,
    swarm: Swarm | None = None,
    trace: Callable[[str], object] | None = None,
    *,
    profile: Profile = Profile.BUSY,
) -> WorldOutcome:
    """Live through the world of one seed: of this profile, unless its settings are given."""
    return SimWorld(seed, swarm or draw_swarm(seed, profile), trace).run()
