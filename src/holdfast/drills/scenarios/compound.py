"""`compound`: failing renewals, an expired lease, a stale release and a late write, all in one scene (R35).

The store does not answer; the holder's renewals fail, and it gives up its lease before the store may expire it. Then
the store is back, another worker holds the lock, and the first one continues unaware: it renews, releases and writes
with its old token and fence.
"""

from __future__ import annotations

import time

from holdfast.core.history.events import EventKind
from holdfast.drills.env.processes import LIMIT_S, WorkerHandle
from holdfast.drills.env.stage import DrillHarness, SceneHarness
from holdfast.drills.model import FaultKind, Guard, ReportFigure
from holdfast.drills.scenarios.pause import TITLES
from holdfast.types import NS

_REQUEST = 4  # a request may take a quarter of the TTL: several renewals fail within one lease


def play(stage: DrillHarness, guard: Guard) -> None:
    """The whole sequence, once."""
    words = (
        f"the store does not answer for longer than ada's lease of {stage.plan.ttl_s:g} s; ben takes over when it is "
        "back; ada still renews, releases and writes"
    )
    title = f"compound, {TITLES[guard]}"
    with stage.scene(title, f"{words}.", guard, request_timeout=stage.plan.ttl_s / _REQUEST) as it:
        key = it.key("account")
        ada, ben = it.crew.enter("ada", "ben")
        it.ask(ada, "take", "granted", key=key)
        it.ask(ada, "read", "read")
        it.breathe()
        since_ns = _cut(it)
        it.wait(stage.plan.ttl_s * 1.1)
        standing = it.ask(ada, "standing", "standing")
        it.claim("a lease that cannot be renewed is abandoned", not standing["held"], f"reason: {standing['reason']}")
        it.report(f"ada's renewals failed and her lease is lost ({standing['reason']})", good=not standing["held"])
        mended_ns = _mend(it, since_ns)
        ben.order("take", key=key)
        granted = it.crew.next("granted", ben, stage.plan.slo_seconds + LIMIT_S)
        took = it.takeover("a lease that expired while the store was unreachable", mended_ns, granted.at_ns)
        it.report(f"the store is back; ben has the lock after {took.took_ns / NS:.2f} s", good=took.in_time)
        it.ask(ben, "read", "read")
        it.breathe()
        _insist(it, key, ada, granted.fields["fence"])
        it.breathe()
        written = it.write(ben)
        it.breathe()
        late = it.write(ada, deaf=True)
        it.report(f"ada wrote late: {'accepted' if late else 'refused'}", good=None if late else True)
        held = it.ask(ben, "standing", "standing")["held"]
        it.claim("the current owner can write", written or not held, "accepted" if written else "refused")
        it.breathe()
        it.ask(ben, "release", "released")
        it.scene.figures += [
            ReportFigure("loss reason", str(standing["reason"])),
            ReportFigure("late write", "accepted" if late else "refused"),
        ]
    failed = sum(record.kind is EventKind.UNCONFIRMED for record in it.scene.history)
    it.scene.figures.append(ReportFigure("renewals without an answer", str(failed)))


def _cut(it: SceneHarness) -> int:
    it.stage.way.cut()
    it.report("the store no longer answers")
    return time.time_ns()


def _mend(it: SceneHarness, since_ns: int) -> int:
    it.stage.way.mend()
    at_ns = time.time_ns()
    it.span(FaultKind.OUTAGE, "", since_ns, at_ns)
    return at_ns


def _insist(it: SceneHarness, key: str, ada: WorkerHandle, fence: int) -> None:
    """Check the store's answers to a renewal and a release by a former owner."""
    ada.order("insist")
    renewal = it.crew.next("renewal", ada).fields["accepted"]
    release = it.crew.next("release", ada).fields["accepted"]
    with it.stage.locks() as locks:
        found = locks.inspect(key)
    still = found.held and found.fence == fence
    it.report("ada's stale renewal and release: refused; ben still has the lock", good=not renewal and still)
    it.claim("a stale renewal is refused", not renewal, "accepted" if renewal else "refused: lock not owned")
    it.claim("a stale release is refused", not release, "accepted" if release else "refused: lock not owned")
    it.claim("a stale release frees no other owner's lock", still, "still ben's" if still else f"held: {found.held}")
