"""Commands that only look at a plane: they need its database alone, make none, and write nothing."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from holdfast.plane.model.records import Submission
from holdfast.plane.process.components import make_tables, open_components
from holdfast.plane.service.service import Caller
from holdfast.plane.settings.settings import Settings
from support.cli.sessions import Shell

UNPRIVILEGED = 65_534
BY_NOBODY = f"""
import os, sys
from holdfast.cli.app import run_app
run_app(sys.argv[1:])  # so that all modules are loaded: the user may not be allowed to read them
sys.stdout.flush()
os.setgid({UNPRIVILEGED})
os.setuid({UNPRIVILEGED})
sys.exit(run_app(sys.argv[1:]))
"""
LOOKS = [
    ("jobs", "list"),
    ("jobs", "show", "x"),
    ("jobs", "follow", "x"),
    ("jobs", "dead"),
    ("jobs", "stats"),
    ("runs", "list"),
    ("runs", "workflows"),
    ("runs", "show", "x"),
    ("runs", "timeline", "x"),
    ("approvals", "list"),
    ("approvals", "show", "x"),
    ("policy", "show"),
    ("policy", "history"),
]
ACTS = [("jobs", "cancel", "x"), ("jobs", "retry", "x"), ("runs", "cancel", "x"), ("approvals", "approve", "x")]


@pytest.mark.parametrize("command", [*LOOKS, *ACTS], ids=" ".join)
def test_a_file_that_is_not_there_is_refused_and_not_made(shell: Shell, command: tuple[str, ...]) -> None:
    path = shell.directory / "typo.db"
    done = shell.run(*command, "--database", f"sqlite:///{path}")
    assert (done.code, done.out) == (64, "")
    assert f"there is no file {path}" in done.err
    assert not path.exists()


@pytest.mark.parametrize(
    "command", [("jobs", "list"), ("runs", "show", "x"), ("policy", "show"), ("jobs", "cancel", "x")]
)
def test_the_default_file_of_a_user_without_a_plane_is_refused_and_its_directory_not_made(
    shell: Shell, command: tuple[str, ...]
) -> None:
    state = shell.directory / "state"
    done = shell.run(*command, env={"XDG_STATE_HOME": str(state), "HOLDFAST_URL": ""})
    assert (done.code, done.out) == (64, "")
    assert f"there is no file {state}" in done.err
    assert "--database or --config" in done.err
    assert not state.exists()


@pytest.mark.parametrize("command", LOOKS, ids=" ".join)
def test_a_file_without_the_tables_stays_as_it_is(shell: Shell, command: tuple[str, ...]) -> None:
    path = shell.directory / "other.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE mine (id INTEGER)")
    before = path.read_bytes()
    done = shell.run(*command, "--database", f"sqlite:///{path}")
    assert done.code == 78, done
    assert "the database does not have all tables of a plane" in done.err
    assert f"type `holdfast up --prepare --database sqlite:///{path}` once" in done.err
    assert path.read_bytes() == before


@pytest.mark.parametrize("command", [each for each in LOOKS if each[0] != "policy"], ids=" ".join)
def test_tables_of_an_older_version_are_said_to_be_that_with_what_to_type(
    shell: Shell, command: tuple[str, ...]
) -> None:
    path = shell.directory / "plane.db"
    (shell.directory / "my plane.toml").write_text(f'database = "sqlite:///{path}"')
    assert shell.run("up", "--prepare", "--config", "my plane.toml").code == 0
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript("UPDATE plane_meta SET value = '1' WHERE name = 'version.approval_schema'")
    before = path.read_bytes()
    done = shell.run(*command, "--config", "my plane.toml")
    assert (done.code, done.out) == (78, "")
    assert done.err == (
        "holdfast: the database has version 1 of approval_schema, made by an older Holdfast, where this one has 3, and "
        "a command that only looks changes nothing; type `holdfast up --prepare --config 'my plane.toml'` once, or "
        "start the plane with this version\n"
    )
    assert path.read_bytes() == before


def test_what_looks_finds_all_tables_after_they_were_prepared(shell: Shell) -> None:
    url = f"sqlite:///{shell.directory / 'new.db'}"
    assert shell.run("up", "--prepare", "--database", url).code == 0
    codes = {command: shell.run(*command, "--database", url).code for command in LOOKS}
    assert {command: code for command, code in codes.items() if code not in (0, 1)} == {}
    assert codes["jobs", "list"] == codes["policy", "show"] == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="takes a second user, which only root can be")
@pytest.mark.parametrize("writes", [False, True], ids=["not open elsewhere", "open elsewhere"])
def test_a_file_that_may_not_be_written_can_be_read(tmp_path: Path, writes: bool) -> None:
    path = tmp_path / "plane.db"
    for each in (tmp_path, *tmp_path.parents[:-2]):
        each.chmod(0o755)
    path.touch()  # by the operator: SQLite gives the files beside it the same group and mode
    os.chown(path, -1, UNPRIVILEGED)
    path.chmod(0o640)
    settings = Settings(database=f"sqlite:///{path}")

    async def seen() -> list[str]:
        async with open_components(settings) as components:
            job, _ = await components.service.submit(Caller("me"), Submission("t"))
            if writes:
                return [job.id, await asyncio.to_thread(_listed_by_nobody, path)]
        return [job.id, await asyncio.to_thread(_listed_by_nobody, path)]

    job, told = asyncio.run(seen())
    assert job in told


def _listed_by_nobody(path: Path) -> str:
    path.chmod(0o440)
    done = subprocess.run(
        [sys.executable, "-c", BY_NOBODY, "jobs", "list", "--json", "--database", f"sqlite:///{path}"],
        cwd="/",
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr.count("\n")) == (0, 2)  # each of the two names the database, and that is all
    assert set(done.stderr.splitlines()) == {f"holdfast: database: sqlite:///{path} (from --database)"}
    return done.stdout.splitlines()[1]


def test_looking_at_postgres_needs_no_lease_store_and_no_bus(shell: Shell, postgres_url: str) -> None:
    asyncio.run(make_tables(Settings(database=postgres_url)))
    for command in LOOKS:
        done = shell.run(*command, "--database", postgres_url)
        assert done.code in (0, 1), done
    assert shell.run("jobs", "list", "--database", postgres_url).out == "No jobs found.\n"
