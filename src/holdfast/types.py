"""Values that all packages share. Frozen, comparable, free of I/O.

Time is integer nanoseconds inside the package. Seconds (float) or `timedelta` exist only in public functions, where
`duration_ns` checks them and converts them into nanoseconds.
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

    `mono` stops while the host is suspended, `boot` does not, and `wall` can be stepped. None of the three alone gives
    a safe age of a lease; `elapsed_ns` takes the most pessimistic.
    """

    mono: int
    boot: int
    wall: int


def elapsed_ns(since: Instant, now: Instant) -> int:
    """How much time may have passed between two readings on one host, erring towards more.

    `boot` includes the time of a suspended host. A host that was restored from a snapshot shows at best as a forward
    step of `wall`. A backward step is ignored.
    """
    mono = now[0] - since[0]
    boot = now[1] - since[1]
    wall = now[2] - since[2]
    if boot > mono:
        mono = boot
    return max(mono, wall)


class LossReason(StrEnum):
    """Why a lease was lost."""

    EXPIRED = "expired"  # it was not renewed in time: the process was paused, or renewal was off
    STOLEN = "stolen"  # the store reports another holder of the key, or none
    UNCONFIRMED = "unconfirmed"  # no renewal was confirmed before the renew deadline
    MAX_HOLD = "max_hold"  # it was held for its longest allowed time
    STALLED = "stalled"  # the work stopped reporting progress
    REVOKED = "revoked"  # its `Locks` was closed while it was held
    FORKED = "forked"  # this is a child process; the lease belongs to the parent


class Guarantee(StrEnum):
    """What a store can promise without a guard, weakest first."""

    EFFICIENCY_ONLY = "efficiency_only"
    EXCLUSIVE_IF_CLOCK_SANE = "exclusive_if_clock_sane"
    FENCED = "fenced"

    def covers(self, demanded: Guarantee) -> bool:
        """Whether this guarantee is at least as strong as `demanded`."""
        grades = list(Guarantee)
        return grades.index(self) >= grades.index(demanded)


@dataclass(frozen=True, slots=True)
class Owner:
    """The holder of a lease, as shown to people. Never a secret, and never compared to decide ownership."""

    service: str
    host: str
    pid: int
    instance: str

    def __str__(self) -> str:
        return f"{self.service}@{self.host}:{self.pid}/{self.instance}"


def fingerprint(token: str) -> str:
    """Six characters that distinguish two grants without revealing the token. Stores show it too (`Holding`)."""
    return hashlib.sha256(token.encode()).hexdigest()[:6]


class AcquireRequest(NamedTuple):
    """A request for a lease. The token is drawn before the request is sent, so that a request can be repeated."""

    key: str
    token: str
    owner: str
    family: str
    ttl_ns: int
    ticket: str | None = None  # of a waiter of a fair lock: its position in the queue is kept under this name
    ticket_ttl_ns: int = 0
    detached: bool = False  # outlives the requesting process: a TTL hold, or a token that is passed on
    floor: int = 0  # the lowest acceptable fence; a token that holds the key already gets it (for a quorum)

    def __repr__(self) -> str:
        return f"AcquireRequest(key={self.key!r}, owner={self.owner!r}, family={self.family!r}, ttl_ns={self.ttl_ns})"


Ask = AcquireRequest  # its name up to 0.1, for programs that call a store themselves


class Grant(NamedTuple):
    """The store granted the lease. `claim` is what the store needs to find the lease again."""

    key: str
    token: str
    fence: int
    claim: str

    def __repr__(self) -> str:
        return f"Grant(key={self.key!r}, fence={self.fence})"


class Busy(NamedTuple):
    """Another holder has the key. `remaining_ns`: what is left of its lease, by the store's clock; None: unknown."""

    key: str
    owner: str | None
    remaining_ns: int | None
    ahead: int = 0  # fair locks: how many tickets are ahead in the queue
    spent: bool = False  # a quorum may still be releasing votes for this token: ask again under a new one


class Renewal(NamedTuple):
    """One lease to renew: its claim, and for how long."""

    key: str
    token: str
    claim: str
    ttl_ns: int

    def __repr__(self) -> str:
        return f"Renewal(key={self.key!r}, ttl_ns={self.ttl_ns})"


class Ownership(NamedTuple):
    """A predicate in SQL that is true while the owner has the lease, and the database in which it can be evaluated."""

    sql: str
    parameters: dict[str, str | int]
    database: str
    engine: str = "sqlite"  # whose connections can evaluate it


class KeyOwnership(NamedTuple):
    """The key of a lease in a key-value store, and what is stored there while the owner has the lease."""

    key: bytes
    value: bytes
    revision: int  # which created it


@dataclass(frozen=True, slots=True)
class Holding:
    """What a store knows about one key, for operators. Contains no token."""

    key: str
    owner: str
    fence: int | None  # None: acquired by another library that follows the same pattern
    family: str
    granted_wall_ns: int | None
    remaining_ns: int | None
    fingerprint: str
    waiters: int = 0


@dataclass(frozen=True, slots=True)
class AuditRecord:
    """One forced operation of an operator, recorded by the store."""

    wall_ns: int
    action: str
    key: str
    actor: str
    reason: str
    previous_owner: str
    previous_fence: int | None
    fence: int


def duration_ns(field: str, value: Duration, *, low_ns: int = 0, high_ns: int = 366 * 86_400 * NS) -> int:
    """Convert seconds or a `timedelta` to nanoseconds. `BadInput` names the field if it is not a valid duration."""
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
    """Return a lock name that is safe on every store, or raise `BadInput` with the problem."""
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


_BETWEEN: Final = dict.fromkeys(map(ord, "._-:/"))  # allowed in a label between letters and digits


@lru_cache(maxsize=1024)
def _is_label(label: str) -> bool:
    """Whether a short text is a valid label. There are few, and each is checked several times for every job."""
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
