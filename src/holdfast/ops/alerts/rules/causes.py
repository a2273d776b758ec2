"""Alerts about causes that no counter of locks shows: servers, disks, clocks, hung attempts, unserved topics, people.

`holdfast why` names the cause of each. They use the values that it uses (`plane.service.overview`).
"""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.ops.alerts.model import (
    AGO,
    COUNT,
    INSTANCE,
    NUMBER,
    Alert,
    AlertSeverity,
    RuleGroup,
    RunbookName,
    lasting,
    number,
)
from holdfast.ops.alerts.plan import AlertPlan
from holdfast.ops.alerts.thresholds import BLIP_S
from holdfast.plane.db.sqlite.disk_space import ROOM_KEPT
from holdfast.plane.jobs.rules import JobCode
from holdfast.plane.process.plane import API
from holdfast.plane.schedules.rules import GRACE_NS
from holdfast.plane.service.overview import HUNG_NS, HUNG_TIMES
from holdfast.types import NS

SLOW_S = 0.25
CLOCK_S = 2.0
AHEAD_S = 5.0
FORGOTTEN = 3
LETTERS = 10
APPROVAL_S = 3600.0
LOW_BYTES = 1_000_000_000
TOPIC = "{{ $labels.topic }}"
POOL = "{{ $labels.pool }}"
DEPENDENCY = "{{ $labels.dependency }}"
SIZE = "{{ $value | humanize1024 }}B"


def causes(plan: AlertPlan) -> RuleGroup:
    """The rule group."""
    found = [*_servers(plan), *_host(plan)]
    if API in plan.parts:
        found += [*_work(plan), *_waiting(plan), *_ends(plan), *_schedules(plan), *_people(plan)]
    return RuleGroup("holdfast-causes", [_forgotten(plan), *found])


def _servers(plan: AlertPlan) -> Iterator[Alert]:
    queries, windows = plan.queries, plan.windows
    up = queries.series("dependency_up")
    for name, server in (("database", "database"), ("bus", "message bus")):
        yield Alert(
            f"Holdfast{name.capitalize()}Down",
            AlertSeverity.PAGE,
            f"max({queries.series('dependency_up', f'dependency={chr(34)}{name}{chr(34)}')}) == 0",
            f"The {server} answers no process",
            f"No process gets an answer from the {server} within 2 s: it is down, hangs, or is far too slow.",
            f"an outage of {number(BLIP_S)} s recovers without help, and two scrapes.",
            RunbookName.WHY,
            BLIP_S + windows.seen_s,
        )
    yield Alert(
        "HoldfastNotReady",
        AlertSeverity.TICKET,
        f"{up} == 0 and on (dependency) max by (dependency) ({up}) == 1",
        f"{INSTANCE} gets no answer from the {DEPENDENCY}",
        f"Other processes reach the {DEPENDENCY}, so the network, the name or the credentials of {INSTANCE} are wrong. "
        "It is not ready.",
        "short outages that recover without help are over by then.",
        RunbookName.WHY,
        windows.settle_s,
    )
    yield Alert(
        "HoldfastDependencySlow",
        AlertSeverity.TICKET,
        f"min by (dependency) ({queries.series('dependency_seconds')}) > {SLOW_S:g} "
        f"and on (dependency) max by (dependency) ({up}) == 1",
        f"The {DEPENDENCY} answers slowly",
        f"Even the fastest process waits {NUMBER} s for the smallest answer of the {DEPENDENCY}. It is not down, and "
        "requests run into their time limits.",
        f"{SLOW_S:g} s is ten times what a server in another data center takes; a whole window of it is no burst.",
        RunbookName.WHY,
        windows.window_s,
    )


def _forgotten(plan: AlertPlan) -> Alert:
    queries, span_s = plan.queries, plan.windows.window_s
    lost = queries.increase("lock_lost_total", span_s, 'reason="stolen"')
    forced = queries.increase("lock_forced_total", span_s)
    return Alert(
        "HoldfastLeasesForgotten",
        AlertSeverity.PAGE,
        f"{lost} - ({forced} or vector(0)) >= {FORGOTTEN}",
        "The lease store has forgotten leases",
        f"{COUNT} leases vanished within {lasting(span_s)} without force: the store was flushed, restarted without its "
        "data, or failed over to a replica without them. Other processes may hold the same locks.",
        f"{FORGOTTEN} leases: one or two may be workers that were too late.",
        RunbookName.WHY,
    )


def _host(plan: AlertPlan) -> Iterator[Alert]:
    queries, windows = plan.queries, plan.windows
    yield Alert(
        "HoldfastClockOff",
        AlertSeverity.TICKET,
        f"abs({queries.series('clock_ahead_seconds')}) > {CLOCK_S:g}",
        f"The clock of {INSTANCE} is wrong",
        f"It is {NUMBER} s away from that of the database. Ages, delays and time limits that it computes are wrong.",
        "clocks that are synchronized differ by milliseconds; a whole window is no measurement error.",
        RunbookName.WHY,
        windows.window_s,
    )
    free = queries.series("disk_free_bytes")
    for severity, name, limit, because in (
        (AlertSeverity.PAGE, "HoldfastDiskFull", ROOM_KEPT, "with less, processes are not ready and take no new work."),
        (AlertSeverity.TICKET, "HoldfastDiskLow", LOW_BYTES, "time to free space before processes become unready."),
    ):
        above = "" if severity is AlertSeverity.PAGE else f" and {free} >= {ROOM_KEPT}"
        yield Alert(
            name,
            severity,
            f"{free} < {limit}{above}",
            f"{INSTANCE} has little free disk space",
            f"{SIZE} are free beside the files of {INSTANCE}.",
            because,
            RunbookName.WHY,
            windows.seen_s,
        )


