"""Facts about a plane's work and its workers, as text and as JSON. The values come from `plane.service.overview`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from holdfast.ops.runbooks.evidence.locks import number, span
from holdfast.plane.service.overview import PlaneOverview


@dataclass(frozen=True, slots=True)
class WorkFact:
    """Queues, attempts, dead letters and approvals of one plane."""

    overview: PlaneOverview

    def lines(self) -> Sequence[str]:
        """The fact as text."""
        found = self.overview
        waiting = [
            f"{each.id} of {each.tenant} ({each.topic}) waits in pool {each.pool} for {span(each.age)}"
            for each in found.waiting[:4]
        ]
        attempts = [
            f"{each.id} of {each.tenant} ({each.topic}) runs on {each.worker} for {span(each.age)}, "
            f"without progress for {span(each.silent)}"
            for each in found.attempts[:4]
        ]
        usual = [
            f"attempts of {topic} took {span(each.p95)} (p95 of {each.seen}); the last ended {span(each.ended)} ago"
            if each.seen
            else f"no earlier attempt of {topic} has succeeded"
            for topic, each in found.usual.items()
        ]
        letters = Counter((each.topic, each.code) for each in found.letters)
        dead = [
            f"{number(count, 'recent dead letter', 'recent dead letters')} of {topic}: {code}"
            for (topic, code), count in letters.most_common(4)
        ]
        count = number(len(found.approvals), "approval waits", "approvals wait")
        asked = [f"{count}, the oldest for {span(each.age)}" for each in found.approvals[:1]]
        late = [f"schedule {each.name} is {span(each.age)} late" for each in found.late_schedules[:1]]
        return [
            *late,
            *waiting,
            *attempts,
            *usual,
            *dead,
            *asked,
        ] or ["no job waits or runs, no approval is open, and no job has died recently"]

    def as_dict(self) -> dict[str, Any]:
        """The fact as JSON types."""
        found = self.overview
        return {
            "waiting": [asdict(each) for each in found.waiting[:50]],
            "topics": [
                {"pool": pool, "topic": topic, "jobs": jobs, "served": found.served(topic)}
                for (pool, topic), jobs in found.topics.items()
            ],
            "attempts": [asdict(each) for each in found.attempts[:50]],
            "usual": {topic: asdict(each) for topic, each in found.usual.items()},
            "letters": [asdict(each) for each in found.letters[:50]],
            "letters_left": found.letters_left,
            "approvals": [asdict(each) for each in found.approvals[:50]],
            "late_schedules": [asdict(each) for each in found.late_schedules[:50]],
            "paused_schedules": [asdict(each) for each in found.paused_schedules[:50]],
            "full_pools": list(found.full),
            "unserved": dict(found.unserved),
        }


@dataclass(frozen=True, slots=True)
class WorkerFact:
    """One worker, by its heartbeats and, on this host, by its process."""

    name: str
    pool: str
    topics: tuple[str, ...]
    capacity: int
    active: int
    age: float  # seconds since its last heartbeat; negative: from the future
    host: str
    pid: int
    draining: bool = False
    left: bool = False  # it ended and said so
    jobs: int = 0  # that the database shows on it
    process: str = ""  # of this host: "running", "stopped", "gone"; else unknown

    def line(self) -> str:
        """One line of text."""
        state = "left" if self.left else "draining" if self.draining else f"{self.active} of {self.capacity} slots used"
        here = f", process {self.process}" if self.process else ""
        heard = f"{span(self.age)} ago" if self.age >= 0 else f"{span(-self.age)} in the future"
        return f"{self.name} on {self.host} (pid {self.pid}), pool {self.pool}: {state}, heartbeat {heard}{here}"


@dataclass(frozen=True, slots=True)
class FleetFact:
    """The workers of one plane."""

    workers: tuple[WorkerFact, ...]
    beat: float  # seconds between two heartbeats, by the settings
    ttl: float  # after which a silent worker does not count
    pools: Mapping[str, int] = field(default_factory=dict)  # live workers

    def lines(self) -> Sequence[str]:
        """The fact as text."""
        there = [each for each in self.workers if not each.left]
        shown = sorted(there, key=lambda each: -abs(each.age))[:8]
        more = [f"… and {len(there) - len(shown)} more"] if len(there) > len(shown) else []
        return [*(each.line() for each in shown), *more] or ["no worker is registered"]

    def as_dict(self) -> dict[str, Any]:
        """The fact as JSON types."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class MissingLeases:
    """Whether running jobs have their leases in the store."""

    seen: int  # running jobs that were inspected
    missing: tuple[str, ...]  # of them: the ids of those without a lease, in two inspections
    families: Mapping[str, int] = field(default_factory=dict)  # leases that processes have lost recently, by family
    lost_at_once: int = 0  # the most within ten seconds
    processes: int = 0  # that lost them then
    forced: int = 0  # leases that operators broke in the same time
    window_s: float = 0.0

    @property
    def lost(self) -> int:
        """Leases that processes have lost recently to the store."""
        return sum(self.families.values())

    def lines(self) -> Sequence[str]:
        """The fact as text."""
        found = [
            f"{len(self.missing)} of {number(self.seen, 'running job', 'running jobs')} have no lease in the store"
        ]
        if self.lost:
            named = ", ".join(f"{family} {count}" for family, count in self.families.items())
            found.append(
                f"processes lost {self.lost} leases to the store in the last {span(self.window_s)} ({named}), at most "
                f"{self.lost_at_once} within 10 s on {number(self.processes, 'process', 'processes')}; operators broke "
                f"{self.forced}"
            )
        return found

    def as_dict(self) -> dict[str, Any]:
        """The fact as JSON types."""
        return {**asdict(self), "lost": self.lost}
