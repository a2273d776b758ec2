"""What goes wrong around a simulated plane, and its load: drawn for each seed.

Swarm testing, as in `worlds.faults`: most seeds have only some kinds of fault, and settings at the edge of what the
plane's own rules allow.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from enum import StrEnum

from holdfast.plane.settings.consistency import problems
from holdfast.plane.settings.settings import Settings
from holdfast.testing.sim.environment.clock import DRIFT_MAX_PPB
from holdfast.testing.sim.environment.network import Weather
from holdfast.types import MS, NS


class PlaneFault(StrEnum):
    """One kind of trouble."""

    PAUSE = "pause"  # a process stops for a while and continues
    BLOCK = "block"  # its event loop is blocked; its renewer is not
    STALL = "stall"  # its renewer is stuck; its event loop is not
    SUSPEND = "suspend"  # a host sleeps, and its monotonic clock with it
    CRASH = "crash"  # a process dies and another takes its place, remembering nothing
    ROLL = "roll"  # a process is asked to end, and another takes its place when it has
    ROLL_ALL = "roll_all"  # the same for every process, one after the other
    STEP = "step"  # an operator sets a host's wall clock
    LEASES_CUT = "leases_cut"  # a process and the lease store do not hear each other, in one direction or both
    LEASES_PAUSE = "leases_pause"  # the lease store stops for a while
    LEASES_RESTART = "leases_restart"  # … is down, and remembers
    LEASES_FORGET = "leases_forget"  # … is down, and has forgotten
    LEASES_LAG = "leases_lag"  # … fails over to a replica that is behind
    LEASES_AIL = "leases_ail"  # … answers that it cannot serve
    LEASES_STEP = "leases_step"  # … has its wall clock set forward
    FORCE = "force"  # an operator breaks a lock
    DATABASE_CUT = "database_cut"  # a process and the database do not hear each other; replies may be lost alone
    DATABASE_PAUSE = "database_pause"  # the database stops for a while
    DATABASE_DOWN = "database_down"  # … restarts: it refuses service, and then has everything that was committed
    DATABASE_AIL = "database_ail"  # … answers that it cannot serve
    CLOG = "clog"  # the network keeps everything back, and lets it go in another order
    COPIES = "copies"  # the bus redelivers in-flight messages to other consumers
    DISORDER = "disorder"  # the bus delivers what waits in another order


@dataclass(slots=True)
class PlaneSwarm:
    """The settings of one world."""

    controls: int = 2  # processes with scheduler, engine and loops
    workers: int = 2  # processes with workers
    jobs: int = 24
    runs: int = 3
    submitters: int = 3
    tenants: int = 2
    slots: int | None = 3  # of a tenant
    settings: Settings = field(default_factory=Settings)
    phase_ns: int = 30 * NS  # how long things go wrong
    request_timeout_ns: int = NS
    database_patience_ns: int = 2 * NS
    weather: Weather = field(default_factory=Weather)
    faults: list[PlaneFault] = field(default_factory=list)
    every_ns: int = 3 * NS  # mean time between two faults
    drift_ppb: int = 0
    failpoints: int = 0  # in thousandths: a pause exactly between a check and what depends on it
    cancels: int = 100  # in thousandths of jobs
    poison: int = 0  # jobs that kill their worker
    tells_lost: bool = True  # the bus can tell a lost delivery from a nack; NATS cannot
    schedules: int = 0
    drain_ns: int = 400 * NS  # within which everything must be over once all is well

    def longest_ttl_ns(self) -> int:
        """The longest lease on work."""
        settings = self.settings
        return round(max(settings.scheduler.job_ttl, settings.worker.lease_ttl, settings.engine.run_ttl) * NS)


def draw_plane_swarm(seed: int) -> PlaneSwarm:
    """The settings of the world of this seed."""
    chance = random.Random(f"{seed}/plane")  # noqa: S311 - a world must be repeatable
    other = random.Random(f"{seed}/deadly")  # noqa: S311 - so that worlds without it are as they were
    timed = random.Random(f"{seed}/schedules")  # noqa: S311 - the same
    slots = chance.choice([None, 1, 3, 3])
    weather = Weather(
        usual_ns=chance.choice([MS, 3 * MS, 20 * MS]),
        slow=chance.choice([0, 0, 20, 100]),
        slowest_ns=chance.choice([100 * MS, NS, 4 * NS]),
        lost=chance.choice([0, 0, 5, 40]),
        repeated=chance.choice([0, 0, 20, 100]),
    )
    return PlaneSwarm(
        controls=chance.randint(1, 3),
        workers=chance.randint(1, 2),
        jobs=chance.choice([10, 20, 30]),
        runs=chance.choice([0, 2, 4]),
        submitters=chance.randint(1, 4),
        tenants=chance.randint(1, 3),
        slots=slots,
        settings=draw_settings(chance, slots),
        phase_ns=chance.randint(15, 45) * NS,
        request_timeout_ns=chance.choice([300 * MS, NS, 2 * NS]),
        database_patience_ns=chance.choice([500 * MS, 2 * NS, 5 * NS]),
        weather=weather,
        faults=[fault for fault in PlaneFault if chance.random() < 0.3],
        every_ns=chance.choice([NS, 2 * NS, 5 * NS]),
        drift_ppb=chance.choice([0, DRIFT_MAX_PPB]),
        failpoints=chance.choice([0, 10, 50]),
        cancels=chance.choice([0, 100, 300]),
        poison=other.choice([0, 0, 0, 0, 0, 1]),
        tells_lost=other.choice([True, False]),
        schedules=timed.choice([0, 0, 0, 2]),
    )


def draw_settings(chance: random.Random, slots: int | None) -> Settings:
    """Settings of a plane in a hurry: the plane's own rules allow them, and a world is over in minutes."""
    base = Settings(database="sqlite:///simulated.db", grace=chance.choice([2.0, 10.0]))
    settings = replace(
        base,
        scheduler=replace(
            base.scheduler,
            concurrency=chance.choice([1, 4, 32]),
            tenant_slots=slots,
            job_ttl=chance.choice([4.5, 6.0, 10.0]),
            busy_jitter=chance.choice([0.0, 0.2]),
        ),
        worker=replace(
            base.worker,
            count=chance.choice([1, 2]),
            concurrency=chance.choice([1, 3, 8]),
            heartbeat=chance.choice([1.0, 5.0]),
            lease_ttl=chance.choice([1.5, 3.0, 8.0]),
            cancel_grace=chance.choice([0.5, 2.0]),
        ),
        engine=replace(base.engine, run_ttl=chance.choice([3.0, 6.0])),
        reconciler=replace(base.reconciler, interval=3.0, lead=chance.choice(["sticky", "rotating"])),
        replayer=replace(base.replayer, interval=3.0, lead=chance.choice(["sticky", "rotating"])),
        snapshot=replace(base.snapshot, interval=4.0, lead=chance.choice(["sticky", "rotating"])),
        cleanup=replace(base.cleanup, interval=15.0),
        schedules=replace(base.schedules, interval=3.0),
        limits=replace(
            base.limits, replay=5.0, scheduled=20.0, dispatched=40.0, running=chance.choice([30.0, 60.0]), retrying=60.0
        ),
    )
    if wrong := problems(settings):
        raise wrong[0]
    return settings
