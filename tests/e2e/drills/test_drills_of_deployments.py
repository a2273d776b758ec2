"""Drills of a whole plane on a configured deployment: Postgres, NATS and Redis, with other users on them.

Another plane has a job in the same database, with its message on the same server, and no process of its own; so
if anything of a drill strayed out of its quarters, that job would be moved.
"""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import psycopg
import pytest

import holdfast
from e2e.drills.drill_runs import SLO_S, children
from holdfast.cli.app import run_app
from holdfast.drills.catalog import drill
from holdfast.drills.env.deployment import Deployment
from holdfast.drills.env.nats import StreamBackend
from holdfast.drills.env.plane import DrillPlane
from holdfast.drills.env.postgres import SchemaBackend
from holdfast.drills.env.stage import DrillHarness
from holdfast.drills.env.workspace import lent_by
from holdfast.drills.model import DrillPlan
from holdfast.drills.permission import KEY
from holdfast.drills.runner import run
from holdfast.errors import BadInput, Misconfigured
from holdfast.plane.bus.open import nats_connection
from holdfast.plane.model.records import Submission
from holdfast.plane.process.components import open_components
from holdfast.plane.service.service import Caller
from holdfast.plane.settings.sources import load
from support.fixtures.fleet import ON_SERVERS, skip_without_servers
from support.servers.nats import NatsExecutable, NatsServer, nats_executables, own_stream
from support.servers.postgres import PostgresExecutable, PostgresServer, postgres_executables

THEIRS = "holdfast:reconciler:default"  # a lock that the drill's own schedulers take too
LIMIT_S = 60.0


class Left(NamedTuple):
    """What drills have in the three places."""

    schemas: list[str]
    streams: list[str]
    leases: list[str]


class Staging:
    """A deployment with the work of another plane."""

    def __init__(self, config: Path) -> None:
        self.config = config
        self.deployment = Deployment(load(config))
        self.job = asyncio.run(self._settle())

    async def _settle(self) -> str:
        async with open_components(self.deployment.settings) as components:
            job, _ = await components.service.submit(Caller("another caller"), Submission("theirs", {}))
            return job.id

    async def _moved(self) -> str:
        async with open_components(self.deployment.settings) as components:
            return str((await components.service.job(Caller("another caller"), self.job)).state)

    @property
    def state_of_their_job(self) -> str:
        """Where it is."""
        return asyncio.run(self._moved())

    def locks(self) -> holdfast.Locks:
        """Their leases."""
        return holdfast.connect(self.deployment.settings.lease_url, service="another-service", request_timeout=20)

    def left(self) -> Left:
        """What drills have there now."""
        with psycopg.connect(self.deployment.settings.database_url) as connection:
            found = connection.execute("SELECT nspname::text FROM pg_namespace WHERE nspname ~ '^holdfast'").fetchall()
        with self.locks() as locks:
            leases = [look.key for look in locks.list("holdfast:drill:")]
        return Left(sorted(name for (name,) in found), asyncio.run(self._streams()), leases)

    async def _streams(self) -> list[str]:
        connection = nats_connection(self.deployment.settings.bus or "")
        try:
            found = await (await connection.client()).jetstream().streams_info()
        finally:
            await connection.close()
        return sorted(name for each in found if (name := each.config.name or "").startswith("HOLDFAST_DRILL"))


MARKED = Left(["holdfast_drill"], ["HOLDFAST_DRILL_ALLOWED"], [KEY])
UNTOUCHED = Left([], [], [])


@pytest.fixture(params=[ON_SERVERS])
def staging(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    _postgres_servers: Callable[[PostgresExecutable], PostgresServer],
    nats_servers: Callable[[NatsExecutable], NatsServer],
) -> Iterator[Staging]:
    """Three places, marked."""
    skip_without_servers(request.param)
    leases = f"{request.getfixturevalue('_fleet_leases')}?prefix={uuid.uuid4().hex[:10]}:"
    with _postgres_servers(postgres_executables()[-1]).database() as database:
        places = {"database": database, "bus": own_stream(nats_servers(nats_executables()[-1])), "leases": leases}
        config = tmp_path / "staging.toml"
        config.write_text("".join(f"{name} = {json.dumps(url)}\n" for name, url in places.items()))
        made = Staging(config)
        made.deployment.mark(600)
        yield made
        made.deployment.unmark()


