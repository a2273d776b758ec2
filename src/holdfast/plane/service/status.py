"""The current status of a plane for its observers: unfinished jobs, recent ends, dead letters; no payloads.

Promises: `briefs`, which is read often, reads only index entries of the jobs that it returns, however many are stored,
and no user data. `tally` reads every job once, for all tenants; the caller limits how often.

Clock: the wall clock, like the end times of jobs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from holdfast.plane.db.ports import Database, Row, Tx
from holdfast.plane.db.statements import sql
from holdfast.plane.model.job_states import ACTIVE, JobState
from holdfast.plane.model.records import check_whole
from holdfast.types import NS, check_label

NEWEST: Final = 100
AT_HAND: Final = 40
LETTERS: Final = 20
MOST: Final = 500

SPAN_NS: Final = 5 * NS
SPANS: Final = 60  # five minutes of them

_NEWEST_ALL: Final = sql("status_newest_all")
_NEWEST_TENANT: Final = sql("status_newest_tenant")
_AT_HAND: Final = sql("status_active")
_DEAD_JOBS_ALL: Final = sql("status_dead_jobs_all")
_DEAD_JOBS_TENANT: Final = sql("status_dead_jobs_tenant")
_TALLY: Final = sql("status_counts")
_DEAD: Final = sql("status_dead")


@dataclass(frozen=True, slots=True)
class StatusEntry:
    """A job as an entry of a list that is read often: no payload and no labels."""

    id: str
    tenant: str
    topic: str
    pool: str
    state: JobState
    attempt: int
    max_attempts: int
    created_ns: int
    updated_ns: int
    version: int
    fence: int | None
    run_fence: int | None
    worker: str | None
    reason: str | None
    fraction: float | None = None  # of the work of its current attempt, as reported
    note: str | None = None


@dataclass(frozen=True, slots=True)
class EndedJobs:
    """The number of jobs that ended in each span, oldest first. The last span is not complete."""

    succeeded: tuple[int, ...]
    otherwise: tuple[int, ...]
    until_ns: int  # when it was read

    @property
    def per_second(self) -> float:
        """Ends per second over the last minute."""
        whole = 60 * NS // SPAN_NS
        spans = slice(-whole - 1, None)
        return (sum(self.succeeded[spans]) + sum(self.otherwise[spans])) * NS / (60 * NS + self.until_ns % SPAN_NS)


@dataclass(frozen=True, slots=True)
class JobCounts:
    """Counts of all jobs."""

    at_ns: int
    states: Mapping[tuple[str, JobState], int]  # by tenant
    ends: Mapping[tuple[str, bool, int], int]  # by tenant, whether it succeeded, and span
    dead: Mapping[str, int]  # dead letters that were not retried, by tenant
    retried: Mapping[str, int]  # failed attempts of steps that allow more attempts, by tenant; `ends` is without them

    def counts(self, tenant: str | None) -> dict[JobState, int]:
        """The number of jobs in each state, zeros included."""
        found = Counter[JobState]()
        for (whose, state), jobs in self.states.items():
            if tenant in (None, whose):
                found[state] += jobs
        return {state: found[state] for state in JobState}

    def ended(self, tenant: str | None) -> EndedJobs:
        """Recent ends."""
        last = self.at_ns // SPAN_NS
        found = Counter[tuple[bool, int]]()
        for (whose, well, span), jobs in self.ends.items():
            if tenant in (None, whose):
                found[well, min(span, last)] += jobs  # another host's clock may be ahead
        spans = range(last - SPANS + 1, last + 1)
        return EndedJobs(
            tuple(found[True, each] for each in spans), tuple(found[False, each] for each in spans), self.at_ns
        )

    def letters(self, tenant: str | None) -> int:
        """Dead letters that were not retried."""
        return sum(number for whose, number in self.dead.items() if tenant in (None, whose))

    def attempts_retried(self, tenant: str | None) -> int:
        """Failed jobs after which their workflow step is tried again."""
        return sum(number for whose, number in self.retried.items() if tenant in (None, whose))


class StatusQueries:
    """Queries of the status page."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def briefs(self, *, tenant: str | None, newest: int = NEWEST, each: int = AT_HAND) -> list[StatusEntry]:
        """The newest jobs, the last changed ones of each unfinished state, and the last dead ones; newest first."""
        values = {"tenant": None if tenant is None else check_label("tenant", tenant)}
        latest = {**values, "most": check_whole("newest", newest, 1, MOST)}
        at_hand = {**values, "most": check_whole("each", each, 1, MOST)}
        dead = {**values, "most": LETTERS}

        async def work(tx: Tx) -> list[Row]:
            rows = list(await tx.query(_NEWEST_ALL if tenant is None else _NEWEST_TENANT, latest))
            rows += await tx.query(_DEAD_JOBS_ALL if tenant is None else _DEAD_JOBS_TENANT, dead)
            for state in sorted(ACTIVE):
                rows += await tx.query(_AT_HAND, {**at_hand, "state": str(state)})
            return rows

        found = {row["id"]: row for row in await self._database.read(work)}
        rows = sorted(found.values(), key=lambda row: (row["created_ns"], row["id"]), reverse=True)
        return [_brief(row) for row in rows]

    async def tally(self, now_ns: int) -> JobCounts:
        """Count the jobs of all tenants."""
        first = now_ns // SPAN_NS - SPANS + 1
        values = {"since_ns": first * SPAN_NS, "span_ns": SPAN_NS}

        async def work(tx: Tx) -> tuple[list[Row], list[Row]]:
            return list(await tx.query(_TALLY, values)), list(await tx.query(_DEAD))

        jobs, dead = await self._database.read(work)
        states, ends = Counter[tuple[str, JobState]](), Counter[tuple[str, bool, int]]()
        retried = Counter[str]()
        for row in jobs:
            state = JobState(row["state"])
            states[row["tenant"], state] += row["jobs"]
            if row["again"]:
                retried[row["tenant"]] += row["jobs"]
            elif row["span"] >= 0:
                ends[row["tenant"], state is JobState.SUCCEEDED, row["span"]] += row["jobs"]
        return JobCounts(now_ns, states, ends, {row["tenant"]: row["letters"] for row in dead}, retried)


def _brief(row: Row) -> StatusEntry:
    return StatusEntry(
        id=row["id"],
        tenant=row["tenant"],
        topic=row["topic"],
        pool=row["pool"],
        state=JobState(row["state"]),
        attempt=row["attempt"],
        max_attempts=row["max_attempts"],
        created_ns=row["created_ns"],
        updated_ns=row["updated_ns"],
        version=row["version"],
        fence=row["holdfast_fence"],
        run_fence=row["run_fence"],
        worker=row["worker"],
        reason=row["reason"],
        fraction=row.get("fraction"),
        note=row.get("note"),
    )
