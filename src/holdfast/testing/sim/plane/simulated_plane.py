"""A whole plane in a simulated world: API, schedulers, workers, engine and loops, in processes on hosts of their own.

All of it is the plane's own code: `Plane` as `holdfast up` runs it, its statements on a real SQLite, its bus in that,
and its locks on the simulated lease store. One seed is one world: same seed, same trace, in any process. First
everything that the seed allows goes wrong; then all is healed, everything that was acknowledged must come to its end in
time, the processes are stopped, and the checkers read what there is.

Clock: virtual time. Every process has its own clocks (`environment.clock`); none of them is real.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from holdfast.aio.lease import Lease
from holdfast.core.history.events import EventKind, Record
from holdfast.core.history.invariants import Breach, check
from holdfast.errors import BackendError
from holdfast.plane.locks.registry import SCHEDULER_JOB, WORKFLOW_RUN
from holdfast.plane.model.job_states import TERMINAL
from holdfast.plane.process.plane import ENGINE, LOOPS, SCHEDULES, WORKER
from holdfast.plane.workflows.core.run import RUN_OVER
from holdfast.testing.sim.environment.clock import WALL_EPOCH_NS, SimClock, SimEntropy
from holdfast.testing.sim.environment.host import SimHost
from holdfast.testing.sim.environment.logs import listening
from holdfast.testing.sim.environment.loop import end_tasks
from holdfast.testing.sim.environment.network import Network
from holdfast.testing.sim.environment.observer import Restamper
from holdfast.testing.sim.environment.store import LeaseServer
from holdfast.testing.sim.plane import timed_jobs
from holdfast.testing.sim.plane.checks import Ending, Story, check_plane
from holdfast.testing.sim.plane.load import Programs
from holdfast.testing.sim.plane.plane_fault_injector import OUTSIDE, PlaneTrouble
from holdfast.testing.sim.plane.plane_faults import PlaneSwarm, draw_plane_swarm
from holdfast.testing.sim.plane.plane_loop import PlaneLoop
from holdfast.testing.sim.plane.plane_process import Process, SimPlane
from holdfast.testing.sim.plane.remote_database import DatabaseServer, SimDatabase
from holdfast.testing.sim.plane.row_history import CommitHistory
from holdfast.testing.sim.worlds.resource import FencedResource
from holdfast.types import NS

ROLES: Final = {
    "api": (),
    "control": ("scheduler", ENGINE, *(each for each in LOOPS if each != SCHEDULES)),
    "worker": (WORKER,),
}
RESTART_NS: Final = NS // 2  # after which a process that failed to start is started again
STOP_NS: Final = 90 * NS  # within which a process must have ended in peace

_CHECKED: Final = {
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
        EventKind.HANDED,
        EventKind.EXTENDED,
        EventKind.ENDED,
        EventKind.FORGOT,
        EventKind.FORCED,
    ),
}
_DECIDING: Final = (SCHEDULER_JOB.key(job=""), WORKFLOW_RUN.key(run=""))
_LIVE_JOBS: Final = "SELECT COUNT(*) FROM plane_job WHERE state NOT IN (SELECT value FROM json_each(?))"
# Whatever becomes of a delivery, the next one finds it excused: a bus that counts deliveries and knows no more.
_LOSES_COUNT: Final = """
    CREATE TRIGGER plane_message_lost AFTER UPDATE OF deliveries ON plane_message BEGIN
        UPDATE plane_message SET excused = new.deliveries - new.failures
        WHERE id = new.id AND recipient = new.recipient;
    END
