"""`failover`, first part: a Redis primary is lost, and a replica without the last grant is promoted.

The grant is lost with the primary, so the next client is granted the key while the first holder is between its check
and its write. Exclusion is broken, which no library can prevent on asynchronous replication (C4 is excused). Required:
the second fence is above the first although the counter was lost, because no fence is below the clock of the issuing
server; the guard refuses the late write; and the first holder learns of its loss.
"""

from __future__ import annotations

from functools import partial

from holdfast.drills.env.processes import LIMIT_S, WorkerHandle
from holdfast.drills.env.redis_pair import RedisPair, paired, url_of
from holdfast.drills.env.stage import DrillHarness, SceneHarness
from holdfast.drills.model import DrillClaim, Guard, ReportFigure
from holdfast.drills.scenarios.pause import TITLES
from holdfast.types import NS


def play(stage: DrillHarness, guard: Guard, rounds: int) -> None:
    """Rounds of the same failure: the late write comes after the new owner's, and then before it."""
    words = (
        "the replica is cut off, ada is granted the lock, the primary is killed, and the replica is promoted without "
        "ada's grant; ben is granted the lock, and then ada writes"
    )
    title = f"primary lost, {TITLES[guard]}"
    with paired(stage.directory / f"pair-{len(stage.scenes)}") as pair:
        door = pair.door()
        with stage.scene(title, f"{words}.", guard, url=url_of(door)) as it:
            it.scene.excuses = frozenset({"C4"})
            key = it.key("account")
            ada, ben = it.crew.enter("ada", "ben")
            for number in range(rounds):
                it.played(partial(lose_primary, it, pair, key, ada, ben, between=number % 2 == 1))
            balance = it.account.inspect(key).balance
            it.scene.figures += [
                ReportFigure("primaries lost", str(len(it.scene.moments))),
                ReportFigure("additions acknowledged", str(it.acknowledged)),
                ReportFigure("balance at the end", str(balance), "each addition is 1"),
            ]


def lose_primary(
    it: SceneHarness, pair: RedisPair, key: str, ada: WorkerHandle, ben: WorkerHandle, *, between: bool
) -> bool:
    """One failover. False: it must be repeated, because a lease was lost for another reason."""
    it.until(lambda: pair.in_step, "the replica to have all writes")
    pair.link.cut()
    old = it.ask(ada, "take", "granted", key=key)["fence"]
    it.ask(ada, "read", "read")
    it.breathe()
    if not it.hold_up(ada):
        pair.link.mend()
        return False
    died_ns = it.moment("failover", pair.fail_over())
    ben.order("take", key=key)
    granted = it.crew.next("granted", ben, it.stage.plan.slo_seconds + LIMIT_S)
    took = it.takeover("a lost primary", died_ns, granted.at_ns)
    it.report(f"the primary is lost, and the grant with it; ben got the lock after {took.took_ns / NS:.2f} s")
    rises(it, old, granted.fields["fence"], "the new primary's fence is above the lost one")
    played = overtake(it, ada, ben, between=between)
    pair.recruit()
    return played


def overtake(it: SceneHarness, ada: WorkerHandle, ben: WorkerHandle, *, between: bool) -> bool:
    """The late write of ada, who has lost the lock: `between` ben's read and his write, or after both.

    False: it must be repeated, because ben lost his lease for another reason.
    """
    it.ask(ben, "read", "read")
    it.breathe()
    written = False if between else it.write(ben)
    it.breathe()
    late = it.wrote(it.ask(ada, "go", "wrote"))
    it.breathe()
    if between:
        written = it.write(ben)
    held = it.ask(ben, "standing", "standing")["held"]
    it.ask(ben, "release", "released")
    told(it, ada)
    if not written and not held:
        return False
    say_late(it, late, "between ben's read and his write" if between else "after ben's write")
    it.claim("the current owner can write", written, f"ben's write was {'accepted' if written else 'refused'}")
    return True


def rises(it: SceneHarness, old: int, new: int, text: str) -> None:
    """Record whether the second fence is above the first. Fences count microseconds, unless the clock is behind."""
    above = new - old
    by = f"{above / 1e6:.3f} s of the clock" if above >= 1000 else f"{above}, as the clock is behind"
    seen = "it is" if above > 0 else f"it is not: {old} and then {new}"
    it.scene.claims.append(DrillClaim(text, above > 0, seen))
    it.report(f"the second fence is above the first, by {by}" if above > 0 else f"{text}: {seen}", good=above > 0)


def told(it: SceneHarness, actor: WorkerHandle) -> None:
    """Wait until a holder notices that it lost its lock: by its next renewal, or because none is answered for a TTL."""
    limit_s = it.stage.plan.ttl_s + LIMIT_S
    it.until(lambda: not it.ask(actor, "standing", "standing")["held"], f"{actor.name} to notice", limit_s)
    reason = it.ask(actor, "standing", "standing")["reason"]
    it.claim("the owner whose grant was lost notices", reason is not None, f"its lease: {reason}")


def say_late(it: SceneHarness, late: bool, moment: str) -> None:
    """Report the result of the late write."""
    good = None if late and it.scene.guard is not Guard.ON else not late
    it.report(f"ada wrote {moment}: {'accepted' if late else 'refused'}", good=good)
