"""Which keys of a long history need a closer look: one quick sweep that lets the ordinary ones pass.

An ordinary key has been granted, given back and granted again, with a higher fence each time, and nothing else. No rule
of `core.invariants` can be broken by such a key, whatever the clocks may be apart:

    C1, C2, C3  its fences are above zero and rise in the order of the answers; a grant that was asked for after another
                was answered is itself answered later, and so has the higher fence;
    C4          each lease was answered for the last time before the next was granted, so no two overlap;
    the others  speak of losses, guards, steps, or of what was seen at the store, and there is nothing of that.

In production nearly all keys are ordinary. Every other key, and every key of a history in which somebody has watched
the store or the work itself, is left to the rules.
"""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.core.history import Kind, Record

_ENDS = frozenset({Kind.RELEASED, Kind.RELEASE_REFUSED, Kind.RELEASE_FAILED})
_NO_MATTER = frozenset(
    {
        *(Kind.BUSY, Kind.TIMED_OUT, Kind.FAILED, Kind.UNCONFIRMED, Kind.RENEWED, Kind.WARNED, Kind.COMPENSATED),
        *(Kind.FELL_BACK, Kind.EXERCISED, Kind.DENIED, Kind.LET_GO, Kind.POLICY, Kind.DUPLICATE),
    }
)
"""What no rule asks for."""
_LEDGER = frozenset({Kind.GRANTED, *_ENDS, *_NO_MATTER, Kind.LOST, Kind.FORCED, Kind.PROMOTED, Kind.READ, Kind.WRITE})
"""What a ledger may contain. Other kinds are about all keys together, or come with a view of the store."""


def suspects(records: Sequence[Record], kinds: set[Kind]) -> set[str] | None:
    """The keys that are not ordinary, of records in the order of time. None: the history as a whole is not.

    `kinds` are those that occur.
    """
    if not kinds <= _LEDGER:
        return None
    found: set[str] = set()
    top: dict[str, int] = {}  # the highest fence so far
    held: dict[str, int] = {}  # the fence of the lease that has not ended
    granted = Kind.GRANTED
    for record in records:
        kind, key, fence = record.kind, record.key, record.fence
        if kind is granted:
            if fence is None or fence <= top.get(key, 0) or key in held or _answered_before_asked(record):
                found.add(key)
            else:
                top[key] = held[key] = fence
        elif kind in _ENDS:
            if held.pop(key, None) != fence or _answered_before_asked(record):
                found.add(key)
        elif kind not in _NO_MATTER:
            found.add(key)
    return found


def _answered_before_asked(record: Record) -> bool:
    """A clock was set back in between."""
    return record.began_ns is not None and record.began_ns > record.at_ns
