"""One vocabulary for everything that happens to leases: events of production, simulation, drills and the audit log.

A record says what a process observed, on its own clock, and never contains a token. Checkers
(`core.history.invariants`) read sequences of records wherever they come from.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from holdfast.core.str_enum import TextEnum


class EventKind(TextEnum):
    """What a record is about."""

    GRANTED = "granted"  # the store confirmed a grant: fence, began_ns = before the request was sent, until_ns
    BUSY = "busy"  # an attempt met another holder
    TIMED_OUT = "timed_out"  # the wait was over and the lock still busy
    FAILED = "failed"  # an attempt met a store error
    UNCONFIRMED = "unconfirmed"  # one renewal brought no answer
    RENEWED = "renewed"  # one renewal was confirmed
    WARNED = "warned"  # the early warning before a loss
    LOST = "lost"  # the holder was notified that the lease is gone; reason
    RELEASED = "released"  # the store confirmed the release
    RELEASE_REFUSED = "release_refused"  # the store answered: not yours
    RELEASE_FAILED = "release_failed"  # the store did not answer; the key will expire
    LET_GO = "let_go"  # the holder of a degraded lease is done with it; there was nothing to release at the store
    COMPENSATED = "compensated"  # an acquire of unknown outcome was undone
    FELL_BACK = "fell_back"  # a degraded lease was given out because the store failed
    EXERCISED = "exercised"  # a degraded lease was given out because an exercise pretended that the store had failed
    PROMOTED = "promoted"  # a degraded lease became a full one
    DENIED = "denied"  # the error policy refused to run without the store
    POLICY = "policy"  # the policy of a risk class was switched
    FORCED = "forced"  # an operator broke the lease
    READ = "read"  # a guarded resource was read under a fence (simulation and drills)
    WRITE = "write"  # a guarded resource was written under a fence; ok: whether it was accepted
    DUPLICATE = "duplicate"  # work that had ended was to be ended again, which was refused
    STEP = "step"  # a protected body did something while it believed to hold the lease; until_ns is its local deadline
    BELIEVED = "believed"  # a holder that was asked at this moment would have said that it holds the lease
    HANDED = "handed"  # seen at the store: it gave the key to a new token
    EXTENDED = "extended"  # seen at the store: it renewed a key for the token that was granted under this fence
    ENDED = "ended"  # seen at the store: it deleted a key for the token that was granted under this fence
    FORGOT = "forgot"  # seen at the store: it lost leases (a restart without persistence, a lagging replica)
    HEALED = "healed"  # all faults have ended; every key must be acquirable by until_ns


@dataclass(slots=True, unsafe_hash=True)
class Record:
    """One event, as one process saw it. Readers do not change it.

    It is not frozen, because that would make it ten times as expensive to make, and one is made for every grant.
    """

    kind: EventKind
    at_ns: int  # wall clock of the observer; virtual time in the simulator
    key: str
    family: str = "default"
    owner: str = ""
    fence: int | None = None
    risk: str | None = None
    reason: str | None = None
    began_ns: int | None = None  # wall clock when the operation began
    until_ns: int | None = None  # wall clock until which the holder may trust the lease
    ok: bool = True
    detail: str = ""
    value: int | None = None  # READ and WRITE: the version that was read or written
    based_on: int | None = None  # WRITE: the version that had been read before
    resource: str = ""  # READ and WRITE: what was read or written, where one key guards several things
    facts: Mapping[str, Any] | None = field(default=None, hash=False)
    """LOST: `core.lease.loss_diagnosis`; a refused READ or WRITE: `seen`; FORCED: `holder` and `holder_fence`."""
