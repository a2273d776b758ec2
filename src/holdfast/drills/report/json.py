"""A verdict as plain JSON types, with every finding and the two conflicting records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from holdfast.core.history.events import Record
from holdfast.core.history.invariants import Breach, described
from holdfast.drills.model import DrillVerdict, JudgedScene, MeasuredTakeover, scores
from holdfast.drills.verdict.leases import grants, plain, slowest
from holdfast.types import NS


def as_dict(verdict: DrillVerdict) -> dict[str, Any]:
    """The whole verdict."""
    return {
        "drill": verdict.drill,
        "passed": verdict.passed,
        "store": verdict.store,
        "ttl": verdict.ttl_s,
        "slo": verdict.slo_s,
        "took": round(verdict.took_s, 3),
        "replay": verdict.replay,
        "cannot": list(verdict.cannot),
        "incidents": [each._asdict() for each in scores([judged.scene for judged in verdict.judged])],
        "scenes": [_scene(each) for each in verdict.judged],
    }


def _scene(judged: JudgedScene) -> dict[str, Any]:
    scene = judged.scene
    return {
        "scene": scene.title,
        "done": scene.done,
        "guards": None if scene.guard is None else str(scene.guard),
        "ok": judged.ok,
        "lost": judged.lost,
        "refused": judged.refused,
        "grants": len(grants(scene.history)),
        "records": len(scene.history),
        "kinds": kinds(scene.history),
        "problems": list(judged.problems),
        "losses": [_violation(each) for each in judged.losses],
        "violations": [_violation(each) for each in judged.violations],
        "excused": [_violation(each) for each in judged.excused],
        "moments": [{"what": each.what, "at": round(each.at_ns / NS, 6)} for each in scene.moments],
        "takeovers": [_takeover(each) for each in scene.takeovers],
        "slowest_takeover": None if (found := slowest(scene.takeovers)) is None else round(found.took_ns / NS, 4),
        "figures": [each._asdict() for each in scene.figures],
        "claims": [each._asdict() for each in scene.claims],
    }


def kinds(history: Sequence[Record]) -> dict[str, int]:
    """The number of records by kind, most frequent first."""
    return {str(kind): number for kind, number in Counter(record.kind for record in history).most_common()}


def _violation(found: Breach) -> dict[str, Any]:
    records = [described(each) for each in (found.first, found.second) if each is not None]
    return {"rule": found.rule, "key": found.key, "text": plain(found), "records": records}


def _takeover(found: MeasuredTakeover) -> dict[str, Any]:
    took, slo = round(found.took_ns / NS, 4), round(found.slo_ns / NS, 3)
    return {"what": found.what, "took": took, "slo": slo, "in_time": found.in_time}
