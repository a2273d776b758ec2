"""Facts about locks, stores and the policy: plain values that print as text and as JSON.

No fact contains a token: facts use only what stores show to every client, which is owners and fences.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, Final

from holdfast.leases.inspection import ForcedRelease, Inspection


def span(seconds: float | None) -> str:
    """A duration as people write it."""
    if seconds is None:
        return "?"
    if seconds < 0.0995:
        return f"{max(0.0, seconds) * 1000:.3g} ms"
    if seconds < 99.5:
        return f"{seconds:.2g} s" if seconds < 9.95 else f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 120:
        return f"{minutes} min {rest:02d} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours < 48 else f"{hours // 24} d {hours % 24:02d} h"


def number(count: float, one: str, many: str) -> str:
    """A count with its noun."""
    return f"{count:,} {one if count == 1 else many}"


@dataclass(frozen=True, slots=True)
class LockFact:
    """One lock, as the store shows it, and how long it has been held."""

    key: str
    held: bool
    owner: str = ""
    fence: int | None = None
    age: float | None = None  # seconds since it was granted
    remaining: float | None = None
    waiters: int = 0
    ttl: float | None = None  # of its family, by the settings

    @classmethod
    def of(cls, look: Inspection, now_ns: int, ttl: float | None = None) -> LockFact:
        """From an inspection."""
        age = None if look.since is None else now_ns / 1e9 - look.since.timestamp()
        held = (look.owner or "", look.fence, None if age is None else max(0.0, age), look.remaining, look.waiters)
        return cls(look.key, True, *held, ttl) if look.held else cls(look.key, False, ttl=ttl)

    def line(self) -> str:
        """One line of text."""
        if not self.held:
            return f"{self.key} is free"
        fence = "no fence: another library" if self.fence is None else f"fence {self.fence}"
        waiting = f", {self.waiters} waiting" if self.waiters else ""
        of = "" if self.ttl is None else f" of {span(self.ttl)}"
        return (
            f"{self.key} held by {self.owner or '?'} for {span(self.age)}, {span(self.remaining)}{of} left, "
            f"{fence}{waiting}"
        )

    def as_dict(self) -> dict[str, Any]:
        """For programs."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class LocksFact:
    """Locks that were inspected by name."""

    locks: tuple[LockFact, ...]

    def get(self, key: str) -> LockFact | None:
        """The lock with this key, or None."""
        return next((each for each in self.locks if each.key == key), None)

    def lines(self) -> Sequence[str]:
        """The fact as text."""
        return [each.line() for each in self.locks]

    def as_dict(self) -> dict[str, Any]:
        """The fact as JSON types."""
        return {"locks": [each.as_dict() for each in self.locks]}


@dataclass(frozen=True, slots=True)
class FamilyHeld:
    """The held locks of one family."""

    family: str
    held: int
    waiters: int
    oldest: LockFact
    late: tuple[LockFact, ...]  # renewals are late, or it is held for very long; the worst first

    def line(self) -> str:
        """One line of text."""
        late = f", {len(self.late)} of them with a late renewal" if self.late else ""
        return f"{self.family}: {self.held} held, {self.waiters} waiting, the oldest for {span(self.oldest.age)}{late}"


@dataclass(frozen=True, slots=True)
class HeldFact:
    """All held locks, by family."""

    families: tuple[FamilyHeld, ...]
    complete: bool = True  # False: there are more than were read

    def lines(self) -> Sequence[str]:
        """The fact as text."""
        more = [] if self.complete else ["there are more that were not read"]
        return [*(each.line() for each in self.families), *more] or ["no lock is held"]

    def as_dict(self) -> dict[str, Any]:
        """The fact as JSON types."""
        return {"families": [asdict(each) for each in self.families], "complete": self.complete}


@dataclass(frozen=True, slots=True)
class ForcedFact:
    """The locks that operators broke recently."""

    records: tuple[ForcedRelease, ...]
    window_s: float

    def lines(self) -> Sequence[str]:
        """The fact as text."""
        if not self.records:
            return [f"no lock was broken by force in the last {span(self.window_s)}"]
        return [f"{each.key} was broken by {each.actor}: {each.reason}" for each in self.records[:5]]

    def as_dict(self) -> dict[str, Any]:
        """The fact as JSON types."""
        return {"window_seconds": self.window_s, "forced": [each.as_dict() for each in self.records]}


SLOW_S: Final = 0.25
"""A request that takes longer is slow: ten times what a store in another data center takes."""


class Reach(StrEnum):
    """How a server reacts, from what its address and its answers show."""

    WELL = "well"
    SLOW = "slow"  # it answers, and takes long
    HANGS = "hangs"  # it accepts connections and does not answer
    REFUSED = "refused"  # no process listens at the address
    UNREACHABLE = "unreachable"  # its name is unknown, or no packet comes back
    FAILS = "fails"  # it answers with errors


