"""The verdict over what a drill saw: pure functions from a scene to what is to be said about it.

The rules are those of every history (`core.history.invariants`). What is added here: which of them a scene was there to
break (C5 and C6 where the resource has no full guard), that it really did break them, that takeovers were within the
SLO, and that what workers were told is what the resource has. A scene may excuse a rule that its store does not promise
under its fault (C4, exclusion, across a failover); what was seen of it is said all the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from holdfast.core.history.events import EventKind, Record
from holdfast.core.history.invariants import Violation, check
from holdfast.drills.model import Guard, Judged, Scene, Takeover
from holdfast.types import NS

SHOWN: frozenset[str] = frozenset({"C5", "C6"})  # what a resource without a full guard cannot promise


def judge(scene: Scene) -> Judged:
    """Everything that is to be said about one scene."""
    found = check(scene.history)
    shown = SHOWN if scene.bites else frozenset()
    losses = tuple(each for each in found if each.rule in shown)
    excused = tuple(each for each in found if each.rule in scene.excuses - shown)
    violations = tuple(each for each in found if each.rule not in shown | scene.excuses)
    lost = len(overwritten(scene.history))
    problems = [plain(each) for each in violations]
    if scene.bites and not lost:
        problems.append(
            "nothing was lost although the resource had no full guard: the drill did not hit the moment it is about, "
            "and so says nothing about guards"
        )
    if scene.guard is Guard.ON and lost:
        problems.append(f"{_times(lost, 'acknowledged update')} lost")
    problems += [late(each) for each in scene.takeovers if not each.in_time]
    problems += [f"{each.text}: {each.seen}" for each in scene.claims if not each.kept]
    if scene.dropped:
        problems.append(f"{_times(scene.dropped, 'record')} dropped by a ledger, so the history is incomplete")
    return Judged(scene, losses, violations, lost, len(refusals(scene.history)), tuple(problems), excused)


def overwritten(history: Iterable[Record]) -> list[Record]:
    """The writes that the resource accepted and that what it has now is not built upon, as the resource saw it."""
    chains: dict[str, list[Record]] = {}
    for record in sorted(history, key=lambda each: each.at_ns):
        if record.kind is EventKind.WRITE and record.ok and record.began_ns is None and record.value is not None:
            chains.setdefault(record.key, []).append(record)
    lost: list[Record] = []
    for writes in chains.values():
        by_value = {each.value: each for each in writes}
        kept: set[int | None] = set()
        at: int | None = writes[-1].value
        while at in by_value and at not in kept:
            kept.add(at)
            at = by_value[at].based_on
        lost += [each for each in writes if each.value not in kept]
    return lost


def refusals(history: Iterable[Record]) -> list[Record]:
    """Steps that a guard refused, as those saw it who were refused."""
    return [each for each in history if each.kind in (EventKind.READ, EventKind.WRITE) and not each.ok]


def grants(history: Iterable[Record]) -> list[Record]:
    """Every time that somebody was given a lock."""
    return [each for each in history if each.kind in (EventKind.GRANTED, EventKind.PROMOTED)]


def plain(found: Violation) -> str:
    """A broken rule in plain words, with the two operations that conflict."""
    first, second = found.first, found.second
    if found.rule == "C6" and second is not None:
        return _overwriting(first, second)
    if found.rule == "C5" and first is not None and second is not None:
        return (
            f"{who(second)} wrote with the old fence {short(second)} and was let through, after {who(first)} had "
            f"written with fence {short(first)}"
        )
    if found.rule == "C4" and first is not None and second is not None:
        how_long = found.text.partition(":")[0]
        return f"{how_long}: by {who(first)} (fence {short(first)}) and by {who(second)} (fence {short(second)})"
    shown = "; ".join(
        f"{who(each)}: {each.kind} under fence {short(each)}" for each in (first, second) if each is not None
    )
    return f"{found.rule}: {found.text}" + (f" ({shown})" if shown else "")


def _overwriting(first: Record | None, second: Record) -> str:
    """The lost update: whose, by whom, and what the second one had read."""
    if first is None:
        return f"{who(second)} wrote on top of version {second.based_on}, which nobody had written"
    read = "before anything was there" if not second.based_on else f"when it was at version {second.based_on}"
    return (
        f"{who(first)} wrote version {first.value} (fence {short(first)}) and was told that it is safe; {who(second)}, "
        f"who had read {read}, then wrote version {second.value} (fence {short(second)}) over it"
    )


def who(record: Record) -> str:
    """The worker, without host and process."""
    return record.owner.partition("@")[0] or "somebody"


def short(record: Record) -> str:
    """The end of its fence, which tells the fences of one drill apart; they are long, and begin alike."""
    return "none" if record.fence is None else f"…{record.fence % 10**6:06d}"


def late(takeover: Takeover) -> str:
    """A takeover that was beyond the SLO."""
    took, slo = takeover.took_ns / NS, takeover.slo_ns / NS
    return f"{takeover.what}: taken over after {took:.2f} s, and the SLO is {slo:g} s"


def slowest(takeovers: Sequence[Takeover]) -> Takeover | None:
    """The takeover that took longest."""
    return max(takeovers, key=lambda each: each.took_ns, default=None)


def _times(number: int, noun: str) -> str:
    return f"1 {noun} was" if number == 1 else f"{number:,} {noun}s were"
