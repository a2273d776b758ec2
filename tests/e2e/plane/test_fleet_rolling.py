"""Every process of a fleet replaced under load, one after the other, as a deployment does."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.cli.exit_codes import Exit
from support.fleet.fleet import Servers, fleet, on_the_fleet, until
from support.fleet.fleet_checker import check
from support.fleet.fleet_load import Load


@on_the_fleet
@pytest.mark.timeout(300)
@pytest.mark.requires("R131")
def test_a_rolling_restart_under_load_loses_nothing_and_wastes_no_attempt(
    fleet_servers: Servers, tmp_path: Path
) -> None:
    # With leases of the usual length: whatever had to wait for one to run out would not be over in time.
    usual = {"scheduler.job_ttl": 60, "scheduler.ack_wait": 30, "worker.lease_ttl": 30}
    with fleet(fleet_servers, tmp_path, times=usual) as it:
        with Load(it, "load", payload={"takes": 0.2}) as load:
            for old, replace in [
                *((each, it.plane) for each in it.planes),
                *((each, it.worker) for each in it.workers),
            ]:
                replace().ready()
                assert old.terminate() == Exit.OK, old.log.read_text()
                assert old.said("ended"), "it went without a word"
                it.gone(old)
            before = it.api
            assert before is not None
            it.open_api().ready()
            assert before.terminate() == Exit.OK
            answered = len(load.jobs)
            until(lambda: len(load.jobs) > answered + 10, "the new fleet to take jobs")
        check(it, load.jobs)
        # All workers finished their jobs: no job ran twice, and none needed a second attempt.
        [(runs, jobs)] = it.query("SELECT count(*), count(DISTINCT job) FROM fleet_attempt")
        assert runs == jobs
        assert it.query("SELECT id FROM plane_job WHERE attempt <> 1") == []
