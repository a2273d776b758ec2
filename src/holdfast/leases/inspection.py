"""What anyone may know about a lock: who holds it, since when, for how long. Never the token."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from holdfast.errors import BadInput
from holdfast.types import NS, AuditRecord, Holding


@dataclass(frozen=True, slots=True)
class Inspection:
    """The state of one lock, as the store saw it at that moment."""

    key: str
    held: bool
    owner: str | None = None
    fence: int | None = None
    family: str | None = None
    since: datetime | None = None
    remaining: float | None = None
    waiters: int = 0
    fingerprint: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """The same for programs: plain JSON types."""
        return {**asdict(self), "since": self.since.isoformat() if self.since else None}


@dataclass(frozen=True, slots=True)
class ForcedRelease:
    """The audit record of a lock that an operator broke."""

    at: datetime
    key: str
    actor: str
    reason: str
    previous_owner: str
    previous_fence: int | None
    fence: int

    def as_dict(self) -> dict[str, Any]:
        """The same for programs: plain JSON types."""
        return {**asdict(self), "at": self.at.isoformat()}


LIMIT_MAX = 1_000_000
REASON_CHARS_MAX = 1000


def check_limit(limit: object) -> int:
    """How many rows an operator asks for, or `BadInput`."""
    if type(limit) is not int or not 1 <= limit <= LIMIT_MAX:
        raise BadInput("limit", f"{limit!r} is not a number of rows", f"give a whole number from 1 to {LIMIT_MAX}")
    return limit


def check_reason(reason: object) -> str:
    """Why a lock is being broken, or `BadInput`."""
    if not isinstance(reason, str) or not reason.strip():
        raise BadInput("reason", "is empty", "say why the lock is being broken; it is kept in the audit record")
    if len(reason) > REASON_CHARS_MAX:
        raise BadInput("reason", "is too long", f"use at most {REASON_CHARS_MAX} characters; the store keeps them")
    return reason


def inspection(key: str, holding: Holding | None) -> Inspection:
    """From what the store says to what people read."""
    if holding is None:
        return Inspection(key, held=False)
    return Inspection(
        key=holding.key,
        held=True,
        owner=holding.owner,
        fence=holding.fence,
        family=holding.family,
        since=None if holding.granted_wall_ns is None else _time(holding.granted_wall_ns),
        remaining=None if holding.remaining_ns is None else holding.remaining_ns / NS,
        waiters=holding.waiters,
        fingerprint=holding.fingerprint,
    )


def forced(record: AuditRecord) -> ForcedRelease:
    """From the store's audit record to what people read."""
    return ForcedRelease(
        _time(record.wall_ns),
        record.key,
        record.actor,
        record.reason,
        record.previous_owner,
        record.previous_fence,
        record.fence,
    )


def _time(wall_ns: int) -> datetime:
    return datetime.fromtimestamp(wall_ns / NS, UTC)
