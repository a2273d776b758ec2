"""Text and JSON of an audit ledger: how a hold ended and why, and the two records that violate a rule."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from holdfast.cli.output.screen import seconds
from holdfast.core.history.events import EventKind, Record
from holdfast.core.history.holds import HoldEnd, HoldInterval
from holdfast.core.history.invariants import Breach
from holdfast.core.lease.loss_diagnosis import sentences
from holdfast.types import NS


def ending(hold: HoldInterval) -> str:
    """How it ended, as a short text."""
    if hold.end is HoldEnd.FORCED and hold.forced is not None:
        return f"broken by {hold.forced.owner}: {hold.forced.detail or 'no reason recorded'}"
    if hold.end is HoldEnd.LOST and hold.ended is not None:
        return f"lost: {hold.ended.reason or 'no reason recorded'}"
    if hold.end is HoldEnd.UNKNOWN:
        return "no end is recorded" + ("" if hold.next is None else "; it ended before the next grant")
    return str(hold.end)


def autopsy(hold: HoldInterval) -> list[str]:
    """Why it was lost, and the next holder of the key. Empty if it ended normally."""
    lines: list[str] = []
    if hold.end in {HoldEnd.LOST, HoldEnd.FORCED} and hold.ended is not None:
        lines += sentences(hold.ended.reason, hold.ended.facts or {})
    if hold.unconfirmed:
        lines.append(f"{hold.unconfirmed} of its renewals had no answer")
    if hold.refused_writes:
        lines.append(f"{hold.refused_writes} of its writes were refused: storage had seen a newer fence")
    return [*lines, takeover(hold)] if lines else []


def takeover(hold: HoldInterval) -> str:
    """The next holder of the key, and after how long."""
    following, free_ns = hold.next, hold.free_for_ns
    if following is None or free_ns is None:
        return "no later holder is recorded"
    how = f"{seconds(free_ns / NS)} later" if free_ns >= 0 else f"{seconds(-free_ns / NS)} before that"
    verb = "acquired again by the same owner" if following.owner == hold.owner else f"taken over by {following.owner}"
    return f"{verb} with fence {following.fence}, {how}"


def as_dict(hold: HoldInterval) -> dict[str, Any]:
    """A hold as JSON types."""
    following = hold.next
    return {
        "key": hold.key,
        "family": hold.family,
        "owner": hold.owner,
        "fence": hold.fence,
        "degraded": hold.fence is None,
        "since": iso(hold.since_ns),
        "until": iso(hold.until_ns),
        "seconds": None if hold.until_ns is None else (hold.until_ns - hold.since_ns) / NS,
        "end": str(hold.end),
        "reason": None if hold.ended is None else hold.ended.reason,
        "forced_by": None if hold.forced is None else hold.forced.owner,
        "forced_because": None if hold.forced is None else hold.forced.detail,
        "why": autopsy(hold),
        "facts": None if hold.ended is None or hold.ended.facts is None else dict(hold.ended.facts),
        "next": None if following is None else _following(hold, following),
    }


def _following(hold: HoldInterval, following: HoldInterval) -> dict[str, Any]:
    after = hold.free_for_ns
    return {
        "owner": following.owner,
        "fence": following.fence,
        "since": iso(following.since_ns),
        "after_seconds": None if after is None else after / NS,
    }


def loss_line(hold: HoldInterval) -> str:
    """A loss in one line, for a list."""
    reason = "no reason recorded" if hold.loss is None else hold.loss.reason or "no reason recorded"
    at = "" if hold.until_ns is None else when(hold.until_ns, date=True)
    return f"{at} {hold.key} fence {hold.fence or 'none'} of {hold.owner}: {reason}; {takeover(hold)}".lstrip()


def told(record: Record) -> str:
    """One record as a line of text."""
    words = [when(record.at_ns, date=True), f"{record.owner or 'the store'}:", str(record.kind).replace("_", " ")]
    if record.fence is not None:
        words.append(f"fence {record.fence}")
    if record.began_ns is not None:
        words.append(f"(since {when(record.began_ns)})")
    if record.kind is EventKind.FORCED and record.facts:
        words.append(f"(before: fence {record.facts.get('holder_fence')} of {record.facts.get('holder')})")
    words += [part for part in (record.reason, record.detail, "" if record.ok else "(refused or failed)") if part]
    return " ".join(words)


def violation(found: Breach) -> dict[str, Any]:
    """A violated rule as JSON types."""
    return {
        "rule": found.rule,
        "key": found.key,
        "text": found.text,
        "records": [_as_fields(record) for record in (found.first, found.second) if record is not None],
    }


def _as_fields(record: Record) -> dict[str, Any]:
    return {
        "kind": str(record.kind),
        "at": iso(record.at_ns),
        "owner": record.owner,
        "fence": record.fence,
        "began": iso(record.began_ns),
        "until": iso(record.until_ns),
        "ok": record.ok,
        "reason": record.reason,
        "detail": record.detail,
    }


def _local(ns: int) -> datetime | None:
    try:
        return datetime.fromtimestamp(ns / NS).astimezone()
    except (ValueError, OverflowError, OSError):  # a time from a file may be anything
        return None


def when(ns: int, *, date: bool = False) -> str:
    """A moment in local time."""
    at = _local(ns)
    if at is None:
        return f"{ns} ns"
    shown = f"{at:%Y-%m-%d %H:%M:%S}" if date else f"{at:%H:%M:%S}"
    return f"{shown}.{at.microsecond // 1000:03d}"


def iso(ns: int | None) -> str | None:
    """A moment in ISO format."""
    at = None if ns is None else _local(ns)
    return None if at is None else at.isoformat()
