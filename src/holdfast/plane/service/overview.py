"""The work of a plane in one view: queues, attempts, workers, dead letters, approvals and late schedules.

    found = await Overview(database, workers, clock).read()

The metrics of the whole plane and the runbook of causes use the same values, so an alert and the diagnosis agree.

Promises: every query reads an index of unfinished work, of recent dead letters, or a bounded number of rows. No
payloads. `read` needs about ten queries in one transaction.

Clock: the wall clock, for ages.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from holdfast.core.ports import Clock
from holdfast.plane.db.ports import Database, Row, Tx
from holdfast.plane.db.statements import sql
from holdfast.plane.fleet.registry import View, Workers
from holdfast.plane.model.records import Heartbeat
from holdfast.types import NS

WAITING_MAX: Final = 1000
ATTEMPTS_MAX: Final = 1000
LETTERS_MAX: Final = 1000
APPROVALS_MAX: Final = 1000
SCHEDULES_MAX: Final = 1000
LETTERS_NS: Final = 900 * NS
"""Dead letters that are older are no news."""

SILENT_NS: Final = 900 * NS
"""A worker that has been silent for longer is history."""

LONG_NS: Final = 10 * NS
"""An attempt that takes longer is compared with earlier ones of its topic."""
TOPICS_MAX: Final = 20
EARLIER: Final = 100
SHARE: Final = 0.95
ENOUGH: Final = 5
"""With fewer earlier attempts, the usual duration is unknown."""

HUNG_NS: Final = 30 * NS
"""An attempt without progress counts as hung after this time at the earliest,"""
HUNG_TIMES: Final = 5.0
"""and after so many times the usual duration of its topic."""

DEADLY: Final = 2
"""Workers that end without a word while they run the same attempt: one may be a coincidence."""

_WAITING: Final = sql("overview_waiting")
_TOPICS: Final = sql("overview_topics")
_ATTEMPTS: Final = sql("overview_attempts")
_USUAL: Final = sql("overview_newest")
_LETTERS: Final = sql("overview_dead_letters")
_LETTERS_LEFT: Final = sql("status_dead")
_APPROVALS: Final = sql("overview_approvals")
_LATE: Final = sql("overview_late_schedules")
_PAUSED: Final = sql("overview_paused_schedules")
_POOLS: Final = sql("pool_list")


@dataclass(frozen=True, slots=True)
class WaitingJob:
    """A job that waits in a queue."""

    id: str
    tenant: str
    topic: str
    pool: str
    age: float  # seconds since it last changed


@dataclass(frozen=True, slots=True)
class RunningAttempt:
    """An attempt that runs."""

    id: str
    tenant: str
    topic: str
    pool: str
    worker: str
    attempt: int
    age: float  # seconds since it began
    silent: float  # seconds since it last reported progress, or began
    note: str | None = None
    timeout: float | None = None  # its own time limit, in seconds
    starts: int = 1  # workers that have lately started it, one after the other


@dataclass(frozen=True, slots=True)
class UsualDuration:
    """How long successful attempts of a topic took."""

    seen: int
    p95: float
    ended: float | None = None  # seconds since the last of them ended


@dataclass(frozen=True, slots=True)
class OpenLetter:
    """A recent dead letter that was not tried again."""

    id: str
    job: str
    tenant: str
    topic: str
    code: str
    reason: str
    attempts: int
    age: float


@dataclass(frozen=True, slots=True)
class OpenApproval:
    """An approval that waits for a decision."""

    job: str
    tenant: str
    requested_by: str
    run: str | None
    age: float
    expires: float | None = None  # seconds until it lapses


@dataclass(frozen=True, slots=True)
class WaitingSchedule:
    """A schedule that is late, or paused."""

    name: str
    tenant: str
    age: float  # seconds since its job should have been submitted, or since it was paused
    by: str | None = None  # who has paused it
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class PlaneOverview:
    """The plane at one moment."""

    at_ns: int
    waiting: Sequence[WaitingJob] = ()  # the oldest of every combination of pool, topic and tenant, the oldest first
    topics: Mapping[tuple[str, str], int] = field(default_factory=dict)  # jobs in topic queues, by pool and topic
    attempts: Sequence[RunningAttempt] = ()  # the longest first
    usual: Mapping[str, UsualDuration] = field(default_factory=dict)  # by topic, of those with long attempts
    running: Mapping[str, int] = field(default_factory=dict)  # jobs with workers, by pool
    letters: Sequence[OpenLetter] = ()  # the newest first
    letters_left: int = 0  # all that were not tried again
    approvals: Sequence[OpenApproval] = ()  # the oldest first
    late_schedules: Sequence[WaitingSchedule] = ()  # the latest first
    paused_schedules: Sequence[WaitingSchedule] = ()  # the first paused first
    workers: Sequence[Heartbeat] = ()
    live: frozenset[str] = frozenset()  # workers
    view: View = field(default_factory=View)

    def served(self, topic: str) -> bool:
        """Whether a live worker of any pool serves a topic."""
        return bool(self.view.serving(topic))

    @property
    def unserved(self) -> Mapping[str, int]:
        """The waiting jobs of each topic that no live worker serves."""
        found: Counter[str] = Counter()
        for (_, topic), jobs in self.topics.items():
            if not self.served(topic):
                found[topic] += jobs
        for each in self.waiting:  # a scheduler has not looked at them yet
            if not self.served(each.topic) and each.topic not in found:
                found[each.topic] += 1
        return found

    @property
    def silent(self) -> frozenset[str]:
        """Workers that have ended without a word: they are not alive and have not left."""
        left = {each.worker for each in self.workers if each.draining and each.capacity == 0}
        recent = {each.worker for each in self.workers if self.at_ns - each.at_ns < SILENT_NS}
        return frozenset(recent - left - self.live)

    @property
    def deadly(self) -> Sequence[tuple[RunningAttempt, int]]:
        """Attempts during which workers have ended without a word lately, and how many: enough to be no coincidence."""
        ended = [(each, each.starts - 1 + (each.worker in self.silent)) for each in self.attempts]
        return sorted((pair for pair in ended if pair[1] >= DEADLY), key=lambda pair: -pair[1])

    @property
    def full(self) -> Sequence[str]:
        """Pools whose workers have no free slot while jobs wait for them."""
        wait = {each.pool for each in self.waiting if self.served(each.topic)}
        pools = self.view.pools or {}
        return [
            name for name in sorted(wait) if name in pools and self.running.get(name, 0) >= pools[name].capacity > 0
        ]

    @property
    def hung(self) -> Sequence[RunningAttempt]:
        """Attempts without progress for far longer than attempts of their topic take, the longest first."""
        return [each for each in self.attempts if is_hung(each, self.usual.get(each.topic))]


def is_hung(attempt: RunningAttempt, usual: UsualDuration | None) -> bool:
    """Whether an attempt makes no progress for far longer than earlier ones took. Pure."""
    if attempt.silent < HUNG_NS / NS or usual is None or usual.seen < ENOUGH:
        return False
    return attempt.silent >= HUNG_TIMES * usual.p95


class Overview:
    """Reads the overview of one plane."""

    def __init__(self, database: Database, workers: Workers, clock: Clock) -> None:
        self._database = database
        self._workers = workers
        self._clock = clock

    async def read(self, *, letters_ns: int = LETTERS_NS) -> PlaneOverview:
        """The plane now. `letters_ns`: how far back dead letters and ended workers are read."""
        heartbeats = await self._workers.all()
        live = await self._workers.live()
        view = await self._workers.view(fresh=True)
        now_ns = self._clock.now().wall

        async def work(tx: Tx) -> PlaneOverview:
            waiting = [
                row
                for state in ("PENDING", "RETRYING")
                for row in await tx.query(_WAITING, {"state": state, "most": WAITING_MAX})
            ]
            recent = {"most": ATTEMPTS_MAX, "since_ns": now_ns - letters_ns}
            attempts = list(await tx.query(_ATTEMPTS, recent))
            usual = {}
            for topic, before_ns in _long(attempts, now_ns).items():
                values = {"topic": topic, "before_ns": before_ns, "most": EARLIER}
                usual[topic] = _usual(await tx.query(_USUAL, values), now_ns)
            letters = await tx.query(_LETTERS, {"since_ns": now_ns - letters_ns, "most": LETTERS_MAX})
            return PlaneOverview(
                at_ns=now_ns,
                waiting=_oldest(waiting, now_ns),
                topics={(row["pool"], row["topic"]): row["jobs"] for row in await tx.query(_TOPICS)},
                attempts=[_attempt(row, now_ns) for row in attempts],
                usual=usual,
                running={row["pool"]: row["running"] for row in await tx.query(_POOLS)},
                letters=[_letter(row, now_ns) for row in letters],
                letters_left=sum(row["letters"] for row in await tx.query(_LETTERS_LEFT)),
                approvals=[_approval(row, now_ns) for row in await tx.query(_APPROVALS, {"most": APPROVALS_MAX})],
                late_schedules=[
                    WaitingSchedule(row["name"], row["tenant"], _age(now_ns, row["submit_ns"]))
                    for row in await tx.query(_LATE, {"before_ns": now_ns, "most": SCHEDULES_MAX})
                ],
                paused_schedules=[
                    WaitingSchedule(
                        *(row["name"], row["tenant"], _age(now_ns, row["paused_ns"])),
                        *(row["paused_by"], row["paused_reason"]),
                    )
                    for row in await tx.query(_PAUSED, {"most": SCHEDULES_MAX})
                ],
                workers=heartbeats,
                live=frozenset(each.worker for each in live),
                view=view,
            )

        return await self._database.read(work)


def _age(now_ns: int, then_ns: int) -> float:
    return max(0.0, (now_ns - then_ns) / NS)


def _oldest(rows: Iterable[Row], now_ns: int) -> list[WaitingJob]:
    found: dict[tuple[str, str, str], Row] = {}
    for row in sorted(rows, key=lambda each: (each["updated_ns"], each["id"])):
        found.setdefault((row["pool"], row["topic"], row["tenant"]), row)
    return [
        WaitingJob(row["id"], row["tenant"], row["topic"], row["pool"], _age(now_ns, row["updated_ns"]))
        for row in found.values()
    ]


def _long(rows: Iterable[Row], now_ns: int) -> dict[str, int]:
    """The topics with a long attempt, and when the job of the first one was made; the rows have the longest first."""
    found: dict[str, int] = {}
    for row in rows:
        if now_ns - row["updated_ns"] >= LONG_NS and len(found) < TOPICS_MAX:
            found[row["topic"]] = min(row["created_ns"], found.get(row["topic"], row["created_ns"]))
    return found


def _usual(rows: Iterable[Row], now_ns: int) -> UsualDuration:
    took = [
        (row["updated_ns"] - row["began_ns"], row["updated_ns"])
        for row in rows
        if row["state"] == "SUCCEEDED" and row["began_ns"] is not None
    ]
    if not took:
        return UsualDuration(0, 0.0)
    lengths = sorted(each / NS for each, _ in took)
    last_ns = max(ended for _, ended in took)
    return UsualDuration(len(took), lengths[round(SHARE * (len(lengths) - 1))], _age(now_ns, last_ns))


def _attempt(row: Row, now_ns: int) -> RunningAttempt:
    last_ns = max(row["updated_ns"], row["progress_ns"] or 0)
    return RunningAttempt(
        *(row["id"], row["tenant"], row["topic"], row["pool"], row["worker"] or "?", row["attempt"]),
        age=_age(now_ns, row["updated_ns"]),
        silent=_age(now_ns, last_ns),
        note=row["note"],
        timeout=None if row["timeout_ns"] is None else row["timeout_ns"] / NS,
        starts=row["starts"],
    )


def _letter(row: Row, now_ns: int) -> OpenLetter:
    return OpenLetter(
        *(row["id"], row["job"], row["tenant"], row["topic"], row["code"], row["reason"], row["attempts"]),
        age=_age(now_ns, row["at_ns"]),
    )


def _approval(row: Row, now_ns: int) -> OpenApproval:
    expires_ns = row["expires_ns"]
    return OpenApproval(
        *(row["job"], row["tenant"], row["requested_by"], row["run"]),
        age=_age(now_ns, row["updated_ns"]),
        expires=None if expires_ns is None else (expires_ns - now_ns) / NS,
    )