def _verdict(words: list[str], capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """Run a drill as people do; its verdict."""
    code = run_app(["drill", *words, "--json"])
    said = capsys.readouterr()
    assert code == 0, said
    verdict: dict[str, Any] = json.loads(said.out.splitlines()[-1])
    assert verdict["passed"]
    return verdict


def _kept(scene: dict[str, Any]) -> set[str]:
    assert all(each["kept"] for each in scene["claims"])
    return {each["text"] for each in scene["claims"]}


WHOLE = {
    "every acknowledged job succeeds",
    "no job has two terminal states",
    "every job has one effect",
    "nothing of the drill is left in the deployment",
}


@pytest.mark.timeout(300)
@pytest.mark.requires("R130", "R131", "R140")
def test_kill_is_played_on_the_servers_of_a_deployment_beside_work_of_others(
    staging: Staging, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    before = children()
    with staging.locks() as locks, locks.lock(THEIRS, ttl=600) as lease:
        report = tmp_path / "kill.html"
        words = ["kill", "--config", str(staging.config), "--ttl", "1", "--slo", str(SLO_S), "--duration", "1"]
        verdict = _verdict([*words, "--report", str(report)], capsys)
        holders, plane = verdict["scenes"]
        assert len(holders["takeovers"]) >= 3
        assert plane["takeovers"], "the killed worker had jobs in flight, and another worker ran them"
        assert _kept(plane) == WHOLE
        assert plane["kinds"]["granted"] > 20
        assert verdict["store"] == staging.deployment.shown
        assert f"--config {staging.config} --ttl 1" in verdict["replay"]
        assert staging.deployment.shown in report.read_text(encoding="utf-8")
        lease.ensure_held()
    assert staging.left() == MARKED
    assert staging.state_of_their_job == "PENDING"
    assert children() == before


@pytest.mark.timeout(300)
@pytest.mark.requires("R131")
def test_every_process_on_the_servers_of_a_deployment_is_replaced_and_nothing_is_lost(
    staging: Staging, capsys: pytest.CaptureFixture[str]
) -> None:
    verdict = _verdict(["rolling-restart", "--config", str(staging.config), "--duration", "1"], capsys)
    [scene] = verdict["scenes"]
    assert _kept(scene) >= WHOLE | {"no attempt is wasted", "no lease is waited out"}
    assert sum(text.endswith("ends normally") for text in _kept(scene)) == 4
    assert staging.left() == MARKED
    assert staging.state_of_their_job == "PENDING"


def _tell(scene: str, text: str, *, good: bool | None = None) -> None:
    """No process listens."""


@pytest.mark.timeout(120)
def test_a_drill_that_is_ended_early_leaves_nothing_in_the_deployment(staging: Staging) -> None:
    seen: list[Left] = []

    def play(stage: DrillHarness, _seconds: float) -> None:
        with stage.scene("scene", "done", None) as it, DrillPlane(it, {}) as plane:
            plane.submit(2, 0.0)
            assert [job.state for job in plane.jobs()] == ["PENDING", "PENDING"], "read from the quarters alone"
            seen.append(staging.left())
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(replace(drill("rolling-restart"), play=play), DrillPlan(deployment=staging.deployment), _tell, "")
    [during] = seen
    assert (len(during.schemas), len(during.streams)) == (2, 2)
    assert staging.left() == MARKED


@pytest.mark.timeout(120)
def test_each_place_of_a_deployment_has_to_be_marked_and_what_was_left_is_cleared(
    staging: Staging, capsys: pytest.CaptureFixture[str]
) -> None:
    config = str(staging.config)
    for place in staging.deployment.places:
        assert place.unmark()
        assert run_app(["drill", "kill", "--config", config]) == 64
        said = capsys.readouterr()
        assert said.out == ""
        assert f"{place.key} {place.shown} is not marked as a test deployment" in said.err
        assert f"holdfast drill mark --config {config}" in said.err
        place.mark(600)
    quarters = lent_by(staging.deployment)
    quarters.prepare()  # as a drill does that is killed then
    with psycopg.connect(staging.deployment.settings.database_url) as connection:
        connection.execute("CREATE SCHEMA holdfast_drill_theirs")
    assert run_app(["drill", "unmark", "--config", config, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer == {"unmarked": True, "cleared": [place.called(quarters.name) for place in quarters.lent[:2]]}
    assert staging.left() == Left(["holdfast_drill_theirs"], [], [])
    assert run_app(["drill", "unmark", "--config", config]) == 1
    assert run_app(["drill", "mark", "--config", config]) == 0
    staging.deployment.check_marked()


@pytest.mark.timeout(120)
def test_marks_of_databases_and_buses_run_out_and_quarters_that_are_none_are_refused(
    staging: Staging, monkeypatch: pytest.MonkeyPatch
) -> None:
    database, bus, _ = staging.deployment.places
    assert isinstance(database, SchemaBackend)
    assert isinstance(bus, StreamBackend)
    limit = time.monotonic() + LIMIT_S
    for place in (database, bus):
        place.mark(1.0)
    while database.is_marked() or bus.is_marked():
        assert time.monotonic() < limit
        time.sleep(0.05)
    for place in (database, bus):
        with pytest.raises(BadInput, match="--for"):
            place.mark(8 * 86_400.0)
    quarters = lent_by(staging.deployment)
    monkeypatch.setattr(SchemaBackend, "quarter", lambda self, _name: self._url)  # as a pooler that drops options does
    with pytest.raises(Misconfigured, match="does not let a connection choose its schema"):
        quarters.prepare()
    assert staging.left().schemas == ["holdfast_drill"]
