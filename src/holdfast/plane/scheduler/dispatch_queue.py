"""What waits for the workers of a pool, as a dispatcher looks at it: tenants, and of each the first jobs in line.

Promises: a look costs the same however many jobs are stored or wait. It is a look and nothing more: what it finds may
have changed a moment later, and is decided under the job's lock. SQLite is asked in steps, which cost nothing there;
Postgres is asked once, as each question is a round trip. Both find the same. Jobs of topics that have fewer places than
the pool are not in these lines; those of them that may go join them (`asides`), if whoever looks wants to know.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from holdfast.plane.db.ports import Tx
from holdfast.plane.db.statements import sql
from holdfast.plane.scheduler.fair_share import Line
from holdfast.plane.scheduler.topic_backlog import Going, Looked, PoolBacklog, Scarce, join, look_aside

TENANTS: Final = 256  # read in one go

_TENANTS: Final = sql("queue_tenants")
_LINE: Final = sql("queue_line")
_LOOK: Final = sql("queue_look_postgres")
_RUNNING: Final = "SELECT running FROM plane_pool WHERE pool = :pool"


class Look(NamedTuple):
    """What is looked at."""

    pool: str
    capacity: int  # how many jobs its workers can take
    batch: int  # how many are handed out at once
    after: str = ""  # the tenant that had the last turn
    passed: frozenset[str] = frozenset()  # jobs that are left alone for now
    slots: int | None = None  # how many jobs of a tenant may be with workers, unless its own row says otherwise
    scarce: Scarce | None = None  # topics that have fewer places; None: nobody waits for one


@dataclass(frozen=True, slots=True)
class Found:
    """What waits in a pool."""

    free: int
    lines: tuple[Line, ...] = ()
    examined: str | None = None  # the last tenant that was looked at
    more: bool = False  # there is more than what was read
    asides: PoolBacklog = field(default_factory=PoolBacklog)

    @property
    def going(self) -> Mapping[str, Going]:
        """By job, those in the lines that have waited for a place of their topic."""
        return self.asides.going


class _Waiting(NamedTuple):
    """One tenant who has jobs waiting."""

    tenant: str
    running: int
    slots: int | None
    jobs: Sequence[str]


async def look(tx: Tx, at: Look) -> Found:
    """See the module."""
    free, depth, tenants = await (_at_once(tx, at) if tx.dialect == "postgres" else _in_steps(tx, at))
    lines: list[Line] = []
    more = len(tenants) == TENANTS
    for each in tenants:
        limit = at.slots if each.slots is None else each.slots
        room = None if limit is None else limit - each.running
        if room is not None and room <= 0:
            continue
        more = more or len(each.jobs) > depth
        lines.append(Line(each.tenant, tuple(job for job in each.jobs if job not in at.passed), room))
    asides = PoolBacklog()
    if at.scarce is not None and free > 0:
        asides = await look_aside(tx, Looked(at.pool, min(free, at.batch), at.passed, at.slots), at.scarce)
        until = tenants[-1].tenant if len(tenants) == TENANTS else None
        lines = [*await join(tx, lines, asides, at.after, until)]
    return Found(free, tuple(lines), tenants[-1].tenant if tenants else None, more, asides)


async def _at_once(tx: Tx, at: Look) -> tuple[int, int, list[_Waiting]]:
    wanted = {"pool": at.pool, "capacity": at.capacity, "batch": at.batch, "after": at.after, "most": TENANTS}
    rows = await tx.query(_LOOK, {**wanted, "beside": len(at.passed)})
    tenants = [
        _Waiting(row["tenant"], row["running"], row["slots"], row["jobs"]) for row in rows if row["tenant"] is not None
    ]
    return at.capacity - rows[0]["in_pool"], rows[0]["depth"] or 0, tenants


async def _in_steps(tx: Tx, at: Look) -> tuple[int, int, list[_Waiting]]:
    running = await tx.query(_RUNNING, {"pool": at.pool})
    free = at.capacity - (running[0]["running"] if running else 0)
    if free <= 0:
        return free, 0, []
    rows = await tx.query(_TENANTS, {"pool": at.pool, "after": at.after, "most": TENANTS})
    if at.after and len(rows) < TENANTS:
        first = await tx.query(_TENANTS, {"pool": at.pool, "after": "", "most": TENANTS - len(rows)})
        rows += [each for each in first if each["tenant"] <= at.after]
    depth = -(-min(free, at.batch) // max(1, len(rows))) + len(at.passed)
    tenants: list[_Waiting] = []
    for row in rows:
        jobs = [row["head"]]
        if depth > 1 or len(rows) == 1:
            values = {"pool": at.pool, "tenant": row["tenant"], "most": depth + 1}
            jobs = [each["id"] for each in await tx.query(_LINE, values)]
        tenants.append(_Waiting(row["tenant"], row["running"], row["slots"], jobs))
    return free, depth, tenants