@dataclass(frozen=True, slots=True)
class WireFact:
    """What an address did with one connection and the smallest request of its protocol, without any driver."""

    address: str
    connected: float | None = None  # seconds
    answered: float | None = None  # seconds after the connection
    problem: str = ""
    refused: bool = False
    limit: float = 0.0  # how long the probe waited

    def line(self) -> str:
        """One line of text."""
        if self.connected is None:
            return f"{self.address}: {self.problem}"
        found = f"{self.address} accepts a connection after {span(self.connected)}"
        if self.answered is None:
            return f"{found}, and {self.problem or f'sends nothing for {span(self.limit)}'}"
        return f"{found}, and answers after {span(self.answered)}"


@dataclass(frozen=True, slots=True)
class StoreFact:
    """Whether a server answers, how quickly, and what it reports about itself."""

    engine: str
    asked: int
    answered: int
    slowest: float | None  # seconds
    error: str = ""
    about: Mapping[str, str] | None = None  # what Redis reports: role, replicas, eviction
    wire: WireFact | None = None  # None: it has no address, or was not probed
    fastest: float | None = None  # seconds; None: as slow as the slowest

    @property
    def down(self) -> bool:
        """Whether it did not answer any request."""
        return self.answered == 0

    @property
    def took(self) -> float | None:
        """The shortest time to an answer, in seconds: a slow server is slow each time. None: there was no answer."""
        quick = self.slowest if self.fastest is None else self.fastest
        seen = [each for each in (quick, None if self.wire is None else self.wire.answered) if each is not None]
        return min(seen, default=None)

    @property
    def reach(self) -> Reach:
        """How it reacts."""
        wire = self.wire
        if wire is not None and wire.connected is None and self.down:
            return Reach.REFUSED if wire.refused else Reach.UNREACHABLE
        if (self.took or 0.0) >= SLOW_S:
            return Reach.SLOW
        if wire is not None and wire.answered is None and self.down:
            return Reach.HANGS
        return Reach.FAILS if self.error else Reach.WELL

    def lines(self) -> Sequence[str]:
        """The fact as text."""
        found = [] if self.wire is None else [self.wire.line()]
        if self.down:
            return [*found, f"{self.engine} answers no request: {self.error}"]
        found.append(
            f"{self.engine} answered {self.answered} of {self.asked} requests, the slowest after {span(self.slowest)}"
        )
        if self.error:
            found.append(f"last error: {self.error}")
        if self.about:
            found.append("reports: " + ", ".join(f"{name} {value}" for name, value in self.about.items()))
        return found

    def as_dict(self) -> dict[str, Any]:
        """The fact as JSON types."""
        return {**asdict(self), "down": self.down, "reach": str(self.reach)}


@dataclass(frozen=True, slots=True)
class ClassFact:
    """One risk class."""

    risk: str
    mode: str
    by: str  # who set the mode
    fallbacks: int
    exercised: int = 0


@dataclass(frozen=True, slots=True)
class PolicyFact:
    """The modes of the risk classes, and the counters of all processes."""

    classes: tuple[ClassFact, ...]
    rate: float  # fallbacks per second over the window
    limit: float  # the threshold of the rate
    window_s: float
    duplicates: Mapping[str, tuple[int, int]]  # by sign: in this window, and in the one before
    escalate: bool
    because: str
    armed: bool = False

    @property
    def rising(self) -> bool:
        """Whether duplicate work is more frequent than before."""
        lately = sum(each for each, _ in self.duplicates.values())
        return lately > sum(before for _, before in self.duplicates.values())

    def named(self, mode: str) -> tuple[str, ...]:
        """The classes with one mode."""
        return tuple(each.risk for each in self.classes if each.mode == mode)

    def lines(self) -> Sequence[str]:
        """The fact as text."""
        found = [f"class {each.risk} is {each.mode} ({each.by}), {each.fallbacks} fallbacks" for each in self.classes]
        counts = ", ".join(
            f"{sign} {now} (before: {was})" for sign, (now, was) in self.duplicates.items() if now or was
        )
        return [
            *found,
            "every other class is fail_closed",
            f"{self.rate:.3g} fallbacks per second over {span(self.window_s)}, of {self.limit:g} at most",
            f"duplicates: {counts or 'none'}",
        ]

    def as_dict(self) -> dict[str, Any]:
        """The fact as JSON types."""
        return {**asdict(self), "rising": self.rising}


@dataclass(frozen=True, slots=True)
class ProofFact:
    """One tested claim about locks, and whether it held."""

    claim: str
    holds: bool
    seen: tuple[str, ...]

    def lines(self) -> Sequence[str]:
        """The fact as text."""
        return [f"{'proved' if self.holds else 'NOT TRUE'}: {self.claim}", *self.seen]

    def as_dict(self) -> dict[str, Any]:
        """The fact as JSON types."""
        return asdict(self)
