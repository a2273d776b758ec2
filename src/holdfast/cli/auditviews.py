"""What a ledger says, in words and as JSON: how a hold ended and why, and which two records break a rule."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from holdfast.cli.screen import seconds
from holdfast.core.autopsy import sentences
from holdfast.core.history import Record
from holdfast.core.holds import End, Hold
from holdfast.core.invariants import Violation
from holdfast.types import NS


def ending(hold: Hold) -> str:
    """How it ended, in a few words."""
    if hold.end is End.FORCED and hold.forced is not None:
        return f"broken by {hold.forced.owner}: {hold.forced.detail}"
    if hold.end is End.LOST and hold.ended is not None:
        return f"lost: {hold.ended.reason or 'no reason recorded'}"
    if hold.end is End.UNKNOWN:
        return "no end is recorded" + ("" if hold.next is None else "; over when the next one had it")
    return str(hold.end)


def autopsy(hold: Hold) -> list[str]:
    """Why it was lost, and what became of the key. Empty when it ended as it should."""
    lines: list[str] = []
    if hold.end in {End.LOST, End.FORCED} and hold.ended is not None:
        lines += sentences(hold.ended.reason, hold.ended.facts or {})
    if hold.unconfirmed:
        lines.append(f"{hold.unconfirmed} of its renewals had no answer")
    if hold.refused_writes:
        lines.append(f"{hold.refused_writes} of its writes were refused: storage had met a newer fence")
    if lines and hold.next is not None and hold.until_ns is not None:
        after = (hold.next.since_ns - hold.until_ns) / NS
        how = f"{seconds(after)} later" if after >= 0 else f"{seconds(-after)} before that"
        lines.append(f"taken over by {hold.next.owner} with fence {hold.next.fence}, {how}")
    elif lines:
        lines.append("nobody had it afterwards, as far as the ledger knows")
    return lines


def as_dict(hold: Hold) -> dict[str, Any]:
    """A hold for programs."""
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
        "why": autopsy(hold),
        "facts": None if hold.ended is None or hold.ended.facts is None else dict(hold.ended.facts),
        "next": None if following is None else {"owner": following.owner, "fence": following.fence},
    }


def told(record: Record) -> str:
    """One record as a line for people."""
    words = [when(record.at_ns, date=True), f"{record.owner or 'the store'}:", str(record.kind).replace("_", " ")]
    if record.fence is not None:
        words.append(f"fence {record.fence}")
    if record.began_ns is not None:
        words.append(f"(since {when(record.began_ns)})")
    words += [part for part in (record.reason, record.detail, "" if record.ok else "(refused or failed)") if part]
    return " ".join(words)


def violation(found: Violation) -> dict[str, Any]:
    """A broken rule for programs."""
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
    """A moment in the local time of whoever reads this."""
    at = _local(ns)
    if at is None:
        return f"{ns} ns"
    shown = f"{at:%Y-%m-%d %H:%M:%S}" if date else f"{at:%H:%M:%S}"
    return f"{shown}.{at.microsecond // 1000:03d}"


def iso(ns: int | None) -> str | None:
    """A moment for programs."""
    at = None if ns is None else _local(ns)
    return None if at is None else at.isoformat()
