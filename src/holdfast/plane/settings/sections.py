"""Sections of the settings: audit ledger, workflows and their loops, approvals, log, OpenTelemetry, and name prefixes.

OpenTelemetry: only the basics are settings. Addresses, headers, certificates and limits come from the `OTEL_*`
variables, which its own SDK reads.

Names: the prefixes of lock keys and of metric names. An operator of an older fleet keeps its names with them:
`acme:scheduler:job:42`, `acme_job_lock_wait`. Names that belong to the stores do not change: tables, streams, and the
other Redis keys.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from holdfast.core.name_prefixes import DEFAULT, NamePrefixes, check_key_prefix, check_metric_prefix
from holdfast.plane.approvals.rules import ApprovalRules
from holdfast.plane.locks import registry as families
from holdfast.plane.settings.declare import failures, key, lead, renew_every
from holdfast.plane.settings.types import CheckedWord, Choice, Flag, Rules, Seconds, Text, Url, Whole

AUDITED: Final = "audited"
EVERYTHING: Final = "everything"
BESIDE: Final = ".audit"
"""The suffix of the ledger next to a SQLite file."""

_DAY: Final = 86_400.0
_LONG: Final = 20 * 365 * _DAY


@dataclass(frozen=True, slots=True)
class AuditSettings:
    """The audit ledger: who held each lease, and why it was lost. See docs/audit.md."""

    enabled: bool = key(True, Flag(), "whether a ledger is written", "--no-audit")
    path: str | None = key(
        None,
        Text("/var/lib/holdfast/audit"),
        f"its directory, which processes share; unset: NAME{BESIDE} next to a SQLite database, else none",
        "--audit",
    )
    records: str = key(
        AUDITED,
        Choice((AUDITED, EVERYTHING)),
        "everything: also busy attempts, warnings, and the reads and writes that the guards accepted",
    )
    file_size: int = key(16, Whole(1, 1024), "MiB after which a process starts its next file")
    file_age: float = key(_DAY, Seconds(1.0, _LONG), "age at which a process starts its next file")
    keep_size: int = key(512, Whole(1, 1_000_000), "MiB in the directory, above which the oldest files are deleted")
    keep_age: float | None = key(None, Seconds(1.0, _LONG), "age at which files are deleted; unset: never")
    sync: float = key(
        1.0,
        Seconds(0.0, 3600.0),
        "within which a line is on the disk, in case the host loses power; 0: immediately",
    )


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """The workflow engine."""

    concurrency: int = key(32, Whole(1, 10_000), "messages of each subject that are handled concurrently")
    run_ttl: float = key(
        families.WORKFLOW_RUN.ttl, Seconds(1.0, 3600.0), "how long a silent engine keeps the lock of a run"
    )
    run_renew_every: float | None = renew_every("run_ttl")
    run_failures: int = failures()


@dataclass(frozen=True, slots=True)
class RunSettings:
    """The loop that sends runs the messages that they missed."""

    interval: float = key(5.0, Seconds(0.1, 3600.0), "between two ticks")
    lead: str = lead()
    renew_every: float | None = renew_every()
    failures: int = failures()
    patience: float = key(10.0, Seconds(0.1, 3600.0), "how long a message may take before it counts as missed")
    live_per_tenant: int = key(10_000, Whole(1, 10_000_000), "unfinished runs that one tenant may have")
    per_tree: int = key(
        2_000, Whole(1, 1_000_000), "runs that one run may start, directly and through them, with itself"
    )


@dataclass(frozen=True, slots=True)
class DelaySettings:
    """The loop that wakes runs whose delay, retry or deadline is due."""

    interval: float = key(5.0, Seconds(0.1, 3600.0), "between two ticks")
    lead: str = lead()
    renew_every: float | None = renew_every()
    failures: int = failures()


@dataclass(frozen=True, slots=True)
class ScheduleSettings:
    """The loop that submits the jobs of schedules. It also ticks at each due time."""

    interval: float = key(5.0, Seconds(0.1, 600.0), "between two ticks; new schedules are noticed by the next one")
    lead: str = lead()
    renew_every: float | None = renew_every()
    failures: int = failures()


@dataclass(frozen=True, slots=True)
class ApprovalSettings:
    """The jobs that need approval."""

    rules: ApprovalRules = key(  # noqa: RUF009 - rules are frozen, so one default serves all
        ApprovalRules(), Rules(), "jobs that need approval, or are refused; the first matching rule applies"
    )
    lock_ttl: float = key(
        families.APPROVAL.ttl, Seconds(1.0, 3600.0), "how long a silent decision keeps the lock of its job"
    )
    lock_renew_every: float | None = renew_every("lock_ttl")
    lock_failures: int = failures()
    lock_jitter: float = key(
        0.0, Seconds(0.0, 0.024), "random variation, up and down, of the 25 ms between two attempts to get it; 0: none"
    )


TEXT: Final = "text"
JSON: Final = "json"
LEVELS: Final = ("debug", "info", "warning", "error")


@dataclass(frozen=True, slots=True)
class LogSettings:
    """The log lines of a process. See docs/logs.md."""

    format: str = key(TEXT, Choice((TEXT, JSON)), "format of the lines; with --json they are JSON", "--log-format")
    level: str = key("warning", Choice(LEVELS), "lowest level that is written; debug includes drivers", "--log-level")


@dataclass(frozen=True, slots=True)
class OtelSettings:
    """Metrics sent with OpenTelemetry. See docs/metrics.md."""

    enabled: bool = key(False, Flag(), "whether metrics are sent, as the OTEL_* variables configure", "--otel")
    endpoint: str | None = key(
        None,
        Url(("http", "https"), "http://collector:4318"),
        "address; unset: $OTEL_EXPORTER_OTLP_ENDPOINT, else http://localhost:4318",
    )
    interval: float | None = key(
        None, Seconds(0.1, 3600.0), "between two exports; unset: $OTEL_METRIC_EXPORT_INTERVAL, else 60"
    )


@dataclass(frozen=True, slots=True)
class NameSettings:
    """The prefixes of lock keys and metric names."""

    keys: str = key(
        DEFAULT,
        CheckedWord("acme", check_key_prefix),
        "before the first colon of the keys of locks; one for all processes of a plane: holdfast up --switch-keys",
    )
    metrics: str = key(
        DEFAULT,
        CheckedWord("acme", check_metric_prefix),
        "before the first underscore of metrics, and in their queries: alert rules, dashboard, runbooks, tune",
    )

    @property
    def words(self) -> NamePrefixes:
        """As an object."""
        return NamePrefixes(self.keys, self.metrics)
