"""Collects facts from the database and the bus of the plane. Read-only.

Every function takes a `RunbookContext` and returns a fact, or raises; the runner turns both into evidence.
"""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from pathlib import Path
from typing import Final

from holdfast.errors import HoldfastError, LockBusy, RetryLater
from holdfast.ops.runbooks.evidence.locks import span
from holdfast.ops.runbooks.evidence.plane import (
    DebtFact,
    JobFact,
    PendingFact,
    PoolDebt,
    RetryFact,
    RunFact,
    SnapshotFact,
    TenantDebt,
    at_work,
    jobs_at_work,
)
from holdfast.ops.runbooks.model import EvidenceSource, NotGiven, RunbookStep
from holdfast.ops.runbooks.sources import CLOSE_NS, RunbookContext
from holdfast.plane.bus.embedded.bus import EmbeddedBus
from holdfast.plane.bus.open import open_bus
from holdfast.plane.db.open import open_database
from holdfast.plane.db.ports import Consumption, Database, Row, Tx
from holdfast.plane.db.statements import sql
from holdfast.plane.fleet.registry import Workers
from holdfast.plane.jobs.quotas import Slots, Tenants
from holdfast.plane.jobs.rows import event_of, job_of
from holdfast.plane.locks.registry import SCHEDULER_JOB, WORKER_JOB, WORKFLOW_RUN
from holdfast.plane.maintenance.worker_snapshot import Snapshots
from holdfast.plane.model import messages as subjects
from holdfast.plane.model.job_states import ACTIVE, TERMINAL
from holdfast.plane.model.records import Delivery, Message
from holdfast.plane.policy.store import PlanePolicy
from holdfast.plane.workflows.core.run import RunStatus, StepStatus
from holdfast.plane.workflows.run_rows import event_of as line_of
from holdfast.runtime.gather import pause, together, within
from holdfast.types import NS

LINES: Final = 1000
TENANTS: Final = 1000

_JOB: Final = sql("job_get")
_EVENTS: Final = sql("event_list")
_RUN: Final = sql("run_get")
_STATES: Final = {"sqlite": sql("run_jobs_sqlite"), "postgres": sql("run_jobs_postgres")}
_TIMELINE: Final = sql("run_events")
_WAITING: Final = sql("waiting_by_tenant")
_POOLS: Final = sql("pool_list")
_OVERDUE: Final = sql("reconcile_count")

_DONE: Final = {str(StepStatus.SUCCEEDED)}


async def job(scene: RunbookContext) -> JobFact:
    """One job and its history."""
    wanted = scene.arguments["JOB"]
    database = await scene.database()

    async def work(tx: Tx) -> tuple[list[Row], list[Row]]:
        return await tx.query(_JOB, {"id": wanted}), await tx.query(_EVENTS, {"job": wanted})

    rows, events = await database.read(work)
    if not rows:
        raise NotGiven(f"job {wanted!r} does not exist in that database")
    return JobFact.of(job_of(rows[0]), [event_of(row) for row in events], scene.clock.now().wall)


async def workflow_run(scene: RunbookContext) -> RunFact:
    """One run and its timeline."""
    wanted = scene.arguments["RUN"]
    database = await scene.database()

    now_ns = scene.clock.now().wall

    async def work(tx: Tx) -> tuple[list[Row], list[Row], bool]:
        rows = await tx.query(_RUN, {"id": wanted})
        lines = await tx.query(_TIMELINE, {"run": wanted, "version": 0, "line": -1, "most": LINES})
        return rows, lines, bool(rows) and await is_at_rest(tx, rows[0], now_ns)

    rows, lines, at_rest = await database.read(work)
    if not rows:
        raise NotGiven(f"run {wanted!r} does not exist in that database")
    row = rows[0]
    events = [line_of(each) for each in lines]
    ends = Counter((each.step, each.attempt) for each in events if each.step is not None and each.kind in _DONE)
    over = RunStatus(row["status"]).terminal
    wake_ns = None if over else row["wake_ns"]
    return RunFact(
        *(row["id"], row["tenant"], f"{row['workflow']} v{row['workflow_version']}", row["status"], over, row["risk"]),
        fence=row["holdfast_fence"],
        idle=max(0.0, (now_ns - row["updated_ns"]) / NS),
        overdue=None if wake_ns is None else max(0.0, (now_ns - wake_ns) / NS),
        repeated=tuple(f"{step} (attempt {attempt})" for (step, attempt), times in ends.items() if times > 1),
        unfenced=sum(each.fence is None and each.version > 1 for each in events),
        lines_number=len(events),
        at_rest=at_rest,
    )