def _work(plan: AlertPlan) -> Iterator[Alert]:
    queries, windows = plan.queries, plan.windows
    restart_s = plan.settings.grace + windows.settle_s
    hung = f"max by (topic) ({queries.series('plane_hung_attempts')})"
    yield Alert(
        "HoldfastAttemptsHang",
        AlertSeverity.TICKET,
        f"{hung} > 0",
        f"Attempts of topic {TOPIC} hang",
        f"{COUNT} attempts make no progress. Their workers live, so the functions wait for something: more workers do "
        "not help.",
        f"no progress for {number(HUNG_NS / NS)} s and for {HUNG_TIMES:g} times as long as earlier attempts took.",
        RunbookName.WHY,
        windows.seen_s,
    )
    yield Alert(
        "HoldfastTopicUnserved",
        AlertSeverity.PAGE,
        f"max by (topic) ({queries.series('plane_unserved_jobs')}) > 0",
        f"No live worker serves topic {TOPIC}",
        f"{COUNT} jobs of the topic wait. Workers of other topics do not take them.",
        f"a restart of workers takes {number(plan.settings.grace)} s of grace (`grace`), plus the time of short "
        "outages that recover without help.",
        RunbookName.WHY,
        restart_s,
    )


def _waiting(plan: AlertPlan) -> Iterator[Alert]:
    queries, windows = plan.queries, plan.windows
    long_s = plan.settings.limits.dispatched
    waits = f"max({queries.series('plane_oldest_waiting_seconds')})"
    yield Alert(
        "HoldfastJobsWait",
        AlertSeverity.TICKET,
        f"{waits} > {number(long_s)}",
        "Jobs wait for a long time",
        f"The oldest job in a queue has waited {AGO}.",
        f"{number(long_s)} s: a job that was sent to workers may wait no longer for one of them (`limits.dispatched`).",
        RunbookName.WHY,
        windows.window_s,
    )
    yield Alert(
        "HoldfastPoolFull",
        AlertSeverity.TICKET,
        f"max by (pool) ({queries.series('plane_pool_full')}) == 1 and on () {waits} > {number(long_s)}",
        f"Pool {POOL} has no free slot",
        "All slots of its workers are in use and jobs wait behind them.",
        f"a full pool is good use of workers; jobs that wait for {number(long_s)} s (`limits.dispatched`) are not.",
        RunbookName.WHY,
        windows.window_s,
    )


def _ends(plan: AlertPlan) -> Iterator[Alert]:
    queries, windows = plan.queries, plan.windows
    letters = queries.series("plane_recent_dead_letters")
    yield Alert(
        "HoldfastPoisonJob",
        AlertSeverity.TICKET,
        f"max({queries.series('plane_recent_dead_letters', f'code={chr(34)}{JobCode.LOST}{chr(34)}')}) > 0 "
        f"or max({queries.series('plane_deadly_jobs')}) > 0",
        "A job kills its workers",
        f"During {COUNT} jobs of the last 15 minutes, several workers ended without a result: the jobs very likely "
        "kill the processes that run them.",
        "one is enough: the next worker that takes it over is the next to die.",
        RunbookName.WHY,
    )
    yield Alert(
        "HoldfastDeadLetters",
        AlertSeverity.TICKET,
        f"sum(max by (code) ({letters})) >= {LETTERS}",
        "Many jobs die",
        f"{COUNT} jobs became dead letters in the last 15 minutes.",
        f"{LETTERS}: single failures are the business of the owner of a job.",
        RunbookName.WHY,
        windows.seen_s,
    )
    yield Alert(
        "HoldfastWorkerClockAhead",
        AlertSeverity.TICKET,
        f"max({queries.series('plane_worker_clock_ahead_seconds')}) > {AHEAD_S:g}",
        "The clock of a worker is ahead",
        f"A heartbeat has a time {NUMBER} s in the future.",
        "clocks that are synchronized differ by milliseconds; a whole window is no measurement error.",
        RunbookName.WHY,
        windows.window_s,
    )


def _schedules(plan: AlertPlan) -> Iterator[Alert]:
    late_s = GRACE_NS / NS
    yield Alert(
        "HoldfastScheduleLate",
        AlertSeverity.PAGE,
        f"max({plan.queries.series('plane_late_schedule_seconds')}) > {number(late_s)}",
        "A schedule is late",
        f"The job of a due time should have been submitted {AGO} ago: no process leads the schedules loop, or its "
        "ticks fail.",
        f"{number(late_s)} s: a takeover of the loop is shorter, and later due times are dropped without catch-up.",
        RunbookName.WHY,
        plan.windows.seen_s,
    )


def _people(plan: AlertPlan) -> Iterator[Alert]:
    yield Alert(
        "HoldfastApprovalWaits",
        AlertSeverity.TICKET,
        f"max({plan.queries.series('plane_oldest_approval_seconds')}) > {number(APPROVAL_S)}",
        "An approval waits for a person",
        f"The oldest open approval has waited {AGO}. The plane works; a run stands still.",
        f"{lasting(APPROVAL_S)}, in which a person who is at work decides.",
        RunbookName.WHY,
        plan.windows.seen_s,
    )
