"""A job that kills every worker that runs it, on a whole fleet: it ends as a dead letter, and the others continue."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.plane.bus.delivery_rules import LOST_MAX
from support.fleet.fleet import Fleet, Servers, fleet, on_the_fleet, until
from support.fleet.fleet_checker import check
from support.fleet.fleet_load import Client

TIMES = {"worker.lease_ttl": 1.5, "worker.heartbeat": 0.3}
LIMIT_S = 240.0


def revived(it: Fleet) -> None:
    """Start a worker in the place of each that has died, as a supervisor does."""
    for worker in [each for each in it.workers if not each.alive]:
        it.gone(worker)
        it.worker()


def runs_of(it: Fleet, job: str) -> int:
    return int(it.query("SELECT count(*) FROM fleet_attempt WHERE job = %s", job)[0][0])


@on_the_fleet
@pytest.mark.timeout(300)
def test_a_job_that_kills_its_workers_ends_as_a_dead_letter_on_a_fleet(fleet_servers: Servers, tmp_path: Path) -> None:
    with fleet(fleet_servers, tmp_path, planes=1, workers=2, times=TIMES) as it, Client(it) as client:
        poison = client.submit("poison", topic="kills")
        it.dead.add(poison)

        def over() -> bool:
            revived(it)
            return it.state(poison) in ("FAILED", "TIMEOUT") or runs_of(it, poison) >= 2 * LOST_MAX

        until(over, "the end of a job that kills", LIMIT_S)
        (found,) = it.query("SELECT state, code, attempt, reason FROM plane_job WHERE id = %s", poison)
        assert found[:3] == ("FAILED", "lost", 1)
        # More than ten only if the scheduler had not heard of the last ones when the next one asked.
        assert found[3] == f"{runs_of(it, poison)} consumers took it and were not heard of again"
        assert runs_of(it, poison) >= LOST_MAX
        assert it.query("SELECT job, code, last_state FROM plane_dead_letter") == [(poison, "lost", "RUNNING")]

        revived(it)
        other = client.submit("other")
        it.wait_for_state(other, "SUCCEEDED")
        check(it, {poison, other})