async def is_at_rest(tx: Tx, row: Row, now_ns: int) -> bool:
    """Whether an unfinished run has nothing to wait for: no running job, no approval, and no timer."""
    if RunStatus(row["status"]).terminal:
        return False
    steps = json.loads(row["document"])["steps"]
    jobs = await tx.query(_STATES[tx.dialect], {"ids": json.dumps(jobs_at_work(steps))})
    return not at_work(steps, frozenset(each["id"] for each in jobs if each["state"] in TERMINAL), now_ns)


async def snapshot(scene: RunbookContext) -> SnapshotFact:
    """The worker snapshot, and the live workers of the registry."""
    database = await scene.database()
    found = await Snapshots(database, scene.clock).latest()
    alive = len(await Workers(database, scene.clock).live())
    if found is None:
        return SnapshotFact(None, alive=alive)
    return SnapshotFact(max(0.0, found.age_ns / NS), found.writer, found.fence, len(found.workers), alive)


async def debt(scene: RunbookContext) -> DebtFact:
    """Queued jobs by tenant and pool, and jobs past their time limits."""
    database, now_ns = await scene.database(), scene.clock.now().wall
    states = scene.settings.limits.states

    async def work(tx: Tx) -> tuple[list[Row], list[Row], dict[str, int]]:
        overdue = {}
        for state in sorted(ACTIVE):
            limit_ns = states.limit_ns(state)
            if limit_ns is not None:
                values = {"state": str(state), "until_ns": now_ns, "limit_ns": limit_ns, "now_ns": now_ns}
                overdue[str(state)] = (await tx.query(_OVERDUE, values))[0]["jobs"]
        return await tx.query(_WAITING), await tx.query(_POOLS), overdue

    waiting, running, overdue = await database.read(work)
    pools = (await Workers(database, scene.clock).view(fresh=True)).pools or {}
    named = {row["pool"]: row["running"] for row in running}
    lines: Counter[str] = Counter()
    for row in waiting:
        lines[row["pool"]] += row["jobs"]
    return DebtFact(
        tenants=await _tenants(scene, database, waiting, now_ns),
        pools=tuple(
            PoolDebt(
                name,
                named.get(name, 0),
                pools[name].workers if name in pools else 0,
                pools[name].capacity if name in pools else 0,
                lines[name],
            )
            for name in sorted({*named, *pools, *lines})
            if lines[name] or named.get(name) or name in pools
        ),
        overdue=overdue,
    )


async def _tenants(
    scene: RunbookContext, database: Database, waiting: list[Row], now_ns: int
) -> tuple[TenantDebt, ...]:
    default = scene.settings.scheduler.tenant_slots
    known = {each.name: each for each in await Tenants(database, Slots(default)).page(limit=TENANTS)}
    lines: Counter[str] = Counter()
    oldest: dict[str, int] = {}
    for row in waiting:
        lines[row["tenant"]] += row["jobs"]
        oldest[row["tenant"]] = min(oldest.get(row["tenant"], now_ns), row["oldest_ns"])
    found = [
        TenantDebt(
            name,
            known[name].running if name in known else 0,
            known[name].slots if name in known else default,
            lines[name],
            max(0.0, (now_ns - oldest[name]) / NS) if name in oldest else 0.0,
        )
        for name in {*known, *lines}
    ]
    owing = (each for each in found if each.waiting or each.running)
    return tuple(sorted(owing, key=lambda each: (-each.waiting, -each.running, each.name)))


async def pending(scene: RunbookContext) -> PendingFact:
    """Queued messages, counted twice."""
    database = await scene.database()
    bus = open_bus(scene.settings.bus, database, scene.clock, scene.entropy)
    pools = [row["pool"] for row in await database.read(lambda tx: tx.query(_POOLS))]
    queues = {
        subject: groups
        for subject, groups in subjects.GROUPS.items()
        if groups and subject not in {subjects.WORK, subjects.STOP}
    }
    topics = {(each.pool, topic) for each in await Workers(database, scene.clock).all() for topic in each.topics}
    queues |= {subjects.work_subject(pool): (subjects.WORKERS,) for pool in pools}
    queues |= {subjects.work_subject(pool, topic): (subjects.WORKERS,) for pool, topic in sorted(topics)}
    try:
        first = {subject: await bus.pending(subject, groups[0]) for subject, groups in queues.items()}
        await pause(round(scene.given.spacing * NS))
        last = {subject: await bus.pending(subject, groups[0]) for subject, groups in queues.items()}
    finally:
        await together({"": bus.close}, CLOSE_NS)
    return PendingFact(first, last, scene.given.spacing)


