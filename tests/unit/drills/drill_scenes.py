"""Scenes made by hand: what a drill would have seen, without playing it."""

from __future__ import annotations

from holdfast.core.history.events import EventKind, Record
from holdfast.drills.model import (
    Curve,
    DrillClaim,
    DrillVerdict,
    FaultKind,
    FaultSpan,
    Guard,
    MeasuredTakeover,
    ReportFigure,
    SceneRecord,
)
from holdfast.types import NS

KEY = "holdfast:drill:test:1:account"


def grant(who: str, fence: int, at_s: float) -> Record:
    """A worker was granted the lock."""
    at_ns = round(at_s * NS)
    return Record(
        EventKind.GRANTED, at_ns, KEY, "drill", f"{who}@host:1/x", fence, began_ns=at_ns - 1, until_ns=at_ns + NS
    )


def release(who: str, fence: int, at_s: float) -> Record:
    """A worker released it."""
    at_ns = round(at_s * NS)
    return Record(EventKind.RELEASED, at_ns, KEY, "drill", f"{who}@host:1/x", fence, began_ns=at_ns - 1)


def write(who: str, fence: int, at_s: float, value: int, based_on: int) -> Record:
    """The resource accepted a write."""
    return Record(EventKind.WRITE, round(at_s * NS), KEY, "drill", who, fence, value=value, based_on=based_on)


def refused(who: str, fence: int, at_s: float, seen: int) -> Record:
    """A guard refused a write, as the writer saw it."""
    at_ns = round(at_s * NS)
    owner = f"{who}@host:1/x"
    return Record(
        EventKind.WRITE, at_ns, KEY, "drill", owner, fence, began_ns=at_ns - 1, ok=False, facts={"seen": seen}
    )


def overtaken() -> list[Record]:
    """Ada (fence 1) writes after Ben (fence 2) has, on top of what was there before both."""
    return [
        grant("ada", 1, 0.0),
        grant("ben", 2, 1.5),
        write("ben", 2, 1.6, value=2, based_on=0),
        release("ben", 2, 1.8),
        write("ada", 1, 1.7, value=1, based_on=0),
    ]


def guarded() -> list[Record]:
    """The same, with a guard."""
    return [*overtaken()[:-1], refused("ada", 1, 1.7, seen=2)]


def scene(
    guard: Guard | None, history: list[Record], **more: list[MeasuredTakeover] | list[DrillClaim] | list[FaultSpan]
) -> SceneRecord:
    """A scene with this history."""
    return SceneRecord("a <scene>", "something & something else was done.", guard, history, **more)  # type: ignore[arg-type]  # each to its own field


def full_scene(guard: Guard, history: list[Record]) -> SceneRecord:
    """One with everything that a report can show."""
    made = scene(
        guard,
        history,
        spans=[
            FaultSpan(FaultKind.PAUSE, "ada", NS // 2, 17 * NS // 10),
            FaultSpan(FaultKind.OUTAGE, "", NS // 4, NS),
            FaultSpan(FaultKind.DOWN, "ben", 2 * NS, 3 * NS),
        ],
        takeovers=[MeasuredTakeover("a holder that was <stopped>", NS // 2, 3 * NS // 2, 2 * NS)],
        claims=[DrillClaim("it is so", kept=True, seen="yes"), DrillClaim("it is & so", kept=False, seen="no")],
    )
    made.figures.append(ReportFigure("additions", "2", "each is 1"))
    made.curves.append(Curve("retries", 0, NS // 2, [3, 0, 1]))
    return made


def verdict(*judged: object) -> DrillVerdict:
    """A verdict over scenes that were judged."""
    replay = "holdfast drill pause --ttl 1"
    return DrillVerdict("pause", "a <store>", 1.0, 2.0, 12.3, replay, judged, ("a & b",))  # type: ignore[arg-type]  # they are
