"""Values that everything else speaks in. Frozen, comparable, free of I/O.

Time is integer nanoseconds inside the package. Seconds (float) or `timedelta` exist only at the public edge and are
turned into nanoseconds by `duration_ns`, which is also where nonsense is refused.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from functools import lru_cache
from typing import Final, NamedTuple, TypeAlias

from holdfast.errors import BadInput

NS = 1_000_000_000
MS = 1_000_000

Duration: TypeAlias = float | int | timedelta

KEY_BYTES_MAX = 512
LABEL_CHARS_MAX = 120


class Instant(NamedTuple):
    """One reading of the three clocks of a host, in nanoseconds.

    `mono` stands still while the host is suspended, `boot` does not, `wall` can be stepped. None of the three alone
    can be trusted to say how old a lease is; `elapsed_ns` takes the most pessimistic.
    """

    mono: int
    boot: int
    wall: int


def elapsed_ns(since: Instant, now: Instant) -> int:
    """How much time may have passed between two readings on one host, erring towards more.

    A suspended host shows in `boot`. A host that was snapshotted and resumed shows, at best, as a forward step of
    `wall`; a backward step says nothing and is ignored.
    """
    mono = now[0] - since[0]
    boot = now[1] - since[1]
    wall = now[2] - since[2]
    if boot > mono:
        mono = boot
    return max(mono, wall)


class LossReason(StrEnum):
    """Why a lease is gone."""

    EXPIRED = "expired"  # its time ran out: nobody renewed it, the process was paused, or renewal was off
    STOLEN = "stolen"  # the store says that the key is not ours any more
    UNCONFIRMED = "unconfirmed"  # renewal was tried and could not be confirmed before the deadline
    MAX_HOLD = "max_hold"  # it was held for as long as it may ever be
    STALLED = "stalled"  # the work stopped reporting progress
    REVOKED = "revoked"  # the `Locks` it came from was closed while it was held
    FORKED = "forked"  # this is a child process; the lease belongs to the parent


class Guarantee(StrEnum):
    """What a store can promise by itself, weakest first."""

    EFFICIENCY_ONLY = "efficiency_only"
    EXCLUSIVE_IF_CLOCK_SANE = "exclusive_if_clock_sane"
    FENCED = "fenced"

    def covers(self, demanded: Guarantee) -> bool:
        """Whether this guarantee is at least as strong as `demanded`."""
        grades = list(Guarantee)
        return grades.index(self) >= grades.index(demanded)


@dataclass(frozen=True, slots=True)
class Owner:
    """Who holds a lease, for people: never a secret, never compared to decide ownership."""

    service: str
    host: str
    pid: int
    instance: str

    def __str__(self) -> str:
        return f"{self.service}@{self.host}:{self.pid}/{self.instance}"


def fingerprint(token: str) -> str:
    """Six characters that tell two grants apart without giving the token away. Stores show it too (`Holding`)."""
    return hashlib.sha256(token.encode()).hexdigest()[:6]


class Ask(NamedTuple):
    """A request for a lease. The token exists before the first byte is sent, so that the same ask can be repeated."""

    key: str
    token: str
    owner: str
    family: str
    ttl_ns: int
    ticket: str | None = None  # set by waiters of a fair lock; the place in the queue is kept under this name
    ticket_ttl_ns: int = 0
    detached: bool = False  # outlives the process that asks: a TTL hold, or a token that is handed on
    floor: int = 0  # the least fence that will do; a token that has the key already is raised to it (for a quorum)

    def __repr__(self) -> str:
        return f"Ask(key={self.key!r}, owner={self.owner!r}, family={self.family!r}, ttl_ns={self.ttl_ns})"


class Grant(NamedTuple):
    """The store gave the lease to the asker. `claim` is what it needs to find the lease again."""

    key: str
    token: str
    fence: int
    claim: str

    def __repr__(self) -> str:
        return f"Grant(key={self.key!r}, fence={self.fence})"


class Busy(NamedTuple):
    """Somebody else holds it. `remaining_ns` is the holder's time as the store sees it; None: it cannot tell."""

    key: str
    owner: str | None
    remaining_ns: int | None
    ahead: int = 0  # fair locks: how many tickets stand before ours
    spent: bool = False  # a quorum may still be giving back a part of it: ask again under a new token


