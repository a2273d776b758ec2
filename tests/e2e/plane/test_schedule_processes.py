"""Schedules with real processes: planes on one database are killed and frozen, and each due time has one job."""

from __future__ import annotations

import signal
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import pairwise
from pathlib import Path

import psycopg
import pytest

from support.cli.planes import Up
from support.cli.sessions import Shell, until
from support.fixtures.postgres import every_postgres
from support.servers.postgres import PostgresServer

SETTINGS = """
database = "{database}"
grace = 6

[schedules]
interval = 0.5

[probe]
enabled = false
"""

ROWS = "SELECT id FROM plane_job ORDER BY id"
FIRED = "SELECT fired FROM plane_schedule"


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    made = Shell(tmp_path)
    yield made
    made.close()


def kill_and_freeze(shell: Shell, database: str, query: Callable[[str], list[str]]) -> None:
    """Three processes with the loop, one after the other the leader: one is killed, one is frozen and wakes up."""
    (shell.directory / "holdfast.toml").write_text(SETTINGS.format(database=database))
    planes = [Up(shell, "--only", "schedules") for _ in range(2)]
    made = shell.run(
        *("schedules", "create", "ticks", "tick", "--every", "1s", "--overlap", "allow", "--catch-up", "all", "--json")
    )
    assert made.code == 0, made.err

    def fired(more: int) -> None:
        most = int(query(FIRED)[0]) + more
        until(lambda: int(query(FIRED)[0]) >= most, "more jobs of the schedule")

    fired(2)
    planes[0].process.kill()
    planes[0].ended()
    fired(2)
    planes[1].process.send_signal(signal.SIGSTOP)
    other = Up(shell, "--only", "schedules")
    fired(2)
    planes[1].process.send_signal(signal.SIGCONT)
    fired(2)
    assert shell.run("schedules", "pause", "ticks").code == 0
    due = [int(each.rpartition("T")[2][:6]) for each in query(ROWS)]
    seconds = [each // 10_000 * 3600 + each // 100 % 100 * 60 + each % 100 for each in due]
    assert len(set(seconds)) == len(seconds) == int(query(FIRED)[0]) >= 8
    steps = {(later - earlier) % 86_400 for earlier, later in pairwise(seconds)}
    assert steps == {1}, "a due time has no job"
    for plane in (planes[1], other):
        assert plane.end().code == 0


def test_on_a_file_killed_and_frozen_processes_submit_each_due_time_once(shell: Shell) -> None:
    path = shell.directory / "plane.db"

    def query(statement: str) -> list[str]:
        with closing(sqlite3.connect(path, timeout=30)) as connection:
            return [str(row[0]) for row in connection.execute(statement)]

    kill_and_freeze(shell, f"sqlite:///{path}?synchronous=normal", query)


@every_postgres
def test_on_postgres_killed_and_frozen_processes_submit_each_due_time_once(
    postgres_server: PostgresServer, shell: Shell
) -> None:
    with postgres_server.database() as database, psycopg.connect(database, autocommit=True) as connection:

        def query(statement: str) -> list[str]:
            return [str(row[0]) for row in connection.execute(statement).fetchall()]

        kill_and_freeze(shell, database, query)
