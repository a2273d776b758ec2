"""Runs in the database: read, decided and written under a lease in one transaction, with all effects.

A decision whose expressions cost more than `IN_TRANSACTION_COST` is made outside of the transaction, in a thread. It is
written only if the run still has the version that was decided about.

Promises:

- A write is refused, and changes nothing, if a newer fence has written the run (`FencedOut`).
- Under a degraded lease, which has no fence, the run is still read and written in one transaction, so no decision is
  made from stale data.
- The jobs, gates and runs that a run starts or stops, its timeline and the message about its end are part of the same
  transaction: a step is never marked as started without its job, or the other way round.
- A job's id names run, step and attempt, so a repeated submission makes one job.

Does not promise that a stopped job has stopped: the request is stored.

Clock: the wall clock, for delays, deadlines and people.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from holdfast.core.failpoints import ARMED, areach
from holdfast.core.lease.fencing import Absent, Accepted, Outcome, Rule, Stale, accepts
from holdfast.core.ports import Clock, Entropy, Observer
from holdfast.errors import RowExists, RowMissing, Unavailable
from holdfast.guards.admission import Admission, GuardStatistics
from holdfast.guards.bearer import Bearer
from holdfast.plane.db.migrations import prepare
from holdfast.plane.db.ports import Bus, Database, Row, Tx
from holdfast.plane.db.statements import script, sql
from holdfast.plane.locks.registry import WORKFLOW_RUN, LockFamily
from holdfast.plane.model import messages as subjects
from holdfast.plane.model.paging import Place
from holdfast.plane.model.records import check_id
from holdfast.plane.workflows.core.run import Advance, EventOutcome, Run, RunRequest, RunStatus, StoredRun
from holdfast.plane.workflows.core.run_codec import RunText
from holdfast.plane.workflows.definitions import Definitions
from holdfast.plane.workflows.effects import AppliedEffects, EffectRunner, Gates, over
from holdfast.plane.workflows.expression_quota import ExpressionQuota
from holdfast.plane.workflows.expressions.builtins import Budget, OverBudget
from holdfast.plane.workflows.run_cache import CachedRun, RunCache
from holdfast.plane.workflows.run_quotas import RunQuotas
from holdfast.plane.workflows.run_rows import (
    RunEvent,
    RunOutline,
    changed_values,
    event_of,
    line_values,
    run_of,
    run_outline_of,
    stored_run,
)
from holdfast.types import MS, NS

NEAR_NS: Final = 10 * NS
"""A due time within this span is awaited by a delayed message; the timer loop handles later ones."""

HELD_BACK_NS: Final = NS

IN_TRANSACTION_COST: Final = 40_000
"""Units (`expressions.builtins`) that expressions may cost inside of a transaction: about 20 milliseconds."""

_TRIES: Final = 5  # of a decision outside of a transaction; the run's lock excludes others, so one is usually enough
_FIRST: Final = (0, -1)

_GET: Final = sql("run_get")
_HEAD: Final = sql("run_head")
_RISK: Final = sql("run_risk")
_FENCE: Final = sql("run_fence")
_LOCKING: Final = {"sqlite": "", "postgres": " FOR UPDATE"}  # SQLite has one writer at a time anyway
_BY_KEY: Final = sql("run_by_key")
_CHANGE: Final = sql("run_change")
_WAKE: Final = sql("run_wake")
_LINE: Final = sql("run_event_insert")
_LINES: Final = sql("run_events")
_LIST_ALL: Final = sql("run_list_all")
_LIST_TENANT: Final = sql("run_list_tenant")
_LIST_STATUS: Final = sql("run_list_status")
_LIST_WORKFLOW: Final = sql("run_list_workflow")
_COUNT: Final = sql("run_count")


@dataclass(frozen=True, slots=True)
class ChangedRun:
    """A run before and after a `change`. Both are None without a run; `after` is None if nothing was written."""

    before: StoredRun | None
    after: StoredRun | None
    outcome: EventOutcome = EventOutcome.UNKNOWN
    held_back: tuple[str, ...] = ()
    repeated: tuple[str, ...] = ()  # jobs that were to be inserted and existed
    submitted: int = 0  # inserted jobs


@dataclass(frozen=True, slots=True)
class _TooLong:
    """The decision costs more than a transaction may take. Nothing was written."""

    run: StoredRun


class RunStore:
    """The runs of one plane."""

    def __init__(
        self,
        database: Database,
        bus: Bus,
        definitions: Definitions,
        gates: Gates,
        clock: Clock,
        entropy: Entropy,
        *,
        observer: Observer | None = None,
        quotas: RunQuotas | None = None,
        family: LockFamily = WORKFLOW_RUN,
    ) -> None:
        """`observer` is notified of refused writes. `family`: of the locks under which runs are written."""
        self.database = database
        self.clock = clock
        self.entropy = entropy
        self.definitions = definitions
        self._bus = bus
        self._memory = RunCache()
        self._apart = asyncio.Semaphore()
        self.expression_quota = ExpressionQuota(clock, entropy.below)
        self.decided_apart = 0  # decisions that were too costly for a transaction
        self._consequences = EffectRunner(bus, definitions, gates, clock, quotas)
        self._admission = Admission(
            *("plane:runs", family.name),
            names=("run",),
            key=family.pattern,
            allow_degraded=True,
            observer=observer,
            clock=clock,
        )

    async def prepare(self) -> None:
        """Create the tables if they are missing."""
        await prepare(self.database, "run_schema")

    def statistics(self) -> GuardStatistics:
        """Writes that the guard of the runs has accepted and refused."""
        return self._admission.statistics()

    # Insert and queries.

    async def start(self, run: Run, scope: str, about: RunRequest) -> tuple[StoredRun, bool]:
        """Insert a new run and request its first advance. The same idempotency key returns the first run.

        Also returns whether it was inserted. `RowExists`: its id is taken. `TooManyRuns`: a quota is reached.
        """
        check_id("run", run.id)

        async def work(tx: Tx) -> tuple[StoredRun, bool]:
            if (known := await self._known(tx, run.tenant, about.idempotency_key)) is not None:
                return known, False
            if (made := await self._consequences.make(tx, run, scope, about)) is not None:
                return made, True
            if (known := await self._known(tx, run.tenant, about.idempotency_key)) is not None:
                return known, False  # another caller was faster with the same key
            raise RowExists(f"the run id {run.id!r} is taken; choose another, or none")

        if ARMED:
            await areach("plane.run.start")
        kept = await self.database.write(work)
        if ARMED:
            await areach("plane.run.started")
        return kept

    async def get(self, run_id: str) -> StoredRun | None:
        """One run, or None."""
        check_id("run", run_id)

        async def work(tx: Tx) -> StoredRun | None:
            rows = await tx.query(_GET, {"id": run_id})
            return await self._stored(tx, rows[0]) if rows else None

        return await self.database.read(work)

    async def risk(self, run_id: str) -> str | None:
        """The risk class of a run, without reading its document; None: no such run."""
        rows = await self.database.read(lambda tx: tx.query(_RISK, {"id": check_id("run", run_id)}))
        return rows[0]["risk"] if rows else None

    async def by_key(self, tenant: str, key: str) -> StoredRun | None:
        """The run that a tenant started with an idempotency key, or None."""
        return await self.database.read(lambda tx: self._known(tx, tenant, key))

    async def page(
        self, *, tenant: str | None, status: str = "", workflow: str = "", after: Place, limit: int
    ) -> list[RunOutline]:
        """Run outlines, newest first. Their documents, which may be large, are not read.

        Except those that an older version of Holdfast wrote: the database extracts their outlines.
        """
        values = {"tenant": tenant, "status": status, "workflow": workflow, "created_ns": after.at_ns, "id": after.id}
        statement = _list(tenant, status, workflow)

        async def work(tx: Tx) -> list[RunOutline]:
            rows = await tx.query(statement, {**values, "most": limit})
            without = [row["id"] for row in rows if row["outline"] is None]
            found = await tx.query(script("run_outlines", tx.dialect), {"ids": json.dumps(without)}) if without else []
            gists = {gist["id"]: gist for gist in found}
            return [run_outline_of(row, gists.get(row["id"])) for row in rows]

        return await self.database.read(work)

    async def timeline(self, run_id: str, *, after: tuple[int, int] = _FIRST, limit: int = 500) -> list[RunEvent]:
        """The history of a run, oldest first, after a given version and entry."""
        values = {"run": check_id("run", run_id), "version": after[0], "line": after[1], "most": limit}
        return [event_of(row) for row in await self.database.read(lambda tx: tx.query(_LINES, values))]

    async def counts(self) -> dict[str, int]:
        """The number of unfinished runs in each status."""
        rows = await self.database.read(lambda tx: tx.query(_COUNT))
        live = {str(each): 0 for each in RunStatus if not each.terminal}
        return {**live, **{row["status"]: row["runs"] for row in rows}}

    async def query(self, statement: str, values: dict[str, Any]) -> Sequence[Row]:
        """A query of a loop."""
        return await self.database.read(lambda tx: tx.query(statement, values))

    # Writes under a lease.

    async def change(
        self, lease: Bearer, run_id: str, decide: Callable[[StoredRun, Budget], Advance], *, actor: str
    ) -> ChangedRun:
        """Read a run, decide, and write the result with all effects, in one transaction.

        `decide` must be pure: it may be called again, from another thread. Its budget for expressions is small enough
        for a transaction. If that does not suffice, it is called again outside of the transaction and the event loop,
        and its result is written if the run has not changed meanwhile. `FencedOut`: the lease is stale. `RetryLater`:
        the tenant has used its quota of such decisions (`expression_quota`).
        """
        check_id("run", run_id)
        presented = await self._admission.admit(
            lease, f"run {run_id}", Rule.AT_LEAST, lambda: self._seen(run_id), {"run": run_id}
        )
        fence = presented.fence
        known = self._memory.get(run_id)
        written: CachedRun | None = None

        apart: tuple[StoredRun, Advance] | None = None  # a decision that was too costly for a transaction

        async def work(tx: Tx) -> Outcome[ChangedRun] | _TooLong:
            nonlocal written
            written = None
            before = await self._held(tx, run_id, known)
            if before is None:
                return Absent()
            if fence is not None and not accepts(before.fence, fence):
                return Stale(before.fence or 0)
            try:
                decided = apart is not None and apart[0].same_version(before)
                advance = apart[1] if apart is not None and decided else decide(before, Budget(IN_TRANSACTION_COST))
            except OverBudget:
                return _TooLong(before)
            if advance.outcome is not EventOutcome.APPLIED:
                await self._look_again(tx, before, advance)
                return Accepted(ChangedRun(before, None, advance.outcome, advance.held_back))
            text = known.text if known is not None and before.run is known.run else RunText()
            document = text.of(advance.run)
            changed = await self._write(tx, before, advance, document, fence, actor)
            written = CachedRun(advance.run, before.version + 1, text, len(document))
            return Accepted(changed)

        if ARMED:
            await areach("plane.run.change")
        for _ in range(_TRIES):
            outcome = await self.database.write(work)
            if not isinstance(outcome, _TooLong):
                break
            apart = (outcome.run, await self._decide_apart(decide, outcome.run))
        else:
            raise Unavailable(f"run {run_id} keeps changing under its lock; try again")
        if written is not None:
            self._memory.put(written)
        if ARMED:
            await areach("plane.run.changed")
        return ChangedRun(None, None) if isinstance(outcome, Absent) else self._admission.written(presented, outcome)

    async def _decide_apart(self, decide: Callable[[StoredRun, Budget], Advance], run: StoredRun) -> Advance:
        """A costly decision, made in a thread. One at a time: other runs should not get slower."""
        budget = Budget()
        with self.expression_quota.decision(run.run, budget):
            async with self._apart:
                self.decided_apart += 1
                return await asyncio.to_thread(decide, run, budget)

    async def _held(self, tx: Tx, run_id: str, known: CachedRun | None) -> StoredRun | None:
        """The run, locked until the transaction ends. Its document is read only if this version is not cached."""
        statement = (_GET if known is None else _HEAD) + _LOCKING[tx.dialect]
        rows = await tx.query(statement, {"id": run_id})
        if rows and known is not None:
            if known.is_of(rows[0]):
                return stored_run(rows[0], known.run)
            rows = await tx.query(_GET, {"id": run_id})
        return await self._stored(tx, rows[0]) if rows else None

    async def _write(
        self, tx: Tx, before: StoredRun, advance: Advance, document: str, fence: int | None, actor: str
    ) -> ChangedRun:
        now_ns = self.clock.now().wall
        run = advance.run
        wake_ns = self._wake(advance, now_ns)
        found = await tx.query(_CHANGE, changed_values(before, advance, document, wake_ns, fence, now_ns))
        if not found:
            raise RowMissing(f"run {run.id} changed under a database lock")
        version = found[0]["version"]
        lines = [
            line_values(run.id, version, line, note, fence, now_ns, actor) for line, note in enumerate(advance.notes)
        ]
        if lines:
            await tx.query_many(_LINE, lines)
        kept = found[0]["holdfast_fence"]
        after = replace(before, run=run, version=version, fence=kept, updated_ns=now_ns, wake_ns=wake_ns)
        following = AppliedEffects()
        for effect in advance.effects:
            await self._consequences.follow(tx, after, effect, following)
        if run.status.terminal:
            following.messages += over(after)
            tx.notify(subjects.ENDED_RUNS)
        elif wake_ns is not None and wake_ns - now_ns <= NEAR_NS:
            again = f"{version}:{wake_ns}"
            following.messages.append(
                subjects.look_at_run(run.id, after.risk, again=again, not_before_ns=max(wake_ns, now_ns))
            )
        if following.messages:
            await self._bus.stage(tx, following.messages)
        repeated, submitted = tuple(following.repeated), following.submitted
        return ChangedRun(before, after, advance.outcome, advance.held_back, repeated, submitted)

    async def _look_again(self, tx: Tx, before: StoredRun, advance: Advance) -> None:
        """The run has not changed, but its next wake-up may have: a timer is removed only after it fired."""
        wake_ns = self._wake(advance, self.clock.now().wall)
        if wake_ns != before.wake_ns and not before.run.status.terminal:
            await tx.query(_WAKE, {"id": before.run.id, "version": before.version, "wake_ns": wake_ns})

    def _wake(self, advance: Advance, now_ns: int) -> int | None:
        if advance.run.status.terminal:
            return None
        if not advance.held_back:
            return advance.wake_ns
        soon = now_ns + HELD_BACK_NS + self.entropy.below(200 * MS)  # spreads the replicas
        return soon if advance.wake_ns is None else min(soon, advance.wake_ns)

    # Reads.

    async def _stored(self, tx: Tx, row: Row) -> StoredRun:
        workflow = await self.definitions.of_run(tx, row["scope"], row["workflow"], row["workflow_version"])
        return run_of(row, workflow)

    async def _known(self, tx: Tx, tenant: str, key: str | None) -> StoredRun | None:
        rows = [] if key is None else await tx.query(_BY_KEY, {"tenant": tenant, "idempotency_key": key})
        return await self._stored(tx, rows[0]) if rows else None

    async def _seen(self, run_id: str) -> int | None:
        rows = await self.database.read(lambda tx: tx.query(_FENCE, {"id": run_id}))
        fence: int | None = rows[0]["holdfast_fence"] if rows else None
        return fence


def _list(tenant: str | None, status: str, workflow: str) -> str:
    """The statement whose index skips the fewest rows."""
    if status and status != RunStatus.SUCCEEDED:
        return _LIST_STATUS
    if workflow:
        return _LIST_WORKFLOW
    return _LIST_ALL if tenant is None else _LIST_TENANT
