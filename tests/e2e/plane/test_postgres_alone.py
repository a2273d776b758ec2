"""A fleet on Postgres alone: processes are killed, and every job ends once, with no other server."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from holdfast.plane import Client, JobRequest
from support.cli.planes import Up
from support.cli.sessions import Shell
from support.fixtures.postgres import every_postgres
from support.servers.postgres import PostgresServer

SETTINGS = """
database = "{database}"
grace = 5

[api]
port = 0

[scheduler]
job_ttl = 3
ack_wait = 3

[worker]
app = "works:app"
count = 1
concurrency = 4
heartbeat = 0.5
lease_ttl = 3
cancel_grace = 1

[reconciler]
interval = 1

[replayer]
interval = 1

[limits]
replay = 2
"""

FUNCTIONS = """
import asyncio
import os
import psycopg
from holdfast.plane import App

app = App("works")


@app.job("note")
async def note(number: int, *, ctx) -> int:
    await asyncio.sleep(0.05)  # so that some run when their worker is killed
    async with await psycopg.AsyncConnection.connect(os.environ["NOTES"], autocommit=True) as connection:
        await connection.execute("INSERT INTO note VALUES (%s, %s)", (number, ctx.fence))
    return number
"""

JOBS = 60
LIMIT_S = 120


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    made = Shell(tmp_path)
    yield made
    made.close()


@every_postgres
def test_killed_processes_of_a_fleet_on_postgres_alone_lose_no_job(
    postgres_server: PostgresServer, shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    with postgres_server.database() as database:
        (shell.directory / "holdfast.toml").write_text(SETTINGS.format(database=database))
        (shell.directory / "works.py").write_text(FUNCTIONS)
        monkeypatch.setenv("NOTES", database)
        with psycopg.connect(database, autocommit=True) as connection:
            connection.execute("CREATE TABLE note (number BIGINT, fence BIGINT)")
            victim, other, third = (Up(shell) for _ in range(3))
            results = asyncio.run(_submitted(database, victim))
            assert sorted(results) == list(range(JOBS))
            noted = connection.execute("SELECT number, count(*) FROM note GROUP BY number ORDER BY number").fetchall()
            assert [number for number, _ in noted] == list(range(JOBS))
            done = shell.run("locks", "--config", "holdfast.toml", "--json")
            assert done.code == 0, done.err
            assert {each["store"].partition(":")[0] for each in done.json} == {"postgresql"}
            ended = [each.end(signal.SIGTERM) for each in (other, third)]
            assert [each.code for each in ended] == [0, 0]


async def _submitted(database: str, victim: Up) -> list[int]:
    """Submit jobs, and kill a process that runs some of them."""
    async with Client(database) as client, asyncio.timeout(LIMIT_S):
        jobs = await client.submit_many([JobRequest("note", {"number": number}) for number in range(JOBS)])
        await jobs[0].result()
        victim.end(signal.SIGKILL)
        return list(await asyncio.gather(*(job.result() for job in jobs)))
