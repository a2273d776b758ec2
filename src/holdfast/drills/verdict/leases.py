"""The verdict about the records of a drill: pure functions from a scene to its judgement.

The rules are those of every history (`core.history.invariants`). This module adds: the rules that a scene was designed
to break (C5 and C6 without a full guard), that it really broke them, that takeovers met the SLO, and that acknowledged
writes exist in the resource. A scene may excuse a rule that its store does not promise under its fault (C4, exclusion,
across a failover); violations are reported nevertheless.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from holdfast.core.history.events import EventKind, Record
from holdfast.core.history.invariants import Breach, check
from holdfast.drills.model import Guard, JudgedScene, MeasuredTakeover, SceneRecord
from holdfast.types import NS

SHOWN: frozenset[str] = frozenset({"C5", "C6"})  # the rules that a resource without a full guard cannot promise


def judge(scene: SceneRecord) -> JudgedScene:
    """The judgement about one scene."""
    found = check(scene.history)
    shown = SHOWN if scene.bites else frozenset()
    losses = tuple(each for each in found if each.rule in shown)
    excused = tuple(each for each in found if each.rule in scene.excuses - shown)
    violations = tuple(each for each in found if each.rule not in shown | scene.excuses)
    lost = len(overwritten(scene.history))
    problems = [plain(each) for each in violations]
    if scene.bites and not lost:
        problems.append(
            "nothing was lost although the resource had no full guard: the drill missed the critical moment, "
            "and so proves nothing about guards"
        )
    if scene.guard is Guard.ON and lost:
        problems.append(f"{_times(lost, 'acknowledged update')} lost")
    problems += [late(each) for each in scene.takeovers if not each.in_time]
    problems += [f"{each.text}: {each.seen}" for each in scene.claims if not each.kept]
    if scene.dropped:
        problems.append(f"{_times(scene.dropped, 'record')} dropped by a ledger, so the history is incomplete")
    return JudgedScene(scene, losses, violations, lost, len(refusals(scene.history)), tuple(problems), excused)


def overwritten(history: Iterable[Record]) -> list[Record]:
    """The accepted writes that the current value is not based on, as recorded by the resource."""
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
    """Steps that a guard refused, as recorded by the refused workers."""
    return [each for each in history if each.kind in (EventKind.READ, EventKind.WRITE) and not each.ok]


def grants(history: Iterable[Record]) -> list[Record]:
    """Every grant of a lock."""
    return [each for each in history if each.kind in (EventKind.GRANTED, EventKind.PROMOTED)]


def plain(found: Breach) -> str:
    """A violated rule in plain words, with the two conflicting operations."""
    first, second = found.first, found.second
    if found.rule == "C6" and second is not None:
        return _overwriting(first, second)
    if found.rule == "C5" and first is not None and second is not None:
        return (
            f"{who(second)} wrote with the old fence {short(second)} and was accepted, after {who(first)} had "
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
    """The lost update: whose, by whom, and the version that the second writer had read."""
    if first is None:
        return f"{who(second)} wrote on top of version {second.based_on}, which does not exist"
    read = "before the first version" if not second.based_on else f"at version {second.based_on}"
    return (
        f"{who(first)} wrote version {first.value} (fence {short(first)}) and it was acknowledged; {who(second)}, "
        f"who had read {read}, then overwrote it with version {second.value} (fence {short(second)})"
    )


def who(record: Record) -> str:
    """The worker, without host and process."""
    return record.owner.partition("@")[0] or "unknown"


def short(record: Record) -> str:
    """The end of its fence, which distinguishes the fences of one drill: they are long, and have a common beginning."""
    return "none" if record.fence is None else f"…{record.fence % 10**6:06d}"


def late(takeover: MeasuredTakeover) -> str:
    """A takeover beyond the SLO."""
    took, slo = takeover.took_ns / NS, takeover.slo_ns / NS
    return f"{takeover.what}: taken over after {took:.2f} s, and the SLO is {slo:g} s"


def slowest(takeovers: Sequence[MeasuredTakeover]) -> MeasuredTakeover | None:
    """The takeover that took longest."""
    return max(takeovers, key=lambda each: each.took_ns, default=None)


def _times(number: int, noun: str) -> str:
    return f"1 {noun} was" if number == 1 else f"{number:,} {noun}s were"
