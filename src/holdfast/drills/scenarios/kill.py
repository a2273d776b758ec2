"""`kill`: holders are killed without grace, at three moments of their work, and others take over (R130, R140).

The time from the death to the next grant is compared with the SLO. A write that was acknowledged before its writer died
must still exist.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import count

from holdfast.drills.env.processes import LIMIT_S, WorkerHandle
from holdfast.drills.env.stage import DrillHarness, SceneHarness
from holdfast.drills.model import FaultKind, Guard, ReportFigure
from holdfast.types import NS

MOMENTS = ("just granted", "between check and write", "after the write, before the release")


def play(stage: DrillHarness, rounds: int) -> None:
    """One death in each round."""
    words = f"a holder is killed while it holds its lease of {stage.plan.ttl_s:g} s and another worker waits"
    with stage.scene("holders killed", f"{words}; in turn {', '.join(MOMENTS)}.", Guard.ON) as it:
        key = it.key("account")
        [ben] = it.crew.enter("ben")
        names = (f"ada-{number}" for number in count(1))
        for number in range(rounds):
            it.played(partial(_round, it, key, names, ben, number % len(MOMENTS)))
        balance = it.account.inspect(key).balance
        it.scene.figures += [
            ReportFigure("holders killed", str(rounds)),
            ReportFigure("additions acknowledged", str(it.acknowledged)),
            ReportFigure("balance at the end", str(balance), "each addition is 1"),
        ]
        seen = f"{it.acknowledged} acknowledged, balance {balance}"
        it.claim("nothing acknowledged is lost", balance == it.acknowledged, seen)


def _round(it: SceneHarness, key: str, names: Iterator[str], ben: WorkerHandle, moment: int) -> bool:
    """One death. False: it must be repeated, because a lease was lost for another reason."""
    [ada] = it.crew.enter(next(names))
    it.ask(ada, "take", "granted", key=key)
    it.breathe()
    if moment > 0:
        it.ask(ada, "read", "read")
    if (moment == 1 and not it.hold_up(ada)) or (moment == 2 and not it.write(ada)):
        it.crew.dismiss(ada)
        return False
    ben.order("take", key=key)
    it.crew.next("asking", ben)
    it.breathe()
    died_ns = it.crew.kill(ada)
    granted = it.crew.next("granted", ben, it.stage.plan.slo_seconds + LIMIT_S)
    took = it.takeover(f"a holder killed {MOMENTS[moment]}", died_ns, granted.at_ns)
    it.span(FaultKind.DOWN, ada.name, died_ns, granted.at_ns)
    it.report(f"{ada.name} killed {MOMENTS[moment]}; ben took over after {took.took_ns / NS:.2f} s", good=took.in_time)
    it.ask(ben, "read", "read")
    it.breathe()
    written = it.write(ben)
    it.ask(ben, "release", "released")
    return written
