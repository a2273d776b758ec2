"""`clock`, third part: on a SQLite file, where the clocks of the host are the store's clocks.

The wall clock of the host jumps: the boot-time clock judges SQLite leases, so the store is unaffected. A holder counts
a jump forward as passed time, and stops; it ignores a jump back. Exclusion holds throughout.

The host is suspended for an hour: all processes stop. When they continue, the boot-time clock and the wall clock have
counted the hour, and the monotonic clock has not. The drill simulates exactly that: workers are stopped, these two
clocks of theirs are moved, and the workers are continued.

If the system allows it, a worker also runs in its own time namespace, in which the monotonic and the boot-time clock
are days ahead of the host's, as in a container that was moved from another host.
"""

from __future__ import annotations

import shutil
import subprocess
from functools import partial
from pathlib import Path
from typing import Final

from holdfast.drills.env.clocks import MovedClocks
from holdfast.drills.env.processes import LIMIT_S, StartOptions, WorkerHandle
from holdfast.drills.env.stage import DrillHarness, SceneHarness
from holdfast.drills.model import FaultKind, Guard, ReportFigure
from holdfast.drills.scenarios.clock_jump import HOUR_S, JUMPS, told_jump
from holdfast.drills.scenarios.failover import rises, say_late
from holdfast.drills.scenarios.pause import TITLES
from holdfast.types import NS

ADDITIONS: Final = 5  # of each worker at least
_THINK_S: Final = 0.01
_PROBE_S: Final = 10.0
_AHEAD: Final = ("--boottime", "259200", "--monotonic", "86400")
_THROUGH: Final = ("unshare", "--time", *_AHEAD, "--fork", "--kill-child=SIGKILL")


def play_jumps(stage: DrillHarness, library: Path) -> None:
    """The wall clock of the host jumps while the lock is held: forward and back, by a minute and by an hour."""
    words = (
        "the wall clock of ada's and ben's host jumps while ada holds the lock: a minute forward, a minute back, an "
        "hour forward and an hour back"
    )
    with (
        MovedClocks(stage.directory / f"clock-{len(stage.scenes)}", library) as moved,
        stage.scene("host's clock, on SQLite", f"{words}.", Guard.ON, moved=moved) as it,
    ):
        key = it.key("account")
        ada, ben = it.crew.enter("ada", "ben", start=StartOptions(environment=moved.environment))
        for seconds in JUMPS:
            it.played(partial(_forward, it, moved, key, (ada, ben), seconds))
            it.played(partial(_back, it, moved, key, (ada, ben), seconds))
        balance = it.account.inspect(key).balance
        seen = f"{it.acknowledged} acknowledged, balance {balance}"
        it.claim("nothing acknowledged is lost", balance == it.acknowledged, seen)


def _forward(
    it: SceneHarness, moved: MovedClocks, key: str, actors: tuple[WorkerHandle, WorkerHandle], seconds: float
) -> bool:
    """A jump forward. False: it must be repeated, because a lease was lost for another reason."""
    ada, ben = actors
    old = it.ask(ada, "take", "granted", key=key)["fence"]
    it.ask(ada, "read", "read")
    it.breathe()
    if not it.ask(ada, "standing", "standing")["held"]:
        return False
    ben.order("take", key=key)
    it.crew.next("asking", ben)
    at_ns = it.moment(told_jump(seconds), moved.jump(seconds))
    standing = it.ask(ada, "standing", "standing")
    gone = not standing["held"]
    it.claim("a jump forward counts as passed time", gone, f"her lease: {standing['reason'] or 'held'}")
    granted = it.crew.next("granted", ben, it.stage.plan.slo_seconds + LIMIT_S)
    took = it.takeover(f"a lease abandoned at a jump of {told_jump(seconds)}", at_ns, granted.at_ns)
    it.report(f"the clock jumped {told_jump(seconds)}: ada stopped; ben has the lock after {took.took_ns / NS:.2f} s")
    rises(it, old, granted.fields["fence"], "the fence rises at every jump")
    it.ask(ben, "read", "read")
    it.breathe()
    written = it.write(ben)
    late = it.write(ada, deaf=True)
    it.claim("the late write is refused", not late, "refused" if not late else "accepted")
    it.breathe()
    it.ask(ben, "release", "released")
    return written


def _back(
    it: SceneHarness, moved: MovedClocks, key: str, actors: tuple[WorkerHandle, WorkerHandle], seconds: float
) -> bool:
    """A jump back. False: it must be repeated, because a lease was lost for another reason."""
    ada, ben = actors
    old = it.ask(ada, "take", "granted", key=key)["fence"]
    it.ask(ada, "read", "read")
    it.breathe()
    if not it.ask(ada, "standing", "standing")["held"]:
        return False
    ben.order("take", key=key)
    it.crew.next("asking", ben)
    it.moment(told_jump(-seconds), moved.jump(-seconds))
    it.breathe()
    standing = it.ask(ada, "standing", "standing")
    written = it.write(ada)
    if not written and standing["reason"] == "expired":
        return False
    it.claim("a jump back changes nothing", standing["held"], f"her lease: {standing['reason'] or 'held'}")
    it.claim("the current owner can write", written, f"ada's write was {'accepted' if written else 'refused'}")
    it.ask(ada, "release", "released")
    fence = it.crew.next("granted", ben, it.stage.plan.slo_seconds + LIMIT_S).fields["fence"]
    it.report(f"the clock jumped {told_jump(-seconds)}: ada kept her lock, wrote, and released it to ben", good=written)
    rises(it, old, fence, "the fence rises at every jump")
    it.ask(ben, "release", "released")
    return True


