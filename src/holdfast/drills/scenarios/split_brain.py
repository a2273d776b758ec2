"""`failover`, second part: a Redis primary is cut off together with a client, and both sides grant the same lock.

The old primary does not know that another server has replaced it, renews its grants and grants more. So there are two
owners for as long as the cut lasts, and neither can notice (C4 is excused). Required: the two fences differ, the guard
accepts one of them and refuses the other, no acknowledged write is lost, and after the cut the owner on the abandoned
side notices.

Not promised: that the side with the majority, the sentinels or the future is the accepted one. Fences follow the clocks
of the servers, so the later grant wins, on either side.

The last scene shows an operator's remedy: a primary that requires a replica (min-replicas-to-write) stops granting soon
after the cut.
"""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack
from functools import partial
from typing import Final

import holdfast
from holdfast.drills.env.processes import LIMIT_S, StartOptions, WorkerHandle
from holdfast.drills.env.proxy import FaultProxy
from holdfast.drills.env.redis_pair import RedisPair, paired, url_of
from holdfast.drills.env.stage import DrillHarness, SceneHarness
from holdfast.drills.model import FaultKind, Guard, ReportFigure
from holdfast.drills.scenarios.failover import rises, told
from holdfast.drills.scenarios.pause import TITLES
from holdfast.errors import Unavailable
from holdfast.types import NS

LOCKS: Final = 200  # that both sides grant at the same time, to compare fences
LAG_S: Final = 2
STOPS_S: Final = 3 * LAG_S + 24.0  # replicas report every second, and the primary checks every second if it can
_REQUEST_S: Final = 2.0
_LONG_S: Final = 60.0


def play(stage: DrillHarness, guard: Guard, rounds: int) -> None:
    """Rounds of the same cut: first the holder on the old side is granted the lock first, then the other one."""
    words = (
        "the primary is cut off from its replica together with ada, the replica is promoted for ben, and both sides "
        "grant the same lock; the first holder writes last"
    )
    with paired(stage.directory / f"pair-{len(stage.scenes)}") as pair:
        old, new = pair.door(), pair.door()
        with stage.scene(f"split brain, {TITLES[guard]}", f"{words}.", guard, url=url_of(new)) as it:
            it.scene.excuses = frozenset({"C4"})
            key = it.key("account")
            [ada] = it.crew.enter("ada", start=StartOptions({"url": url_of(old)}))
            [ben] = it.crew.enter("ben")
            for number in range(rounds):
                first, second = (ada, ben) if number % 2 == 0 else (ben, ada)
                it.played(partial(_round, it, pair, new, key, (first, second)))
                told(it, ada)
            if guard is Guard.ON:
                _compare(it, pair, new)
            balance = it.account.inspect(key).balance
            it.scene.figures += [
                ReportFigure("additions acknowledged", str(it.acknowledged)),
                ReportFigure("balance at the end", str(balance), "each addition is 1"),
            ]


def _round(
    it: SceneHarness, pair: RedisPair, new: FaultProxy, key: str, actors: tuple[WorkerHandle, WorkerHandle]
) -> bool:
    """One cut. False: it must be repeated, because a lease was lost for another reason."""
    first, second = actors
    it.until(lambda: pair.in_step, "the replica to have all writes")
    cut_ns = it.moment("cut in two", pair.split(new))
    low = it.ask(first, "take", "granted", key=key)["fence"]
    it.ask(first, "read", "read")
    it.breathe()
    if not it.hold_up(first):
        _healed(it, pair, cut_ns)
        return False
    second.order("take", key=key)
    high = it.crew.next("granted", second, it.stage.plan.slo_seconds + LIMIT_S).fields["fence"]
    it.report(f"both sides have granted the lock: first to {first.name}, then to {second.name}")
    rises(it, low, high, "the side that grants later issues the higher fence")
    it.ask(second, "read", "read")
    it.breathe()
    written = it.write(second)
    it.breathe()
    late = it.wrote(it.ask(first, "go", "wrote"))
    held = [it.ask(actor, "standing", "standing")["held"] for actor in actors]
    it.breathe()
    _healed(it, pair, cut_ns)
    for actor in (each for each in actors if each.name == "ben"):
        it.ask(actor, "release", "released")
    if not all(held):
        return False
    it.claim("both sides hold the lock at the same time", all(held), "both leases were valid, each on its side")
    it.claim("the higher fence is accepted", written, f"{second.name}'s write: {_became(written)}")
    good = None if late and it.scene.guard is not Guard.ON else not late
    it.report(f"{first.name} wrote last, with the lower fence: {_became(late)}", good=good)
    return True


def _healed(it: SceneHarness, pair: RedisPair, cut_ns: int) -> None:
    at_ns = pair.heal()
    it.span(FaultKind.SPLIT, "", cut_ns, at_ns)
    it.moment("healed", at_ns)
    it.breathe()


def _became(accepted: bool) -> str:
    return "accepted" if accepted else "refused"


