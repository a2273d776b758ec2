"""`clock`, first part: the wall clock of a Redis server jumps, forward and back, by a minute and by an hour.

Redis judges expiry by its wall clock. Forward: a held lease expires immediately, and another worker is granted the lock
while the first holder is between its check and its write (so C4 is excused): the fence decides. Back: a lease lives too
long. A live holder corrects that with its next renewal. The lock of a dead holder is kept for as long as the clock went
back, which costs only availability. A store whose clock is an hour late cannot meet an SLO, so the drill reports the
cost and both remedies: the clock is set right, or an operator breaks the lock. Fences rise throughout, because the
counter does not go back with the clock.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from holdfast.drills.env.clocks import MovedClocks, jump, proven
from holdfast.drills.env.processes import LIMIT_S, WorkerHandle
from holdfast.drills.env.redis_server import RedisServer, redis_server, running
from holdfast.drills.env.stage import DrillHarness, SceneHarness
from holdfast.drills.model import FaultKind, Guard, ReportFigure
from holdfast.drills.scenarios.failover import overtake, rises
from holdfast.drills.scenarios.pause import TITLES
from holdfast.types import NS

MINUTE_S, HOUR_S = 60.0, 3600.0
JUMPS: Final = (MINUTE_S, HOUR_S)


class Clockwork(NamedTuple):
    """A server and its clocks."""

    server: RedisServer
    moved: MovedClocks

    def jump(self, seconds: float) -> int:
        """Set the clock of the server. Returns the time."""
        return jump(self.server, self.moved, seconds)


@contextmanager
def clockwork(directory: Path, library: Path) -> Iterator[Clockwork]:
    """A Redis server whose clock can be moved, for the duration of the block."""
    executable = redis_server()
    directory.mkdir()
    with (
        MovedClocks(directory / "clock", library) as moved,
        running(executable, directory / "redis", environment=moved.environment) as server,
    ):
        proven(server, moved)
        yield Clockwork(server, moved)


def told_jump(seconds: float) -> str:
    """A jump as a short text."""
    size = f"{abs(seconds) / HOUR_S:g} h" if abs(seconds) >= HOUR_S else f"{abs(seconds) / MINUTE_S:g} min"
    return f"{'+' if seconds > 0 else '−'}{size}"


def play_forward(stage: DrillHarness, guard: Guard, library: Path) -> None:
    """The clock jumps forward while the lock is held: by a minute, and then by an hour."""
    words = (
        "ada is granted the lock and is between check and write when the server's clock jumps forward, by a minute and "
        "then by an hour: the server expires her lease, and ben is granted the lock"
    )
    title = f"server's clock forward, {TITLES[guard]}"
    with (
        clockwork(stage.directory / f"clock-{len(stage.scenes)}", library) as clocks,
        stage.scene(title, f"{words}.", guard, url=clocks.server.url) as it,
    ):
        it.scene.excuses = frozenset({"C4"})
        key = it.key("account")
        ada, ben = it.crew.enter("ada", "ben")
        for number, seconds in enumerate(JUMPS):
            it.played(partial(_forward, it, clocks, key, (ada, ben), seconds, between=number % 2 == 1))
        balance = it.account.inspect(key).balance
        it.scene.figures += [
            ReportFigure("additions acknowledged", str(it.acknowledged)),
            ReportFigure("balance at the end", str(balance), "each addition is 1"),
        ]


def _forward(
    it: SceneHarness,
    clocks: Clockwork,
    key: str,
    actors: tuple[WorkerHandle, WorkerHandle],
    seconds: float,
    *,
    between: bool,
) -> bool:
    """One jump. False: it must be repeated, because a lease was lost for another reason."""
    ada, ben = actors
    old = it.ask(ada, "take", "granted", key=key)["fence"]
    it.ask(ada, "read", "read")
    it.breathe()
    if not it.hold_up(ada):
        return False
    ben.order("take", key=key)
    it.crew.next("asking", ben)
    it.breathe()
    at_ns = it.moment(told_jump(seconds), clocks.jump(seconds))
    granted = it.crew.next("granted", ben, it.stage.plan.slo_seconds + LIMIT_S)
    took = it.takeover(f"a lease that ended with a jump of {told_jump(seconds)}", at_ns, granted.at_ns)
    it.report(f"the server's clock jumped {told_jump(seconds)}; ben got ada's lock after {took.took_ns / NS:.2f} s")
    rises(it, old, granted.fields["fence"], "the fence rises with the clock")
    return overtake(it, ada, ben, between=between)


def play_back(stage: DrillHarness, library: Path) -> None:
    """The clock jumps back while the lock is held: the holder stays alive, then it dies; twice."""
    words = (
        "the server's clock jumps back while ada holds the lock; her next renewal corrects that. Then she dies and "
        "it jumps back again: her lock is kept until the clock is right again, or until an operator breaks it"
    )
    with (
        clockwork(stage.directory / f"clock-{len(stage.scenes)}", library) as clocks,
        stage.scene("server's clock back", f"{words}.", Guard.ON, url=clocks.server.url) as it,
    ):
        key = it.key("account")
        [ben] = it.crew.enter("ben")
        for seconds in JUMPS:
            it.played(partial(_back, it, clocks, key, ben, seconds))
        balance = it.account.inspect(key).balance
        seen = f"{it.acknowledged} acknowledged, balance {balance}"
        it.claim("nothing acknowledged is lost", balance == it.acknowledged, seen)


def _back(it: SceneHarness, clocks: Clockwork, key: str, ben: WorkerHandle, seconds: float) -> bool:
    """Two jumps of a size. False: they must be repeated, because a lease was lost for another reason."""
    [ada] = it.crew.enter(f"ada-{told_jump(seconds)[1:].replace(' ', '')}")
    old = it.ask(ada, "take", "granted", key=key)["fence"]
    it.ask(ada, "read", "read")
    it.breathe()
    it.moment(told_jump(-seconds), clocks.jump(-seconds))
    limit_s = it.stage.plan.ttl_s + LIMIT_S
    it.until(lambda: _settled(it, clocks, key, ada), "a renewal to correct the expiry", limit_s)
    if not it.write(ada):
        it.crew.dismiss(ada)
        return False
    it.claim("a live holder corrects the expiry", kept=True, seen="by its next renewal")
    died_ns = it.crew.kill(ada)
    it.moment(told_jump(-seconds), clocks.jump(-seconds))
    kept_s = _kept_s(it, clocks, key)
    if kept_s < seconds:
        return False  # her lease expired before the clock went back
    ben.order("take", key=key)
    it.crew.next("asking", ben)
    it.breathe()
    note = f"the SLO of {it.stage.plan.slo_seconds:g} s is not applied: by the server's clock the lease is good"
    it.scene.figures.append(
        ReportFigure(f"{told_jump(-seconds)}: a dead holder's lock is kept for", f"{kept_s:.0f} s", note)
    )
    it.report(f"ada died, and the clock jumped {told_jump(-seconds)}: her lock is kept for {kept_s:.0f} s")
    at_ns, what = _put_right(it, clocks, key, seconds)
    granted = it.crew.next("granted", ben, it.stage.plan.slo_seconds + LIMIT_S)
    it.span(FaultKind.DOWN, ada.name, died_ns, granted.at_ns)
    took = it.takeover(what, at_ns, granted.at_ns)
    it.report(f"{what}: ben has the lock after {took.took_ns / NS:.2f} s", good=took.in_time)
    rises(it, old, granted.fields["fence"], "the fence rises though the clock went back")
    it.ask(ben, "read", "read")
    it.breathe()
    written = it.write(ben)
    it.ask(ben, "release", "released")
    return written


def _kept_s(it: SceneHarness, clocks: Clockwork, key: str) -> float:
    """How long the server would keep the lock without renewal."""
    with it.stage.locks(url=clocks.server.url) as locks:
        return locks.inspect(key).remaining or 0.0


def _settled(it: SceneHarness, clocks: Clockwork, key: str, holder: WorkerHandle) -> bool:
    """Whether the expiry is that of a renewal. A holder that has lost its lease renews no more."""
    if 0 < _kept_s(it, clocks, key) <= it.stage.plan.ttl_s:
        return True
    return not it.ask(holder, "standing", "standing")["held"]


def _put_right(it: SceneHarness, clocks: Clockwork, key: str, seconds: float) -> tuple[int, str]:
    """Set the clock right, or break the lock. Returns the time and the action."""
    if seconds == MINUTE_S:
        return it.moment("set right", clocks.jump(2 * seconds)), "a clock that was set right"
    at_ns = it.moment("lock broken")
    with it.stage.locks(url=clocks.server.url) as locks:
        locks.force_release(key, reason="the server's clock went back, and its holder is dead")
    return at_ns, "a lock that an operator broke"
