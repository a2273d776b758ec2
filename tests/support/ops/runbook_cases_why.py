"""The cases of `why`: for each rule the evidence of an incident, and evidence that is not enough."""

from __future__ import annotations

from dataclasses import replace

from holdfast.ops.runbooks.evidence.locks import FamilyHeld, HeldFact, LockFact, LocksFact, StoreFact, WireFact
from holdfast.ops.runbooks.evidence.plane import DebtFact, PoolDebt, SnapshotFact, TenantDebt
from holdfast.ops.runbooks.evidence.servers import ClockFact, DiskSpace, RoomFact
from holdfast.ops.runbooks.evidence.work import FleetFact, MissingLeases, WorkFact
from holdfast.ops.runbooks.examples import AT_NS, SERVED, everything, hanging, held_lock, live_worker, policy
from holdfast.ops.runbooks.model import Fact
from holdfast.plane.service.overview import OpenApproval, OpenLetter, PlaneOverview, WaitingJob, WaitingSchedule
from support.ops.runbook_facts import Facts, Told

WHY_WELL: Facts = everything()
_REDIS = StoreFact("redis", 5, 5, 0.001, "", {"role": "master"})
_GONE = "cannot be reached"


def _case(words: str, short: Facts | None = None, **enough: Fact | Exception) -> Told:
    return Told(everything(**enough), words, WHY_WELL if short is None else short)


def _wire(**more: float | bool | str) -> WireFact:
    return WireFact("leases:6379", limit=4.5, **more)  # type: ignore[arg-type]  # each field has its own type


def _down(wire: WireFact | None, engine: str = "redis") -> StoreFact:
    return StoreFact(engine, 1, 0, None, _GONE, None, wire)


def _overview(**more: object) -> WorkFact:
    return WorkFact(replace(PlaneOverview(AT_NS, view=SERVED), **more))  # type: ignore[arg-type]  # each has its own type


def _fleet(**more: object) -> FleetFact:
    return FleetFact((live_worker(**more),), 5.0, 30.0, {"default": 1})


def _letter(code: str, count: int = 1) -> WorkFact:
    letters = [
        OpenLetter(f"inv-{n}", f"inv-{n}", "acme", "invoice.send", code, "three workers began it", 3, 9.0)
        for n in range(count)
    ]
    return _overview(letters=letters, letters_left=count)


def _waits(topic: str = "invoice.send", age: float = 40.0) -> WaitingJob:
    return WaitingJob("inv-3", "acme", topic, "default", age)


_WAITED = _overview(waiting=(_waits("invoice.print", 83.0),), topics={("default", "invoice.print"): 12})
_ROOM = DiskSpace("database", "/var/lib/holdfast", 15_000_000, 10**9)
_FLOOD = DebtFact(
    (TenantDebt("acme", 7, None, 5000, 60.0), TenantDebt("globex", 1, None, 3, 55.0)),
    (PoolDebt("default", 8, 1, 8, 5003),),
    {},
)
_FULL = DebtFact((TenantDebt("acme", 8, None, 30, 20.0),), (PoolDebt("default", 8, 1, 8, 30),), {})
_LIMITED = DebtFact((TenantDebt("acme", 4, 4, 30, 20.0),), (PoolDebt("default", 4, 1, 8, 30),), {})
_APPROVAL = OpenApproval("r-1:ok@1", "acme", "ada", "r-1", 61.0)
_OLD = FamilyHeld("scheduler.job", 2, 1, held_lock("holdfast:scheduler:job:40", age=121.0), ())
_NO_LEADERS = LocksFact((LockFact("holdfast:reconciler:default", False),))
_LOOP_FREE = LockFact("holdfast:reconciler:default", False)
_FREE = LocksFact((_LOOP_FREE, held_lock("holdfast:replayer:pending", age=61.0)))
_STARTED = LocksFact((_LOOP_FREE, held_lock("holdfast:replayer:pending", age=59.0)))

