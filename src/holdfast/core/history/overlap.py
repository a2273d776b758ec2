"""Rules for audit ledgers: what the holders' records prove without a view of the store itself.

A holder sees an operation begin and sees its answer. It does not know when in between the operation took effect. So
each rule here compares only what is certain:

    a lease is certainly held    from the answer that granted it until its holder was last seen to hold it: asked at the
                                 release, or at its loss, but never past its local deadline;
    a write is certainly after   another when it began after the other one was answered.

A lease whose end is not in the history (the process was killed, the record was dropped or is damaged) proves nothing
after its grant: it may have been released immediately. Nothing is claimed across a forced release, and records without
these times (what was seen at the store, virtual histories) are left to the other rules.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from typing import NamedTuple, TypeAlias

from holdfast.core.history.events import EventKind, Record
from holdfast.types import NS

Finding: TypeAlias = tuple[str, str, Record, Record]  # key, text, and the two records that conflict

_ENDS = frozenset({EventKind.RELEASED, EventKind.RELEASE_REFUSED, EventKind.RELEASE_FAILED, EventKind.LOST})


class _Held(NamedTuple):
    """A lease and for how long it was certainly held."""

    from_ns: int
    to_ns: int
    grant: Record
    end: Record


def held_together(records: Iterable[Record], skew_ns: int = 0) -> Iterator[Finding]:
    """C4: two holders that certainly held one key at the same time, by more than the clocks may be apart."""
    grants: dict[tuple[str, int], Record] = {}
    held: dict[str, list[_Held]] = {}
    forced: dict[str, list[int]] = {}
    for record in records:
        kind, fence = record.kind, record.fence
        if fence is None:
            continue
        if kind is EventKind.GRANTED or kind is EventKind.PROMOTED:
            grants[record.key, fence] = record
        elif kind in _ENDS:
            grant = grants.get((record.key, fence))
            to_ns = _certain_until(record)
            if grant is not None and to_ns is not None and to_ns > grant.at_ns:
                held.setdefault(record.key, []).append(_Held(grant.at_ns, to_ns, grant, record))
        elif kind is EventKind.FORCED:
            forced.setdefault(record.key, []).append(record.at_ns)
    for key, leases in held.items():
        leases.sort(key=_beginning)
        yield from _overlaps(key, leases, forced.get(key, []), skew_ns)


def _overlaps(key: str, leases: list[_Held], forced: list[int], skew_ns: int) -> Iterator[Finding]:
    longest = leases[0]
    for lease in leases[1:]:
        together = min(longest.to_ns, lease.to_ns) - lease.from_ns
        if together > skew_ns and longest.grant.fence != lease.grant.fence:
            first = bisect_left(forced, longest.from_ns)
            if first == len(forced) or forced[first] > lease.to_ns:
                yield key, _together_text(longest, lease, together), longest.end, lease.grant
        if lease.to_ns > longest.to_ns:
            longest = lease


def _together_text(longer: _Held, other: _Held, together_ns: int) -> str:
    text = (
        f"held twice for {together_ns / NS:.6f} s: fence {longer.grant.fence} by {longer.grant.owner or 'unknown'}, "
        f"and fence {other.grant.fence} by {other.grant.owner or 'unknown'}"
    )
    if longer.end.reason == "stolen":
        text += "; the store gave the key away early, unless it was released by force where no ledger is kept"
    return text


def _certain_until(end: Record) -> int | None:
    """Until when the holder was certainly the holder, by the record of the end."""
    if end.kind is EventKind.LOST:
        return None if end.until_ns is None else min(end.at_ns, end.until_ns)
    return end.began_ns


def _beginning(lease: _Held) -> int:
    return lease.from_ns


def written_backwards(records: Iterable[Record], skew_ns: int = 0) -> Iterator[Finding]:
    """C5: a write that was accepted although one with a higher fence had been answered before it began."""
    writes = [
        record
        for record in records
        if record.kind is EventKind.WRITE and record.ok and record.fence is not None and record.began_ns is not None
    ]
    top: dict[tuple[str, str], Record] = {}
    for answered, begun in in_order(writes, skew_ns):
        if answered is not None:
            before = top.get((answered.key, answered.resource))
            if before is None or (before.fence or 0) < (answered.fence or 0):
                top[answered.key, answered.resource] = answered
        elif begun is not None:
            before = top.get((begun.key, begun.resource))
            if before is not None and (before.fence or 0) > (begun.fence or 0):
                yield begun.key, "a write with a lower fence was accepted later", before, begun


def in_order(operations: list[Record], skew_ns: int = 0) -> Iterator[tuple[Record | None, Record | None]]:
    """Answers (first place) and beginnings (second place) of operations, sorted by `at_ns`, in the order of time.

    An operation that begins at the instant of an answer is concurrent with it, and comes before it.
    """
    answers = iter(operations)
    answer = next(answers, None)
    for operation in sorted(operations, key=_began):
        began_ns = _began(operation) - skew_ns
        while answer is not None and answer.at_ns < began_ns:
            yield answer, None
            answer = next(answers, None)
        yield None, operation


def _began(record: Record) -> int:
    return record.at_ns if record.began_ns is None else record.began_ns
