"""`outage`: the store is unreachable for a while, under each error policy (R90, R97, R107).

Two replicas of each risk class process numbered items, each under a lock of the class. While the store is unreachable,
`fail_closed` and `wait` do nothing, and `fail_open` continues without the store: both replicas then process the same
items, and duplicates are absorbed downstream, where effects are idempotent. Afterwards all replicas must have full
leases again, and fallbacks must have ended.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from functools import partial
from typing import Final, NamedTuple

from holdfast.core.history.events import EventKind, Record
from holdfast.core.lease.circuit_breaker import COOL_MAX_NS
from holdfast.drills.env.stage import DrillHarness, SceneHarness
from holdfast.drills.model import DrillClaim, FaultKind, ReportFigure, curve
from holdfast.drills.verdict.effects import EffectAttempt, Effects, EffectTally
from holdfast.drills.worker import POLICY
from holdfast.types import NS

PIECE_S: Final = 0.05
ITEMS: Final = 100_000
BEFORE_S, CALM_S = 1.0, 2.0
RECOVERY_S: Final = 1.5 * COOL_MAX_NS / NS + 5.0  # the breaker's longest cool-down with its jitter, and some requests
LEASE_S: Final = 5.0  # long enough that no lease expires on a slow machine
REQUEST_S: Final = 1.5  # a locked file has failed after two requests, so short outages need shorter ones
NEAR_ZERO: Final = 50  # after recovery one fallback in so many grants is only a slow request


class Outage(NamedTuple):
    """When the store was unreachable, and when all replicas had full leases again."""

    cut_ns: int  # it was unreachable by then
    mended_ns: int  # it was unreachable until then at least
    recovered_ns: int


def play(stage: DrillHarness, seconds: float) -> None:
    """One outage of that length, under all three policies concurrently."""
    words = f"the store is unreachable for {seconds:g} s while two replicas of each risk class process numbered items"
    with stage.scene("store outage", f"{words}.", None, request_timeout=min(REQUEST_S, seconds / 4)) as it:
        names = [f"{risk}-{number}" for risk in POLICY for number in (1, 2)]
        crew = it.crew.enter(*names)
        began_ns = time.time_ns()
        outage = None
        for actor in crew:
            actor.order("serve", risk=actor.name.partition("-")[0], items=ITEMS, each=PIECE_S, ttl=LEASE_S)
        with closing(Effects(it.place / "effects.db", "director")) as effects:
            it.until(lambda: all(effects.tally(risk).effects > 3 for risk in POLICY), "all replicas to work")
            it.wait(BEFORE_S)
            stage.way.cut()
            cut_ns = time.time_ns()
            it.report(f"the store is unreachable, for {seconds:g} s")
            it.wait(seconds)
            mended_ns = time.time_ns()
            stage.way.mend()
            it.span(FaultKind.OUTAGE, "", cut_ns, mended_ns)
            it.report("the store is back")
            recovered_ns = _recovered(it, effects, names, mended_ns)
            outage = Outage(cut_ns, mended_ns, recovered_ns)
            it.report(f"all replicas have full leases after {(recovered_ns - mended_ns) / NS:.1f} s", good=True)
            it.wait(CALM_S)
            for actor in crew:
                actor.order("stop")
            for actor in crew:
                it.crew.next("served", actor)
            _figures(it, effects, began_ns)
    if outage is not None:
        it.scene.claims += judge_history(it.scene.history, outage)
        it.scene.figures += list(_counters(it.scene.history, outage))


def _recovered(it: SceneHarness, effects: Effects, names: Sequence[str], mended_ns: int) -> int:
    """When every replica had started an item under a full lease again: each notices separately that the store is up."""

    def full(name: str) -> bool:
        attempts = effects.attempts(name.partition("-")[0], mended_ns)
        return any(each.fence is not None and each.worker == name for each in attempts)

    for name in names:
        it.until(partial(full, name), f"{name} to have full leases again", RECOVERY_S)
    return time.time_ns()


def _figures(it: SceneHarness, effects: Effects, began_ns: int) -> None:
    for risk, policy in POLICY.items():
        attempts, tally = effects.attempts(risk, 0), effects.tally(risk)
        it.scene.claims += judge_class(policy, attempts, tally)
        it.scene.curves.append(curve(policy, effects.times(risk), began_ns, time.time_ns(), NS // 2))
        note = f"{tally.attempts} attempts, {tally.twice} of them twice, {tally.degraded} without a fence"
        it.scene.figures.append(ReportFigure(f"{policy}: items done", str(tally.effects), note))


def judge_class(policy: str, attempts: Sequence[EffectAttempt], tally: EffectTally) -> Iterator[DrillClaim]:
    """The promises of one policy in an outage, and the observations."""
    degraded = sum(each.fence is None for each in attempts)
    if policy == "fail_open":
        yield DrillClaim("fail_open continues without the store", degraded > 0, f"{degraded} items started without it")
        yield DrillClaim(
            "duplicates of fail_open had one effect",
            tally.effects == tally.attempts - tally.twice,
            f"{tally.attempts} attempts, {tally.twice} duplicates, {tally.effects} effects",
        )
    else:
        yield DrillClaim(
            f"{policy} does nothing without the store", not degraded, f"{degraded} items started without it"
        )
        yield DrillClaim(f"{policy} does nothing twice", tally.twice == 0, f"{tally.twice} duplicates")


def judge_history(history: Iterable[Record], outage: Outage) -> Iterator[DrillClaim]:
    """The store grants nothing while it is unreachable; fallbacks are counted, and end after recovery (R97)."""
    records = list(history)
    grants = [each for each in records if each.kind is EventKind.GRANTED]
    meanwhile = [
        each for each in grants if (each.began_ns or each.at_ns) > outage.cut_ns and each.at_ns < outage.mended_ns
    ]
    yield DrillClaim("an unreachable store grants nothing", not meanwhile, f"{len(meanwhile)} grants meanwhile")
    fell = [each for each in records if each.kind is EventKind.FELL_BACK]
    yield DrillClaim("fallbacks are counted", bool(fell), f"{len(fell)} recorded")
    late = sum(each.at_ns > outage.recovered_ns for each in fell)
    well = sum(each.at_ns > outage.recovered_ns for each in grants)
    yield DrillClaim(
        "after recovery fallbacks are near zero", late * NEAR_ZERO <= well, f"{late} beside {well} full leases"
    )


def _counters(history: Iterable[Record], outage: Outage) -> Iterator[ReportFigure]:
    counts = dict.fromkeys((EventKind.FELL_BACK, EventKind.DENIED, EventKind.PROMOTED), 0)
    for record in history:
        if record.kind in counts:
            counts[record.kind] += 1
    yield ReportFigure("fallbacks", str(counts[EventKind.FELL_BACK]), "leases granted without the store")
    yield ReportFigure("denied", str(counts[EventKind.DENIED]), "refused by the policy")
    yield ReportFigure("promoted", str(counts[EventKind.PROMOTED]), "degraded leases that the store granted later")
    yield ReportFigure(
        "recovery", f"{(outage.recovered_ns - outage.mended_ns) / NS:.1f} s", "until all had full leases"
    )
