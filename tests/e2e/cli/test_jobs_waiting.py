"""`holdfast jobs submit` and `show` of a job that waits: what for, without any process of the plane."""

from __future__ import annotations

import asyncio

from holdfast.plane.db.open import open_database
from holdfast.plane.fleet.registry import Workers
from holdfast.plane.model.records import Heartbeat
from holdfast.runtime.system import SystemClock
from support.cli.planes import Up, furnish
from support.cli.sessions import Shell, until


def test_a_job_of_a_topic_without_workers_says_what_it_waits_for(shell: Shell) -> None:
    furnish(shell)
    said = shell.run("jobs", "submit", "mail")
    job = said.out.strip()
    assert "holdfast: warning: no worker serves topic mail, and none has announced it so far" in said.err
    shown = shell.run("jobs", "show", job)
    assert "waiting     no worker serves topic mail, and none has announced it so far (no_worker)" in shown.out
    asyncio.run(_announced_long_ago(shell, "mail"))
    waiting = shell.run("jobs", "show", job, "--json").json["job"]["waiting"]
    assert waiting["code"] == "workers_gone"
    assert "2001-09-09T01:46:40+00:00" in waiting["text"]
    again = shell.run("jobs", "submit", "mail", "--json")
    assert again.json["job"]["waiting"] == waiting


def test_a_job_that_was_submitted_before_its_workers_came_is_run_and_waits_for_nothing(shell: Shell) -> None:
    furnish(shell)
    job = shell.run("jobs", "submit", "double", "--payload", "21").out.strip()
    up = Up(shell)
    until(lambda: shell.run("jobs", "show", job, "--json").json["job"]["state"] == "SUCCEEDED", "the job to be run")
    assert shell.run("jobs", "show", job, "--json").json["job"]["waiting"] is None
    assert up.end().code == 0


async def _announced_long_ago(shell: Shell, topic: str) -> None:
    database = open_database(f"sqlite:///{shell.directory}/plane.db")
    try:
        await Workers(database, SystemClock()).record(Heartbeat("gone", "default", (topic,), 4, 0, 10**18))
    finally:
        await database.close()
