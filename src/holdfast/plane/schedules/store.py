"""The schedules of a plane in its database: created, changed, paused, and turned into jobs at their due times.

Promises:

- The jobs of a due time and the advance of the schedule are one transaction. It locks the row of the schedule and
  writes it only as the version after the one that it has read, so a due time is submitted once, whatever number of
  processes try, and in whatever state a process dies.
- The id of the job names the schedule and the due time. So a schedule that was deleted and created again does not
  submit a due time twice either.
- A change of the due times begins now: earlier due times of the new expression are not submitted.
- What an app declares changes when the newest running version of the app says so (`rules.version_in_effect`).

Does not promise that a due time whose job the approval rules refuse is tried again. The schedule shows the reason.

Clock: that of the database (for SQLite, of this host).
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple, TypeVar

from holdfast.core.failpoints import ARMED, areach
from holdfast.core.ports import Clock
from holdfast.errors import BadInput, RowExists, RowMissing
from holdfast.flows.log import log_event
from holdfast.plane.approvals.service import Approvals
from holdfast.plane.db.database_clock import database_now
from holdfast.plane.db.migrations import prepare
from holdfast.plane.db.ports import Database, Row, Tx
from holdfast.plane.db.statements import sql
from holdfast.plane.model.caller import REASON_CHARS_MAX, NotAllowed
from holdfast.plane.model.job_states import InvalidTransition, JobState
from holdfast.plane.model.messages import requesters_label
from holdfast.plane.model.records import DEFAULT_POOL, Job, check_text
from holdfast.plane.schedules.declaration import DeclaredSchedule
from holdfast.plane.schedules.model import Schedule, ScheduleConflict, ScheduleSpec, ScheduleState, job_id
from holdfast.plane.schedules.rows import schedule_of, values_of
from holdfast.plane.schedules.rules import (
    DECLARED_NS,
    Decision,
    DeclaredVersion,
    begin,
    decide,
    version_in_effect,
)

SCHEMA: Final = "schedule_schema"
CHANNEL: Final = "plane.schedules"
SCHEDULES_MAX: Final = 1000
"""The number of schedules that a tenant may create at run time. What apps declare is not limited."""

_GET: Final = sql("schedule_get")
_HOLD: Final = {"sqlite": _GET, "postgres": f"{_GET} FOR UPDATE"}
_PUT: Final = sql("schedule_put")
_DELETE: Final = sql("schedule_delete")
_DUE: Final = sql("schedule_due")
_LIST_ALL: Final = sql("schedule_list_all")
_LIST_TENANT: Final = sql("schedule_list_tenant")
_OF_APP: Final = sql("schedule_of_app")
_COUNT: Final = sql("schedule_count")
_NEXT: Final = sql("schedule_next")
_JOB_STATE: Final = sql("schedule_job_state")
_VERSIONS: Final = sql("schedule_version_list")
_SEEN: Final = sql("schedule_version_put")
_SWEEP: Final = sql("schedule_version_sweep")

_log: Final = logging.getLogger("holdfast.plane")

T = TypeVar("T")


class ScheduleCursor(NamedTuple):
    """A cursor in the list of all schedules, ordered by tenant and name."""

    tenant: str
    name: str

    @property
    def text(self) -> str:
        """For a command line or an address. No tenant contains this separator."""
        return f"{self.tenant}~{self.name}"

    @classmethod
    def parsed(cls, text: str, field: str = "after") -> ScheduleCursor:
        """The cursor in a text, or `BadInput`."""
        tenant, mark, name = text.partition("~")
        if not mark:
            raise BadInput(field, "is not a cursor of this list", "pass on the cursor of the page before, unchanged")
        return cls(tenant, name)


FIRST: Final = ScheduleCursor("", "")


class DueRow(NamedTuple):
    """A schedule that has to be decided."""

    submit_ns: int
    tenant: str
    name: str


class Schedules:
    """The schedules of one plane."""

    def __init__(self, database: Database, approvals: Approvals, clock: Clock) -> None:
        self._database = database
        self._approvals = approvals
        self._clock = clock

    async def prepare(self) -> None:
        """Create the tables if they are missing."""
        await prepare(self._database, SCHEMA)

    # Queries.

    async def get(self, tenant: str, name: str) -> Schedule:
        """One schedule, or `RowMissing`."""
        rows = await self._database.read(lambda tx: tx.query(_GET, {"tenant": tenant, "name": name}))
        return schedule_of(_found(rows, name))

    async def page(self, tenant: str | None, after: ScheduleCursor = FIRST, most: int = 100) -> list[Schedule]:
        """Schedules of a tenant, or of all, by tenant and name."""
        statement = _LIST_ALL if tenant is None else _LIST_TENANT
        where = {"tenant": after.tenant if tenant is None else tenant, "name": after.name, "most": most}
        return [schedule_of(row) for row in await self._database.read(lambda tx: tx.query(statement, where))]

    async def next_in_ns(self) -> int | None:
        """The time until the next due time has to be decided; None: there is none. Not above 0: one is overdue."""

        async def work(tx: Tx) -> int | None:
            (row,) = await tx.query(_NEXT)
            return None if row["submit_ns"] is None else row["submit_ns"] - await database_now(tx, self._clock)

        return await self._database.read(work)

    async def now_ns(self) -> int:
        """The current time of the database."""
        return await self._database.read(lambda tx: database_now(tx, self._clock))

    # Changes by people and programs.

    async def put(
        self, spec: ScheduleSpec, *, actor: str, paused: bool = False, replaces: bool = True
    ) -> tuple[Schedule, bool]:
        """Create a schedule, or change it; also returns whether it was created. `paused` is for a new one.

        `ScheduleConflict`: an app declares it, or it exists and must not be replaced.
        """
        spec.check()

        async def work(tx: Tx) -> tuple[Schedule, bool]:
            now_ns = await database_now(tx, self._clock)
            known = await _held(tx, spec.tenant, spec.name)
            if known is None:
                (row,) = await tx.query(_COUNT, {"tenant": spec.tenant})
                if row["schedules"] >= SCHEDULES_MAX:
                    problem = f"is of a tenant that has {row['schedules']} schedules"
                    raise BadInput("name", problem, f"delete some; the limit is {SCHEDULES_MAX}")
                return await _write(tx, _new(spec, actor, now_ns, paused=paused)), True
            if known.app is not None and known.declared:
                raise ScheduleConflict(
                    f"schedule {spec.name} is declared by the app {known.app}; change it there, or pause it here"
                )
            if not replaces and (known.spec.text() != spec.text() or known.app is not None):
                raise ScheduleConflict(f"there is a schedule {spec.name} already; choose another name, or replace it")
            changed = _respecified(known, spec, now_ns, actor)
            if known.app is not None:  # which does not declare it any more
                changed = replace(_restarted(changed, now_ns), app=None, declared=True)
            return (known if changed is known else await _write(tx, _by(changed, actor, now_ns))), False

        return await self._database.write(work)

    async def pause(self, tenant: str, name: str, *, actor: str, reason: str = "") -> tuple[Schedule, bool]:
        """Stop firing until `resume`; also returns whether that changed anything. A queued due time is skipped."""
        if reason:
            check_text("reason", reason, REASON_CHARS_MAX)

        def change(known: Schedule, now_ns: int) -> Schedule:
            if known.paused:
                return known
            queued = known.decided.queued_ns is not None
            return replace(
                known,
                paused=True,
                paused_by=actor,
                paused_reason=reason or None,
                paused_ns=now_ns,
                decided=known.decided._replace(queued_ns=None),
                skipped=known.skipped + queued,
            )

        return await self._change(tenant, name, change, actor)

    async def resume(self, tenant: str, name: str, *, actor: str) -> tuple[Schedule, bool]:
        """Fire again, from the next due time on; also returns whether that changed anything."""

        def change(known: Schedule, now_ns: int) -> Schedule:
            return _restarted(_resumed(known), now_ns) if known.paused else known

        return await self._change(tenant, name, change, actor)

    async def delete(self, tenant: str, name: str) -> Schedule:
        """Delete a schedule; its jobs stay. `ScheduleConflict`: an app declares it."""

        async def work(tx: Tx) -> Schedule:
            known = await _present(tx, tenant, name)
            if known.app is not None and known.declared:
                raise ScheduleConflict(
                    f"schedule {name} is declared by the app {known.app}; remove it there, or pause it"
                )
            await tx.query(_DELETE, {"tenant": tenant, "name": name})
            return known

        return await self._database.write(work)

    async def run(self, tenant: str, name: str, *, actor: str, identity: str | None = None) -> tuple[Job, bool]:
        """Submit a job of the schedule now, besides its due times and whatever its overlap policy.

        `identity`: the id of the job, so that the request can be repeated. Also returns whether the job was inserted.
        """

        async def work(tx: Tx) -> tuple[Job, bool]:
            now_ns = await database_now(tx, self._clock)
            known = await _present(tx, tenant, name)
            wanted = known.spec.submission(identity, now_ns, now_ns, actor)
            wanted = replace(wanted, labels={**wanted.labels, **requesters_label([known.author])}).check()
            try:
                job, made = await self._approvals.submission(wanted, known.spec.pool or DEFAULT_POOL)(tx)
            except InvalidTransition:
                raise _taken() from None
            if job.topic != wanted.topic:
                raise _taken()
            if made:
                await _write(tx, replace(known, last_job=job.id, last_fired_ns=now_ns, version=known.version + 1))
            return job, made

        return await self._database.write(work)

    async def _change(
        self, tenant: str, name: str, change: Callable[[Schedule, int], Schedule], actor: str
    ) -> tuple[Schedule, bool]:
        async def work(tx: Tx) -> tuple[Schedule, bool]:
            now_ns = await database_now(tx, self._clock)
            known = await _present(tx, tenant, name)
            changed = change(known, now_ns)
            return (known, False) if changed is known else (await _write(tx, _by(changed, actor, now_ns)), True)

        return await self._database.write(work)

    # Due times.

    async def due(self, after: DueRow | None, most: int) -> list[DueRow]:
        """Schedules that have to be decided now, those that waited longest first."""
        submit_ns, tenant, name = after or DueRow(-1, "", "")

        async def work(tx: Tx) -> Sequence[Row]:
            now_ns = await database_now(tx, self._clock)
            where = {"now_ns": now_ns, "submit_ns": submit_ns, "tenant": tenant, "name": name, "most": most}
            return await tx.query(_DUE, where)

        return [DueRow(row["submit_ns"], row["tenant"], row["name"]) for row in await self._database.read(work)]

    async def fire(self, tenant: str, name: str) -> Decision | None:
        """Decide the due times of one schedule, and submit its jobs, in one transaction. None: nothing was due.

        Any process may call it at any time; a lease only saves the work of deciding in several processes.
        """
        if ARMED:
            await areach("plane.schedule.fire")
        decision = await self._database.write(lambda tx: self._fire(tx, tenant, name))
        if ARMED:
            await areach("plane.schedule.fired")
        return decision

    async def _fire(self, tx: Tx, tenant: str, name: str) -> Decision | None:
        now_ns = await database_now(tx, self._clock)
        known = await _held(tx, tenant, name)
        if known is None or known.state is not ScheduleState.ACTIVE:
            return None
        running = await _running(tx, known.last_job)
        decision = decide(known.spec.timetable(), known.spec.policy, known.decided, now_ns=now_ns, running=running)
        if decision.state == known.decided:
            return None
        after = replace(known, decided=decision.state, next_ns=decision.next_ns)
        for due_ns in decision.fired:
            after = await self._submit(tx, after, due_ns, now_ns)
        counted = replace(after, skipped=after.skipped + decision.skipped, missed=after.missed + decision.missed)
        await _write(tx, replace(counted, version=known.version + 1))
        return decision

    async def _submit(self, tx: Tx, schedule: Schedule, due_ns: int, now_ns: int) -> Schedule:
        """Submit the job of one due time. The schedule goes on if that is refused."""
        spec = schedule.spec
        identity = job_id(spec.tenant, spec.name, due_ns)
        try:
            wanted = spec.submission(identity, due_ns, now_ns, schedule.author).check()
            _, made = await self._approvals.submission(wanted, spec.pool or DEFAULT_POOL)(tx)
        except (NotAllowed, BadInput, InvalidTransition) as refused:
            fields = {"schedule": spec.name, "tenant": spec.tenant, "job": identity}
            log_event(_log, logging.ERROR, "a scheduled job was refused", refused, **fields)
            return replace(schedule, problem=str(refused)[:REASON_CHARS_MAX], last_due_ns=due_ns)
        return replace(
            schedule,
            last_due_ns=due_ns,
            last_fired_ns=now_ns,
            last_job=identity,
            problem=None,
            fired=schedule.fired + made,
        )

    # Declarations.

    async def declare(self, app: str, declared: Sequence[DeclaredSchedule]) -> list[str]:
        """Note that a process runs with these declarations of an app, and apply them if they are the newest.

        Returns the names of the schedules that changed.
        """
        own = hashlib.sha256("\n".join(sorted(each.text() for each in declared)).encode()).hexdigest()
        wanted = {(each.spec.tenant, each.spec.name): each for each in declared}

        async def work(tx: Tx) -> list[str]:
            now_ns = await database_now(tx, self._clock)
            # The first statement locks the app: what another version has committed before is seen by the next ones.
            await tx.query(_SEEN, {"app": app, "digest": "", "now_ns": now_ns})
            await tx.query(_SWEEP, {"app": app, "until_ns": now_ns - DECLARED_NS})
            await tx.query(_SEEN, {"app": app, "digest": own, "now_ns": now_ns})
            versions = [DeclaredVersion(**row) for row in await tx.query(_VERSIONS, {"app": app})]
            if version_in_effect(versions, now_ns) != own:
                return []
            return await _apply(tx, app, wanted, now_ns)

        return await self._database.write(work)

    async def has_declared(self, app: str) -> bool:
        """Whether an app has ever declared a schedule that is still there."""
        return bool(await self._database.read(lambda tx: tx.query(_OF_APP, {"app": app})))


async def _apply(tx: Tx, app: str, wanted: Mapping[tuple[str, str], DeclaredSchedule], now_ns: int) -> list[str]:
    """Store the declarations of an app; what it does not declare any more stays and does not fire."""
    actor, changed = f"app {app}", []
    rows = await tx.query(_OF_APP, {"app": app})
    keys = sorted({*wanted, *((row["tenant"], row["name"]) for row in rows)})  # one order: no deadlock
    for tenant, name in keys:
        known, declared = await _held(tx, tenant, name), wanted.get((tenant, name))
        if declared is None:
            if known is None or known.app != app or not known.declared:
                continue
            after = replace(known, declared=False, decided=known.decided._replace(queued_ns=None))
        elif known is None:
            after = _new(declared.spec, actor, now_ns, paused=declared.paused, app=app)
        elif known.app not in (None, app) and known.declared:
            text = "a schedule is not stored: another app declares one with its name"
            log_event(_log, logging.ERROR, text, schedule=name, tenant=tenant, app=app, other=known.app)
            continue
        else:
            after = replace(_respecified(known, declared.spec, now_ns, actor), app=app, declared=True)
            if after == known:
                continue
            if not known.declared:
                after = _restarted(after, now_ns)
        await _write(tx, after if known is None else _by(after, actor, now_ns))
        changed.append(name)
    return changed


def _new(spec: ScheduleSpec, actor: str, now_ns: int, *, paused: bool, app: str | None = None) -> Schedule:
    first = begin(spec.timetable(), now_ns)
    return Schedule(
        spec=spec,
        author=actor,
        decided=first.state,
        next_ns=first.next_ns,
        version=1,
        paused=paused,
        paused_by=actor if paused else None,
        paused_reason=None,
        paused_ns=now_ns if paused else None,
        app=app,
        declared=True,
        last_due_ns=None,
        last_fired_ns=None,
        last_job=None,
        problem=None,
        fired=0,
        skipped=0,
        missed=0,
        created_ns=now_ns,
        updated_ns=now_ns,
        updated_by=actor,
    )


def _respecified(known: Schedule, spec: ScheduleSpec, now_ns: int, author: str) -> Schedule:
    """The same schedule with other options. Other due times begin now."""
    if known.spec.text() == spec.text():
        return known
    after = replace(known, spec=spec, author=author)
    names = ("cron", "tz", "every_ns", "offset_ns", "jitter_ns")
    same = all(getattr(known.spec, name) == getattr(spec, name) for name in names)
    return after if same else _restarted(after, now_ns)


def _restarted(schedule: Schedule, now_ns: int) -> Schedule:
    """The same schedule with due times from now on."""
    first = begin(schedule.spec.timetable(), now_ns, schedule.decided.done_ns)
    return replace(schedule, decided=first.state, next_ns=first.next_ns)


def _resumed(known: Schedule) -> Schedule:
    return replace(known, paused=False, paused_by=None, paused_reason=None, paused_ns=None)


def _by(schedule: Schedule, actor: str, now_ns: int) -> Schedule:
    return replace(schedule, updated_by=actor, updated_ns=now_ns, version=schedule.version + 1)


async def _held(tx: Tx, tenant: str, name: str) -> Schedule | None:
    """A schedule whose row no other transaction can change before this one ends."""
    rows = await tx.query(_HOLD[tx.dialect], {"tenant": tenant, "name": name})
    return schedule_of(rows[0]) if rows else None


async def _present(tx: Tx, tenant: str, name: str) -> Schedule:
    rows = await tx.query(_HOLD[tx.dialect], {"tenant": tenant, "name": name})
    return schedule_of(_found(rows, name))


def _found(rows: Sequence[Row], name: str) -> Row:
    if not rows:
        raise RowMissing(f"there is no schedule {name!r:.120}")
    return rows[0]


def _taken() -> RowExists:
    return RowExists("this id was used for another job; choose another, or none")


async def _write(tx: Tx, schedule: Schedule) -> Schedule:
    """Write the next version of a schedule. It fails if another process was quicker, and nothing is written."""
    if not await tx.query(_PUT, values_of(schedule)):
        raise ScheduleConflict(f"schedule {schedule.spec.name} was changed by another process; try again")
    return schedule


async def _running(tx: Tx, job: str | None) -> bool:
    """Whether a job has not finished. One that was deleted has."""
    if job is None:
        return False
    rows = await tx.query(_JOB_STATE, {"id": job})
    return bool(rows) and not JobState(rows[0]["state"]).terminal
