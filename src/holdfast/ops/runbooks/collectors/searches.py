"""Searches for suspects: jobs that may have run twice, and runs that may be stuck. Read-only.

Pure functions over records, rows and inspections decide what is suspicious (`suspects_of_records`, …); the steps at the
end gather those. A suspect need not be wrong: a second attempt may be a normal retry. The runbook examines each suspect
and reports the result.

Promises: no search scans all stored jobs or runs, only the newest jobs (`JOBS_MAX`), those at work, and the runs that
were unchanged for longest (`RUNS_MAX`). An id that no job or run can have is ignored.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from holdfast.core.history.events import EventKind, Record
from holdfast.errors import BadInput
from holdfast.ops.runbooks.collectors.locks import LOOKED_AT, ledger_place
from holdfast.ops.runbooks.collectors.plane import is_at_rest
from holdfast.ops.runbooks.evidence.ledger import recent
from holdfast.ops.runbooks.evidence.locks import LockFact, number, span
from holdfast.ops.runbooks.model import EvidenceSource, Fact, RunbookStep
from holdfast.ops.runbooks.sources import RunbookContext
from holdfast.ops.runbooks.suspects import SUSPECTS_MAX, Suspect, SuspectsFact, lately
from holdfast.plane.db.ports import Database, Row, Tx
from holdfast.plane.db.statements import sql
from holdfast.plane.locks.registry import SCHEDULER_JOB, WORKER_JOB, WORKFLOW_RUN, LockFamily
from holdfast.plane.model.records import check_id
from holdfast.plane.settings.consistency import takeovers
from holdfast.plane.settings.lock_times import family_in_effect
from holdfast.plane.settings.settings import Settings
from holdfast.runtime.gather import in_thread
from holdfast.types import NS

JOBS_MAX: Final = 1000
RUNS_MAX: Final = 50
HELD_S: Final = 1.0
"""A run lock that was held for so long, or that a caller waits for, is suspicious: a transition takes milliseconds."""

_JOBS: Final = sql("job_suspects")
_UNMOVED: Final = sql("run_unchanged")
_RUN: Final = sql("run_get")

# Ledger events about a lock that make its job or run a suspect, the worst first.
_SIGNS: Final[Mapping[EventKind, tuple[str, str]]] = {
    EventKind.DUPLICATE: ("second end refused", "second ends refused"),
    EventKind.WRITE: ("write fenced out", "writes fenced out"),
    EventKind.LOST: ("lease lost", "leases lost"),
    EventKind.RELEASE_REFUSED: ("release refused", "releases refused"),
    EventKind.TIMED_OUT: ("wait that timed out", "waits that timed out"),
    EventKind.BUSY: ("time busy", "times busy"),
}
_WORST: Final = {kind: rank for rank, kind in enumerate(reversed(list(_SIGNS)), 1)}
_GRAVE: Final = frozenset({EventKind.DUPLICATE, EventKind.WRITE})
JOB_SIGNS: Final = frozenset({EventKind.DUPLICATE, EventKind.WRITE, EventKind.LOST, EventKind.RELEASE_REFUSED})
RUN_SIGNS: Final = frozenset(
    {EventKind.WRITE, EventKind.LOST, EventKind.RELEASE_REFUSED, EventKind.TIMED_OUT, EventKind.BUSY}
)


def id_in(key: str, *families: LockFamily) -> str | None:
    """The job or run of a lock. None if the key is of no such family, or contains no valid id."""
    for family in families:
        prefix = family.pattern.partition("{")[0]
        if key.startswith(prefix):
            try:
                return check_id("id", key.removeprefix(prefix))
            except BadInput:
                return None
    return None


# Ledger.


@dataclass(slots=True)
class _Seen:
    """The ledger records of one job or run."""

    newest_ns: int = 0
    kinds: Counter[EventKind] = field(default_factory=Counter)

    @property
    def worst(self) -> int:
        return max(_WORST[kind] for kind in self.kinds)


def is_sign(record: Record, kinds: frozenset[EventKind]) -> bool:
    """Whether a record makes its job or run a suspect. Pure."""
    return record.kind in kinds and not (record.kind is EventKind.WRITE and record.ok)


def suspects_of_records(records: Sequence[Record], now_ns: int, *families: LockFamily) -> list[Suspect]:
    """By the worst record, then the newest first. Pure."""
    seen: dict[str, _Seen] = {}
    for record in records:
        found = id_in(record.key, *families)
        if found is not None:
            about = seen.setdefault(found, _Seen())
            about.kinds[record.kind] += 1
            about.newest_ns = max(about.newest_ns, record.at_ns)
    ranked = sorted(seen.items(), key=lambda each: (-each[1].worst, -each[1].newest_ns, each[0]))
    grave = min(map(_WORST.__getitem__, _GRAVE))
    return [Suspect(name, _recorded(about, now_ns), about.worst >= grave) for name, about in ranked]


def _recorded(about: _Seen, now_ns: int) -> str:
    signs = [number(about.kinds[kind], one, many) for kind, (one, many) in _SIGNS.items() if about.kinds[kind]]
    return f"{', '.join(signs)}, the last {span(max(0.0, (now_ns - about.newest_ns) / NS))} ago"


def _ledger_search(
    noun: str, looks_at: str, by_hand: str, kinds: frozenset[EventKind], *families: LockFamily
) -> RunbookStep:
    async def gather(scene: RunbookContext) -> Fact:
        path, limit_ns = ledger_place(scene)
        window_s, now_ns = scene.given.window, scene.clock.now().wall
        look = await in_thread(
            lambda: recent(
                path, scene.clock, lambda record: is_sign(record, kinds), window_s=window_s, limit_ns=limit_ns
            )
        )
        looked_at = (
            f"{number(look.findings.records, 'record', 'records')} of the ledger, for problems with locks of "
            f"{noun}s in the last {lately(window_s)}"
        )
        wanted = [family_in_effect(scene.settings, family) for family in families]
        ranked = suspects_of_records(look.records, now_ns, *wanted)
        return SuspectsFact.of(looked_at, ranked, complete=look.complete)

    return RunbookStep(f"{noun}s in ledger", looks_at, (by_hand,), EvidenceSource.LEDGER, gather)


# Jobs in the database.


def suspects_of_jobs(rows: Sequence[Row], now_ns: int) -> list[Suspect]:
    """Jobs that ended twice, then those with more dispatches than attempts, then retried ones. Pure."""
    ranked = sorted(
        ((rank, row) for row in rows if (rank := _rank(row))), key=lambda each: (-each[0], -each[1]["updated_ns"])
    )
    return [Suspect(row["id"], _repeated(row, now_ns), grave=rank > 1) for rank, row in ranked]


def _rank(row: Row) -> int:
    return 3 if row["ends"] > 1 else 2 if row["dispatches"] > row["attempt"] else 1 if row["attempt"] > 1 else 0


def _repeated(row: Row, now_ns: int) -> str:
    said = [f"ended {row['ends']} times"] if row["ends"] > 1 else []
    if row["dispatches"] > row["attempt"]:
        said.append(f"dispatched {number(row['dispatches'], 'time', 'times')}")
    said.append(f"attempt {row['attempt']} of {row['max_attempts']}")
    ago = span(max(0.0, (now_ns - row["updated_ns"]) / NS))
    return f"{', '.join(said)}, {row['state']} since {ago} ago"


async def jobs_in_database(scene: RunbookContext) -> SuspectsFact:
    """Recent jobs that were tried, dispatched or ended more than once."""
    database, now_ns, window_s = await scene.database(), scene.clock.now().wall, scene.given.window
    values = {"since_ns": now_ns - round(window_s * NS), "most": JOBS_MAX}
    rows = await database.read(lambda tx: tx.query(_JOBS, values))
    looked_at = (
        f"{number(len(rows), 'job', 'jobs')} of the database that changed in the last {lately(window_s)}, of the "
        f"{JOBS_MAX:,} newest and of those at work in a later attempt"
    )
    return SuspectsFact.of(looked_at, suspects_of_jobs(rows, now_ns))


# Runs in the lease store and in the database.


def suspects_of_locks(locks: Sequence[LockFact], family: LockFamily = WORKFLOW_RUN) -> list[Suspect]:
    """Runs whose lock is held for longer than its TTL, then those with waiters, the longest first. Pure."""

    def stuck(lock: LockFact) -> bool:
        return (lock.age or 0.0) >= (lock.ttl or WORKFLOW_RUN.ttl)

    def rank(lock: LockFact) -> tuple[bool, bool, float]:
        return stuck(lock), lock.waiters > 0, lock.age or 0.0

    found = [lock for lock in locks if lock.waiters or (lock.age or 0.0) >= HELD_S]
    ranked = ((id_in(lock.key, family), lock) for lock in sorted(found, key=rank, reverse=True))
    return [Suspect(run, _held(lock), stuck(lock)) for run, lock in ranked if run is not None]


def _held(lock: LockFact) -> str:
    waiting = f", and {number(lock.waiters, 'waits', 'wait')}" if lock.waiters else ""
    return f"its lock is held by {lock.owner or '?'} for {span(lock.age)}{waiting}"


async def runs_in_leases(scene: RunbookContext) -> SuspectsFact:
    """Runs whose lock is held or waited for now."""
    family = family_in_effect(scene.settings, WORKFLOW_RUN)
    looks = await scene.locks().list(family.pattern.partition("{")[0], LOOKED_AT)
    now_ns, ttl = scene.clock.now().wall, scene.ttl(WORKFLOW_RUN.name)
    locks = [LockFact.of(look, now_ns, ttl) for look in looks]
    looked_at = (
        f"{number(len(locks), 'run lock that is', 'run locks that are')} held now, for one held for {span(HELD_S)} or "
        f"waited for"
    )
    return SuspectsFact.of(looked_at, suspects_of_locks(locks, family), complete=len(locks) < LOOKED_AT)


def run_bound(settings: Settings) -> float:
    """How long a movable run may stay unchanged after a crash: until another engine, or a loop, takes it over."""
    keys = {"engine.run_ttl", "runs.interval", "delays.interval"}
    return max(each.seconds for each in takeovers(settings) if each.key in keys)


async def runs_in_database(scene: RunbookContext) -> SuspectsFact:
    """Runs that have not advanced for longer than a crash explains, and that have nothing to wait for."""
    database, now_ns = await scene.database(), scene.clock.now().wall
    bound = run_bound(scene.settings)
    values = {"until_ns": now_ns - round(bound * NS), "most": RUNS_MAX}
    rows = await database.read(lambda tx: tx.query(_UNMOVED, values))
    found: list[Suspect] = []
    for row in rows:  # one at a time: each document may have megabytes
        if len(found) >= SUSPECTS_MAX:
            break
        late = row["wake_ns"] is not None and row["wake_ns"] <= values["until_ns"]
        if late or await _at_rest(database, row["id"], now_ns):
            idle = span((now_ns - row["updated_ns"]) / NS)
            why = "its timer is due" if late else "none of its steps runs"
            found.append(Suspect(row["id"], f"unchanged for {idle}, and {why}", grave=True))
    looked_at = (
        f"{number(len(rows), 'run', 'runs')} of the database that did not change for {span(bound)} and that "
        f"{'waits' if len(rows) == 1 else 'wait'} for no approval, of the {RUNS_MAX} longest unchanged"
    )
    return SuspectsFact.of(looked_at, found)


async def _at_rest(database: Database, run: str, now_ns: int) -> bool:
    async def work(tx: Tx) -> bool:
        rows = await tx.query(_RUN, {"id": run})  # no row: it has finished, and was deleted meanwhile
        return bool(rows) and await is_at_rest(tx, rows[0], now_ns)

    return await database.read(work)


JOBS_IN_LEDGER: Final = _ledger_search(
    "job",
    "jobs with second ends, writes that were fenced out, lost leases, or refused releases",
    "holdfast check LEDGER --since 15m",
    JOB_SIGNS,
    *(SCHEDULER_JOB, WORKER_JOB),
)
JOBS_IN_DATABASE: Final = RunbookStep(
    "jobs in database",
    "recent jobs that ended twice, were dispatched more often than attempted, or were retried",
    ("holdfast jobs list",),
    EvidenceSource.DATABASE,
    jobs_in_database,
)
RUNS_IN_LEASES: Final = RunbookStep(
    "runs in lease store",
    f"runs whose lock is held for {HELD_S:g} s or longer, or waited for",
    (f"holdfast locks {WORKFLOW_RUN.pattern.partition('{')[0]}",),
    EvidenceSource.LEASES,
    runs_in_leases,
)
RUNS_IN_LEDGER: Final = _ledger_search(
    "run",
    "runs whose lock was busy, timed out, was lost, or whose release was refused",
    "holdfast check LEDGER --since 15m",
    RUN_SIGNS,
    WORKFLOW_RUN,
)
RUNS_IN_DATABASE: Final = RunbookStep(
    "runs in database",
    "runs that have not advanced for longer than a crash explains, while none of their steps runs",
    ("holdfast runs list --status running",),
    EvidenceSource.DATABASE,
    runs_in_database,
)
