"""One example of each runbook, from made-up facts and the real rules: for the page, and for tests.

`case_of`, `report_of`, `searched_of` and `rates` build cases from any facts, without a server.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from holdfast.core.history.events import EventKind
from holdfast.errors import BadInput
from holdfast.ops.runbooks import RUNBOOKS
from holdfast.ops.runbooks.books.before_ttl_change import TimingFact
from holdfast.ops.runbooks.collectors.searches import suspects_of_locks
from holdfast.ops.runbooks.evidence.ledger import Cause, LedgerFact, Loss
from holdfast.ops.runbooks.evidence.locks import (
    ClassFact,
    FamilyHeld,
    ForcedFact,
    HeldFact,
    LockFact,
    LocksFact,
    PolicyFact,
    ProofFact,
    StoreFact,
)
from holdfast.ops.runbooks.evidence.metrics import WINDOW_S, MetricsFact
from holdfast.ops.runbooks.evidence.plane import (
    DebtFact,
    JobFact,
    PendingFact,
    PoolDebt,
    RetryFact,
    RunFact,
    SnapshotFact,
    TenantDebt,
)
from holdfast.ops.runbooks.evidence.servers import ClockFact, DiskSpace, RoomFact
from holdfast.ops.runbooks.evidence.work import FleetFact, MissingLeases, WorkerFact, WorkFact
from holdfast.ops.runbooks.model import (
    Case,
    Evidence,
    EvidenceSource,
    Fact,
    NotGiven,
    Runbook,
    RunbookReport,
    RunbookStep,
    judged,
)
from holdfast.ops.runbooks.sources import WINDOW_S as WINDOW_LONG_S
from holdfast.ops.runbooks.suspects import GatheredEvidence, SuspectsFact, concluded
from holdfast.plane.fleet.registry import Pool, View
from holdfast.plane.locks.registry import FAMILIES, Scope
from holdfast.plane.model.job_states import JobState
from holdfast.plane.service.overview import PlaneOverview, RunningAttempt, UsualDuration, WaitingJob
from holdfast.plane.settings.settings import Settings

SETTINGS: Final = Settings(
    database="postgresql://plane@db/plane", leases="redis://leases:6379/0", bus="nats://bus:4222"
)
AT_NS: Final = 1_767_233_820_000_000_000  # 02:17 UTC on the first of January 2026

WHERE: Final[Mapping[EvidenceSource, str]] = {
    EvidenceSource.LEASES: "redis://leases:6379/0",
    EvidenceSource.DATABASE: "postgresql://plane@db/plane",
    EvidenceSource.BUS: "nats://bus:4222",
    EvidenceSource.METRICS: "http://prometheus:9090",
    EvidenceSource.LEDGER: "/var/lib/holdfast/audit",
    EvidenceSource.SETTINGS: "holdfast.toml",
}
_A: Final = "plane@web-3:411/15852a"
_B: Final = "plane@web-4:97/0c11e2"


def case_of(runbook: Runbook, facts: Mapping[str, Fact | Exception], **arguments: str) -> Case:
    """A case from facts. A step without a fact was not given its source; an error means that the source failed."""
    return Case({step.name: _evidence(step, facts) for step in runbook.steps}, SETTINGS, AT_NS, arguments)


def _evidence(step: RunbookStep, facts: Mapping[str, Fact | Exception]) -> Evidence:
    found: Any = facts.get(step.name, NotGiven(f"no {step.source}"))
    place = (step.name, step.source, WHERE[step.source], AT_NS)
    if isinstance(found, NotGiven):
        return Evidence(*place, None, f"{found}: {step.source.fix}", given=False)
    return Evidence(*place, None, str(found)) if isinstance(found, Exception) else Evidence(*place, found)


def report_of(runbook: Runbook, facts: Mapping[str, Fact | Exception], **arguments: str) -> RunbookReport:
    """The report of a case."""
    case = case_of(runbook, facts, **arguments)
    return RunbookReport(runbook, arguments, AT_NS, tuple(case.evidence.values()), judged(runbook, case))


def searched_of(
    runbook: Runbook, facts: Mapping[str, Fact | Exception], own: Mapping[str, Mapping[str, Fact | Exception]]
) -> RunbookReport:
    """The report of a case without an id: facts of searches and of the whole plane, and facts by suspect."""
    argument = runbook.argument
    if argument is None:
        raise BadInput("runbook", f"{runbook.name} is about the whole plane", "use report_of")
    gathered = GatheredEvidence(
        tuple(_evidence(step, facts) for step in argument.searches),
        {step.name: _evidence(step, facts) for step in runbook.steps if not step.about},
        {
            each: {step.name: _evidence(step, theirs) for step in runbook.steps if step.about}
            for each, theirs in own.items()
        },
    )
    return concluded(runbook, argument, Case({}, SETTINGS, AT_NS), gathered, WINDOW_LONG_S)


def rates(runbook: Runbook, **numbers: Mapping[str, float]) -> MetricsFact:
    """Metrics, by the keys of the queries with `_` for spaces; missing ones are zero."""
    asked = next(step.queries for step in runbook.steps if step.queries)
    named = {key.replace("_", " "): found for key, found in numbers.items()}
    return MetricsFact(asked, {query.key: named.get(query.key, {"": 0.0}) for query in asked}, WINDOW_S, 0)


def policy(**more: Any) -> PolicyFact:
    """The two built-in classes, without fallbacks."""
    classes = (ClassFact("high", "fail_closed", "start", 0), ClassFact("low", "fail_open", "start", 0))
    usual: dict[str, Any] = {
        "classes": classes,
        "rate": 0.0,
        "limit": 0.1,
        "window_s": 300.0,
        "duplicates": {"step": (0, 0), "publish": (0, 0), "end": (0, 0)},
        "escalate": False,
        "because": "",
    }
    return PolicyFact(**{**usual, **more})


def held_lock(key: str, owner: str = _A, **more: Any) -> LockFact:
    """A healthy lock."""
    usual: dict[str, Any] = {"fence": 1042, "age": 4.0, "remaining": 52.0, "waiters": 0, "ttl": 60.0}
    return LockFact(key, True, owner, **{**usual, **more})


def live_worker(**more: Any) -> WorkerFact:
    """A worker that is well."""
    usual: dict[str, Any] = {
        "name": "w-7:1",
        "pool": "default",
        "topics": ("invoice.send",),
        "capacity": 8,
        "active": 2,
        "age": 2.0,
        "host": "web-3",
        "pid": 411,
    }
    return WorkerFact(**{**usual, **more})


def everything(**more: Fact | Exception) -> dict[str, Fact | Exception]:
    """The facts of a healthy plane, for `why`."""
    loops = (each for each in FAMILIES.values() if each.scope is Scope.LOOP)
    well: dict[str, Fact | Exception] = {
        "database": StoreFact("postgres", 5, 5, 0.002, "", {"role": "primary", "connections": "12 of 100"}),
        "store": StoreFact("redis", 5, 5, 0.0011, "", {"role": "master", "maxmemory_policy": "noeviction"}),
        "bus": StoreFact("nats", 5, 5, 0.003),
        "work": WorkFact(PlaneOverview(AT_NS, view=SERVED)),
        "workers": FleetFact((live_worker(),), 5.0, 30.0, {"default": 1}),
        "debt": DebtFact((), (PoolDebt("default", 2, 1, 8, 0),), {"RUNNING": 0}),
        "held": HeldFact(()),
        "leases": MissingLeases(2, ()),
        "loops": LocksFact(tuple(held_lock(each.key()) for each in loops)),
        "snapshot": SnapshotFact(3.0, _A, 1042, 1, 1),
        "policy": policy(),
        "room": RoomFact((DiskSpace("audit ledger", "/var/lib/holdfast/audit", 80 * 10**9, 100 * 10**9),), 16_000_000),
        "clock": ClockFact(0.003, 0.002),
    }
    return {**well, **more}


SERVED: Final = View(
    AT_NS, {"default": Pool("default", 1, 8, {"invoice.send": 1})}, {"invoice.send": AT_NS, "invoice.print": AT_NS}
)
"""One live worker, which serves one of two topics."""


def hanging(number: int = 8, *, silent: float = 212.0) -> PlaneOverview:
    """Attempts that hang and take all slots, and a job behind them."""
    return PlaneOverview(
        AT_NS,
        waiting=(WaitingJob("inv-31", "acme", "invoice.send", "default", 194.0),),
        attempts=tuple(
            RunningAttempt(f"inv-{each}", "acme", "invoice.send", "default", "w-7:1", 1, silent, silent)
            for each in range(9, 9 + number)
        ),
        usual={"invoice.send": UsualDuration(100, 0.8, 215.0)},
        running={"default": number},
        view=SERVED,
    )


# The examples.


def _why() -> RunbookReport:
    debt = DebtFact((TenantDebt("acme", 8, None, 41, 194.0),), (PoolDebt("default", 8, 1, 8, 41),), {"RUNNING": 0})
    facts = everything(
        work=WorkFact(hanging()), debt=debt, workers=FleetFact((live_worker(active=8),), 5.0, 30.0, {"default": 1})
    )
    return report_of(RUNBOOKS["why"], facts)


def _not_owned() -> RunbookReport:
    book = RUNBOOKS["not-owned"]
    why = "no renewal was sent: the process was paused or starved, or its renewer hung"
    losses = tuple(
        Loss(f"holdfast:scheduler:job:{job}", "scheduler.job", _B, 1000 + job, AT_NS - job, Cause.PAUSE, why)
        for job in range(31, 38)
    )
    counts = {str(EventKind.GRANTED): 96, str(EventKind.LOST): 7}
    lost = {"scheduler.job expired": 0.008}
    oldest = held_lock("holdfast:scheduler:job:40")
    return report_of(
        book,
        {
            "rates": rates(book, lost=lost, granted={"scheduler.job": 0.11}, not_owned={"scheduler.job": 0.0}),
            "losses": LedgerFact(900.0, 110, counts, losses),
            "forced": ForcedFact((), 900.0),
            "held": HeldFact((FamilyHeld("scheduler.job", 12, 0, oldest, ()),)),
            "store": StoreFact("redis", 5, 5, 0.0011, "", {"role": "master", "connected_slaves": "1"}),
        },
    )


def _duplicates() -> RunbookReport:
    book = RUNBOOKS["duplicate-dispatch"]
    events = (
        "RUNNING -> SUCCEEDED, attempt 1, fence 1042, by w-7",
        "SUCCEEDED -> FAILED, attempt 1, fence 977, by psql",
    )
    wrong = ("fence 977 wrote after fence 1042", "it ended 2 times")
    job = JobFact("inv-9", "acme", "invoice.send", JobState.FAILED, 1, 3, 340.0, 977, 975, "w-7", wrong, events)
    locks = tuple(LockFact(f"holdfast:{part}:job:inv-9", False, ttl=60.0) for part in ("scheduler", "worker"))
    loops = (held_lock("holdfast:reconciler:default"), held_lock("holdfast:replayer:pending"))
    facts: dict[str, Fact | Exception] = {
        "locks": LocksFact(locks),
        "loops": LocksFact(loops),
        "job": job,
        "policy": policy(),
    }
    return report_of(book, facts, JOB="inv-9")


def _contention() -> RunbookReport:
    book = RUNBOOKS["workflow-contention"]
    lock = held_lock("holdfast:wf:run:lock:r-17", _B, age=212.0, remaining=24.0, waiters=4, ttl=30.0)
    loops = (
        held_lock("holdfast:workflow-engine:reconciler:default", ttl=10.0, remaining=8.0),
        held_lock("holdfast:wf:delay:poller", ttl=10.0, remaining=7.0),
    )
    run = RunFact("r-17", "acme", "refund v3", "running", False, "high", 1042, 212.0, None, (), 0, 14)
    pending = PendingFact({"run.result": 9}, {"run.result": 13}, 3.0)
    facts: dict[str, Fact | Exception] = {
        "lock": LocksFact((lock,)),
        "loops": LocksFact(loops),
        "run": run,
        "pending": pending,
    }
    return report_of(book, facts, RUN="r-17")


def _contention_searched() -> RunbookReport:
    book = RUNBOOKS["workflow-contention"]
    lock = held_lock("holdfast:wf:run:lock:r-17", _B, age=212.0, remaining=24.0, waiters=4, ttl=30.0)
    loops = (
        held_lock("holdfast:workflow-engine:reconciler:default", ttl=10.0, remaining=8.0),
        held_lock("holdfast:wf:delay:poller", ttl=10.0, remaining=7.0),
    )
    facts: dict[str, Fact | Exception] = {
        "runs in lease store": SuspectsFact.of(
            "2 run locks that are held now, for one held for 1 s or waited for", suspects_of_locks([lock])
        ),
        "runs in database": SuspectsFact("0 runs of the database that did not change for 30 s"),
        "loops": LocksFact(loops),
        "pending": PendingFact({"run.result": 9}, {"run.result": 13}, 3.0),
    }
    run = RunFact("r-17", "acme", "refund v3", "running", False, "high", 1042, 212.0, None, (), 0, 14)
    return searched_of(book, facts, {"r-17": {"lock": LocksFact((lock,)), "run": run}})


def _snapshot() -> RunbookReport:
    book = RUNBOOKS["snapshot-leader"]
    free = LockFact("holdfast:scheduler:snapshot:writer", False, ttl=10.0)
    found = SnapshotFact(94.0, _A, 1031, 6, 6)
    return report_of(book, {"lock": LocksFact((free,)), "snapshot": found, "rates": rates(book, leaders={"": 0.0})})


def _outage() -> RunbookReport:
    book = RUNBOOKS["store-outage"]
    error = "redis at leases:6379 cannot be reached: Connection refused"
    classes = (ClassFact("high", "fail_closed", "start", 0), ClassFact("low", "fail_open", "start", 96))
    facts: dict[str, Fact | Exception] = {
        "store": StoreFact("redis", 1, 0, None, error),
        "policy": policy(classes=classes, rate=0.32),
        "rates": rates(book, fallbacks={"web-3:9100": 0.2, "web-4:9100": 0.12}, breaker={"web-3:9100": 1.0}),
    }
    return report_of(book, facts)


def _debt() -> RunbookReport:
    book = RUNBOOKS["lock-debt"]
    tenants = (TenantDebt("acme", 4, 4, 212, 95.0), TenantDebt("globex", 3, None, 0))
    debt = DebtFact(tenants, (PoolDebt("default", 7, 2, 16, 212),), {"SCHEDULED": 0, "RUNNING": 0})
    loops = (held_lock("holdfast:reconciler:default"), held_lock("holdfast:replayer:pending"))
    oldest = held_lock("holdfast:scheduler:job:40", age=0.02)
    facts: dict[str, Fact | Exception] = {
        "debt": debt,
        "work": WorkFact(PlaneOverview(AT_NS, view=SERVED)),
        "workers": FleetFact((live_worker(),), 5.0, 30.0, {"default": 1}),
        "held": HeldFact((FamilyHeld("scheduler.job", 2, 0, oldest, ()),)),
        "loops": LocksFact(loops),
        "rates": rates(book, wait={"scheduler": 0.012}, hold={"scheduler.job": 0.03}),
    }
    return report_of(book, facts)


def _waves() -> RunbookReport:
    book = RUNBOOKS["retry-waves"]
    ttls = {"scheduler.job": 60.0, "worker.job": 30.0, "workflow.run": 30.0}
    retry = RetryFact(0.5, 0.0, ttls, {name: ttl / 3 for name, ttl in ttls.items()}, "the bus kept the delay of 0.5 s")
    found = rates(
        book,
        fano={"50ms": 11.0, "500ms": 0.8},
        peak={"50ms": 9.6, "500ms": 1.3},
        busy={"workflow.run": 38.0},
        wait={"workflow.run": 1.7},
        hold={"workflow.run": 0.02},
    )
    return report_of(book, {"rates": found, "pending": PendingFact({}, {"run.result": 40}, 3.0), "retrying": retry})


def _ttl() -> RunbookReport:
    book = RUNBOOKS["before-ttl-change"]
    seen = {
        "contention": ("while one client holds the key, another gets an empty token", "second acquire: empty"),
        "owner": ("any client can read the owner and the remaining time", "remaining 9982 ms of 10000 ms"),
        "stale release": ("a stale owner cannot release the new owner's key", "answer: lock not owned"),
        "expiry": ("a key that is not renewed becomes free, and its fence rises", "fence 1042, then 1043"),
        "exclusion": ("none gets a held key, and one gets a free one", "1 of 8 got it when it was free"),
        "clean-up": ("the key is deleted", "no key begins with holdfast:runbook:"),
    }
    facts: dict[str, Fact | Exception] = {step: ProofFact(claim, True, (line,)) for step, (claim, line) in seen.items()}
    facts["timing"] = TimingFact({"scheduler.job": (60.0, 20.0)}, {"a job that a scheduler was deciding": 60.5})
    return report_of(book, facts)


SEARCHED: Final[Mapping[str, Callable[[], RunbookReport]]] = {"workflow-contention": _contention_searched}
"""A runbook that was called without an id."""

EXAMPLES: Final[Mapping[str, Callable[[], RunbookReport]]] = {
    "why": _why,
    "not-owned": _not_owned,
    "duplicate-dispatch": _duplicates,
    "workflow-contention": _contention,
    "snapshot-leader": _snapshot,
    "store-outage": _outage,
    "lock-debt": _debt,
    "retry-waves": _waves,
    "before-ttl-change": _ttl,
}
