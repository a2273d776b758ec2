"""`pause-and-delay`: long pauses and a slow network at the same time (R30).

All traffic between the workers and the store is delayed. Two workers add to a balance continuously, and are stopped for
longer than their lease at arbitrary moments. Meanwhile the exact failure of `pause` is repeated on another lock.

"""

from __future__ import annotations

import time
from functools import partial
from typing import Final

from holdfast.drills.env.processes import WorkerHandle
from holdfast.drills.env.stage import DrillHarness, SceneHarness
from holdfast.drills.model import FaultKind, Guard, ReportFigure
from holdfast.drills.scenarios import pause

DELAY_SHARE: Final = 20  # a request takes a tenth of the TTL longer, there and back
THINK_S: Final = 0.02


def play(stage: DrillHarness, guard: Guard, rounds: int) -> None:
    """Rounds of both at the same time."""
    delay_s = stage.plan.ttl_s / DELAY_SHARE
    words = f"all traffic to and from the store is {delay_s * 1000:g} ms late; cleo and dan add continuously and are"
    title = f"slow network, {pause.TITLES[guard]}"
    with stage.scene(title, f"{words} stopped in turn; ada and ben run `pause` beside them.", guard) as it:
        ada, ben, cleo, dan = it.crew.enter("ada", "ben", "cleo", "dan")
        key, other = it.key("account"), it.key("other")
        since_ns = time.time_ns()
        stage.way.delay(delay_s)
        it.report(f"the network is slow now: {delay_s * 1000:g} ms each way")
        for number, adder in enumerate((cleo, dan)):
            adder.order("add", key=other, first=1 + number, step=2, think=THINK_S)
        for number in range(rounds):
            victim = (cleo, dan)[number % 2]
            stopped_ns = it.freeze(victim)
            it.played(partial(pause.round_of, it, key, ada, ben, between=number % 2 == 1))
            it.thaw(victim, stopped_ns)
        acknowledged = it.acknowledged + sum(_end(it, adder) for adder in (cleo, dan))
        stage.way.delay(0.0)
        it.span(FaultKind.DELAY, "", since_ns, time.time_ns())
        balance, others = it.account.inspect(key).balance, it.account.inspect(other).balance
        it.scene.figures += [
            ReportFigure("additions acknowledged", str(acknowledged)),
            ReportFigure("balances at the end", str(balance + others), "each addition is 1"),
        ]
        if guard is Guard.ON:
            kept = balance + others == acknowledged
            it.claim("nothing acknowledged is lost", kept, f"{acknowledged} acknowledged, {balance + others} there")


def _end(it: SceneHarness, adder: WorkerHandle) -> int:
    adder.order("stop")
    return int(it.crew.next("added", adder).fields["added"])