class Renewal(NamedTuple):
    """One lease to be renewed: which claim, for how long."""

    key: str
    token: str
    claim: str
    ttl_ns: int

    def __repr__(self) -> str:
        return f"Renewal(key={self.key!r}, ttl_ns={self.ttl_ns})"


class Ownership(NamedTuple):
    """A predicate in SQL that holds while a lease is its owner's, and where it can be asked."""

    sql: str
    parameters: dict[str, str | int]
    database: str


@dataclass(frozen=True, slots=True)
class Holding:
    """What a store knows about one key, for operators. Contains no token."""

    key: str
    owner: str
    fence: int | None  # None: taken by another library that follows the same pattern
    family: str
    granted_wall_ns: int | None
    remaining_ns: int | None
    fingerprint: str
    waiters: int = 0


@dataclass(frozen=True, slots=True)
class AuditRecord:
    """One forced act of an operator, kept by the store itself."""

    wall_ns: int
    action: str
    key: str
    actor: str
    reason: str
    previous_owner: str
    previous_fence: int | None
    fence: int


def duration_ns(field: str, value: Duration, *, low_ns: int = 0, high_ns: int = 366 * 86_400 * NS) -> int:
    """Seconds or `timedelta` to nanoseconds; refuses what cannot be a duration, naming the field."""
    if isinstance(value, timedelta):
        found = (value.days * 86_400 + value.seconds) * NS + value.microseconds * (MS // 1000)
    elif isinstance(value, bool) or not isinstance(value, (int, float)):
        raise BadInput(field, f"{type(value).__name__} is not a duration", "give seconds as a number, or a timedelta")
    elif isinstance(value, int):
        found = value * NS
    elif not math.isfinite(value):
        raise BadInput(field, f"{value} is not a length of time", "give a finite number of seconds")
    else:
        found = round(value * NS) if abs(value) < 1e200 else int(value) * NS
    if low_ns <= found <= high_ns:
        return found
    raise out_of_range(field, found, low_ns, high_ns)


def out_of_range(field: str, value_ns: int, low_ns: int, high_ns: int) -> BadInput:
    """The error for a duration that is too short or too long."""
    try:
        shown = value_ns / NS
    except OverflowError:  # an int beyond any float
        shown = 1e300 if value_ns > 0 else -1e300
    fix = f"give between {low_ns / NS:.12g} and {high_ns / NS:.12g} seconds"
    return BadInput(field, f"{shown:g} s is out of range", fix)


def check_key(field: str, key: object) -> str:
    """A lock name that is safe on every store, or `BadInput` that says what is wrong with it."""
    if isinstance(key, bytes):
        raise BadInput(field, "bytes are not a name", "decode them to text first")
    if not isinstance(key, str):
        raise BadInput(field, f"{type(key).__name__} is not a name", "give a non-empty string")
    if not key:
        raise BadInput(field, "is empty", "give a name such as 'invoice:42'")
    if "{" in key or "}" in key:
        raise BadInput(
            field,
            f"{_shown(key)} contains braces",
            "fill in the template first; on Redis Cluster braces would also move the key to another slot",
        )
    if not key.isprintable():
        raise BadInput(field, f"{_shown(key)} contains control or unprintable characters", "use printable text only")
    size = len(key.encode("utf-8", "surrogatepass"))
    if size > KEY_BYTES_MAX:
        raise BadInput(field, f"is {size} bytes long", f"use at most {KEY_BYTES_MAX} bytes; hash what is longer")
    return key


_BETWEEN: Final = dict.fromkeys(map(ord, "._-:/"))  # what a label may have between its letters and digits


@lru_cache(maxsize=1024)
def _is_label(label: str) -> bool:
    """Whether a short text can be one. There are few, and each is looked at several times for every job."""
    letters = label.translate(_BETWEEN)
    return not letters or letters.isalnum()


def check_label(field: str, label: object) -> str:
    """A family, risk class, service or instance name: short, without spaces, safe as a metric label."""
    if not isinstance(label, str) or not label:
        raise BadInput(field, f"{_shown(label)} is not a name", "give a short non-empty string")
    if len(label) > LABEL_CHARS_MAX or not _is_label(label):
        raise BadInput(
            field, f"{_shown(label)} is not usable as a label", "use letters, digits and . _ - : / only, 120 at most"
        )
    return label


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "…"