def _compare(it: SceneHarness, pair: RedisPair, new: FaultProxy) -> None:
    """Have both sides grant many locks at the same time, and compare the two fences of each."""
    it.until(lambda: pair.in_step, "the replica to have all writes")
    cut_ns = it.moment("cut in two", pair.split(new))
    gate = threading.Barrier(2, timeout=LIMIT_S)
    fences: list[dict[str, int]] = [{}, {}]

    def grab(side: int, url: str) -> None:
        with holdfast.connect(url, service="drill", request_timeout=_REQUEST_S) as locks:
            locks.ping()
            gate.wait()
            for number in range(LOCKS):
                lease = locks.hold(f"{it.stage.prefix}both:{number}", ttl=_LONG_S, family="drill")
                if lease is not None:
                    fences[side][f"{number}"] = lease.fence

    servers = (pair.primary, pair.replica)
    sides = [threading.Thread(target=grab, args=(side, server.url)) for side, server in enumerate(servers)]
    for thread in sides:
        thread.start()
    for thread in sides:
        thread.join()
    _healed(it, pair, cut_ns)
    both = fences[0].keys() & fences[1].keys()
    equal = sum(fences[0][key] == fences[1][key] for key in both)
    it.claim("both sides grant all requests", len(both) == LOCKS, f"{len(both)} of {LOCKS} locks")
    it.scene.figures.append(ReportFigure("locks that both sides granted", str(len(both))))
    note = "of one lock, from both sides; two grants in the same microsecond would have the same fence"
    it.scene.figures.append(ReportFigure("equal fences", str(equal), note))
    it.report(f"{len(both)} locks granted by both sides concurrently: {equal} with the same fence", good=equal == 0)


def play_bounded(stage: DrillHarness) -> None:
    """The same cut, with a primary that is configured to stop when no replica follows it."""
    words = (
        f"the primary has min-replicas-to-write 1 and min-replicas-max-lag {LAG_S}; it is cut off together with ada, "
        "who holds the lock, and the replica is promoted for ben"
    )
    options = ("--min-replicas-to-write", "1", "--min-replicas-max-lag", str(LAG_S))
    with ExitStack() as stack:
        pair = stack.enter_context(paired(stage.directory / f"pair-{len(stage.scenes)}", *options))
        old, new = pair.door(), pair.door()
        title = "split brain, min-replicas-to-write"
        with stage.scene(title, f"{words}.", Guard.ON, url=url_of(new)) as it:
            it.scene.excuses = frozenset({"C4"})
            it.until(lambda: pair.in_step, "the replica to have all writes")
            key = it.key("account")
            [ada] = it.crew.enter("ada", start=StartOptions({"url": url_of(old)}))
            [ben] = it.crew.enter("ben")
            it.until(lambda: _grants(it, pair.primary.url), "the primary to count its replica")
            _bounded(it, pair, new, key, (ada, ben))


def _bounded(
    it: SceneHarness, pair: RedisPair, new: FaultProxy, key: str, actors: tuple[WorkerHandle, WorkerHandle]
) -> None:
    ada, ben = actors
    low = it.ask(ada, "take", "granted", key=key)["fence"]
    it.ask(ada, "read", "read")
    it.until(lambda: pair.in_step, "the replica to have all writes")
    cut_ns = it.moment("cut in two", pair.split(new))
    ben.order("take", key=key)
    granted = it.crew.next("granted", ben, it.stage.plan.slo_seconds + LIMIT_S)
    took = it.takeover("a primary that was cut off", cut_ns, granted.at_ns)
    it.report(f"ben has the lock on the new side after {took.took_ns / NS:.2f} s")
    rises(it, low, granted.fields["fence"], "the side that grants later issues the higher fence")
    it.until(lambda: not _grants(it, pair.primary.url), "the old primary to stop", STOPS_S)
    stopped_s = (it.moment("old side stops") - cut_ns) / NS
    it.report(f"the old primary stopped granting {stopped_s:.1f} s after the cut", good=True)
    it.claim("a primary without a replica stops granting", kept=True, seen=f"within {STOPS_S:g} s")
    told(it, ada)
    lost_s = (time.time_ns() - cut_ns) / NS
    it.played(partial(_in_office, it, ben, key))
    it.breathe()
    late = it.write(ada, deaf=True)
    it.claim("the late write is refused", not late, _became(late))
    it.breathe()
    _healed(it, pair, cut_ns)
    it.ask(ben, "release", "released")
    note = f"min-replicas-max-lag is {LAG_S} s, and both sides check once per second"
    it.scene.figures += [
        ReportFigure("the old primary stopped granting after", f"{stopped_s:.1f} s", note),
        ReportFigure("its holder had given up after", f"{lost_s:.1f} s", f"the TTL is {it.stage.plan.ttl_s:g} s"),
    ]


def _in_office(it: SceneHarness, owner: WorkerHandle, key: str) -> bool:
    """The holder of the lock on the new side writes. False: it lost the lock meanwhile for another reason."""
    if not it.ask(owner, "standing", "standing")["held"]:
        it.ask(owner, "take", "granted", key=key)
    it.ask(owner, "read", "read")
    it.breathe()
    written = it.write(owner)
    if not written and not it.ask(owner, "standing", "standing")["held"]:
        return False
    it.claim("the current owner can write", written, f"{owner.name}'s write: {_became(written)}")
    return True


def _grants(it: SceneHarness, url: str) -> bool:
    """Whether a server still grants locks."""
    try:
        with (
            holdfast.connect(url, service="drill", request_timeout=_REQUEST_S) as locks,
            locks.lock(f"{it.stage.prefix}probe", ttl=it.stage.plan.ttl_s, family="drill", timeout=_REQUEST_S),
        ):
            return True
    except Unavailable:
        return False