"""
_LIVE_RUNS: Final = "SELECT COUNT(*) FROM plane_run WHERE status NOT IN (SELECT value FROM json_each(?))"


@dataclass(frozen=True, slots=True)
class PlaneOutcome:
    """The outcome of one world."""

    seed: int
    violations: list[Breach]
    digest: str  # of the whole trace: equal digests are equal runs
    virtual_ns: int
    steps: int
    jobs: int
    commits: int
    counts: Counter[str]


class PlaneWorld:
    """One world. `trace` is told every line of what happens, for people; the digest is over the same lines."""

    def __init__(
        self, seed: int, swarm: PlaneSwarm | None = None, trace: Callable[[str], object] | None = None
    ) -> None:
        self.seed = seed
        self.swarm = swarm or draw_plane_swarm(seed)
        self.loop = PlaneLoop()
        self.history: list[Record] = []
        self.found: list[Breach] = []
        self.counts: Counter[str] = Counter()
        self._show = trace
        self._digest = hashlib.blake2b(digest_size=16)
        self._over = False
        self._calm = True  # nothing goes wrong yet, or any more
        self.chance = SimEntropy(f"{seed}/world").random
        self.network = Network(self.loop, SimEntropy(f"{seed}/network").random, self.trace)
        self.leases = LeaseServer(self.loop, self._clock("store"), self.note)
        self.ledger = CommitHistory(self.trace)
        self.database = DatabaseServer(self.loop, self.ledger)
        self.programs = Programs(self)
        self.processes: list[Process] = []
        self._gone: list[Process] = []
        self._resources: dict[str, FencedResource] = {}
        self._born = 0

    # What its parts are made of.

    def _clock(self, name: str) -> SimClock:
        chance = SimEntropy(f"{self.seed}/clock/{name}").random
        drift = chance.choice([-1, 1]) * self.swarm.drift_ppb
        return SimClock(
            self.loop,
            drift_ppb=drift,
            boot_offset_ns=chance.randrange(10**6 * NS),
            wall_offset_ns=chance.randrange(-NS // 2, NS // 2),
        )

    def wall_ns(self) -> int:
        """What time it is for people, whatever the lease store's clock was set to."""
        true_ns = WALL_EPOCH_NS + self.loop.now_ns
        return true_ns if not self.processes else self.processes[0].host.clock.now().wall

    def resource(self, job: str) -> FencedResource:
        """What a job does its one thing to."""
        if job not in self._resources:
            self._resources[job] = FencedResource(job, self.network, self.note)
        return self._resources[job]

    def _process(self, role: str) -> Process:
        """A new process on a new host."""
        self._born += 1
        name = f"{role}-{self._born}"
        observer = Restamper(self.loop, self.note, name)
        host = SimHost(
            name,
            self.loop,
            self.network,
            self.leases,
            clock=self._clock(name),
            entropy=SimEntropy(f"{self.seed}/{name}"),
            observer=observer,
            policy={},
            request_timeout_ns=self.swarm.request_timeout_ns,
            on_crash=lambda error: self.complain(name, f"the keeper crashed: {error!r}"),
        )
        observer.asked_ns = host.engine.blocking.asked_ns
        for store in (host.engine.blocking, host.engine.asynchronous()):
            store.failpoint = partial(self.failpoint, host)
        database = SimDatabase(self.network, self.database, name, self.swarm.database_patience_ns)
        database.failpoint = partial(self.failpoint, host)
        parts = (*ROLES[role], SCHEDULES) if role == "control" and self.swarm.schedules else ROLES[role]
        make = partial(SimPlane, self.swarm.settings, parts, self.programs.app(host), host, database)
        return Process(self.loop, role, host, database, host.context.run(make))

    async def _keep(self, role: str) -> None:
        """Have one process of a kind running, always; what ends is replaced."""
        while not self._over:
            process = self._process(role)
            self.processes.append(process)
            process.begin(partial(self._unwell, process))
            await asyncio.wait([process.gone])  # a cancellation here leaves the future as it is
            self.processes.remove(process)
            process.database.hang_up()
            self._gone.append(process)
            self.counts[f"ended {role}"] += 1
            await asyncio.sleep(RESTART_NS / NS)

    def _unwell(self, process: Process, error: BaseException) -> None:
        if process.started or not isinstance(error, BackendError):
            self.complain(process.name, f"the plane ended unexpectedly: {error!r}")
        self.counts["failed starts"] += 1

    # What it sees.

    def trace(self, who: str, what: str) -> None:
        """One line of what happens."""
        if self._over:
            return
        line = f"{self.loop.now_ns} {who} {what}"
        self._digest.update(line.encode())
        if self._show is not None:
            self._show(line)

    def note(self, record: Record) -> None:
        """One record for the checkers, at true time."""
        if self._over:
            return
        self.counts[record.kind] += 1
        self.trace(record.owner or "store", f"{record.kind} {record.key} {record.fence} {record.reason or ''}")
        if record.kind in _CHECKED:
            self.history.append(record)

    def step(self, host: SimHost, lease: Lease) -> None:
        """A function has checked its lease and acts. Its deadline is worked out from what it can know at best."""
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

    def failpoint(self, host: SimHost, where: str) -> bool:
        """A named place at which a pause hurts most. True: the host is paused there, from its next step on."""
        if self._over or self._calm or not self.swarm.failpoints:
            return False
        hurts = where.startswith("between") or (where == "before write" and _decides(host))
        likely = self.swarm.failpoints if hurts else self.swarm.failpoints // 10
        if self.chance.randrange(1000) >= likely:
            return False
        pause = self.chance.randrange(2 * self.swarm.longest_ttl_ns())
        self.trace(host.name, f"paused for {pause} {where}")
        self.counts[f"failpoint {where.partition(' ')[0]}"] += 1
        host.stop_for(pause)
        return True

    def kill(self, host: SimHost) -> None:
        """The process on this host dies of what it runs, at its next step."""
        (process,) = [each for each in self.processes if each.host is host]
        self.trace(host.name, "dies of a job")
        self.counts["killed by a job"] += 1
        self.loop.call_after_ns(0, process.crash, context=OUTSIDE)

    def complain(self, who: str, what: str) -> None:
        """Something happened that no careful program has to expect."""
        if not self._over:
            self.trace(who, what)
            self.found.append(Breach("P0", who, what))

    def forget(self, task: asyncio.Task[Any]) -> None:
        """Check a response that no client waits for any more. It must still be an expected one."""
        if not task.cancelled() and (error := task.exception()) is not None and not isinstance(error, BackendError):
            self.trace("client", f"ignored {error!r}")

    # Its life.

    def run(self) -> PlaneOutcome:
        """Live through it."""
        self.loop.set_exception_handler(self._unhandled)
        with listening(self.complain):
            try:
                self.loop.run_until_complete(self._live())
                self.found += check(self.history)
                self.found += check_plane(self.story())
            except RuntimeError as error:  # Deadlock and Livelock are findings, not crashes of the simulator
                self.complain("world", f"{type(error).__name__}: {error}")
            finally:
                jobs = self.database.query("SELECT COUNT(*) FROM plane_job")[0][0]
                self._end()
        return PlaneOutcome(
            *(self.seed, self.found, self._digest.hexdigest(), self.loop.now_ns, self.loop.steps),
            *(jobs, self.database.commits, self.counts),
        )

    async def _live(self) -> None:
        await self._prepare()
        self._calm = False
        swarm = self.swarm
        self.network.weather = replace(swarm.weather)
        kinds = ["api", "api", *["control"] * swarm.controls, *["worker"] * swarm.workers]
        keepers = [self.loop.create_task(self._keep(role), name=f"keeper of a {role}") for role in kinds]
        people = self.programs.begin()
        approver = self.loop.create_task(self.programs.approve())
        trouble = PlaneTrouble(self)
        await trouble.rage(swarm.phase_ns)
        trouble.heal()
        self._calm = True
        if swarm.schedules:
            await asyncio.sleep(timed_jobs.CATCH_UP_NS / NS)
            timed_jobs.pause(self.database.query)
        await self._come_to_rest(people)
        for task in (approver, *keepers):
            task.cancel()
        await self._stop_all()

    async def _prepare(self) -> None:
        """The tables are there before trouble begins: what is tested here is the plane, not its first start."""
        for role in ("api", "worker"):  # and what the workers can do was heard of once
            process = self._process(role)
            schedules = partial(self._make_schedules, process) if role == "api" else partial(asyncio.sleep, 0)
            for act in (process.plane.start, partial(asyncio.sleep, 1.0), schedules, process.plane.stop):
                await self.loop.create_task(act(), context=process.host.context)
            process.database.hang_up()
            self._gone.append(process)
        self.database.watch()
        if not self.swarm.tells_lost:
            self.database.query(_LOSES_COUNT)

    async def _make_schedules(self, process: Process) -> None:
        if self.swarm.schedules:
            await timed_jobs.create(process.plane.components.schedules, self.swarm.schedules)

    async def _come_to_rest(self, people: list[asyncio.Task[None]]) -> None:
        """All requests are acknowledged and finished; then wait until the last messages are handled."""
        healed_ns = self.loop.now_ns
        until = healed_ns + self.swarm.drain_ns
        await asyncio.wait(people, timeout=self.swarm.drain_ns / NS)
        for task in people:
            if not task.done():
                self.complain("people", f"{task.get_name()} is not answered though all is well")
            elif task.exception() is not None:
                self.complain("people", f"was told {task.exception()!r}")
        awake = self._awake()
        while self.loop.now_ns < until and not (awake and not self._live_rows() and not self._waiting()):
            awake = self._awake()  # a process that wakes after this check has a second to send its messages
            await asyncio.sleep(1.0)
        self.trace("world", f"at rest after {(self.loop.now_ns - healed_ns) // NS} s")

    def _awake(self) -> bool:
        """Whether no process is paused or about to end: those may still have messages to send."""
        return not any(process.ending or process.host.domain.stopped for process in self.processes)

    def _live_rows(self) -> int:
        jobs = self.database.query(_LIVE_JOBS, json.dumps(sorted(TERMINAL)))[0][0]
        return int(jobs + self.database.query(_LIVE_RUNS, json.dumps(sorted(RUN_OVER)))[0][0])

    def _waiting(self) -> list[tuple[str, str]]:
        """Unhandled messages. One to a worker that is gone has no recipient, and is deleted later."""
        rows = self.database.query("SELECT id, subject FROM plane_message WHERE state < 2 ORDER BY id")
        return [(name, subject) for name, subject in rows if not subject.startswith("stop.")]

    async def _stop_all(self) -> None:
        """Every process ends in peace, and keeps nothing."""
        for process in list(self.processes):
            process.roll()
        left = [process for process in self.processes if process.ending]
        if left:
            await asyncio.wait([process.gone for process in left], timeout=STOP_NS / NS)
        for process in left:
            if not process.gone.done():
                self.complain(process.name, "does not end though all is well")
            elif kept := process.host.locks.manager.renewer.lease_records():
                self.complain(process.name, f"the renewer still keeps {len(kept)} leases without a holder")

    def story(self) -> Story:
        """What the checkers read."""
        effects: dict[str, list[Record]] = defaultdict(list)
        for record in self.history:
            if record.kind is EventKind.WRITE and record.ok:
                effects[record.key].append(record)
        rows = self.database.query("SELECT id, state, result FROM plane_job ORDER BY id")
        events: dict[str, list[tuple[str | None, str]]] = defaultdict(list)
        for job, before, after in self.database.query(
            "SELECT job, before, after FROM plane_event ORDER BY version, step"
        ):
            events[job].append((before, after))
        counters = self.database.query("SELECT tenant, running FROM plane_tenant")
        counters += self.database.query("SELECT 'pool ' || pool, running FROM plane_pool")
        self.counts.update(f"job {state}" for _, state, _ in rows)
        endings = {job: Ending(state, _effect(result)) for job, state, result in rows}
        runs = dict(self.database.query("SELECT id, status FROM plane_run ORDER BY id"))
        self.counts.update(f"run {status}" for status in runs.values())
        self.counts["dead letters"] += len(self.ledger.letters)
        return Story(
            *(self.programs.jobs, self.programs.runs, self.ledger.jobs, self.ledger.runs, self.ledger.letters),
            *(endings, runs, events, effects, self.programs.verdicts),
            slots=self.swarm.slots,
            counters=dict(counters),
            waiting=self._waiting(),
            timed=timed_jobs.timed_jobs(self.database.query),
        )

    def _end(self) -> None:
        """Let every task end, without recording it."""
        self._over = True
        for process in [*self.processes, *self._gone]:
            process.database.hang_up()
            process.host.bury()
        self.loop.run_until_complete(self._put_away())
        end_tasks(self.loop)
        self.loop.close()
        self.database.close()

    async def _put_away(self) -> None:
        ends = [
            self.loop.create_task(process.put_away(), context=process.host.context)
            for process in [*self.processes, *self._gone]
        ]
        if ends:
            await asyncio.wait(ends)

    def _unhandled(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        # Told when something is collected as garbage, which is no moment of this world: it is not part of the trace.
        text = f"{context.get('message')}: {context.get('exception')!r}"
        if not self._over:
            self.found.append(Breach("P0", "loop", text))


def _decides(host: SimHost) -> bool:
    """Whether a process there holds the lock of a job or a run, and is about to write under it."""
    return any(lease_record.key.startswith(_DECIDING) for lease_record in host.locks.manager.renewer.lease_records())


def _effect(result: str | None) -> int | None:
    found = None if result is None else json.loads(result)
    return found.get("effect") if isinstance(found, dict) else None


def run_plane(seed: int, swarm: PlaneSwarm | None = None, trace: Callable[[str], object] | None = None) -> PlaneOutcome:
    """Live through the world of one seed."""
    return PlaneWorld(seed, swarm, trace).run()
