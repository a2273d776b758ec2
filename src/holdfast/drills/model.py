"""What a drill is, what it saw, and what is said about it: values, and no I/O.

A drill plays scenes. A scene is one arrangement of workers, a store and a guarded resource that something bad was done
to; it ends with a history in the one vocabulary (`core.history.events`), which the one checker reads
(`core.history.invariants`). Times are wall-clock nanoseconds of the host on which everything ran.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple

from holdfast.core.history.events import Record
from holdfast.core.history.invariants import Violation
from holdfast.types import NS

if TYPE_CHECKING:
    from holdfast.drills.env.deployment import Deployment

WAITERS: Final = 10_000  # of `storm`
KEYS: Final = 100_000


class Guard(StrEnum):
    """How the resource of a scene defends itself."""

    OFF = "off"  # whoever believes to hold the lock writes
    WRITES = "writes"  # the fence is checked on writes alone, and not registered before the first read
    ON = "on"  # the fence is registered before the first read, and checked with every write


class SpanKind(StrEnum):
    """What was done to somebody for a while."""

    PAUSE = "paused"
    OUTAGE = "store unreachable"
    DELAY = "slow network"
    DOWN = "killed"
    RESTART = "being replaced"
    SPLIT = "cut in two"


class Span(NamedTuple):
    """Something bad, from when until when, and to whom (empty: to everybody)."""

    kind: SpanKind
    who: str
    from_ns: int
    to_ns: int


class Moment(NamedTuple):
    """Something bad that took no time: a clock that jumped, a server that was replaced."""

    what: str  # short: it stands in a picture
    at_ns: int


class Takeover(NamedTuple):
    """How long it took from a failure until somebody else could go on."""

    what: str
    from_ns: int
    to_ns: int
    slo_ns: int

    @property
    def took_ns(self) -> int:
        """The time between the two."""
        return self.to_ns - self.from_ns

    @property
    def in_time(self) -> bool:
        """Whether the SLO was kept."""
        return self.took_ns <= self.slo_ns


class Figure(NamedTuple):
    """One number of the report, as people read it."""

    name: str
    value: str
    note: str = ""


class Claim(NamedTuple):
    """Something that had to be so, beyond the rules of histories, and whether it was."""

    text: str
    kept: bool
    seen: str


class Curve(NamedTuple):
    """A line of a plot: how often something happened in each stretch of time."""

    name: str
    from_ns: int  # the beginning of the first stretch
    width_ns: int
    counts: Sequence[int]


def curve(name: str, times_ns: Iterable[int], from_ns: int, to_ns: int, width_ns: int) -> Curve:
    """Count moments by stretches of time. What is outside is left out."""
    counts = [0] * max(1, -(-(to_ns - from_ns) // width_ns))
    for at_ns in times_ns:
        place = (at_ns - from_ns) // width_ns
        if 0 <= place < len(counts):
            counts[place] += 1
    return Curve(name, from_ns, width_ns, counts)


class Line(NamedTuple):
    """A line of a plot of numbers."""

    name: str
    points: Sequence[tuple[float, float]]


class Plot(NamedTuple):
    """Numbers over something else, such as memory over time."""

    title: str
    x: str  # what is to the right, and its unit
    y: str
    lines: Sequence[Line]


def thinned(points: Sequence[tuple[float, float]], most: int = 300) -> list[tuple[float, float]]:
    """So many of the points at most, evenly spread, with the first and the last."""
    if len(points) <= most:
        return list(points)
    return [points[round(place * (len(points) - 1) / (most - 1))] for place in range(most)]


@dataclass(slots=True)
class Scene:
    """What happened in one arrangement."""

    title: str
    done: str  # what was done, in one or two sentences
    guard: Guard | None  # None: it is not about a guarded resource
    history: list[Record] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
    takeovers: list[Takeover] = field(default_factory=list)
    figures: list[Figure] = field(default_factory=list)
    claims: list[Claim] = field(default_factory=list)
    curves: list[Curve] = field(default_factory=list)
    plots: list[Plot] = field(default_factory=list)
    moments: list[Moment] = field(default_factory=list)
    excuses: frozenset[str] = frozenset()  # rules that nobody promises under such a fault; said, and not held against
    unread: int = 0  # lines of ledgers that could not be read: a killed process may leave one
    dropped: int = 0  # records that a ledger could not write

    @property
    def bites(self) -> bool:
        """Whether a loss must be seen here: a drill that loses nothing without guards proves nothing with them."""
        return self.guard in (Guard.OFF, Guard.WRITES)


@dataclass(frozen=True, slots=True)
class Judged:
    """A scene and what is to be said about it."""

    scene: Scene
    losses: tuple[Violation, ...]  # broken rules about the resource that the scene was there to show
    violations: tuple[Violation, ...]  # broken rules that nothing excuses
    lost: int  # acknowledged updates that are not part of what the resource has now
    refused: int  # stale steps that the guard turned away
    problems: tuple[str, ...]
    excused: tuple[Violation, ...] = ()  # broken rules that the store does not promise under this fault

    @property
    def ok(self) -> bool:
        """Whether it ended as it must."""
        return not self.problems


@dataclass(frozen=True, slots=True)
class Verdict:
    """The end of a drill."""

    drill: str
    store: str
    ttl_s: float
    slo_s: float
    took_s: float
    replay: str  # the command that does it again
    judged: tuple[Judged, ...]
    cannot: tuple[str, ...] = ()  # what was left out, and why

    @property
    def passed(self) -> bool:
        """Whether everything that was played ended as it must."""
        return bool(self.judged) and all(each.ok for each in self.judged)


@dataclass(frozen=True, slots=True)
class Plan:
    """How a drill is run. Made by `planning.planned`, which refuses what cannot work."""

    url: str | None = None  # None: a store of the drill's own
    own: str = "sqlite"  # which one then
    ttl_s: float = 1.0
    slo_s: float | None = None
    duration_s: float | None = None  # None: as the drill has it
    seed: int = 0
    waiters: int | None = None  # of `storm`; None: as the drill has it
    keys: int | None = None
    deployment: Deployment | None = None  # that planes run on; None: on a SQLite file of their own

    @property
    def load(self) -> float:
        """How many times the usual load was asked for; a drill that is given more of it is given more time."""
        return max(1.0, (self.waiters or 0) / WAITERS, (self.keys or 0) / KEYS)

    @property
    def ttl_ns(self) -> int:
        """The TTL of every lock of the drill."""
        return round(self.ttl_s * NS)

    @property
    def slo_seconds(self) -> float:
        """The takeover SLO: as stated, else the TTL and a second, which is what Holdfast promises."""
        return self.ttl_s + 1.0 if self.slo_s is None else self.slo_s

    @property
    def slo_ns(self) -> int:
        """The same in nanoseconds."""
        return round(self.slo_seconds * NS)


class Need(StrEnum):
    """What a drill needs of the store."""

    SHARED = "any shared store"
    NETWORK = "a store behind a network (redis://)"
    PLANE = "a plane of its own, or a deployment (--config)"
    SERVERS = "Redis servers of its own"  # they are killed, and replaced
    CLOCKS = "stores of its own, and gcc"  # their clocks are moved
    STORES = "stores of its own"  # all that there are, and each is broken


# What these break is theirs alone, so they take neither a URL nor a kind of store.
OWN_ONLY: Final = MappingProxyType(
    {
        Need.PLANE: "a plane of its own, on a SQLite file",
        Need.SERVERS: "Redis servers of its own",
        Need.CLOCKS: "a Redis server and a SQLite file of its own",
        Need.STORES: "SQLite files and Redis servers of its own",
    }
)