def play_suspend(stage: DrillHarness, guard: Guard, library: Path) -> None:
    """The host is suspended for an hour while the lock is held."""
    words = (
        "the host is suspended for an hour while ada is between check and write and ben waits: both are stopped, and "
        "then the boot-time and the wall clock have counted an hour, and the monotonic clock next to nothing"
    )
    with (
        MovedClocks(stage.directory / f"clock-{len(stage.scenes)}", library) as moved,
        stage.scene(f"host suspended, {TITLES[guard]}", f"{words}.", guard, moved=moved) as it,
    ):
        key = it.key("account")
        ada, ben = it.crew.enter("ada", "ben", start=StartOptions(environment=moved.environment))
        for between in (False, True):
            it.played(partial(_suspended, it, moved, key, (ada, ben), between=between))
        balance = it.account.inspect(key).balance
        it.scene.figures += [
            ReportFigure("additions acknowledged", str(it.acknowledged)),
            ReportFigure("balance at the end", str(balance), "each addition is 1"),
        ]


def _suspended(
    it: SceneHarness, moved: MovedClocks, key: str, actors: tuple[WorkerHandle, WorkerHandle], *, between: bool
) -> bool:
    """One suspension. False: it must be repeated, because a lease was lost for another reason."""
    ada, ben = actors
    it.ask(ada, "take", "granted", key=key)
    it.ask(ada, "read", "read")
    it.breathe()
    if not it.hold_up(ada):
        return False
    ben.order("take", key=key)
    it.crew.next("asking", ben)
    it.breathe()
    pause_ns = _sleep(it, moved, actors)
    woken_ns = it.scene.spans[-1].to_ns
    granted = it.crew.next("granted", ben, it.stage.plan.slo_seconds + LIMIT_S)
    took = it.takeover("a suspended host", woken_ns, granted.at_ns)
    awake = f"{pause_ns / NS:.2f} s by the monotonic clock"
    it.report(f"the host woke up after an hour, {awake}; ben has the lock after {took.took_ns / NS:.2f} s")
    it.ask(ben, "read", "read")
    it.breathe()
    written = False if between else it.write(ben)
    late = it.wrote(it.ask(ada, "go", "wrote"))
    standing = it.ask(ada, "standing", "standing")
    it.breathe()
    if between:
        written = it.write(ben)
    held = it.ask(ben, "standing", "standing")["held"]
    it.ask(ben, "release", "released")
    if pause_ns > it.stage.plan.ttl_ns // 2 or (not written and not held):
        return False  # so long that the monotonic clock would have shown it as well
    say_late(it, late, "between ben's read and his write" if between else "after ben's write")
    it.claim("the first check after the suspension finds the lease lost", not standing["held"], f"{standing['reason']}")
    it.claim("the current owner can write", written, f"ben's write was {'accepted' if written else 'refused'}")
    return True


def _sleep(it: SceneHarness, moved: MovedClocks, actors: tuple[WorkerHandle, WorkerHandle]) -> int:
    """Stop all workers for an hour that the monotonic clock does not count. Returns the real pause."""
    since = {actor: it.freeze(actor) for actor in actors}
    it.moment("1 h suspend", moved.slept(HOUR_S))
    for actor, since_ns in since.items():
        it.thaw(actor, since_ns)
    return max(span.to_ns - span.from_ns for span in it.scene.spans[-len(actors) :])


def namespaces() -> bool:
    """Whether this system allows us a time namespace."""
    if shutil.which(_THROUGH[0]) is None:
        return False
    try:
        done = subprocess.run([*_THROUGH, "true"], capture_output=True, timeout=_PROBE_S, check=False)  # noqa: S603 - a program of this system, to see whether it may
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def play_namespace(stage: DrillHarness) -> None:
    """One of two workers runs in its own time namespace."""
    words = (
        "ada runs in a time namespace in which the monotonic clock is a day ahead of ben's, and the boot-time clock "
        "three days; both add to one balance, and then ada dies while she holds the lock"
    )
    if not namespaces():
        stage.cannot.append("a worker in its own time namespace: that needs root, and unshare of util-linux")
        return
    with stage.scene("time namespace, on SQLite", f"{words}.", Guard.ON) as it:
        key = it.key("account")
        [ada] = it.crew.enter("ada", start=StartOptions(through=_THROUGH))
        [ben] = it.crew.enter("ben")
        for number, actor in enumerate((ada, ben)):
            actor.order("add", key=key, first=1 + number, step=2, think=_THINK_S)
        it.until(lambda: it.account.inspect(key).balance >= 2 * ADDITIONS, "both to add")
        for actor in (ada, ben):
            actor.order("stop")
        added = [int(it.crew.next("added", actor).fields["added"]) for actor in (ada, ben)]
        balance = it.account.inspect(key).balance
        it.claim("nothing acknowledged is lost", balance == sum(added), f"{sum(added)} acknowledged, balance {balance}")
        it.claim("both can work", min(added) > 0, f"{added[0]} and {added[1]} additions")
        it.report(f"ada added {added[0]} and ben {added[1]}: the balance is {balance}", good=balance == sum(added))
        it.scene.figures.append(ReportFigure("additions acknowledged", str(sum(added))))
        it.ask(ada, "take", "granted", key=key)
        ben.order("take", key=key)
        it.crew.next("asking", ben)
        it.breathe()
        died_ns = it.crew.kill(ada)
        granted = it.crew.next("granted", ben, it.stage.plan.slo_seconds + LIMIT_S)
        it.span(FaultKind.DOWN, ada.name, died_ns, granted.at_ns)
        took = it.takeover("a holder in another time namespace", died_ns, granted.at_ns)
        it.report(f"ada died; ben took over after {took.took_ns / NS:.2f} s", good=took.in_time)
        it.ask(ben, "release", "released")
