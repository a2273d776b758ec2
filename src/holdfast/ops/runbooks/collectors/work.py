"""Collects facts about the work and the workers of a plane, and about leases that the store has lost. Read-only."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Final

from holdfast.errors import HoldfastError
from holdfast.ops.runbooks.evidence.work import FleetFact, MissingLeases, WorkerFact, WorkFact
from holdfast.ops.runbooks.model import EvidenceSource, RunbookStep
from holdfast.ops.runbooks.sources import RunbookContext
from holdfast.plane.db.ports import Row, Tx
from holdfast.plane.db.statements import sql
from holdfast.plane.fleet.registry import TTL_NS, Workers
from holdfast.plane.locks.registry import WORKER_JOB
from holdfast.plane.model.records import Heartbeat
from holdfast.plane.service.overview import Overview
from holdfast.plane.settings.lock_times import family_in_effect
from holdfast.runtime.gather import in_thread, pause
from holdfast.types import NS

INSPECTED: Final = 50
"""Running jobs whose leases are inspected."""

_ATTEMPTS: Final = sql("overview_attempts")
_ON_WORKERS: Final = sql("overview_on_workers")
_LOSSES: Final = sql("signal_losses")


async def work(scene: RunbookContext) -> WorkFact:
    """Queues, attempts, dead letters and approvals."""
    database = await scene.database()
    reader = Overview(database, Workers(database, scene.clock), scene.clock)
    return WorkFact(await reader.read(letters_ns=round(scene.given.window * NS)))


async def fleet(scene: RunbookContext) -> FleetFact:
    """The workers, and on this host the state of their processes."""
    database = await scene.database()
    registry = Workers(database, scene.clock)
    now_ns = scene.clock.now().wall
    jobs = {row["worker"]: row["jobs"] for row in await database.read(lambda tx: tx.query(_ON_WORKERS))}
    known = await registry.all()
    live = await registry.live()
    states = await in_thread(lambda: {each.worker: process_state(each) for each in known})
    return FleetFact(
        tuple(_worker(each, now_ns, jobs.get(each.worker, 0), states[each.worker]) for each in known),
        scene.settings.worker.heartbeat,
        TTL_NS / NS,
        dict(Counter(each.pool for each in live if not each.draining)),  # `asdict` spoils a Counter
    )


def _worker(heartbeat: Heartbeat, now_ns: int, jobs: int, process: str) -> WorkerFact:
    return WorkerFact(
        *(
            heartbeat.worker,
            heartbeat.pool,
            heartbeat.topics,
            heartbeat.capacity,
            heartbeat.active,
            (now_ns - heartbeat.at_ns) / NS,
        ),
        *(
            heartbeat.host,
            heartbeat.pid,
            heartbeat.draining,
            heartbeat.draining and heartbeat.capacity == 0,
            jobs,
            process,
        ),
    )


def process_state(heartbeat: Heartbeat) -> str:
    """The state of a worker's process, if it runs on this host; "": unknown."""
    if heartbeat.host != os.uname().nodename:
        return ""
    try:
        os.kill(heartbeat.pid, 0)
        state = Path(f"/proc/{heartbeat.pid}/stat").read_text().rpartition(")")[2].split()[0]
    except ProcessLookupError:
        return "gone"
    except (OSError, IndexError):
        return ""
    return {"T": "stopped", "t": "stopped", "Z": "gone"}.get(state, "running")


async def missing_leases(scene: RunbookContext) -> MissingLeases:
    """Running jobs whose lease the store does not have, in two inspections, and leases that processes have lost."""
    database, locks = await scene.database(), scene.locks()
    family = family_in_effect(scene.settings, WORKER_JOB)
    rows = await database.read(lambda tx: tx.query(_ATTEMPTS, {"most": INSPECTED, "since_ns": 0}))
    first = {row["id"]: row["attempt"] for row in rows}
    missing = [each for each in first if not (await locks.inspect(family.key(job=each))).held]
    if missing:  # between the two, an attempt may have ended or begun
        await pause(NS)
        again = await database.read(lambda tx: tx.query(_ATTEMPTS, {"most": INSPECTED, "since_ns": 0}))
        same = {row["id"] for row in again if first.get(row["id"]) == row["attempt"]}
        missing = [each for each in missing if each in same and not (await locks.inspect(family.key(job=each))).held]
    since_ns = scene.clock.now().wall - round(scene.given.window * NS)

    async def read(tx: Tx) -> list[Row]:
        return list(await tx.query(_LOSSES, {"since_ns": since_ns}))

    lost = await database.read(read)
    families: Counter[str] = Counter()
    buckets: Counter[int] = Counter()
    processes: dict[int, set[str]] = {}
    for row in lost:
        families[row["family"]] += row["number"]
        buckets[row["bucket_ns"]] += row["number"]
        processes.setdefault(row["bucket_ns"], set()).add(row["process"])
    worst = max(buckets, key=lambda each: buckets[each], default=0)
    try:
        records = await locks.audit(1000)
    except HoldfastError:
        records = []
    forced = sum(each.at.timestamp() * NS >= since_ns for each in records)
    return MissingLeases(
        *(len(first), tuple(missing), dict(families), buckets[worst], len(processes.get(worst, ()))),
        *(forced, scene.given.window),
    )


WORK_STEP: Final = RunbookStep(
    "work",
    "the oldest waiting jobs, the longest attempts, recent dead letters, and approvals",
    ("holdfast jobs list --state PENDING", "holdfast jobs list --state RUNNING", "holdfast jobs dead-letters"),
    EvidenceSource.DATABASE,
    work,
)
FLEET_STEP: Final = RunbookStep(
    "workers",
    "every worker, its last heartbeat, and on this host its process",
    ("curl $ADDRESS/api/v1/workers",),
    EvidenceSource.DATABASE,
    fleet,
)
MISSING_STEP: Final = RunbookStep(
    "leases",
    "whether running jobs have their leases in the store, and leases that processes have lost",
    ("holdfast locks holdfast:worker:job:",),
    EvidenceSource.LEASES,
    missing_leases,
)
