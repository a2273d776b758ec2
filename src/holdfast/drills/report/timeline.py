"""The picture of a scene: holders of the lock with their fences, faults, and the results of writes.

One lane for each worker: a bar while it certainly held a lease, with the end of its fence; hatched while it was
stopped; gray over all lanes while the store was unreachable or split; a line through all lanes at a clock jump or a
replaced server. A dot is an accepted write, a ring an accepted write that is lost, a cross a refused write. Below, the
fences: they rise with every grant. An accepted write below the line is what a guard prevents.

"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Final, NamedTuple

from holdfast.core.history.events import EventKind, Record
from holdfast.core.history.holds import HoldInterval, holds
from holdfast.drills.model import FaultKind, FaultMoment, FaultSpan, SceneRecord
from holdfast.drills.report.svg import WIDE, Drawing, width_of
from holdfast.drills.verdict.leases import overwritten, who
from holdfast.types import NS

GRANTS_MAX: Final = 120
LANES_MAX: Final = 12
_LEFT, _RIGHT, _TOP = 110, 16, 38
_LANE, _BAR, _FENCES = 42, 14, 92
_HEAD: Final = 18  # of a lane, above its bar, for the fence
_TICKS: Final = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600)


class _Frame(NamedTuple):
    from_ns: int
    to_ns: int

    def x(self, at_ns: int) -> float:
        share = (at_ns - self.from_ns) / max(1, self.to_ns - self.from_ns)
        return _LEFT + share * (WIDE - _LEFT - _RIGHT)

    def told(self, at_ns: int) -> str:
        return f"{(at_ns - self.from_ns) / NS:.2f} s"


def timeline(scene: SceneRecord) -> str | None:
    """The picture; None if there is no guarded resource, no data, or too much of it."""
    if scene.guard is None:
        return None
    by_key: dict[str, list[Record]] = defaultdict(list)
    for record in scene.history:
        by_key[record.key].append(record)
    held = [hold for records in by_key.values() for hold in holds(records)]
    lanes = list(dict.fromkeys([who_held(hold) for hold in sorted(held, key=lambda each: each.since_ns)]))
    if not held or len(held) > GRANTS_MAX or len(lanes) > LANES_MAX:
        return None
    times = [hold.since_ns for hold in held] + [record.at_ns for record in scene.history]
    times += [moment for span in scene.spans for moment in (span.from_ns, span.to_ns)]
    times += [moment.at_ns for moment in scene.moments]
    frame = _Frame(min(times), max(times) + NS // 20)
    places = {name: _TOP + _LANE * number for number, name in enumerate(lanes)}
    bottom = _TOP + _LANE * len(lanes)
    drawing = Drawing(bottom + _FENCES + 58, f"timeline: {scene.title}")
    _axis(drawing, frame, bottom + _FENCES + 16)
    for span in scene.spans:
        if span.kind in (FaultKind.OUTAGE, FaultKind.SPLIT):
            _shade(drawing, frame, span, _TOP - 6, bottom + _FENCES + 10)
    for name, y in places.items():
        drawing.text(_LEFT - 10, y + _HEAD + _BAR / 2 + 4, name, "label", "end")
        drawing.line(_LEFT, y + _LANE, WIDE - _RIGHT, y + _LANE, "rule")
    for hold in held:
        _hold(drawing, frame, hold, places[who_held(hold)], scene.spans)
    for span in scene.spans:
        if span.kind in (FaultKind.PAUSE, FaultKind.DOWN) and span.who in places:
            _stopped(drawing, frame, span, places[span.who])
    _moments(drawing, frame, scene.moments, bottom + _FENCES + 10)
    marks = _marks(scene)
    for mark in marks:
        _put(drawing, mark, frame.x(mark.at_ns), places.get(mark.who, bottom) + _HEAD + _BAR / 2, frame)
    _fences(drawing, frame, held, marks, bottom + 14)
    _legend(drawing, bottom + _FENCES + 46, scene)
    return drawing.markup()


def who_held(hold: HoldInterval) -> str:
    """The worker of a hold, without host and process."""
    return hold.owner.partition("@")[0] or "unknown"


class _Mark(NamedTuple):
    kind: str  # accepted, lost, refused
    at_ns: int
    who: str
    fence: int
    told: str


def _marks(scene: SceneRecord) -> list[_Mark]:
    lost = {id(record) for record in overwritten(scene.history)}
    found = []
    for record in scene.history:
        if record.kind is not EventKind.WRITE or record.fence is None:
            continue
        if record.ok and record.began_ns is None:  # recorded by the resource
            kind = "lost" if id(record) in lost else "accepted"
            words = "accepted, and overwritten unread" if kind == "lost" else "accepted"
        elif not record.ok:
            kind, words = "refused", "refused: a newer fence was seen"
        else:
            continue
        found.append(_Mark(kind, record.at_ns, who(record), record.fence, f"{who(record)}'s write: {words}"))
    return _named(found, scene)


def _named(marks: list[_Mark], scene: SceneRecord) -> list[_Mark]:
    """A refused bare fence has no owner; the owner is the worker that was granted it."""
    owners = {record.fence: who(record) for record in scene.history if record.kind is EventKind.GRANTED}
    return [mark._replace(who=owners.get(mark.fence, mark.who)) if mark.who == "unknown" else mark for mark in marks]


def _put(drawing: Drawing, mark: _Mark, x: float, y: float, frame: _Frame) -> None:
    told = f"{mark.told} (fence …{mark.fence % 10**6:06d}, at {frame.told(mark.at_ns)})"
    if mark.kind == "refused":
        drawing.cross(x, y, "refused", told)
    else:
        drawing.dot(x, y, mark.kind, told)


def _hold(drawing: Drawing, frame: _Frame, hold: HoldInterval, y: float, spans: Sequence[FaultSpan]) -> None:
    name = who_held(hold)
    died = [each.from_ns for each in spans if each.kind is FaultKind.DOWN and each.who == name]
    end_ns = hold.until_ns or next((at for at in died if at >= hold.since_ns), None) or hold.over_by_ns or frame.to_ns
    x, to_x = frame.x(hold.since_ns), frame.x(end_ns)
    fence = "no fence" if hold.fence is None else f"…{hold.fence % 10**6:06d}"
    told = f"{name} held it under {fence} from {frame.told(hold.since_ns)} to {frame.told(end_ns)}: {hold.end}"
    drawing.rect(x, y + _HEAD, to_x - x, _BAR, "hold" if hold.fence is not None else "degraded", told)
    if to_x - x > width_of(fence):
        drawing.text(x + 1, y + _HEAD - 4, fence, "small")


def _stopped(drawing: Drawing, frame: _Frame, span: FaultSpan, y: float) -> None:
    x, to_x = frame.x(span.from_ns), frame.x(span.to_ns)
    told = f"{span.who}: {span.kind} from {frame.told(span.from_ns)} to {frame.told(span.to_ns)}"
    if span.kind is FaultKind.DOWN:
        drawing.cross(x, y + _HEAD + _BAR / 2, "death", told)
        drawing.text(x + 9, y + _HEAD + _BAR / 2 + 4, "killed", "small")
        return
    drawing.rect(x, y + _HEAD - 3, to_x - x, _BAR + 6, "paused", told)
    drawing.rect(x, y + _HEAD - 3, to_x - x, _BAR + 6, "hatched", told)


def _shade(drawing: Drawing, frame: _Frame, span: FaultSpan, y: float, to_y: float) -> None:
    x, to_x = frame.x(span.from_ns), frame.x(span.to_ns)
    drawing.rect(x, y, to_x - x, to_y - y, "outage", f"{span.kind} until {frame.told(span.to_ns)}")
    if span.kind is FaultKind.OUTAGE and to_x - x > width_of(span.kind):
        drawing.text((x + to_x) / 2, y + 12, span.kind, "small", "middle")


def _moments(drawing: Drawing, frame: _Frame, moments: Sequence[FaultMoment], to_y: float) -> None:
    """A line through all lanes for each moment, with its label above, in the first of two rows with enough room."""
    rows = {_TOP - 10: 0.0, _TOP - 23: 0.0}  # the occupied width of each
    for moment in sorted(moments, key=lambda each: each.at_ns):
        x, wide = frame.x(moment.at_ns), width_of(moment.what)
        left = min(x - 4, WIDE - _RIGHT - wide)
        y = next((row for row, taken in rows.items() if left > taken), _TOP - 10)
        rows[y] = left + wide + 8
        drawing.line(x, y + 3, x, to_y, "moment")
        drawing.text(left, y, moment.what, "momenttext")


def _fences(drawing: Drawing, frame: _Frame, held: Sequence[HoldInterval], marks: Sequence[_Mark], y: float) -> None:
    """Fences by rank: a step for each grant, and writes at the height of their fence."""
    grants = sorted((hold for hold in held if hold.fence is not None), key=lambda hold: hold.since_ns)
    ranks = {fence: rank for rank, fence in enumerate(sorted({hold.fence or 0 for hold in grants}))}
    high = _FENCES - 26

    def at(fence: int) -> float:
        return y + high - 4 - ranks.get(fence, 0) / max(1, len(ranks) - 1) * (high - 10)

    drawing.text(_LEFT - 10, y + high / 2 + 4, "fence", "label", "end")
    points: list[tuple[float, float]] = []
    top = -1
    for hold in grants:
        x, fence = frame.x(hold.since_ns), hold.fence or 0
        if points:
            points.append((x, points[-1][1]))
        top = max(top, fence)
        points.append((x, at(top)))
    if points:
        points.append((frame.x(frame.to_ns), points[-1][1]))
        drawing.path(points, "fence")
    for mark in marks:
        _put(drawing, mark, frame.x(mark.at_ns), at(mark.fence), frame)


def _axis(drawing: Drawing, frame: _Frame, y: float) -> None:
    length = (frame.to_ns - frame.from_ns) / NS
    step = next((each for each in _TICKS if length / each <= 12), _TICKS[-1])
    number = 0
    while number * step <= length:
        x = frame.x(frame.from_ns + round(number * step * NS))
        drawing.line(x, _TOP - 6, x, y - 6, "grid")
        drawing.text(x, y + 8, f"{number * step:g} s", "small", "middle")
        number += 1


def _legend(drawing: Drawing, y: float, scene: SceneRecord) -> None:
    x = float(_LEFT)
    shown = {
        "hold": "lease held",
        "accepted": "write accepted",
        "lost": "accepted, then lost",
        "refused": "write refused",
    }
    kinds = {mark.kind for mark in _marks(scene)}
    if any(span.kind is FaultKind.PAUSE for span in scene.spans):
        shown["paused"] = "process stopped"
    if any(span.kind is FaultKind.SPLIT for span in scene.spans):
        shown["outage"] = FaultKind.SPLIT
    if scene.moments:
        shown["moment"] = "the fault"
    for kind, words in shown.items():
        if kind in ("accepted", "lost", "refused") and kind not in kinds:
            continue
        if kind == "moment":
            drawing.line(x + 8, y - 10, x + 8, y + 2, kind)
        elif kind in ("hold", "paused", "outage"):
            drawing.rect(x, y - 9, 16, 10, kind)
            if kind == "paused":
                drawing.rect(x, y - 9, 16, 10, "hatched")
        elif kind == "refused":
            drawing.cross(x + 8, y - 4, kind, size=4)
        else:
            drawing.dot(x + 8, y - 4, kind, radius=4)
        drawing.text(x + 22, y, words, "small")
        x += 34 + width_of(words)
