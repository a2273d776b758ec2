"""Incidents on real processes and servers: `holdfast why` names the cause first, with figures and the next command.

They are those of `holdfast drill incidents`. Here commands and processes are forked, and servers are shared.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.drills.incidents.fleet import IncidentFleet, until
from holdfast.drills.incidents.incident_list import INCIDENTS
from holdfast.drills.incidents.local_servers import IncidentServers
from holdfast.drills.incidents.play import Incident, played
from holdfast.errors import Misconfigured
from support.ops.forked_commands import ForkedCommands


@pytest.fixture(scope="session")
def incident_servers() -> Iterator[IncidentServers]:
    """Servers that all incidents share."""
    with IncidentServers() as servers:
        yield servers


@pytest.mark.parametrize("incident", INCIDENTS, ids=[each.name for each in INCIDENTS])
def test_an_incident_is_named_with_its_cause_its_alert_and_the_next_command(
    incident: Incident, incident_servers: IncidentServers, tmp_path: Path
) -> None:
    told: list[str] = []
    try:
        scene = played(incident, tmp_path, ForkedCommands(), incident_servers, told.append)
    except Misconfigured as reason:
        pytest.skip(str(reason))
    assert scene.score is not None
    assert scene.score.found, [each for each in scene.claims if not each.kept] + told
    assert scene.score.top == incident.finding


def test_a_healthy_plane_has_no_finding_that_needs_action(incident_servers: IncidentServers, tmp_path: Path) -> None:
    with incident_servers.redis() as redis:
        fleet = IncidentFleet(tmp_path, ForkedCommands(), leases=redis.url)
        try:
            fleet.start()
            until(lambda: fleet.why()["findings"][0]["rule"] == "fine", "leaders of all loops, and then no finding")
            report = fleet.why()
            assert "All servers answer quickly" in report["findings"][0]["sentence"]
            assert report["code"] == 0
        finally:
            fleet.close()
