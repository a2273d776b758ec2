"""The row about the bus, the database and the audit ledger: whether messages and transactions flow."""

from __future__ import annotations

from typing import Final

from holdfast.ops.dashboard.panels import Panel, PanelSteps, Row, Unit
from holdfast.ops.dashboard.promql import PanelQuery, rate, total

_BUS: Final = (
    Panel(
        "Deliveries",
        "Deliveries by outcome. busy: a lock; backend: a store; error: a bug, or bad input.",
        (PanelQuery(rate("bus_deliveries_total", "outcome"), "{{outcome}}"),),
        Unit.PER_SECOND,
    ),
    Panel(
        "Messages in flight",
        "Messages that the bus, schedulers and engines handle now. At their limit for long: add "
        "processes, or raise `scheduler.concurrency`.",
        (
            PanelQuery(total("bus_handling"), "bus"),
            PanelQuery(total("scheduler_handling"), "scheduler"),
            PanelQuery(total("engine_handling"), "engine"),
        ),
    ),
    Panel(
        "Outbox relayed",
        "Messages relayed from the outbox to an external bus, per second. None if the database is the bus.",
        (PanelQuery(rate("bus_relayed_total"), "relayed"),),
        Unit.PER_SECOND,
    ),
)


_DATABASE: Final = (
    Panel(
        "Transactions",
        "Transactions, commits and syncs per second; several transactions may share one. None: nothing reaches the "
        "database.",
        (
            PanelQuery(rate("database_works_total", "kind"), "{{kind}}"),
            PanelQuery(rate("database_commits_total"), "commits"),
            PanelQuery(rate("database_syncs_total"), "syncs"),
        ),
        Unit.PER_SECOND,
    ),
    Panel(
        "Transactions in trouble",
        "Failed; retried at the database's request, or with rows locked because they had changed (Postgres); with "
        "an unknown outcome; and listener reconnects.",
        (
            PanelQuery(rate("database_failed_total"), "failed"),
            PanelQuery(rate("database_run_again_total"), "retried"),
            PanelQuery(rate("database_held_total"), "retried with rows locked"),
            PanelQuery(rate("database_unknown_total"), "outcome unknown"),
            PanelQuery(rate("database_listener_reconnects_total"), "listener reconnects"),
        ),
        Unit.PER_SECOND,
    ),
    Panel(
        "Waiting for the database",
        "Seconds waited per second: for a free connection (Postgres), or for other processes' locks on the file "
        "(SQLite). Above 1: more than one caller waits at any time.",
        (
            PanelQuery(rate("database_pool_wait_seconds_total"), "for a connection"),
            PanelQuery(rate("database_busy_seconds_total"), "for the file"),
        ),
        Unit.NUMBER,
        PanelSteps.rising(1),
    ),
    Panel(
        "Database queue",
        "Transactions that are queued, and open ones. A growing queue: the disk or the server is "
        "too slow for the load.",
        (
            PanelQuery(total("database_line", "kind"), "queued, {{kind}}"),
            PanelQuery(total("database_active"), "open"),
        ),
    ),
)


_AUDIT: Final = (
    Panel(
        "Audit ledger",
        "Records written, records lost, and disk errors, per second; and queued records.",
        (
            PanelQuery(rate("audit_records_total"), "written"),
            PanelQuery(rate("audit_dropped_total"), "lost"),
            PanelQuery(rate("audit_failures_total"), "disk errors"),
            PanelQuery(total("audit_queued"), "queued now"),
        ),
    ),
    Panel(
        "Audit ledger, bytes",
        "Bytes written per second: the load on the disk, and how soon files are rotated.",
        (PanelQuery(rate("audit_bytes_total"), "written"),),
        Unit.BYTES_PER_SECOND,
    ),
)


STORES: Final = Row(
    "Bus, database and audit",
    "Whether messages and transactions flow, and the audit ledger is written.",
    (*_BUS, *_DATABASE, *_AUDIT),
)
