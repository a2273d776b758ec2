"""A newer Holdfast changes the tables under running processes: the older ones notice, say so, and do nothing more."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Awaitable, Callable, Mapping

import pytest

from e2e.cli.test_probes import Working, asked, metric
from holdfast.plane.db.migrations import VERSIONS, prepare
from holdfast.plane.db.open import open_database
from holdfast.plane.db.ports import Database, Tx
from holdfast.plane.db.sqlite.database import SqliteDatabase
from support.cli.planes import Up, furnish
from support.cli.sessions import Shell, until

KNOWN = VERSIONS["schema"]
BREAKING = {KNOWN: "ALTER TABLE plane_job ADD COLUMN cost BIGINT NOT NULL DEFAULT 0"}


def places(url: str) -> tuple[str, ...]:
    return "--database", url, "--leases", "sqlite:///plane.db"


def migrate(url: str, migrations: Mapping[int, str], oldest: int) -> None:
    """What a process of the next version does when it starts."""

    async def work(database: Database) -> None:
        assert await prepare(database, version=KNOWN + 1, migrations=migrations, oldest=oldest)

    asyncio.run(on(url, work))


async def on(url: str, work: Callable[[Database], Awaitable[None]]) -> None:
    database = open_database(url)
    try:
        await work(database)
    finally:
        await database.close()


def why(address: str) -> dict[str, str]:
    status, text = asked(f"{address}/readyz")
    return {"": str(status), **json.loads(text)["parts"]}


def test_running_processes_stop_their_work_and_say_that_a_newer_one_changed_the_tables(
    shell: Shell, plane_url: str
) -> None:
    furnish(shell)
    up = Up(shell, "--only", "api,scheduler,replayer", *places(plane_url))
    working = Working(shell, "--database", plane_url)
    probe = working.said("ready")[0]["probe"]
    assert shell.run("jobs", "submit", "double", "--payload", "2", "--follow", *places(plane_url)).code == 0

    migrate(plane_url, BREAKING, oldest=KNOWN + 1)
    reason = (
        f"the database has version {KNOWN + 1} of schema, made by a newer Holdfast; this one knows {KNOWN}: "
        "upgrade it too"
    )
    for address in (up.address, probe):

        def told(address: str = address) -> bool:
            return why(address) == {"": "503", "process": reason}

        until(told, "a process that is not ready")
        assert asked(f"{address}/healthz") == (200, '{"status":"alive"}'), "a restart would not help"
    until(lambda: metric(up.address, 'holdfast_part_running{part="scheduler"}') == 0, "a scheduler that has stopped")
    until(lambda: working.said("outgrown"), "a worker that has stopped")
    assert metric(probe, "holdfast_worker_active") == 0
    status, text = asked(f"{up.address}/api/v1/jobs")
    assert (status, json.loads(text)["code"], json.loads(text)["detail"]) == (503, "not-ready", f"not ready: {reason}")

    refused = shell.run("worker", "works:app", *places(plane_url))
    assert (refused.code, reason in refused.err) == (78, True)
    done = up.end()
    assert done.code == 0, done.err
    assert done.err.count("this process is too old for its database") == done.err.count(reason) == 1
    working.process.send_signal(signal.SIGTERM)
    assert working.ended() == 0


def test_older_processes_go_on_where_a_migration_leaves_them_working(shell: Shell, plane_url: str) -> None:
    furnish(shell)
    up = Up(shell, "--only", "api,scheduler,replayer", *places(plane_url))
    working = Working(shell, "--database", plane_url)

    migrate(plane_url, {KNOWN: "CREATE TABLE plane_more (x TEXT)"}, oldest=KNOWN)
    follow = ("jobs", "submit", "double", "--payload", "21", "--follow", *places(plane_url))
    assert shell.run(*follow).code == 0, "an older command works too"
    assert why(up.address)[""] == "200"
    working.process.send_signal(signal.SIGTERM)
    assert working.ended() == 0
    another = Working(shell, "--database", plane_url)
    assert shell.run(*follow).code == 0, "an older process starts beside the newer one"
    another.process.send_signal(signal.SIGTERM)
    assert (another.ended(), up.end().code) == (0, 0)


@pytest.mark.asyncio
async def test_the_oldest_version_that_works_is_kept_with_the_tables(database: Database, plane_url: str) -> None:
    await prepare(database, "a", text="CREATE TABLE plane_a (x TEXT)", version=3, oldest=2)

    async def kept(tx: Tx) -> dict[str, str]:
        rows = await tx.query("SELECT name, value FROM plane_meta WHERE name LIKE '%.a'")
        return {row["name"]: row["value"] for row in rows}

    assert await database.read(kept) == {"version.a": "3", "oldest.a": "2"}
    assert await prepare(database, "a", text="", version=2) is False
    assert await database.read(kept) == {"version.a": "3", "oldest.a": "2"}, "older code changes nothing"
    assert isinstance(database, SqliteDatabase) == plane_url.startswith("sqlite")
