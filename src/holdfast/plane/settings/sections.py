"""The settings of the audit ledger, which keeps what happened to leases in files that outlive the process.

The settings of workflows, their loops, and approvals.

The settings of what a process of the plane writes on its standard error.

The settings of sending metrics with OpenTelemetry.

Little is said here: where to, how often, with which headers, certificates and limits is what the `OTEL_*` variables of
OpenTelemetry say, and they are read by its own SDK.

The settings of names: what the keys of locks and the names of metrics begin with.

An operator of an older fleet keeps its spelling with them: `acme:scheduler:job:42`, `acme_job_lock_wait`. What
belongs to the stores and not to the plane keeps its name: tables, streams, and what Redis keeps besides the locks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from holdfast.core.name_prefixes import DEFAULT, Names, check_key_prefix, check_metric_prefix
from holdfast.plane.approvals.rules import ApprovalRules
from holdfast.plane.locks import registry as families
from holdfast.plane.settings.declare import failures, key, lead, renew_every
from holdfast.plane.settings.types import Choice, Flag, Rules, Seconds, Text, Url, Whole, Word

AUDITED: Final = "audited"
EVERYTHING: Final = "everything"
BESIDE: Final = ".audit"
"""What the ledger beside a SQLite file is called, after the name of the file."""

_DAY: Final = 86_400.0
_LONG: Final = 20 * 365 * _DAY


@dataclass(frozen=True, slots=True)
class AuditSettings:
    """The audit ledger: who held what, and why it was lost. See docs/audit.md."""

    enabled: bool = key(True, Flag(), "whether one is kept", "--no-audit")
    path: str | None = key(
        None,
        Text("/var/lib/holdfast/audit"),
        f"its directory, which processes share; not given: NAME{BESIDE} beside a SQLite database, else none",
        "--audit",
    )
    records: str = key(
        AUDITED,
        Choice((AUDITED, EVERYTHING)),
        "everything: also busy attempts, warnings, and the reads and writes that the guards accepted",
    )
    file_size: int = key(16, Whole(1, 1024), "MiB after which a process begins its next file")
    file_age: float = key(_DAY, Seconds(1.0, _LONG), "after which it does so anyway")
    keep_size: int = key(512, Whole(1, 1_000_000), "MiB in the directory, above which the oldest files go")
    keep_age: float | None = key(None, Seconds(1.0, _LONG), "after which files go; not given: whatever their age")
    sync: float = key(
        1.0,
        Seconds(0.0, 3600.0),
        "within which a line is on the disk itself, in case the host loses power; 0: at once",
    )


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """The workflow engine."""

    concurrency: int = key(32, Whole(1, 10_000), "messages of each subject that are handled at once")
    run_ttl: float = key(
        families.WORKFLOW_RUN.ttl, Seconds(1.0, 3600.0), "how long a silent engine keeps the lock of a run"
    )
    run_renew_every: float | None = renew_every("run_ttl")
    run_failures: int = failures()


@dataclass(frozen=True, slots=True)
class RunSettings:
    """The loop that tells runs what they have missed."""

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
    """The loop that comes for runs whose time has come."""

    interval: float = key(5.0, Seconds(0.1, 3600.0), "between two ticks")
    lead: str = lead()
    renew_every: float | None = renew_every()
    failures: int = failures()


@dataclass(frozen=True, slots=True)
class ApprovalSettings:
    """Which jobs wait for a person."""

    rules: ApprovalRules = key(  # noqa: RUF009 - rules are frozen, so one default serves all
        ApprovalRules(), Rules(), "what needs approval, or is refused; the first that matches"
    )
    lock_ttl: float = key(
        families.APPROVAL.ttl, Seconds(1.0, 3600.0), "how long a decision that went silent keeps the lock of its job"
    )
    lock_renew_every: float | None = renew_every("lock_ttl")
    lock_failures: int = failures()


TEXT: Final = "text"
JSON: Final = "json"
LEVELS: Final = ("debug", "info", "warning", "error")


@dataclass(frozen=True, slots=True)
class LogSettings:
    """The log lines of a process. See docs/logs.md."""

    format: str = key(TEXT, Choice((TEXT, JSON)), "how lines are written; with --json they are JSON", "--log-format")
    level: str = key("warning", Choice(LEVELS), "below which nothing is written; debug: of drivers too", "--log-level")


@dataclass(frozen=True, slots=True)
class OtelSettings:
    """Metrics sent with OpenTelemetry. See docs/metrics.md."""

    enabled: bool = key(False, Flag(), "whether metrics are sent, as the OTEL_* variables say", "--otel")
    endpoint: str | None = key(
        None,
        Url(("http", "https"), "http://collector:4318"),
        "where to; not given: $OTEL_EXPORTER_OTLP_ENDPOINT, else http://localhost:4318",
    )
    interval: float | None = key(
        None, Seconds(0.1, 3600.0), "between two exports; not given: $OTEL_METRIC_EXPORT_INTERVAL, else 60"
    )


@dataclass(frozen=True, slots=True)
class NameSettings:
    """What the keys of locks and the names of metrics begin with."""

    keys: str = key(
        DEFAULT,
        Word("acme", check_key_prefix),
        "before the first colon of the keys of locks; one for all processes of a plane: holdfast up --switch-keys",
    )
    metrics: str = key(
        DEFAULT,
        Word("acme", check_metric_prefix),
        "before the first underscore of metrics, and of what asks for them: alert rules, dashboard, runbooks, tune",
    )

    @property
    def words(self) -> Names:
        """As they are used."""
        return Names(self.keys, self.metrics)