async def retrying(scene: RunbookContext) -> RetryFact:
    """The retry delays, the jitter that the TTLs allow, and whether the bus keeps delays."""
    scheduler = scene.settings.scheduler
    families = (SCHEDULER_JOB, WORKER_JOB, WORKFLOW_RUN)
    ttls = {family.name: scene.ttl(family.name) or family.ttl for family in families}
    return RetryFact(
        delay=scheduler.busy_delay,
        jitter=await _jitter(scene),
        ttls=ttls,
        budgets={name: ttl / 3 for name, ttl in ttls.items()},
        carried=await _carried(scene),
    )


async def _jitter(scene: RunbookContext) -> float:
    """The jitter in effect; that of the settings if it cannot be read or was never switched."""
    try:
        switched = (await PlanePolicy(await scene.database(), scene.clock).view()).jitter
    except HoldfastError:
        switched = None
    return scene.settings.scheduler.busy_jitter if switched is None else switched.seconds


async def _carried(scene: RunbookContext) -> str:
    """Nack a message with the delay on a temporary bus, and measure when it is redelivered."""
    if scene.settings.bus is not None:
        return "whether NATS keeps the delay was not tested: that would write to your stream"
    wanted_ns = round(scene.settings.scheduler.busy_delay * NS)
    with tempfile.TemporaryDirectory(prefix="holdfast-runbook-") as directory:
        database = open_database(f"sqlite:///{Path(directory) / 'bus.db'}?synchronous=normal", clock=scene.clock)
        try:
            took_ns = await within(wanted_ns + 3 * NS, lambda: _given_back(scene, database, wanted_ns))
        finally:
            await within(CLOSE_NS, database.close)
    late = span((took_ns - wanted_ns) / NS)
    if took_ns < wanted_ns:
        return f"WRONG: a message nacked with a delay of {span(wanted_ns / NS)} was redelivered {late} too early"
    return f"the bus kept the delay of {span(wanted_ns / NS)} (a message was redelivered {late} after it)"


async def _given_back(scene: RunbookContext, database: Database, wanted_ns: int) -> int:
    async def bury(_delivery: Delivery, reason: str, code: str) -> None:
        raise AssertionError(f"a message whose lock was busy once was dead-lettered: {reason} ({code})")

    bus = EmbeddedBus(database, scene.clock, scene.entropy, dead=bury)
    await bus.prepare()
    seen: list[int] = []

    async def handle(_delivery: Delivery) -> None:
        seen.append(scene.clock.now().mono)
        if len(seen) == 1:
            busy = LockBusy("run lock busy")
            raise RetryLater(wanted_ns / NS, busy) from busy

    try:
        async with bus.consume(Consumption(subjects.SUBMIT, subjects.SCHEDULER, concurrency=1), handle):
            await bus.publish([Message("runbook", subjects.SUBMIT, {"job": "runbook"})])
            while len(seen) < 2:
                await pause(NS // 200)
    finally:
        await bus.close()
    return seen[1] - seen[0]


JOB_STEP: Final = RunbookStep(
    "job",
    "the job, its transitions, and the fences of their writes",
    ("holdfast jobs show <job>",),
    EvidenceSource.DATABASE,
    job,
    about="JOB",
)
RUN_STEP: Final = RunbookStep(
    "run",
    "the run, its last change, and steps that completed twice",
    ("holdfast runs show <run>", "holdfast runs timeline <run>"),
    EvidenceSource.DATABASE,
    workflow_run,
    about="RUN",
)
SNAPSHOT_STEP: Final = RunbookStep(
    "snapshot",
    "`sys:workers:snapshot`: its age, its writer and its fence",
    ("curl $ADDRESS/api/v1/snapshot",),
    EvidenceSource.DATABASE,
    snapshot,
)
DEBT_STEP: Final = RunbookStep(
    "debt",
    "queued jobs by tenant and pool, the limits of tenants, and jobs past their time limits",
    ("holdfast jobs stats", "holdfast jobs list --state PENDING"),
    EvidenceSource.DATABASE,
    debt,
)
PENDING_STEP: Final = RunbookStep(
    "pending",
    "queued messages, counted twice to show growth",
    ("nats stream info HOLDFAST",),
    EvidenceSource.DATABASE,
    pending,
    lambda scene: scene.given.spacing,
)
RETRY_STEP: Final = RunbookStep(
    "retrying",
    "the delay and jitter of retries of busy locks, the TTLs that limit them, and whether the bus keeps delays",
    ("holdfast up --check",),
    EvidenceSource.SETTINGS,
    retrying,
    lambda scene: scene.settings.scheduler.busy_delay + 3,
)
