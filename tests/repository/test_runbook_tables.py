"""Each row of the tables beside the runbooks is what the code does, and no row is without a check.

The tables map theory to answers, metrics and delays (`src/holdfast/ops/runbooks/pages`). Every metric, error and text
that they name exists.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Final

import pytest

import holdfast
from holdfast import errors
from holdfast.core import backoff
from holdfast.core.backoff import Exponential, Fixed
from holdfast.core.history.events import EventKind
from holdfast.core.lease import states as life
from holdfast.core.lease.states import LeasePhase, LeaseState
from holdfast.core.lease.timing import settle, takeover_bound_ns
from holdfast.core.retry_delays import RetryDelays
from holdfast.errors import BadInput, FencedOut, LeaseLost, LockBusy, NotOwner, Unavailable
from holdfast.guards.bearer import CarriedFence
from holdfast.guards.files import GuardedFiles
from holdfast.observe.metrics.table import TABLE
from holdfast.ops.runbooks.page import page
from holdfast.plane.db.statements import script
from holdfast.plane.locks import registry as families
from holdfast.plane.locks.registry import FAMILIES, Release, Scope
from holdfast.plane.settings.settings import KEYS
from holdfast.runtime import recorder
from holdfast.types import MS, NS, Instant, LossReason

BEGAN: Final = Instant(10**15, 10**15, 10**18)
Check = Callable[[Path], None]


def at(seconds: float) -> Instant:
    ns = int(seconds * NS)
    return Instant(BEGAN.mono + ns, BEGAN.boot + ns, BEGAN.wall + ns)


def tables(book: str) -> str:
    """What stands between the findings of a runbook and its example."""
    section = page().partition(f"\n## {book}\n")[2].partition("\n```console")[0]
    return section[section.rindex("| fine | fine |") :].partition("\n")[2]


def rows(book: str) -> dict[str, tuple[str, ...]]:
    """The rows of the table beside a runbook, by their first cell; without its head."""
    lines = [line for line in tables(book).splitlines() if line.startswith("|")][2:]
    cells = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]
    return {first: tuple(rest) for first, *rest in cells}


# not-owned: what theory says, what the API answers, what is counted, what is tried again


def lease_expiry(_: Path) -> None:
    timing = settle(ttl=30)
    assert timing.usual_guard_ns == 3 * NS  # 10 % of the TTL
    state = life.granted(at(0))
    assert life.judge(state, timing, at(27)).phase is LeasePhase.LOST
    assert timing.usual_loss_ns < timing.valid_ns() < timing.ttl_ns
    with holdfast.connect("memory://") as locks:
        lease = locks.lock("k", ttl=30).acquire()
        locks.force_release("k", reason="a test")
        assert not lease.release()
        with pytest.raises(LeaseLost):
            lease.ensure_held()


def ownership_token(_: Path) -> None:
    with holdfast.connect("memory://") as locks:
        stale = locks.acquire_token("k", 30)
        locks.release_token("k", stale)
        newer = locks.acquire_token("k", 30)
        with pytest.raises(NotOwner, match=r"^lock not owned$"):
            locks.release_token("k", stale)
        assert locks.acquire_token("k", 30) == ""  # the new owner's lock stays
        locks.release_token("k", newer)
    assert recorder._LINES[EventKind.RELEASE_REFUSED] == (logging.WARNING, "lock release skipped: token mismatch")


def fencing_token(folder: Path) -> None:
    files: GuardedFiles[CarriedFence] = GuardedFiles(folder)
    files.write(CarriedFence("k", 2), "total", b"2")
    with pytest.raises(FencedOut) as refused:
        files.write(CarriedFence("k", 1), "total", b"1")
    assert (refused.value.fence, refused.value.seen, (folder / "total").read_bytes()) == (1, 2, b"2")


def a_check_at_the_write(_: Path) -> None:
    assert "holdfast_fence <= :fence" in script("job_change", "sqlite")


def an_unknown_renewal(_: Path) -> None:
    timing = settle(ttl=60)
    state = life.unknown(life.granted(at(0)), timing, at(20))
    assert state.phase is LeasePhase.DOUBTFUL
    assert life.renewal_in_ns(state, timing, at(20), 0) < timing.renew_every_ns  # quickly
    lost = life.judge(state, timing, at(60))
    assert (lost.phase, lost.reason) == (LeasePhase.LOST, LossReason.UNCONFIRMED)
    assert three_unknown().reason is LossReason.UNCONFIRMED
    assert str(LossReason.UNCONFIRMED) == "unconfirmed"


def three_unknown(failures: int = 3) -> LeaseState:
    timing, state = settle(ttl=60, renew_every=15, failures=failures), life.granted(at(0))
    for seconds in (15, 30, 45):
        state = life.unknown(state, timing, at(seconds))
    return state


def contention(_: Path) -> None:
    with holdfast.connect("memory://") as locks, locks.lock("k", ttl=30):
        assert locks.lock("k", ttl=30).try_acquire() is None
        assert locks.acquire_token("k", 30) == ""
    later = RetryDelays().later(LockBusy("run lock busy"), lambda n: n - 1)
    assert (later.delay, str(later.cause)) == (0.5, "run lock busy")


# snapshot-leader: locks of items and locks of loops

ITEMS: Final = [each for each in FAMILIES.values() if each.scope is Scope.ITEM]
LOOPS: Final = [each for each in FAMILIES.values() if each.scope is Scope.LOOP]


def what_they_are_for(_: Path) -> None:
    assert {each.name for each in ITEMS} == {"scheduler.job", "worker.job", "workflow.run", "approval"}
    assert all(each.places for each in ITEMS), "an id of the piece of work is in the key"
    assert not any(each.places for each in LOOPS)


def how_they_end(_: Path) -> None:
    assert {each.release for each in ITEMS} == {Release.EXPLICIT}
    assert {each.release for each in LOOPS} == {Release.SHUTDOWN}


def where_the_ttl_is_from(_: Path) -> None:
    assert {each.per_interval for each in ITEMS} == {None}
    assert {each.ttl_for(7) for each in LOOPS} == {14.0}


def a_release_that_fails(_: Path) -> None:
    assert recorder._LINES[EventKind.RELEASE_FAILED][0] == logging.WARNING


def what_free_means(_: Path) -> None:
    with holdfast.connect("memory://") as locks:
        assert locks.hold("loop", ttl=60) is not None
        assert locks.hold("loop", ttl=60) is None  # not even for its own holder, until the window is over
        assert locks.inspect("loop").held


def what_breaking_does(_: Path) -> None:
    with holdfast.connect("memory://") as locks:
        broken = locks.lock("k", ttl=30).acquire()
        locks.force_release("k", reason="a test")
        assert not broken.release()
        with locks.lock("k", ttl=30) as next_holder:
            assert next_holder.fence > broken.fence


# before-ttl-change: duplicate dispatch against the backlog after a crash


def a_shorter_ttl(_: Path) -> None:
    for shorter, longer in pairwise((5, 15, 30, 60)):
        assert settle(ttl=shorter).usual_loss_ns < settle(ttl=longer).usual_loss_ns, "shorter pauses end a lease"
        assert takeover_bound_ns(shorter * NS, NS) < takeover_bound_ns(longer * NS, NS)
        assert takeover_bound_ns(shorter * NS, NS) == shorter * NS + NS  # the TTL and one retry


def tries(every: float) -> int:
    timing = settle(ttl=60, renew_every=every)
    return timing.usual_loss_ns // timing.renew_every_ns


def renewals_more_often(_: Path) -> None:
    assert tries(5) > tries(20)


def renewals_less_often(_: Path) -> None:
    assert tries(30) == 1  # one lost packet, and the next is too late
    assert tries(20) == 2


def a_smaller_budget(_: Path) -> None:
    assert life.unknown(life.granted(at(0)), settle(ttl=60, failures=1), at(20)).phase is LeasePhase.LOST
    assert life.unknown(life.granted(at(0)), settle(ttl=60, failures=3), at(20)).phase is LeasePhase.DOUBTFUL


def a_larger_budget(_: Path) -> None:
    assert settle(ttl=60, failures=100).usual_loss_ns == settle(ttl=60).usual_loss_ns
    assert three_unknown(failures=100).phase is LeasePhase.DOUBTFUL
    assert life.judge(three_unknown(failures=100), settle(ttl=60, failures=100), at(54)).phase is LeasePhase.LOST


def a_retry_shorter_than_the_hold(_: Path) -> None:
    with pytest.raises(BadInput, match="would collide with the same holder again"):
        backoff.check_against(Fixed(500 * MS), 30 * NS, 600 * MS)


# retry-waves: which delay for which path


def busy_work(_: Path) -> None:
    assert {RetryDelays().later(LockBusy("b"), draw).delay for draw in (lambda _: 0, lambda n: n - 1)} == {0.5}


def busy_work_in_step(_: Path) -> None:
    shape = RetryDelays().with_jitter().busy
    assert (shape.shortest_ns(), shape.longest_ns()) == (300 * MS, 700 * MS - 1)
    assert "scheduler.busy_jitter" in KEYS
    assert RetryDelays().with_jitter().later(LockBusy("b"), lambda n: n - 1).delay > 0.5


def store_trouble(_: Path) -> None:
    assert RetryDelays().later(Unavailable("down"), lambda n: n - 1).delay == 1.0


def a_caller_that_waits(_: Path) -> None:
    waits = backoff.for_ttl(30 * NS)
    assert waits == Exponential(25 * MS, NS)
    assert waits.delay_ns(0, 0, lambda _: 0) < waits.delay_ns(0, 0, lambda n: n - 1) <= 25 * MS
    assert max(waits.delay_ns(attempt, 0, lambda n: n - 1) for attempt in range(50)) <= NS


def a_loop_that_does_not_lead(_: Path) -> None:
    assert {each.when_busy for each in LOOPS} == {"skip the tick", "skip the write"}


CHECKS: Final[dict[str, dict[str, Check]]] = {
    "not-owned": {
        "lease expiry: the store frees a key at its expiry, whatever the holder believes": lease_expiry,
        "ownership token: only the owner may delete or extend": ownership_token,
        "fencing token: storage refuses an older writer": fencing_token,
        "a lease alone is no mutual exclusion: the check belongs to the write": a_check_at_the_write,
        "a renewal whose outcome is unknown": an_unknown_renewal,
        "contention is no failure": contention,
    },
    "snapshot-leader": {
        "for": what_they_are_for,
        "ends": how_they_end,
        "TTL from": where_the_ttl_is_from,
        "a release that fails": a_release_that_fails,
        "free now means": what_free_means,
        "breaking it (`holdfast release`)": what_breaking_does,
    },
    "before-ttl-change": {
        "TTL shorter": a_shorter_ttl,
        "TTL longer": a_shorter_ttl,
        "renewal more often": renewals_more_often,
        "renewal less often than TTL / 3": renewals_less_often,
        "failure budget smaller": a_smaller_budget,
        "failure budget larger": a_larger_budget,
        "retry delay shorter than the median hold": a_retry_shorter_than_the_hold,
    },
    "retry-waves": {
        "a message whose job or run is busy": busy_work,
        "the same, with synchronized contenders": busy_work_in_step,
        "the store failed": store_trouble,
        "a caller that waits for a lock in code": a_caller_that_waits,
        "a loop that does not lead": a_loop_that_does_not_lead,
    },
}
# What the cells say in numbers and in words that have a value, row by row.
SAID: Final[dict[tuple[str, str], tuple[str, ...]]] = {
    ("not-owned", "contention is no failure"): ("returns None", "an empty token", "exactly 500 ms"),
    ("before-ttl-change", "TTL shorter"): ("more false losses", "shorter: takeover after the TTL and one retry"),
    ("before-ttl-change", "TTL longer"): ("fewer false losses", "longer:"),
    ("before-ttl-change", "renewal more often"): ("fewer: more tries", "the same"),
    ("before-ttl-change", "renewal less often than TTL / 3"): ("more: one lost packet", "the same"),
    ("before-ttl-change", "failure budget smaller"): ("more: blips cost leases", "the same"),
    ("before-ttl-change", "failure budget larger"): ("no change", "the same"),
    ("before-ttl-change", "retry delay shorter than the median hold"): ("the same", "longer: retries meet the same"),
    ("retry-waves", "a message whose job or run is busy"): ("500 ms, exactly",),
    ("retry-waves", "the same, with synchronized contenders"): ("500 ms ± 200 ms", "spreads them over 400 ms"),
    ("retry-waves", "the store failed"): ("1 s",),
    ("retry-waves", "a caller that waits for a lock in code"): ("full jitter, 25 ms growing to at most 1 s",),
    ("snapshot-leader", "ends"): ("when the work is done", "when its leader stops (sticky, the default)"),
    ("snapshot-leader", "TTL from"): ("twice that",),
    ("snapshot-leader", "a release that fails"): ("a warning: the key expires",),
}


@pytest.mark.requires("R37", "R38", "R42", "R109", "R110", "R111", "R112", "R143", "R144", "R145", "R153")
@pytest.mark.parametrize(
    ("book", "row", "check"),
    [pytest.param(book, row, check, id=f"{book}-{row}") for book in CHECKS for row, check in CHECKS[book].items()],
)
def test_a_row_beside_a_runbook_is_what_the_code_does(book: str, row: str, check: Check, tmp_path: Path) -> None:
    cells = rows(book)
    assert set(cells) == set(CHECKS[book]), "a row without a check, or a check without its row"
    for each in SAID.get((book, row), ()):
        assert any(cell.startswith(each) or each in cell for cell in cells[row]), f"{each!r} is not in {cells[row]}"
    check(tmp_path)


@pytest.mark.requires("R37", "R38", "R109", "R110", "R111", "R143", "R144")
@pytest.mark.parametrize("book", CHECKS)
def test_every_metric_error_and_text_beside_a_runbook_exists(book: str) -> None:
    text = tables(book)
    metrics = {each.name for each in TABLE}
    for name, label, value in re.findall(r"`(holdfast_\w+)(?:\{(\w+)=\"(\w+)\"\})?`", text):
        assert name in metrics, name
        assert not label or any(label in each.labels for each in TABLE if each.name == name), value
    for name in re.findall(r"`([A-Z][a-z]+[A-Z]\w+)(?:\(.*?\))?`", text):
        assert issubclass(getattr(errors, name), errors.HoldfastError), name
    logged = {line for _, line in recorder._LINES.values()}
    for said in re.findall(r"`(lock [a-z: ]+)`", text):
        assert said == errors.LOCK_NOT_OWNED or said in logged, said


@pytest.mark.requires("R109", "R110", "R111")
def test_what_is_said_of_leader_election_elsewhere_is_its_arithmetic() -> None:
    text = tables("before-ttl-change")
    assert "(a lease of 15 s, renewed within 10 s, retried every 2 s) bounds a takeover at about 17 s" in text
    assert takeover_bound_ns(15 * NS, 2 * NS) == 17 * NS
    assert "A takeover of 30 s cannot be had with\na TTL of 60 s" in text
    with pytest.raises(BadInput, match=r"60 s \+ 1 s = 61 s"):
        settle(ttl=60, takeover_slo=30)
    assert families.SCHEDULER_JOB.ttl == 60
