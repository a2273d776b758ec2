"""The data model of drills: plans, scenes, faults and verdicts. Values only, no I/O.

A drill runs scenes. A scene is one arrangement of workers, a store and a guarded resource, with a fault. It ends with a
history in the common vocabulary (`core.history.events`), which the common checker reads (`core.history.invariants`).
Times are wall-clock nanoseconds of the host.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple

from holdfast.core.history.events import Record
from holdfast.core.history.invariants import Breach
from holdfast.types import NS

if TYPE_CHECKING:
    from holdfast.drills.env.deployment import Deployment

WAITERS: Final = 10_000  # of `storm`
KEYS: Final = 100_000


class OwnServers(NamedTuple):
    """Servers of another store that `failover` starts."""

    shown: str
    election_s: float  # how long the store itself needs at most until it serves again, on a busy machine


OWN_SERVERS: Final = MappingProxyType(
    {
        "sentinel": OwnServers("its own Redis servers and Sentinels", 10.0),
        "postgres": OwnServers("its own Postgres server", 10.0),
        "etcd": OwnServers("its own etcd cluster of three", 10.0),
        "nats": OwnServers("its own NATS cluster of three", 20.0),
    }
)


class Guard(StrEnum):
    """The guard of a scene's resource."""

    OFF = "off"  # every worker that believes it holds the lock may write
    WRITES = "writes"  # the fence is checked on writes only, and not registered before the first read
    ON = "on"  # the fence is registered before the first read, and checked with every write


class FaultKind(StrEnum):
    """A fault that lasts for a while."""

    PAUSE = "paused"
    OUTAGE = "store unreachable"
    DELAY = "slow network"
    DOWN = "killed"
    RESTART = "being replaced"
    SPLIT = "cut in two"


class FaultSpan(NamedTuple):
    """A lasting fault, its beginning and end, and the affected worker (empty: all)."""

    kind: FaultKind
    who: str
    from_ns: int
    to_ns: int


class FaultMoment(NamedTuple):
    """A momentary fault: a clock jump, a replaced server."""

    what: str  # short: it is a label in a picture
    at_ns: int


class MeasuredTakeover(NamedTuple):
    """The time from a failure until another worker could continue."""

    what: str
    from_ns: int
    to_ns: int
    slo_ns: int

    @property
    def took_ns(self) -> int:
        """The duration."""
        return self.to_ns - self.from_ns

    @property
    def in_time(self) -> bool:
        """Whether the SLO was met."""
        return self.took_ns <= self.slo_ns


class ReportFigure(NamedTuple):
    """One number of the report, as text."""

    name: str
    value: str
    note: str = ""


class DrillClaim(NamedTuple):
    """A condition that must hold beyond the rules of histories, and whether it did."""

    text: str
    kept: bool
    seen: str


class Curve(NamedTuple):
    """A line of a plot: the frequency of an event in each interval."""

    name: str
    from_ns: int  # the beginning of the first interval
    width_ns: int
    counts: Sequence[int]


