"""What must be true of a fleet when the dust has settled, read from Postgres and the bus, whatever happened before."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Final

import httpx
import nats

from holdfast.plane.model.job_states import JobState
from holdfast.plane.settings.consistency import TakeoverTime, takeovers
from holdfast.types import NS
from support.fleet.fleet import Fleet, until

TERMINAL: Final = [str(state) for state in JobState if state.terminal]

DUPLICATE_ENDS: Final = "holdfast_plane_duplicate_ends_total"

_ENDS: Final = "SELECT job, count(*) FROM plane_event WHERE after = ANY(%s) GROUP BY job"
_EFFECTS: Final = "SELECT job, count(*) FROM fleet_effect GROUP BY job"
# An effect that came after the guard had let in a newer holder. Both are numbered by one sequence.
_STALE: Final = """
    SELECT e.job, e.fence, n.fence FROM fleet_effect e
    JOIN fleet_entered n ON n.job = e.job AND n.fence > e.fence AND n.place < e.place
"""
_GOING_BACK: Final = """
    SELECT job, version, step, fence, before FROM (
        SELECT job, version, step, fence, lag(fence) OVER (PARTITION BY job ORDER BY version, step) AS before
        FROM plane_event WHERE fence IS NOT NULL) AS history
    WHERE fence < before
"""
_BROKEN_CHAIN: Final = """
    SELECT job, version, step, before, last FROM (
        SELECT job, version, step, before, lag(after) OVER (PARTITION BY job ORDER BY version, step) AS last
        FROM plane_event) AS history
    WHERE before IS DISTINCT FROM last
"""


def settle(fleet: Fleet, jobs: Collection[str]) -> None:
    """Return when all jobs are over and every message is handled."""
    ids = [*jobs]

    def over() -> bool:
        left = "SELECT count(*) FROM plane_job WHERE id = ANY(%s) AND NOT state = ANY(%s)"
        return bool(fleet.query(left, ids, TERMINAL)[0][0] == 0)

    try:
        until(over, "all jobs to be over")
    except AssertionError as error:
        rows = fleet.query(
            "SELECT id, state, attempt, worker FROM plane_job WHERE NOT state = ANY(%s) LIMIT 5", TERMINAL
        )
        raise AssertionError(f"{error}: {rows}; bus: {on_the_bus(fleet)}") from error
    until(lambda: not fleet.query("SELECT id, subject FROM plane_outbox"), "the outbox to be empty")
    until(lambda: not on_the_bus(fleet), "the bus to be empty")


def check(fleet: Fleet, jobs: Collection[str]) -> None:
    """Wait until it has settled, and say what is wrong with any job. `jobs`: those that were acknowledged."""
    assert jobs, "nothing was acknowledged: this proves nothing"
    settle(fleet, jobs)
    found = dict(fleet.query("SELECT id, state FROM plane_job"))
    lost = {*jobs} - {*found}
    assert not lost, f"acknowledged, and lost: {sorted(lost)[:5]}"
    open_jobs = {job: state for job, state in found.items() if state not in TERMINAL}
    assert open_jobs == {}, "unacknowledged jobs that are not finished"

    ends = dict(fleet.query(_ENDS, TERMINAL))
    assert {job: number for job, number in ends.items() if number != 1} == {}, "a job ended more than once"
    assert {*found} - {*ends} == set(), "a job is over, and no event says so"
    assert fleet.query(_GOING_BACK) == [], "the fence of a job went back"
    assert fleet.query(_BROKEN_CHAIN) == [], "the history of a job has a gap"

    effects = dict(fleet.query(_EFFECTS))
    assert {job: number for job, number in effects.items() if number != 1} == {}, "an effect happened twice"
    succeeded = {job for job, state in found.items() if state == "SUCCEEDED"}
    assert succeeded - {*effects} == set(), "a job succeeded without its effect"
    assert fleet.query(_STALE) == [], "an effect under a fence that had been overtaken"

    letters = dict(fleet.query("SELECT id, reason FROM plane_dead_letter"))
    assert {letter: why for letter, why in letters.items() if letter not in fleet.dead} == {}, "unexpected dead letters"
    counts = "SELECT {0}, running FROM plane_{0} WHERE running <> 0"
    assert fleet.query(counts.format("pool")) == fleet.query(counts.format("tenant")) == [], "slots without an attempt"
    assert duplicate_ends(fleet) == 0, "a process tried to end a job twice"


def duplicate_ends(fleet: Fleet) -> int:
    """How many second ends were refused: by the metrics of those that run, and the last words of those that ended."""
    reports = [part for process in fleet.processes for said in process.events() for part in said.get("parts", ())]
    told = sum(int(part.get("duplicate_ends", 0)) for part in reports)
    looked_at = 0
    for process in (*fleet.planes, fleet.api):
        assert process is not None, "there is no API"
        lines = (
            httpx.get(f"{process.probe}/metrics", trust_env=False, timeout=30.0).raise_for_status().text.splitlines()
        )
        found = [int(float(line.split()[-1])) for line in lines if line.startswith(f"{DUPLICATE_ENDS} ")]
        looked_at += len(found)
        told += sum(found)
    assert looked_at == len(fleet.planes) + 1, "a process does not say how many second ends it refused"
    return told


def on_the_bus(fleet: Fleet) -> dict[str, int]:
    """What is left on the bus, by subject. Words to workers that are gone are kept for an hour, and mean nothing."""
    stream = fleet.bus.partition("stream=")[2]

    async def look() -> dict[str, int]:
        client = await nats.connect(fleet.servers.nats.url, connect_timeout=5, allow_reconnect=False)
        try:
            info = await client.jetstream().stream_info(stream, subjects_filter=">")
            return {name: number for name, number in (info.state.subjects or {}).items() if ".stop." not in name}
        finally:
            await client.close()

    return asyncio.run(look())


# How soon others have the work.


def promised(fleet: Fleet, what: str) -> TakeoverTime:
    """What the settings of the fleet say about one kind of takeover."""
    return next(each for each in takeovers(fleet.settings) if each.what == what)


def undisturbed_ns(fleet: Fleet, jobs: Collection[str]) -> int:
    """How long the slowest of some jobs took from its submission to its end, while nothing was broken."""
    rows = fleet.query("SELECT max(updated_ns - created_ns) FROM plane_job WHERE id = ANY(%s)", [*jobs])
    return int(rows[0][0])


def check_takeover(
    fleet: Fleet, promise: TakeoverTime, since_ns: int, progress_ns: dict[str, int], calm_ns: int
) -> None:
    """Each job was taken further no later than promised after a fault, by times that stand in the database.

    The promise is about waiting: for leases and messages to run out, and for the next look. To it comes what the work
    itself takes on this machine, today: no more than a few times what whole jobs took on the same fleet when nothing
    was broken (`calm_ns`), as the machine may be busier now than it was then.
    """
    allowed_ns = round(promise.seconds * NS) + 10 * calm_ns + 2 * NS
    late = {job: (at - since_ns) / NS for job, at in progress_ns.items() if at - since_ns > allowed_ns}
    assert late == {}, f"{promise.what}: promised {promise.seconds:g} s, allowed {allowed_ns / NS:g} s"
