"""What must hold of every history of leases, wherever it comes from: the simulator, a drill, or an audit log.

    C1   fences of one key are unique and above zero
    C2   a grant that was confirmed before another was asked for has the lower fence; the store hands them out rising
    C3   the same across restarts that forget
    C4   no process acts on a lease, or believes that it holds it, after the store has given the key to another
    C5   the fences of the writes that a resource accepted never go down
    C6   no accepted write is based on anything but the accepted write before it: nothing acknowledged is lost; and
         every value that is read was written before
    C7   every refused write had a fence below one that the resource had seen
    C8   only the live owner's renewal and release are granted, once; a lost lease is not released
    C9   no answer belongs to another request: a grant that a holder saw is one that the store handed to that holder
    C10  no protected step starts after the local deadline
    C11  after the last fault every key can be had again in time

C12 is about the checker itself: each mutant must fail it, and a clean history must pass (`tests/mutation`).

A fence is a total order, so no search is needed: each rule is one sweep, O(n log n) for all; and keys to which nothing
but the usual has happened are let pass by one quick sweep (`core.history.prefilter`). C4 leaves out what no
store can promise: leases that the store forgot, or that an operator broke, in between. Times must come from one clock
(virtual time in the simulator). In production they come from the clocks of a fleet: `skew_ns` is how far those may be
apart, and what is closer together than that is taken to be concurrent.

What holders saw is judged by what is certain (`core.history.overlap`): an operation took effect somewhere between its
beginning and its answer, and one whose end is not recorded proves nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from operator import attrgetter

from holdfast.core.history import overlap, prefilter
from holdfast.core.history.events import EventKind, Record
from holdfast.types import NS

_GRANTS = (EventKind.GRANTED, EventKind.PROMOTED)
_RELEASES = (EventKind.RELEASED, EventKind.RELEASE_REFUSED, EventKind.RELEASE_FAILED)


@dataclass(frozen=True, slots=True)
class Breach:
    """A rule that was broken, in one sentence, and the one or two records that show it."""

    rule: str
    key: str
    text: str
    first: Record | None = None
    second: Record | None = None

    def __str__(self) -> str:
        shown = [f"{self.rule} {self.key}: {self.text}"]
        shown += [f"    {described(record)}" for record in (self.first, self.second) if record is not None]
        return "\n".join(shown)


def described(record: Record) -> str:
    """One record on one line, for people."""
    fields = {
        "fence": record.fence,
        "began": _seconds(record.began_ns),
        "until": _seconds(record.until_ns),
        "value": record.value,
        "based_on": record.based_on,
        "reason": record.reason,
        "ok": None if record.ok else "no",
        "detail": record.detail or None,
    }
    shown = " ".join(f"{name}={value}" for name, value in fields.items() if value is not None)
    return f"{_seconds(record.at_ns)} {record.kind} {record.key} by {record.owner or 'the store'} {shown}".rstrip()


def check(history: Iterable[Record], skew_ns: int = 0) -> list[Breach]:
    """Every rule that the history breaks, in the order of the rules."""
    records = sorted(history, key=attrgetter("at_ns"))  # stable: one instant keeps the order of observation
    kinds = set(map(attrgetter("kind"), records))
    keys = prefilter.suspects(records, kinds)
    if keys is not None:
        records = [record for record in records if record.key in keys]
        kinds = set(map(attrgetter("kind"), records))
    found = [violation for rule, needed in _RULES if not kinds.isdisjoint(needed) for violation in rule(records)]
    found += _rising_in_real_time(records, skew_ns)
    found += (Breach("C4", *each) for each in overlap.held_together(records, skew_ns))
    found += (Breach("C5", *each) for each in overlap.written_backwards(records, skew_ns))
    return sorted(found, key=lambda violation: int(violation.rule.removeprefix("C")))


def _unique(records: list[Record]) -> Iterator[Breach]:
    """C1. What the store handed out and what holders were granted are two views, each without repetition."""
    seen: dict[tuple[bool, str, int], Record] = {}
    for record in records:
        if record.kind is not EventKind.HANDED and record.kind not in _GRANTS:
            continue
        if record.fence is None or record.fence <= 0:
            yield Breach("C1", record.key, f"a grant has the fence {record.fence}", record)
            continue
        place = (record.kind is EventKind.HANDED, record.key, record.fence)
        if place in seen:
            yield Breach("C1", record.key, f"fence {record.fence} was given out twice", seen[place], record)
        seen[place] = record


def _rising_at_the_store(records: list[Record]) -> Iterator[Breach]:
    """C2 and C3 as the store itself sees them: each fence above all before it."""
    top: dict[str, Record] = {}
    forgot_ns = -1
    for record in records:
        if record.kind is EventKind.FORGOT:
            forgot_ns = record.at_ns
        elif record.kind is EventKind.HANDED and record.fence is not None:
            before = top.get(record.key)
            if before is None or _fence(before) < record.fence:
                top[record.key] = record
            elif _fence(before) > record.fence:
                rule, why = ("C3", " across a restart") if forgot_ns >= before.at_ns else ("C2", "")
                yield Breach(rule, record.key, f"the store handed out a lower fence later{why}", before, record)


def _rising_in_real_time(records: list[Record], skew_ns: int) -> Iterator[Breach]:
    """C2 as holders see it: a grant confirmed before another was even asked for has the lower fence."""
    grants = [record for record in records if record.kind in _GRANTS and record.began_ns is not None]
    top: dict[str, Record] = {}
    for earlier, later in overlap.in_order(grants, skew_ns):
        if earlier is not None:
            before = top.get(earlier.key)
            if before is None or _fence(before) < _fence(earlier):
                top[earlier.key] = earlier
        elif later is not None:
            before = top.get(later.key)
            if before is not None and _fence(before) > _fence(later):
                yield Breach("C2", later.key, "a grant asked for later has the lower fence", before, later)


@dataclass(slots=True)
class _Key:
    """What the sweep of C4 knows about one key."""

    top: Record | None = None  # the grant with the highest fence
    given_ns: dict[int, int] = field(default_factory=dict)  # fence -> when it was given
    broken_ns: int = -1  # when exclusion was last broken by force


def _exclusive(records: list[Record]) -> Iterator[Breach]:
    """C4. Uses what was seen at the store where there is such a thing, else what holders saw."""
    source = (EventKind.HANDED,) if any(record.kind is EventKind.HANDED for record in records) else _GRANTS
    keys: dict[str, _Key] = {}
    forgot_ns = -1
    for record in records:
        if record.kind is EventKind.FORGOT:
            forgot_ns = record.at_ns
            continue
        key = keys.setdefault(record.key, _Key())
        if record.kind is EventKind.FORCED:
            key.broken_ns = record.at_ns
        elif record.kind in source and record.fence is not None:
            key.given_ns[record.fence] = record.at_ns
            if key.top is None or _fence(key.top) < record.fence:
                key.top = record
        elif record.kind in (EventKind.STEP, EventKind.BELIEVED) and record.fence is not None and key.top is not None:
            since = key.given_ns.get(record.fence, -1)
            if _fence(key.top) > record.fence and max(forgot_ns, key.broken_ns) < since:
                what = "acted on" if record.kind is EventKind.STEP else "believed in"
                text = f"a holder {what} fence {record.fence} when the store had given the key to another"
                yield Breach("C4", record.key, text, key.top, record)


def _guarded(records: list[Record]) -> Iterator[Breach]:
    """C5, C6 and C7, seen at the resource behind the fence. One resource for each key.

    A refusal that a holder saw contains the fence that the resource had met. Their other observations prove nothing
    here.
    """
    seen: dict[str, Record] = {}  # the highest fence that the resource has registered
    applied: dict[str, Record] = {}  # the last accepted write
    for record in records:
        if record.kind not in (EventKind.READ, EventKind.WRITE) or record.fence is None:
            continue
        if record.began_ns is not None:
            met = record.facts.get("seen") if record.facts else None
            if not record.ok and isinstance(met, int) and met <= record.fence:
                yield Breach("C7", record.key, f"refused though only fence {met} had been seen", None, record)
            continue
        highest, last = seen.get(record.key), applied.get(record.key)
        if not record.ok:
            if highest is None or _fence(highest) <= record.fence:
                yield Breach("C7", record.key, "refused though no newer fence had been seen", highest, record)
            continue
        if highest is None or _fence(highest) < record.fence:
            seen[record.key] = record
        # A resource that records only that a fence was shown to it, as that of the drills, says nothing about values.
        read = record.value if record.kind is EventKind.READ else None
        if read is not None and read != (last.value if last is not None else 0):
            yield Breach("C6", record.key, "a read returned a value that was never written", last, record)
        if record.kind is EventKind.WRITE:
            if last is not None and _fence(last) > record.fence:
                yield Breach("C5", record.key, "a write with a lower fence was accepted later", last, record)
            if record.based_on != (last.value if last is not None else 0):
                yield Breach("C6", record.key, "an acknowledged update was overwritten unread", last, record)
            applied[record.key] = record


def _owned(records: list[Record]) -> Iterator[Breach]:
    """C8, seen at the store (who is the owner) and by holders (a lost lease is left alone)."""
    live: dict[str, Record | None] = {}  # the last grant; None: no owner. An absent key is unknown
    lost: dict[tuple[str, int], Record] = {}
    for record in records:
        if record.kind is EventKind.FORGOT:
            live.clear()
        elif record.kind is EventKind.FORCED:
            live.pop(record.key, None)
        elif record.kind is EventKind.HANDED:
            live[record.key] = record
        elif record.kind in (EventKind.EXTENDED, EventKind.ENDED) and record.key in live:
            owner = live[record.key]
            if owner is None or owner.fence != record.fence:
                verb = "released" if record.kind is EventKind.ENDED else "renewed"
                yield Breach("C8", record.key, f"the key was {verb} by someone who did not own it", owner, record)
            if record.kind is EventKind.ENDED:
                live[record.key] = None
        elif record.kind is EventKind.LOST and record.fence is not None:
            lost[record.key, record.fence] = record
        elif record.kind in _RELEASES and record.fence is not None and (record.key, record.fence) in lost:
            yield Breach("C8", record.key, "a lost lease was released", lost[record.key, record.fence], record)


def _answered(records: list[Record]) -> Iterator[Breach]:
    """C9, where both sides are on record. A crossed answer is a grant to the wrong holder, or one out of nowhere."""
    handed: dict[tuple[str, int], Record] = {}
    for record in records:
        if record.fence is None:
            continue
        if record.kind is EventKind.HANDED:
            handed[record.key, record.fence] = record
        elif record.kind in _GRANTS:
            given = handed.get((record.key, record.fence))
            if given is None:
                text = f"a holder was granted fence {record.fence}, which the store had not handed out"
                yield Breach("C9", record.key, text, None, record)
            elif not _same_owner(given.owner, record.owner):
                text = f"the answer to one holder reached another: fence {record.fence}"
                yield Breach("C9", record.key, text, given, record)


def _same_owner(first: str, second: str) -> bool:
    """Whether two names are of one holder. A history may leave them out, or name the host alone."""
    if not first or not second or ("@" in first) == ("@" in second):
        return not first or not second or first == second
    full, host = (first, second) if "@" in first else (second, first)
    return full.partition("@")[2].partition(":")[0] == host


def _in_time(records: list[Record]) -> Iterator[Breach]:
    """C10."""
    for record in records:
        if record.kind is EventKind.STEP and record.until_ns is not None and record.at_ns >= record.until_ns:
            late = (record.at_ns - record.until_ns) / NS
            yield Breach("C10", record.key, f"a protected step started {late:.6f} s after the local deadline", record)


def _live(records: list[Record]) -> Iterator[Breach]:
    """C11. Only histories that say when the last fault was over can be asked."""
    healed = next((record for record in reversed(records) if record.kind is EventKind.HEALED), None)
    if healed is None or healed.until_ns is None:
        return
    given = (record for record in records if record.kind is EventKind.HANDED or record.kind in _GRANTS)
    keys = {record.key for record in given if record.at_ns < healed.at_ns}
    had = {
        record.key for record in records if record.kind in _GRANTS and healed.at_ns <= record.at_ns <= healed.until_ns
    }
    for key in sorted(keys - had):
        yield Breach("C11", key, "could not be had again in time after the last fault", healed)


_RULES: tuple[tuple[Callable[[list[Record]], Iterator[Breach]], frozenset[EventKind]], ...] = (
    (_unique, frozenset({*_GRANTS, EventKind.HANDED})),
    (_rising_at_the_store, frozenset({EventKind.HANDED})),
    (_exclusive, frozenset({EventKind.STEP, EventKind.BELIEVED})),
    (_guarded, frozenset({EventKind.READ, EventKind.WRITE})),
    (_owned, frozenset({EventKind.EXTENDED, EventKind.ENDED, EventKind.LOST})),
    (_answered, frozenset({EventKind.HANDED})),
    (_in_time, frozenset({EventKind.STEP})),
    (_live, frozenset({EventKind.HEALED})),
)


def _fence(record: Record) -> int:
    return record.fence or 0


def _seconds(ns: int | None) -> str | None:
    return None if ns is None else f"{ns / NS:.6f}s"
