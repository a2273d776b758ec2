"""Every incident that can be played, with the finding and the alert that must name it."""

from __future__ import annotations

from typing import Final

from holdfast.drills.incidents import server_incidents as servers
from holdfast.drills.incidents import work_incidents as work
from holdfast.drills.incidents.play import AlertSignal, Incident
from holdfast.errors import BadInput
from holdfast.ops.alerts.rules.causes import APPROVAL_S, FORGOTTEN
from holdfast.plane.db.sqlite.disk_space import ROOM_KEPT


def _positive(value: float) -> bool:
    return value > 0


def _zero(value: float) -> bool:
    return value == 0


def _down(dependency: str, alert: str) -> AlertSignal:
    return AlertSignal(alert, "dependency_up", _zero, (("dependency", dependency),))


INCIDENTS: Final = (
    Incident(
        "worker-paused",
        "A worker with a running job is stopped.",
        "worker silent",
        work.worker_paused,
    ),
    Incident(
        "slow-store",
        "Each answer of Redis takes three seconds.",
        "store slow",
        servers.slow_store,
    ),
    Incident(
        "database-locked",
        "A process holds the write lock of the SQLite file.",
        "database locked",
        servers.database_locked,
    ),
    Incident(
        "flush",
        "FLUSHALL removes all leases of running jobs.",
        "leases forgotten",
        servers.flush,
        AlertSignal(
            "HoldfastLeasesForgotten",
            "lock_lost_total",
            lambda value: value >= FORGOTTEN,
            (("reason", "stolen"),),
            summed=True,
        ),
    ),
    Incident(
        "hung-handler",
        "Handlers fill all slots and never return.",
        "handler hangs",
        work.hung_handler,
        AlertSignal("HoldfastAttemptsHang", "plane_hung_attempts", _positive),
    ),
    Incident(
        "stuck-leader",
        "The leader of the worker snapshot renews its lock and writes nothing.",
        "snapshot stale",
        work.stuck_leader,
    ),
    Incident(
        "tenant-flood",
        "One tenant fills the queue.",
        "tenant flood",
        work.tenant_flood,
        AlertSignal("HoldfastPoolFull", "plane_pool_full", _positive),
    ),
    Incident(
        "clock-skew",
        "The clock of a worker is an hour ahead.",
        "worker clock",
        servers.clock_skew,
        AlertSignal("HoldfastWorkerClockAhead", "plane_worker_clock_ahead_seconds", lambda value: value > 5),
    ),
    Incident(
        "database-outage",
        "Postgres is killed.",
        "database down",
        servers.database_outage,
        _down("database", "HoldfastDatabaseDown"),
    ),
    Incident(
        "bus-outage",
        "NATS is killed.",
        "bus down",
        servers.bus_outage,
        _down("bus", "HoldfastBusDown"),
    ),
    Incident(
        "store-outage",
        "Redis is killed.",
        "store down",
        servers.store_outage,
    ),
    Incident(
        "poison",
        "A job kills every worker that runs it.",
        "poison job",
        work.poison,
        AlertSignal("HoldfastPoisonJob", "plane_deadly_jobs", _positive),
    ),
    Incident(
        "disk-full",
        "The disk with the database is full.",
        "disk full",
        servers.disk_full,
        AlertSignal("HoldfastDiskFull", "disk_free_bytes", lambda value: value < ROOM_KEPT),
    ),
    Incident(
        "approval-waits",
        "An approval has waited for two hours.",
        "approvals wait long",
        work.approval_waits,
        AlertSignal("HoldfastApprovalWaits", "plane_oldest_approval_seconds", lambda value: value > APPROVAL_S),
    ),
    Incident(
        "connections-exhausted",
        "Another program holds all connections of Postgres.",
        "no connections",
        servers.connections_exhausted,
    ),
    Incident(
        "blocked-transaction",
        "A forgotten transaction locks the table of jobs, as a stuck migration does.",
        "transaction blocks",
        servers.blocked_transaction,
    ),
    Incident(
        "topic-without-workers",
        "A topic has jobs and no live worker.",
        "topic without workers",
        work.topic_without_workers,
        AlertSignal("HoldfastTopicUnserved", "plane_unserved_jobs", _positive),
    ),
    Incident(
        "failing-jobs",
        "All jobs of a topic fail with the same error.",
        "jobs die",
        work.failing_jobs,
        AlertSignal("HoldfastDeadLetters", "plane_recent_dead_letters", _positive),
    ),
    Incident("store-hangs", "Redis is stopped.", "store down", servers.store_hangs),
    Incident(
        "database-hangs",
        "The main process of Postgres is stopped: sessions work, and new ones hang.",
        "database down",
        servers.database_hangs,
    ),
    Incident(
        "wrong-password",
        "The password of Redis is changed, and not in the settings.",
        "store down",
        servers.wrong_password,
    ),
    Incident(
        "store-memory-full",
        "Redis has reached its limit of memory.",
        "store memory full",
        servers.memory_full,
    ),
    Incident(
        "read-only-replica",
        "The Redis of the settings has become a replica.",
        "store is no primary",
        servers.read_only_replica,
    ),
    Incident(
        "unknown-name",
        "The name of the lease store has no address.",
        "store down",
        servers.unknown_name,
    ),
)


def incident(name: str) -> Incident:
    """The incident with that name, or `BadInput` that lists all names."""
    found = next((each for each in INCIDENTS if each.name == name), None)
    if found is None:
        raise BadInput(
            "--only", f"{name!r} is no incident", f"use some of {', '.join(each.name for each in INCIDENTS)}"
        )
    return found
