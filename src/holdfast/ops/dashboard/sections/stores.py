"""The row about the bus, the database and the audit ledger: whether messages and transactions flow."""

from __future__ import annotations

from typing import Final

from holdfast.ops.dashboard.panels import Panel, Row, Steps, Unit
from holdfast.ops.dashboard.promql import Query, rate, total

_BUS: Final = (
    Panel(
        "Deliveries",
        "Deliveries by how they ended. busy: a lock; backend: a store; error: a bug, or bad input.",
        (Query(rate("bus_deliveries_total", "outcome"), "{{outcome}}"),),
        Unit.PER_SECOND,
    ),
    Panel(
        "Messages in hand",
        "Messages that are being handled now, by the bus, schedulers and engines. At their limit for long: add "
        "processes, or `scheduler.concurrency`.",
        (
            Query(total("bus_handling"), "bus"),
            Query(total("scheduler_handling"), "scheduler"),
            Query(total("engine_handling"), "engine"),
        ),
    ),
    Panel(
        "Outbox relayed",
        "Messages taken from the outbox to a bus of its own, a second. Nothing where the database is the bus.",
        (Query(rate("bus_relayed_total"), "relayed"),),
        Unit.PER_SECOND,
    ),
)


_DATABASE: Final = (
    Panel(
        "Transactions",
        "Transactions a second, commits, and syncs; several may share one. None: nothing reaches the database.",
        (
            Query(rate("database_works_total", "kind"), "{{kind}}"),
            Query(rate("database_commits_total"), "commits"),
            Query(rate("database_syncs_total"), "syncs"),
        ),
        Unit.PER_SECOND,
    ),
    Panel(
        "Transactions in trouble",
        "Failed; run again as the database asked, or with rows locked, as they had changed meanwhile (Postgres); with "
        "an unknown outcome; and connections listened on anew.",
        (
            Query(rate("database_failed_total"), "failed"),
            Query(rate("database_run_again_total"), "run again"),
            Query(rate("database_held_total"), "again, with rows locked"),
            Query(rate("database_unknown_total"), "outcome unknown"),
            Query(rate("database_listener_reconnects_total"), "listening anew"),
        ),
        Unit.PER_SECOND,
    ),
    Panel(
        "Waiting for the database",
        "Seconds waited in each second: for a free connection (Postgres), or for others' locks on the file "
        "(SQLite). Above 1: more than one caller waits at any time.",
        (
            Query(rate("database_pool_wait_seconds_total"), "for a connection"),
            Query(rate("database_busy_seconds_total"), "for the file"),
        ),
        Unit.NUMBER,
        Steps.rising(1),
    ),
    Panel(
        "In line at the database",
        "Works that wait for their turn, and transactions that are open. A line that grows: the disk or the server is "
        "too slow for what is asked of it.",
        (
            Query(total("database_line", "kind"), "in line, {{kind}}"),
            Query(total("database_active"), "open"),
        ),
    ),
)


_AUDIT: Final = (
    Panel(
        "Audit ledger",
        "Records written, lost, and failures of the disk, a second; and records that wait.",
        (
            Query(rate("audit_records_total"), "written"),
            Query(rate("audit_dropped_total"), "lost"),
            Query(rate("audit_failures_total"), "failures of the disk"),
            Query(total("audit_queued"), "waiting now"),
        ),
    ),
    Panel(
        "Audit ledger, bytes",
        "Bytes written a second: what keeps the disk busy, and how soon files are rotated.",
        (Query(rate("audit_bytes_total"), "written"),),
        Unit.BYTES_PER_SECOND,
    ),
)


STORES: Final = Row(
    "Bus, database and audit",
    "Whether messages and transactions flow, and the ledger is written.",
    (*_BUS, *_DATABASE, *_AUDIT),
)
