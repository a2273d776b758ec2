"""Counts of fallbacks and duplicates: summed over all processes, counted once, and without cost for other work."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from holdfast.core.history.events import EventKind, Record
from holdfast.plane.db.open import open_database
from holdfast.plane.policy.duplicate_counters import (
    BUCKET_NS,
    KEPT_NS,
    LINES_MAX,
    DuplicateCounters,
    SignalKind,
    SignalLabel,
    SignalTotal,
)
from holdfast.runtime.recorder import Recorder
from holdfast.types import NS
from support.fixtures.databases import until
from support.harness.leases import ManualClock
from support.harness.policies import Brittle, ShiftedClock, replica

pytestmark = pytest.mark.asyncio

WINDOW = 300 * NS


@pytest_asyncio.fixture
async def place(plane_url: str) -> AsyncIterator[Brittle]:
    opened = Brittle(open_database(plane_url))
    yield opened
    await opened.close()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def fell_back(recorder: Recorder, times: int = 1, kind: EventKind = EventKind.FELL_BACK, risk: str = "low") -> None:
    for _ in range(times):
        if recorder.tally(kind, "workflow.run"):
            recorder.note(Record(kind, 0, "k", "workflow.run", risk=risk))


async def rows(place: Brittle) -> int:
    return len(await place.read(lambda tx: tx.query("SELECT number FROM plane_signal")))


@pytest.mark.requires("R91", "R93")
async def test_counts_of_all_processes_are_summed_by_what_they_are_about(place: Brittle, clock: ManualClock) -> None:
    recorder = Recorder()
    a = DuplicateCounters(place, clock, process="a", recorder=recorder)
    b = DuplicateCounters(place, clock, process="b")
    fell_back(recorder, 3)
    fell_back(recorder, 2, risk="money")
    fell_back(recorder, 4, kind=EventKind.EXERCISED)
    for signals in (a, b):
        signals.step_repeated(run="r-1", step="fetch")
        signals.publish_repeated(job="j-1")
    assert await a.flush()
    assert await b.flush()
    assert (
        await a.sums(WINDOW)
        == await b.sums(WINDOW)
        == [
            SignalTotal(SignalLabel(SignalKind.EXERCISED, "workflow.run", "low"), 4, 0),
            SignalTotal(SignalLabel(SignalKind.FALLBACK, "workflow.run", "low"), 3, 0),
            SignalTotal(SignalLabel(SignalKind.FALLBACK, "workflow.run", "money"), 2, 0),
            SignalTotal(SignalLabel(SignalKind.PUBLISH), 2, 0),
            SignalTotal(SignalLabel(SignalKind.STEP), 2, 0),
        ]
    )


@pytest.mark.requires("R93")
async def test_nothing_is_counted_twice_however_often_it_is_written(place: Brittle, clock: ManualClock) -> None:
    recorder, ends = Recorder(), [5]
    signals = DuplicateCounters(place, clock, process="a", recorder=recorder)
    signals.follow(SignalKind.END, lambda: ends[0])
    for round_ in range(4):
        fell_back(recorder, 2)
        signals.step_repeated(run="r", step=str(round_))
        assert await signals.flush()
        assert await signals.flush()
        clock.move(4 * NS)
    ends[0] = 7
    assert await signals.flush()
    found = {each.label.sign: each.lately for each in await signals.sums(WINDOW)}
    assert found == {SignalKind.FALLBACK: 8, SignalKind.STEP: 4, SignalKind.END: 7}
    assert signals.totals == {
        SignalLabel(SignalKind.FALLBACK, "workflow.run", "low"): 8,
        SignalLabel(SignalKind.STEP): 4,
        SignalLabel(SignalKind.END): 7,
    }
    asked = place.asked
    assert await signals.flush()
    assert place.asked == asked  # what did not happen is not written


@pytest.mark.requires("R91", "R93")
async def test_a_window_is_compared_with_the_one_before_it(place: Brittle, clock: ManualClock) -> None:
    signals = DuplicateCounters(place, clock, process="a")
    for number, wait in ((1, 200), (2, 300), (5, 0)):
        for _ in range(number):
            signals.step_repeated(run="r", step="s")
        assert await signals.flush()
        clock.move(wait * NS)
    assert await signals.sums(WINDOW) == [SignalTotal(SignalLabel(SignalKind.STEP), 5 + 2, 1)]
    clock.move(BUCKET_NS)
    assert await signals.sums(WINDOW) == [SignalTotal(SignalLabel(SignalKind.STEP), 5, 2 + 1)]
    clock.move(2 * WINDOW)
    assert await signals.sums(WINDOW) == []


async def test_while_the_database_is_down_counts_are_kept_for_the_time_in_which_they_belong(
    place: Brittle, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    signals = DuplicateCounters(place, clock, process="a")
    assert await signals.flush()
    place.down = True
    for _ in range(3):
        signals.step_repeated(run="r", step="s")
        assert not await signals.flush()
        clock.move(200 * NS)
    place.down = False
    assert await signals.flush()
    assert await signals.sums(WINDOW) == [SignalTotal(SignalLabel(SignalKind.STEP), 1, 2)]
    assert signals.failed == 3
    assert caplog.text.count("signals could not be written") == 1


async def test_what_is_old_is_forgotten_here_and_there(place: Brittle, clock: ManualClock) -> None:
    signals = DuplicateCounters(place, clock, process="a")
    signals.step_repeated(run="r", step="s")
    assert await signals.flush()
    assert await rows(place) == 1
    place.down = True
    for _ in range(3):
        signals.step_repeated(run="r", step="s")
        assert not await signals.flush()
        clock.move(KEPT_NS)
    place.down = False
    signals.publish_repeated(job="j")
    assert await signals.flush()
    assert await rows(place) == 1 + 1  # the last of the outage is as old as may be, and the one of now
    clock.move(KEPT_NS + BUCKET_NS)
    assert await signals.flush()
    assert await rows(place) == 0


async def test_a_flood_of_duplicates_does_not_drown_the_log_and_loses_no_count(
    place: Brittle, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    signals = DuplicateCounters(place, clock, process="a")
    for number in range(500):
        signals.step_repeated(run="r-1", step=f"s-{number}")
    assert caplog.text.count("a step completed again: run=r-1 step=s-") == LINES_MAX
    await signals.flush()
    assert signals.totals[SignalLabel(SignalKind.STEP)] == 500


@pytest.mark.requires("R84", "R91", "R92")
async def test_a_process_writes_what_it_counts_by_itself_and_its_last_counts_at_the_end(plane_url: str) -> None:
    clock = ShiftedClock()
    async with replica(plane_url, clock, name="a") as a, replica(plane_url, clock, name="b", run=False) as b:
        await a.fall_back(5)
        await until(lambda: a.policing.signals.totals[SignalLabel(SignalKind.FALLBACK, "workflow.run", "low")] == 5)
        await until(lambda: not a.policing.signals._unwritten)
        assert [each.lately for each in await b.policing.signals.sums(WINDOW)] == [5]
        # Without a task that writes: the end of the block does.
        await b.fall_back(2)
        async with b.policing.running():
            pass
        assert [each.lately for each in await a.policing.signals.sums(WINDOW)] == [7]
