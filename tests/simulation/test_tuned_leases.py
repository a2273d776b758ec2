"""The closed loop: a lease with the recommended settings, the real keeper, the recorded latencies and pauses, no loss.

On virtual time: a quarter of an hour of holding, with a pause of the recorded length again and again, at every phase of
the renewal. The same world with a TTL far below what is recommended loses its lease, so that the test can fail.
"""

from __future__ import annotations

import asyncio

import pytest

from holdfast.core.history.events import EventKind
from holdfast.core.tuning.percentiles import SourcedDuration
from holdfast.core.tuning.ttl import TAILS, FamilyDemand, FamilyEvidence, Recommendation, recommend, shortest_ttl_ns
from holdfast.testing.sim.environment.network import Weather
from holdfast.types import MS, NS
from support.harness.small_world import SmallWorld

TAIL_NS, PAUSE_NS = 300 * MS, 4 * NS
LENGTH_S = 900
EVIDENCE = FamilyEvidence(
    "kept", tail=SourcedDuration(TAIL_NS, "recorded"), pauses=(SourcedDuration(PAUSE_NS, "recorded"),)
)


def recommended(slo_ns: int) -> Recommendation:
    return recommend(EVIDENCE, FamilyDemand(slo=SourcedDuration(slo_ns, "given")))


def losses(ttl: float, renew_every: float | None = None, failures: int = 3) -> list[str | None]:
    """The reasons of losses in a quarter of an hour of such weather."""
    world = SmallWorld()
    world.network.weather = Weather(fastest_ns=MS, usual_ns=TAIL_NS // 2 - MS)  # each way
    host = world.host("host")

    async def pauses() -> None:
        # A step that shares no factor with any interval: in time every phase of the renewal meets a pause.
        while True:
            await asyncio.sleep(11.137)
            host.stop_for(PAUSE_NS)

    async def hold() -> None:
        trouble = asyncio.create_task(pauses())
        lock = host.locks.lock("job", ttl=ttl, renew_every=renew_every, failures=failures)
        lease = await lock.acquire()
        for _ in range(LENGTH_S):
            await asyncio.sleep(1)
            if lease.lost.is_set():
                break
        else:
            await lease.release()
        trouble.cancel()
        await asyncio.gather(trouble, return_exceptions=True)

    world.run(hold())
    return [record.reason for record in world.records if record.kind is EventKind.LOST]


@pytest.mark.requires("R112", "R117", "R138")
@pytest.mark.parametrize("parts", [2, 3, 6, 10], ids=["roomy", "just", "tightened", "most"])
def test_a_recommended_lease_survives_what_was_recorded(parts: int) -> None:
    """With an SLO that is just enough for so many renewals in a TTL."""
    silence = TAILS * TAIL_NS + PAUSE_NS
    needed = shortest_ttl_ns(silence, parts) if parts > 2 else 60 * NS
    assert needed is not None
    found = recommended(needed + NS)
    made = found.timing
    assert made is not None
    assert found.possible
    assert losses(made.ttl_ns / NS, made.renew_every_ns / NS, made.failures_max) == []


@pytest.mark.requires("R132", "R138")
def test_a_ttl_below_what_the_evidence_needs_is_lost_and_the_recommended_one_is_not() -> None:
    needed = recommended(30 * NS).shortest_ns
    assert needed is not None
    present = needed // 4
    assert losses(present / NS) != []
    made = recommend(EVIDENCE, FamilyDemand(present=SourcedDuration(present, "set"))).timing
    assert made is not None
    assert losses(made.ttl_ns / NS, made.renew_every_ns / NS, made.failures_max) == []