def curve(name: str, times_ns: Iterable[int], from_ns: int, to_ns: int, width_ns: int) -> Curve:
    """Count events by intervals. Events outside are ignored."""
    counts = [0] * max(1, -(-(to_ns - from_ns) // width_ns))
    for at_ns in times_ns:
        place = (at_ns - from_ns) // width_ns
        if 0 <= place < len(counts):
            counts[place] += 1
    return Curve(name, from_ns, width_ns, counts)


class PlotLine(NamedTuple):
    """A line of a plot of numbers."""

    name: str
    points: Sequence[tuple[float, float]]


class Plot(NamedTuple):
    """Numbers over another quantity, such as memory over time."""

    title: str
    x: str  # the quantity of the horizontal axis, and its unit
    y: str
    lines: Sequence[PlotLine]


def thinned(points: Sequence[tuple[float, float]], most: int = 300) -> list[tuple[float, float]]:
    """At most so many of the points, evenly spread, with the first and the last."""
    if len(points) <= most:
        return list(points)
    return [points[round(place * (len(points) - 1) / (most - 1))] for place in range(most)]


class IncidentScore(NamedTuple):
    """Whether an incident was named, in time, by `holdfast why` and by an alert."""

    incident: str
    found: bool
    top: str  # the first finding at the end
    seconds: float | None  # from the fault to the finding; None: it was not found
    alert: str  # the alert whose condition holds; "": none


@dataclass(slots=True)
class SceneRecord:
    """The events of one arrangement."""

    title: str
    done: str  # the actions in one or two sentences
    guard: Guard | None  # None: there is no guarded resource
    history: list[Record] = field(default_factory=list)
    spans: list[FaultSpan] = field(default_factory=list)
    takeovers: list[MeasuredTakeover] = field(default_factory=list)
    figures: list[ReportFigure] = field(default_factory=list)
    claims: list[DrillClaim] = field(default_factory=list)
    curves: list[Curve] = field(default_factory=list)
    plots: list[Plot] = field(default_factory=list)
    moments: list[FaultMoment] = field(default_factory=list)
    excuses: frozenset[str] = frozenset()  # rules that no store promises under this fault; reported, not counted
    unread: int = 0  # unreadable lines of ledgers: a killed process may leave one
    dropped: int = 0  # records that a ledger could not write
    score: IncidentScore | None = None  # of an incident

    @property
    def bites(self) -> bool:
        """Whether a loss is required: without one, the drill proves nothing about guards."""
        return self.guard in (Guard.OFF, Guard.WRITES)


def scores(scenes: Iterable[SceneRecord]) -> list[IncidentScore]:
    """The scores of all incidents among some scenes."""
    return [each.score for each in scenes if each.score is not None]


@dataclass(frozen=True, slots=True)
class JudgedScene:
    """A scene with its verdict."""

    scene: SceneRecord
    losses: tuple[Breach, ...]  # violated rules that the scene was designed to violate
    violations: tuple[Breach, ...]  # violated rules without an excuse
    lost: int  # acknowledged updates that are missing from the resource
    refused: int  # stale steps that the guard refused
    problems: tuple[str, ...]
    excused: tuple[Breach, ...] = ()  # violated rules that the store does not promise under this fault

    @property
    def ok(self) -> bool:
        """Whether it ended as expected."""
        return not self.problems


@dataclass(frozen=True, slots=True)
class DrillVerdict:
    """The result of a drill."""

    drill: str
    store: str
    ttl_s: float
    slo_s: float
    took_s: float
    replay: str  # the command to repeat it
    judged: tuple[JudgedScene, ...]
    cannot: tuple[str, ...] = ()  # the omitted scenes with the reasons

    @property
    def passed(self) -> bool:
        """Whether all scenes ended as expected."""
        return bool(self.judged) and all(each.ok for each in self.judged)


@dataclass(frozen=True, slots=True)
class DrillPlan:
    """The options of a drill run. Created by `planner.planned`, which validates them."""

    url: str | None = None  # None: the drill's own store
    own: str = "sqlite"  # the kind of that store
    ttl_s: float = 1.0
    slo_s: float | None = None
    duration_s: float | None = None  # None: the default of the drill
    seed: int = 0
    waiters: int | None = None  # of `storm`; None: the default
    keys: int | None = None
    deployment: Deployment | None = None  # for planes; None: their own SQLite file
    incidents: tuple[str, ...] = ()  # of `incidents`; none: all

    @property
    def load(self) -> float:
        """The multiple of the usual load; the time limit grows with it."""
        return max(1.0, (self.waiters or 0) / WAITERS, (self.keys or 0) / KEYS)

    @property
    def ttl_ns(self) -> int:
        """The TTL of every lock of the drill."""
        return round(self.ttl_s * NS)

    @property
    def slo_seconds(self) -> float:
        """The takeover SLO: as given, else the TTL and a second, which is the promise of Holdfast."""
        return self.ttl_s + 1.0 if self.slo_s is None else self.slo_s

    @property
    def slo_ns(self) -> int:
        """The same in nanoseconds."""
        return round(self.slo_seconds * NS)


class Need(StrEnum):
    """The store that a drill needs."""

    SHARED = "any shared store"
    NETWORK = "a store behind a network (redis://)"
    PLANE = "its own plane, or a deployment (--config)"
    SERVERS = "its own Redis servers"  # they are killed and replaced
    CLOCKS = "its own stores, and gcc"  # their clocks are moved
    STORES = "its own stores"  # all kinds, and each is broken
    FLEET = "its own fleet and servers"  # processes are killed, and servers are broken


# These drills break their own stores, so they accept neither a URL nor a kind of store.
OWN_ONLY: Final = MappingProxyType(
    {
        Need.PLANE: "its own plane, on a SQLite file",
        Need.SERVERS: "its own Redis servers",
        Need.CLOCKS: "its own Redis server and SQLite file",
        Need.STORES: "its own SQLite files and Redis servers",
        Need.FLEET: "its own fleet and servers",
    }
)