WHYS = {
    "disk full": _case(
        "The disk is full: /var/lib/holdfast",
        everything(room=RoomFact((replace(_ROOM, free=16_000_000),), 16_000_000)),
        room=RoomFact((_ROOM,), 16_000_000),
    ),
    "no connections": _case(
        "97 of 100 are in use", database=StoreFact("postgres", 5, 5, 0.002, "", {"connections": "97 of 100"})
    ),
    "database down": _case(
        "the connection is refused, so no process listens",
        database=_down(_wire(problem="refused", refused=True), "postgres"),
    ),
    "database locked": _case(
        "is locked: its write lock has been held by process 4242",
        database=StoreFact("sqlite", 6, 5, 0.001, "its write lock has been held by process 4242 for the whole 1.5 s"),
    ),
    "database read-only": _case("is a standby", database=StoreFact("postgres", 5, 5, 0.002, "", {"role": "standby"})),
    "store down": _case("hangs: it accepts connections and sends no answer", store=_down(_wire(connected=0.001))),
    "bus down": _case("cannot be reached: no route to host", bus=_down(_wire(problem="no route to host"), "nats")),
    "database slow": _case("is slow, not down: an answer takes 0.31 s", database=replace(_REDIS, slowest=0.31)),
    "store slow": _case(
        "an answer takes 3 s",
        everything(store=replace(_REDIS, slowest=0.24)),
        store=_down(_wire(connected=0.001, answered=3.0)),
    ),
    "bus slow": _case("is slow, not down", bus=StoreFact("nats", 5, 5, 0.25)),
    "transaction blocks": _case(
        "is open for 61 s",
        everything(
            database=StoreFact(
                "postgres",
                5,
                5,
                0.002,
                "",
                {"oldest_transaction": "59 s, pid 7, psql, idle", "blocks": "0", "pid": "7"},
            )
        ),
        database=StoreFact(
            "postgres", 5, 5, 0.002, "", {"oldest_transaction": "61 s, pid 7, psql, idle", "blocks": "0", "pid": "7"}
        ),
    ),
    "store cannot save": _case(
        "cannot save its data", store=replace(_REDIS, about={"role": "master", "rdb_last_bgsave_status": "err"})
    ),
    "store is no primary": _case("is slave", store=replace(_REDIS, about={"role": "slave"})),
    "leases forgotten": _case(
        "forgot its leases: 16 leases of 3 processes vanished within 10 s",
        everything(leases=MissingLeases(8, (), {"worker.job": 16}, 16, 3, 14, 900.0)),
        leases=MissingLeases(8, (), {"worker.job": 16}, 16, 3, 0, 900.0),
        store=replace(_REDIS, about={"cmdstat_flushall": "calls=1,usec=9", "uptime_in_seconds": "99"}),
    ),
    "store memory full": _case(
        "it uses 2 MB of 2 MB (maxmemory) and refuses writes",
        everything(store=replace(_REDIS, about={"maxmemory": "2000000", "used_memory": "1999999"})),
        store=replace(_REDIS, about={"maxmemory": "2000000", "used_memory": "2000000"}),
    ),
    "store evicts": _case("may evict keys", store=replace(_REDIS, about={"maxmemory_policy": "allkeys-lru"})),
    "clock of this host": _case("is 60 s ahead of", everything(clock=ClockFact(1.9, 0.1)), clock=ClockFact(60.0, 0.1)),
    "disk low": _case("nearly full", room=RoomFact((replace(_ROOM, free=40_000_000),), 16_000_000)),
    "worker clock": _case("is 60 min 00 s ahead", everything(workers=_fleet(age=-4.0)), workers=_fleet(age=-3600.0)),
    "worker silent": _case(
        "its process is stopped",
        everything(workers=_fleet(age=14.0, jobs=3)),
        workers=_fleet(age=72.0, jobs=3, process="stopped"),
    ),
    "topic without workers": _case("No live worker serves topic invoice.print: 12 jobs wait", work=_WAITED),
    "pool without workers": _case("no live worker", debt=DebtFact((), (PoolDebt("default", 0, 0, 0, 4),), {})),
    "handler hangs": _case(
        "8 attempts hang (invoice.send 8): inv-9 has run on w-7:1",
        everything(work=WorkFact(hanging(silent=29.0))),
        work=WorkFact(hanging()),
    ),
    "poison job": _case("Poison job inv-0", everything(work=_letter("max_attempts")), work=_letter("lost")),
    "tenant flood": _case("Tenant acme floods the plane: 5000 of 5003", everything(debt=_FULL), debt=_FLOOD),
    "holder stuck": _case(
        "has held holdfast:scheduler:job:40",
        everything(held=HeldFact((replace(_OLD, oldest=held_lock("k", age=119.0)),))),
        held=HeldFact((_OLD,)),
    ),
    "no leaders": _case("No process leads any loop", everything(loops=_FREE), loops=_NO_LEADERS),
    "loop without leader": _case("No process leads 1 loop", everything(loops=_STARTED), loops=_FREE),
    "snapshot stale": _case(
        "is 94 s old", everything(snapshot=SnapshotFact(29.0, "a", 1, 1, 1)), snapshot=SnapshotFact(94.0, "a", 1, 1, 1)
    ),
    "jobs die": _case(
        "3 jobs of topic invoice.send died", everything(work=_letter("fatal", 2)), work=_letter("fatal", 3)
    ),
    "jobs wait": _case(
        "although workers serve it and have free slots",
        everything(work=_overview(waiting=(_waits(age=29.0),))),
        work=_overview(waiting=(_waits(),)),
    ),
    "schedules late": _case(
        "nightly of acme should have submitted its job",
        everything(work=_overview(late_schedules=(WaitingSchedule("nightly", "acme", 60.0),))),
        work=_overview(late_schedules=(WaitingSchedule("nightly", "acme", 61.0),)),
    ),
    "stale jobs": _case("3 RUNNING", debt=DebtFact((), (), {"RUNNING": 3})),
    "fallbacks": _case("0.2 fallbacks per second", policy=policy(rate=0.2)),
    "approvals wait long": _case(
        "ada asked for it and may not decide it",
        everything(work=_overview(approvals=(_APPROVAL,))),
        work=_overview(approvals=(replace(_APPROVAL, age=3601.0),)),
    ),
    "pool is busy": _case(
        "is full of working attempts",
        everything(work=_overview(waiting=(_waits(age=9.0),), running={"default": 8}), debt=_FULL),
        work=_overview(waiting=(_waits(age=20.0),), running={"default": 8}),
        debt=_FULL,
    ),
    "tenant at its limit": _case("waits for its own limit", everything(debt=_FULL), debt=_LIMITED),
    "workers gone": _case("w-7:1", workers=_fleet(age=72.0)),
    "a job died": _case("1 job of topic", everything(work=_letter("fatal", 3)), work=_letter("fatal")),
    "schedules paused": _case(
        "ann paused nightly of acme 24 h 00 min ago (incident 7)",
        everything(work=_overview(paused_schedules=(WaitingSchedule("nightly", "acme", 86_399.0, "ann"),))),
        work=_overview(paused_schedules=(WaitingSchedule("nightly", "acme", 86_400.0, "ann", "incident 7"),)),
    ),
    "approvals wait": _case(
        "1 approval waits",
        everything(work=_overview(approvals=(replace(_APPROVAL, age=59.0),))),
        work=_overview(approvals=(_APPROVAL,)),
    ),
}
