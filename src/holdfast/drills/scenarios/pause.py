"""`pause`: a holder is stopped for longer than its lease, between its check of the lease and its write (R73).

It is stopped exactly there, because a pause at a random moment rarely hits the few critical microseconds. Two timings
alternate: the late write comes after the new owner's write, or between the new owner's read and its write. A fence that
is checked on writes only does not catch the second one.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Final

from holdfast.drills.env.processes import LIMIT_S, WorkerHandle
from holdfast.drills.env.stage import DrillHarness, SceneHarness
from holdfast.drills.model import Guard, ReportFigure
from holdfast.types import NS

TITLES = {
    Guard.OFF: "without guards",
    Guard.WRITES: "fence checked on writes only",
    Guard.ON: "with guards",
}
_DONE = {
    Guard.OFF: "the table accepts every write",
    Guard.WRITES: "the table refuses a write with an older fence, and workers register no fence before reading",
    Guard.ON: "the fence is registered before the first read and checked with every write",
}
LONGER: Final = 1.05  # a pause lasts at least so many TTLs
ROUND_S: Final = 2.0  # of a round, besides the TTL


def play(stage: DrillHarness, guard: Guard, rounds: int) -> None:
    """Rounds of the same failure, alternating the two timings."""
    words = f"ada is stopped between check and write for longer than her lease of {stage.plan.ttl_s:g} s, and ben takes"
    with stage.scene(TITLES[guard], f"{words} over; {_DONE[guard]}.", guard) as it:
        key = it.key("account")
        ada, ben = it.crew.enter("ada", "ben")
        for number in range(rounds):
            it.played(partial(round_of, it, key, ada, ben, between=number % 2 == 1))
        balance = it.account.inspect(key).balance
        it.scene.figures += [
            ReportFigure("additions acknowledged", str(it.acknowledged)),
            ReportFigure("balance at the end", str(balance), "each addition is 1"),
        ]


def round_of(
    it: SceneHarness,
    key: str,
    ada: WorkerHandle,
    ben: WorkerHandle,
    *,
    between: bool,
    meanwhile: Callable[[], None] | None = None,
) -> bool:
    """One pause. False: it must be repeated, because a lease was lost for another reason.

    `meanwhile`: what else fails while ada is stopped and ben asks.
    """
    old = it.ask(ada, "take", "granted", key=key)["fence"]
    it.ask(ada, "read", "read")
    it.breathe()
    if not it.hold_up(ada):
        return False
    since_ns = it.freeze(ada)
    ben.order("take", key=key)
    if meanwhile is not None:
        meanwhile()
    granted = it.crew.next("granted", ben, it.stage.plan.slo_seconds + LIMIT_S)
    took = it.takeover("a stopped holder", since_ns, granted.at_ns)
    fences = f"ada stopped with fence {_short(old)}; ben got fence {_short(granted.fields['fence'])}"
    it.report(f"{fences} after {took.took_ns / NS:.2f} s")
    it.ask(ben, "read", "read")
    it.breathe()
    written = False
    if not between:
        written = it.write(ben)
        it.breathe()
    it.wait((since_ns + LONGER * it.stage.plan.ttl_ns - time.time_ns()) / NS)
    it.thaw(ada, since_ns)
    late = it.wrote(it.ask(ada, "go", "wrote"))
    it.breathe()
    if between:
        written = it.write(ben)
    return _ended(it, ada, ben, written=written, late=late, between=between)


def _ended(it: SceneHarness, ada: WorkerHandle, ben: WorkerHandle, *, written: bool, late: bool, between: bool) -> bool:
    """Report a round. Returns whether it was valid."""
    held = it.ask(ben, "standing", "standing")["held"]
    standing = it.ask(ada, "standing", "standing")
    it.ask(ben, "release", "released")
    if not written and not held:
        return False
    moment = "between ben's read and his write" if between else "after ben's write"
    good = None if late and it.scene.guard is not Guard.ON else not late
    it.report(f"ada woke up and wrote {moment}: {'accepted' if late else 'refused'}", good=good)
    it.claim("the current owner can write", written, f"ben's write was {'accepted' if written else 'refused'}")
    it.claim("a late owner notices", not standing["held"], f"her lease: {standing['reason'] or 'held'}")
    return True


def rounds_for(seconds: float, ttl_s: float, scenes: int) -> int:
    """The number of rounds in that time, at least one of each timing."""
    return max(2, int(seconds / scenes / (ttl_s + ROUND_S)))


def _short(fence: int) -> str:
    return f"…{fence % 10**6:06d}"
