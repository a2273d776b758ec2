"""Which keys of a long history need a closer check: one quick sweep that lets the ordinary ones pass.

An ordinary key was granted, released and granted again, with a higher fence each time, and its guards accepted
writes under the fence of the last grant and nothing else. No rule of `core.history.invariants` can be broken by such a
key, whatever the clocks may be apart:

    C1, C2, C3  its fences are above zero and rise in the order of the answers; a grant that was asked for after another
                was answered is itself answered later, and so has the higher fence;
    C4          each lease was answered for the last time before the next was granted, so no two overlap;
    C5          the fences of accepted writes, each that of the last grant, rise with those of the grants;
    C7          each refusal says that it had met a newer fence, or does not say what it had met;
    the others  speak of losses, steps, or of what was seen at the store, and there is nothing of that.

So a key is judged by its own records alone, and in any order in which their times do not go down: records of one
instant may be looked at in either order. That holds as long as nothing but what a ledger may contain is on record
(`LEDGER`). Other kinds are about all keys together (C3, C4 and C8 ask when the store forgot, C11 when the faults were
over), or come with a view of the store; then every key is left to the rules.

In production nearly all keys are ordinary.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Final, TypeVar

from holdfast.core.history.events import EventKind, Record

# What a record means to the sweep. Plain numbers: those of a long history are packed into bytes.
PASSING: Final = 0  # no rule asks for it
GRANT: Final = 1
END: Final = 2
WRITE: Final = 3  # a guard accepted it
ODD: Final = 4  # its key needs a closer check

Key = TypeVar("Key", bound=Hashable)

_ENDS = frozenset({EventKind.RELEASED, EventKind.RELEASE_REFUSED, EventKind.RELEASE_FAILED})
_NO_MATTER = frozenset(
    {
        *(
            EventKind.BUSY,
            EventKind.TIMED_OUT,
            EventKind.FAILED,
            EventKind.UNCONFIRMED,
            EventKind.RENEWED,
            EventKind.WARNED,
            EventKind.COMPENSATED,
        ),
        *(
            EventKind.FELL_BACK,
            EventKind.EXERCISED,
            EventKind.DENIED,
            EventKind.LET_GO,
            EventKind.POLICY,
            EventKind.DUPLICATE,
        ),
    }
)
"""What no rule asks for."""
LEDGER = frozenset(
    {
        EventKind.GRANTED,
        *_ENDS,
        *_NO_MATTER,
        EventKind.LOST,
        EventKind.FORCED,
        EventKind.PROMOTED,
        EventKind.READ,
        EventKind.WRITE,
    }
)
"""What a ledger may contain. Other kinds are about all keys together, or come with a view of the store."""


def suspects(records: Iterable[Record], kinds: set[EventKind]) -> set[str] | None:
    """The keys that are not ordinary, of records in the order of time. None: the history as a whole is not.

    `kinds` are those that occur.
    """
    if not kinds <= LEDGER:
        return None
    return out_of_turn((record.key, record.fence or 0, meaning(record)) for record in records)


def meaning(record: Record) -> int:
    """What one record of a ledger means to the sweep."""
    kind, fence = record.kind, record.fence
    if kind in _NO_MATTER:
        return PASSING
    if kind is EventKind.GRANTED or kind in _ENDS:
        usual = fence is not None and fence > 0 and not _answered_before_asked(record)
        return (GRANT if kind is EventKind.GRANTED else END) if usual else ODD
    if kind is EventKind.READ or kind is EventKind.WRITE:
        return _guarded(record)
    return ODD


def out_of_turn(moves: Iterable[tuple[Key, int, int]]) -> set[Key]:
    """The keys whose moves are not those of an ordinary one. A move is a key, a fence and what it means.

    They must come in the order of time.
    """
    found: set[Key] = set()
    last: dict[Key, int] = {}  # the fence of the last grant; below zero: of one that has ended
    known = last.get
    for key, fence, what in moves:
        if what == GRANT:
            before = known(key, 0)
            if before > 0 or fence <= -before:
                found.add(key)
            last[key] = fence
        elif what == END:
            if known(key) != fence:
                found.add(key)
            last[key] = -fence
        elif what == ODD or (what == WRITE and fence != abs(known(key, 0))):
            found.add(key)
    return found


def _guarded(record: Record) -> int:
    """A read or a write, as its holder saw it. What the resource itself saw (without a beginning) is for the rules."""
    if record.fence is None:
        return PASSING
    if record.began_ns is None or _answered_before_asked(record):
        return ODD
    if record.ok:
        return WRITE if record.kind is EventKind.WRITE else PASSING
    met = record.facts.get("seen") if record.facts else None
    return ODD if isinstance(met, int) and met <= record.fence else PASSING


def _answered_before_asked(record: Record) -> bool:
    """A clock was set back in between."""
    return record.began_ns is not None and record.began_ns > record.at_ns
