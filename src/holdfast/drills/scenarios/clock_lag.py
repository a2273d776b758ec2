"""`clock`, second part: the clock of two Redis servers is set back, and a lagging replica is promoted.

This is the worst case for a fence counter: it is ahead of the clock, which normally keeps it from going back, and the
last grants are lost with their primary. Incrementing the last fence would issue the same fences again, and guards
accept equal fences. So a fence that is ahead of the clock advances with the clock's rate, and by a random number if the
clock was set back.

Two orders are tested. Set back before the replica is cut off: it knows how much time has passed, and the second fence
must be above the first. Set back after that: it cannot know, and no fence may be issued twice. (C4 is excused, as in
`failover`.)
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Final

from holdfast.drills.env.clocks import MovedClocks, jump, proven
from holdfast.drills.env.redis_pair import RedisPair, paired, url_of
from holdfast.drills.env.stage import DrillHarness, SceneHarness
from holdfast.drills.model import Guard, ReportFigure
from holdfast.drills.scenarios.clock_jump import HOUR_S, told_jump
from holdfast.drills.scenarios.failover import lose_primary

LOCKS: Final = 20  # that are granted twice: before the failover, and after it
TITLE: Final = "server's clock back, then its primary lost"
_LONG_S: Final = 60.0


def play(stage: DrillHarness, library: Path) -> None:
    """Both orders, on one pair of servers with one clock."""
    words = (
        "the clock of two servers is set back by an hour, so that the counter of fences is ahead of it; the replica is "
        "cut off, ada is granted the lock, the primary is killed, and the replica is promoted without ada's grant; "
        "ben is granted the lock, and then ada writes. Then the clock is set back while the replica is cut off, "
        f"and {LOCKS} locks are granted on either side"
    )
    place = stage.directory / f"behind-{len(stage.scenes)}"
    place.mkdir()
    with (
        MovedClocks(place / "clock", library) as moved,
        paired(place / "pair", environment=moved.environment) as pair,
        stage.scene(TITLE, f"{words}.", Guard.ON, url=url_of(pair.door())) as it,
    ):
        it.scene.excuses = frozenset({"C4"})
        proven(pair.primary, moved)
        key = it.key("account")
        ada, ben = it.crew.enter("ada", "ben")
        _granted(it, pair.primary.url, "known to both", 1)
        it.moment(told_jump(-HOUR_S), jump(pair.primary, moved, -HOUR_S))
        _granted(it, pair.primary.url, "known to both and set back", 1)
        for between in (False, True):
            it.played(partial(lose_primary, it, pair, key, ada, ben, between=between))
        _set_back_alone(it, pair, moved)


def _set_back_alone(it: SceneHarness, pair: RedisPair, moved: MovedClocks) -> None:
    """Set the clock back while the replica is cut off, and compare the fences of both sides."""
    it.until(lambda: pair.in_step, "the replica to have all writes")
    pair.link.cut()
    it.moment(told_jump(-HOUR_S), jump(pair.primary, moved, -HOUR_S))
    lost = _granted(it, pair.primary.url, "both", LOCKS)
    it.moment("failover", pair.fail_over())
    again = _granted(it, pair.primary.url, "both", LOCKS)
    twice = len(lost & again)
    text = "no fence is issued twice, though neither side knows how much time has passed"
    it.claim(text, twice == 0, f"{len(lost)} before and {len(again)} after, {twice} the same")
    it.report(f"{LOCKS} locks granted before the failover and after it: {twice} fences are the same", good=twice == 0)
    it.scene.figures.append(ReportFigure("fences issued twice", str(twice)))


def _granted(it: SceneHarness, url: str, name: str, number: int) -> set[int]:
    """Have a server grant some uncontended locks. Returns their fences."""
    with it.stage.locks(url=url) as locks:
        leases = [locks.hold(f"{it.prefix}{name}:{at}", ttl=_LONG_S, family="drill") for at in range(number)]
        return {lease.fence for lease in leases if lease is not None and lease.fence is not None}
