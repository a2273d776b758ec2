"""A Postgres whose power fails keeps every job that the plane acknowledged, whatever its own settings say of commits.

The server is told not to wait for the disk (`synchronous_commit = off`), which the plane's sessions do not accept. Rows
that a plain client commits under that setting are lost: the rig would have seen it.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator, Sequence
from pathlib import Path

import psycopg
import pytest

from support.power.checks import Said, check_ends
from support.power.disk import after, crashes
from support.power.postgres import CAREFUL, PowerPostgres
from support.power.postgres_scene import check_database
from support.power.power_plane_child import settings
from support.power.scenes import moments, rerecorded
from support.servers.postgres import PostgresExecutable

SEED = 7

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def power_postgres(postgres_executable: PostgresExecutable, power_library: Path) -> Iterator[PowerPostgres]:
    """A server's files, with the tables of the plane."""
    made = PowerPostgres(postgres_executable, power_library)
    yield made
    made.close()


def careless_rows(url: str, said: Sequence[Said]) -> set[int]:
    """What a client that does not wait for the disk has lost."""
    with psycopg.connect(url) as connection:
        there = {number for (number,) in connection.execute("SELECT number FROM careless")}
    return {each["careless"] for each in said if "careless" in each} - there


@pytest.mark.server
def test_postgres_keeps_every_job_and_a_careless_client_loses_its_rows(power_postgres: PowerPostgres) -> None:
    stage = power_postgres.stage
    with power_postgres.recorded({**CAREFUL, "synchronous_commit": "off"}):
        rerecorded(stage, "power_plane_child.py", ["jobs", power_postgres.url, 16], settled=False)
        rerecorded(stage, "power_child.py", ["insert", power_postgres.url, "off", 10], settled=False)
    trace = stage.trace()
    assert after(stage, trace).differences(stage) == []

    chance = random.Random(SEED)
    where = moments(trace, chance, 2, 3)
    last = max(moment for moment, what in trace.said() if "careless" in what)
    where.setdefault(last, []).append("least")
    lost: set[int] = set()
    for moment, _, image in crashes(stage, trace, where, SEED):
        said = trace.said_by(moment)
        with power_postgres.after(image):
            check_database(power_postgres.url, said)
            lost |= careless_rows(power_postgres.url, said)
            if moment == last:  # and the plane continues from there
                asyncio.run(check_ends(settings(power_postgres.url, leases="memory://"), said))
    assert lost, "the rig has not noticed the missing syncs"
