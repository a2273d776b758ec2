"""The settings of a plane: one tree of frozen values, each declared once with its type and purpose.

From this declaration come the keys of `holdfast.toml`, the environment variables (`scheduler.concurrency` is
`$HOLDFAST_SCHEDULER_CONCURRENCY`), the checks, the output of `holdfast up --check`, and the page in the documentation.
Durations are seconds. `sources.load` reads a tree, `consistency.problems` finds values that do not work together. Does
not promise that any address can be reached: nothing is opened here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final, NamedTuple
from urllib.parse import quote, unquote

from holdfast.core.lease.error_policy import OnError
from holdfast.core.lease.policy_exercise import Exercise, parse_exercise
from holdfast.core.retry_delays import RetryDelays
from holdfast.errors import BadInput
from holdfast.plane.jobs.rules import StateLimits
from holdfast.plane.locks import registry as families
from holdfast.plane.model.records import check_whole
from holdfast.plane.policy.escalation_rules import EscalationRule
from holdfast.plane.settings.declare import KIND as _KIND
from holdfast.plane.settings.declare import failures as _failures
from holdfast.plane.settings.declare import key as _key
from holdfast.plane.settings.declare import lead as _lead
from holdfast.plane.settings.declare import renew_every as _renew_every
from holdfast.plane.settings.lock_times import FAMILY_KEYS, families_in_effect, is_renewed
from holdfast.plane.settings.sections import (
    BESIDE,
    ApprovalSettings,
    AuditSettings,
    DelaySettings,
    EngineSettings,
    LogSettings,
    NameSettings,
    OtelSettings,
    RunSettings,
    ScheduleSettings,
)
from holdfast.plane.settings.types import Amount, Choice, Flag, Modes, NameList, Seconds, SettingKind, Text, Url, Whole
from holdfast.stores.registry import BUILT, DEFAULT_FILE, former_plane_file, state_directory
from holdfast.types import NS, Guarantee

DAY_NS: Final = 86_400 * NS


@dataclass(frozen=True, slots=True)
class Retention:
    """How long data is kept, in nanoseconds, and the maximal number of dead letters."""

    jobs_ns: int = 7 * DAY_NS  # from their end
    keys_ns: int = 90 * DAY_NS  # from the insert of their job
    letters_ns: int = 30 * DAY_NS
    letters_of_tenant: int = 10_000
    workers_ns: int = 7 * DAY_NS  # from their last heartbeat
    runs_ns: int = 30 * DAY_NS  # from their end; approvals likewise

    def check(self) -> Retention:
        """This object, or `BadInput`."""
        for each in fields(self):
            check_whole(each.name, getattr(self, each.name), 1, 2**62)
        if self.keys_ns < self.jobs_ns:
            raise BadInput("keys_ns", "is shorter than jobs_ns", "a key lives as long as its job, or longer")
        return self


PREFIX: Final = "HOLDFAST"
FILE: Final = "holdfast.toml"

_DAY: Final = 86_400.0
_LONG: Final = 20 * 365 * _DAY


class Origin(NamedTuple):
    """The origin of a value."""

    kind: str  # flag, environment, file, default
    name: str = ""  # --database, HOLDFAST_DATABASE, holdfast.toml:3

    def __str__(self) -> str:
        return {"environment": f"${self.name}", "default": "default"}.get(self.kind, self.name)


DEFAULT: Final = Origin("default")


class Key(NamedTuple):
    """The declaration of one setting."""

    name: str  # scheduler.concurrency
    kind: SettingKind
    help: str
    flag: str | None
    default: Any

    @property
    def variable(self) -> str:
        """Its environment variable."""
        return f"{PREFIX}_{self.name.replace('.', '_').upper()}"


@dataclass(frozen=True, slots=True)
class ApiSettings:
    """The HTTP API and the page at `/`."""

    host: str = _key("127.0.0.1", Text("localhost"), "the address to listen at", "--host")
    port: int = _key(8420, Whole(0, 65_535), "the port; 0: any free port", "--port")
    tokens: str | None = _key(
        None, Text("tokens.toml"), "a file with the tokens of callers and their roles; unset: only this host, as admin"
    )
    rate: int = _key(
        500,
        Whole(0, 1_000_000),
        "requests a second of one token, or address without tokens; bursts of twice that; 0: unlimited",
    )


@dataclass(frozen=True, slots=True)
class ProbeSettings:
    """Health, readiness and metrics over HTTP, in processes without the API."""

    enabled: bool = _key(True, Flag(), "whether they are served; where the API runs it serves them", "--no-probe")
    host: str = _key(
        "127.0.0.1", Text("localhost"), "the address to listen at; the tokens are the API's", "--probe-host"
    )
    port: int = _key(0, Whole(0, 65_535), "the port; 0: any free port; set: also next to the API", "--probe-port")


@dataclass(frozen=True, slots=True)
class SchedulerSettings:
    """The scheduler."""

    concurrency: int = _key(128, Whole(1, 10_000), "messages of each subject that are handled concurrently")
    tenant_slots: int | None = _key(
        None, Whole(1, 1_000_000), "jobs of one tenant on workers at the same time, unless it has its own limit"
    )
    job_ttl: float = _key(
        families.SCHEDULER_JOB.ttl, Seconds(1.0, 3600.0), "how long a silent scheduler keeps the lock of a job"
    )
    job_renew_every: float | None = _renew_every("job_ttl")
    job_failures: int = _failures()
    ack_wait: float | None = _key(
        None, Seconds(1.0, 3600.0), "without a heartbeat, after which a message is redelivered; half of job_ttl"
    )
    busy_delay: float = _key(0.5, Seconds(0.001, 60.0), "after which a message whose job is busy is redelivered")
    busy_jitter: float = _key(0.0, Seconds(0.0, 60.0), "random variation of that delay, up and down; 0: exactly")
    backend_delay: float = _key(1.0, Seconds(0.001, 60.0), "after which a message is redelivered when a store failed")
    unknown_topic_timeout: float | None = _key(
        None,
        Seconds(0.1, _LONG),
        "after which a job fails whose topic no worker has ever announced; unset: it waits for such a worker",
    )

    fast_path: bool = _key(True, Flag(), "whether a submission may dispatch its job immediately")
    prefetch: bool = _key(True, Flag(), "whether workers get more brief jobs than they have slots")

    @property
    def topic_grace_ns(self) -> int | None:
        """In nanoseconds, for the placement of jobs."""
        return None if self.unknown_topic_timeout is None else round(self.unknown_topic_timeout * NS)

    @property
    def silence(self) -> float:
        """How long a message is silent before it is redelivered.

        By default half of the lock's TTL. A message whose scheduler died before it had the lock need not wait for it,
        and one whose scheduler held the lock is redelivered no later than the lock expires.
        """
        return self.job_ttl / 2 if self.ack_wait is None else self.ack_wait

    @property
    def delays(self) -> RetryDelays:
        """The delay classes. `consistency` has refused a jitter that is not below its delay."""
        fixed = RetryDelays().without_jitter(round(self.busy_delay * NS))
        delays = RetryDelays(fixed.busy, RetryDelays().without_jitter(round(self.backend_delay * NS)).busy)
        return delays.with_jitter(round(self.busy_jitter * NS)) if self.busy_jitter else delays


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """The workers of this process."""

    app: str | None = _key(None, Text("billing.jobs:app"), "the functions that they run, as module:name", "--app")
    count: int = _key(2, Whole(1, 1000), "number of workers", "--workers")
    concurrency: int = _key(
        8, Whole(1, 10_000), "attempts that one worker runs concurrently, in each pool", "--concurrency"
    )
    pools: tuple[str, ...] = _key((), NameList(), "the pools that they serve; unset: all of the app's", "--pool")
    heartbeat: float = _key(5.0, Seconds(0.1, 600.0), "between two heartbeats")
    lease_ttl: float = _key(
        families.WORKER_JOB.ttl, Seconds(1.0, 3600.0), "how long a silent worker keeps a job", "--lease-ttl"
    )
    lease_renew_every: float | None = _renew_every("lease_ttl")
    lease_failures: int = _failures()
    cancel_grace: float = _key(5.0, Seconds(0.0, 600.0), "how long a cancelled function may take to stop")
    claim_leases: bool = _key(True, Flag(), "whether a claim acquires the leases, if both are in one SQLite file")


@dataclass(frozen=True, slots=True)
class ReconcilerSettings:
    """The loop that ends overdue jobs."""

    interval: float = _key(30.0, Seconds(0.1, 3600.0), "between two ticks")
    lead: str = _lead()
    renew_every: float | None = _renew_every()
    failures: int = _failures()


@dataclass(frozen=True, slots=True)
class ReplayerSettings:
    """The loop that resends messages of jobs that wait too long."""

    interval: float = _key(30.0, Seconds(0.1, 3600.0), "between two ticks")
    lead: str = _lead()
    renew_every: float | None = _renew_every()
    failures: int = _failures()


@dataclass(frozen=True, slots=True)
class SnapshotSettings:
    """The loop that writes the worker snapshot."""

    interval: float = _key(5.0, Seconds(0.1, 600.0), "between two snapshots")
    lead: str = _lead()
    renew_every: float | None = _renew_every()
    failures: int = _failures()


@dataclass(frozen=True, slots=True)
class CleanupSettings:
    """The loop that deletes expired data."""

    interval: float = _key(60.0, Seconds(1.0, _DAY), "between two ticks")
    lead: str = _lead()
    renew_every: float | None = _renew_every()
    failures: int = _failures()
    jobs: float = _key(7 * _DAY, Seconds(1.0, _LONG), "how long a finished job is kept")
    keys: float = _key(90 * _DAY, Seconds(1.0, _LONG), "how long the same idempotency key gives the same job")
    letters: float = _key(30 * _DAY, Seconds(1.0, _LONG), "how long dead letters are kept")
    letters_of_tenant: int = _key(10_000, Whole(1, 10**9), "how many dead letters of one tenant are kept")
    workers: float = _key(7 * _DAY, Seconds(1.0, _LONG), "how long a silent worker and its topics are kept")
    runs: float = _key(30 * _DAY, Seconds(1.0, _LONG), "how long a finished run, its timeline and approvals are kept")

    @property
    def retention(self) -> Retention:
        """For the loop."""
        return Retention(
            jobs_ns=round(self.jobs * NS),
            keys_ns=round(self.keys * NS),
            letters_ns=round(self.letters * NS),
            letters_of_tenant=self.letters_of_tenant,
            workers_ns=round(self.workers * NS),
            runs_ns=round(self.runs * NS),
        )


@dataclass(frozen=True, slots=True)
class LimitSettings:
    """How long a job may stay in a state, and when it is checked again."""

    replay: float = _key(30.0, Seconds(0.1), "after which a job that makes no progress is checked again")
    scheduled: float = _key(120.0, Seconds(0.1), "how long a job may be SCHEDULED")
    dispatched: float = _key(300.0, Seconds(0.1), "how long a job may be DISPATCHED")
    running: float = _key(900.0, Seconds(0.1), "how long a job may be RUNNING, unless the job has its own limit")
    retrying: float = _key(3600.0, Seconds(0.1), "how long a job may be RETRYING after it is due")
    pending: float | None = _key(None, Seconds(0.1), "how long a job may be PENDING; unset: forever")

    @property
    def states(self) -> StateLimits:
        """For the decisions."""
        return StateLimits(
            replay_ns=round(self.replay * NS),
            scheduled_ns=round(self.scheduled * NS),
            dispatched_ns=round(self.dispatched * NS),
            running_ns=round(self.running * NS),
            retrying_ns=round(self.retrying * NS),
            pending_ns=None if self.pending is None else round(self.pending * NS),
        )


@dataclass(frozen=True, slots=True)
class EscalationSettings:
    """The rule that makes risk classes fail closed automatically."""

    armed: bool = _key(False, Flag(), "whether it may switch")
    rate: float = _key(0.1, Amount(0.0, 1e6, "fallbacks a second"), "above which it does, if duplicates rise too")
    window: float = _key(300.0, Seconds(10.0, 1800.0), "over which both are counted")
    classes: tuple[str, ...] = _key(("high",), NameList(), "the risk classes that it switches")

    @property
    def rule(self) -> EscalationRule:
        """As an object."""
        return EscalationRule(self.rate, round(self.window * NS), self.classes)


@dataclass(frozen=True, slots=True)
class ExerciseSettings:
    """Deliberate use of the fallback path, by fail_open classes."""

    family: str | None = _key(None, Text("workflow.run"), "whose locks see a simulated store error; unset: none")
    share: float = _key(0.01, Amount(0.000001, 1.0, "a share"), "of its acquisitions that do")

    @property
    def plan(self) -> Exercise | None:
        """As an object."""
        return None if self.family is None else parse_exercise(self.family, self.share)


SECTIONS: Final[Mapping[str, type]] = {
    "api": ApiSettings,
    "probe": ProbeSettings,
    "scheduler": SchedulerSettings,
    "worker": WorkerSettings,
    "reconciler": ReconcilerSettings,
    "replayer": ReplayerSettings,
    "snapshot": SnapshotSettings,
    "cleanup": CleanupSettings,
    "limits": LimitSettings,
    "engine": EngineSettings,
    "runs": RunSettings,
    "delays": DelaySettings,
    "schedules": ScheduleSettings,
    "approvals": ApprovalSettings,
    "escalation": EscalationSettings,
    "exercise": ExerciseSettings,
    "audit": AuditSettings,
    "log": LogSettings,
    "otel": OtelSettings,
    "names": NameSettings,
}


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings of a plane."""

    database: str | None = _key(
        None,
        Url(("sqlite", "postgresql", "postgres"), "sqlite:///plane.db or postgresql://user@host/database"),
        f"where state is stored; unset: {DEFAULT_FILE} in your state directory",
        "--database",
    )
    bus: str | None = _key(
        None, Url(("nats", "tls"), "nats://host:4222"), "the message bus; unset: the database", "--bus"
    )
    leases: str | None = _key(
        None,
        Url(tuple(each for each in BUILT if "+" not in each), "redis://host:6379/0 or sqlite:///leases.db"),
        "where leases are stored; unset: the database",
        "--leases",
    )
    guarantee: str = _key(
        str(Guarantee.EFFICIENCY_ONLY),
        Choice(tuple(Guarantee)),
        "the least that the lease store must promise as it is configured; with less, no process starts",
    )
    grace: float = _key(30.0, Seconds(0.0, 3600.0), "how long running work may take to stop at shutdown")
    takeover: float | None = _key(
        None, Seconds(1.0, _DAY), "time limit for a takeover from a dead process; settings that break it are refused"
    )
    risk: tuple[tuple[str, OnError], ...] = _key(
        (), Modes(), "what risk classes do when the lease store fails; see docs/policy.md"
    )
    policy_file: str | None = _key(
        None, Text("policy.toml"), "a file with a [risk] table that is followed while the plane runs"
    )
    api: ApiSettings = field(default_factory=ApiSettings)
    probe: ProbeSettings = field(default_factory=ProbeSettings)
    scheduler: SchedulerSettings = field(default_factory=SchedulerSettings)
    worker: WorkerSettings = field(default_factory=WorkerSettings)
    reconciler: ReconcilerSettings = field(default_factory=ReconcilerSettings)
    replayer: ReplayerSettings = field(default_factory=ReplayerSettings)
    snapshot: SnapshotSettings = field(default_factory=SnapshotSettings)
    cleanup: CleanupSettings = field(default_factory=CleanupSettings)
    limits: LimitSettings = field(default_factory=LimitSettings)
    engine: EngineSettings = field(default_factory=EngineSettings)
    runs: RunSettings = field(default_factory=RunSettings)
    delays: DelaySettings = field(default_factory=DelaySettings)
    schedules: ScheduleSettings = field(default_factory=ScheduleSettings)
    approvals: ApprovalSettings = field(default_factory=ApprovalSettings)
    escalation: EscalationSettings = field(default_factory=EscalationSettings)
    exercise: ExerciseSettings = field(default_factory=ExerciseSettings)
    audit: AuditSettings = field(default_factory=AuditSettings)
    log: LogSettings = field(default_factory=LogSettings)
    otel: OtelSettings = field(default_factory=OtelSettings)
    names: NameSettings = field(default_factory=NameSettings)
    origins: Mapping[str, Origin] = field(default_factory=dict, compare=False)
    file: str | None = field(default=None, compare=False)  # its path

    @property
    def database_url(self) -> str:
        """The database, including passwords: see `shown`."""
        return self.database or f"sqlite:///{quote(str(former_plane_file() or state_directory() / DEFAULT_FILE))}"

    @property
    def lease_url(self) -> str:
        """The lease store: by default the database. A file is named without the options of the plane."""
        if self.leases:
            return self.leases
        url = self.database_url
        return url.partition("?")[0] if url.lower().startswith("sqlite:") else url

    @property
    def leases_in_database(self) -> bool:
        """Whether leases are in the database of the plane."""
        return self.lease_url in (self.database_url, self.database_url.partition("?")[0])

    @property
    def audit_path(self) -> str | None:
        """The directory of the audit ledger: by default next to the file of the database. None: no ledger."""
        if not self.audit.enabled:
            return None
        scheme, _, place = self.database_url.partition("?")[0].partition("://")
        beside = f"{unquote(place[1:])}{BESIDE}" if scheme.lower() == "sqlite" else None
        return self.audit.path or beside

    def origin(self, name: str) -> Origin:
        """The origin of the value of a key."""
        return self.origins.get(name, DEFAULT)

    def value(self, name: str) -> Any:
        """The value of a key, such as `scheduler.concurrency`."""
        found: Any = self
        for part in name.split("."):
            found = getattr(found, part)
        return found

    def shown(self) -> dict[str, dict[str, Any]]:
        """Every value in effect and its origin, for people and programs. Secrets are masked."""
        effective = {
            "database": self.database_url,
            "bus": self.bus,
            "leases": self.lease_url,
            "scheduler.ack_wait": self.scheduler.silence,
            "audit.path": self.audit_path,
        }
        for name, each in families_in_effect(self).items():
            renewed = round(each.renew_every, 3) if is_renewed(self, each) else None
            effective[FAMILY_KEYS[name].renew_every] = renewed
        shown = {}
        for key in KEYS.values():
            value = effective[key.name] if key.name in effective else self.value(key.name)
            text = None if value is None else key.kind.shown(value)
            shown[key.name] = {"value": text, "from": str(self.origin(key.name))}
        return shown


def _declared(tree: type, prefix: str = "") -> Iterator[Key]:
    for each in fields(tree):
        if _KIND in each.metadata:
            told = each.metadata
            yield Key(prefix + each.name, told[_KIND], told["help"], told["flag"], each.default)
        elif each.name in SECTIONS:
            yield from _declared(SECTIONS[each.name], f"{each.name}.")


KEYS: Final[Mapping[str, Key]] = {key.name: key for key in _declared(Settings)}
