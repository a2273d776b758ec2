"""Which lease store a command uses: one rule for all commands, printed with the result; reading creates nothing."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.plane.settings.settings import FILE
from holdfast.stores.registry import DEFAULT_FILE, FORMER_PLANE_FILE
from support.cli.planes import Up
from support.cli.sessions import Shell
from support.servers.redis import free_port, redis_executables, start_redis

READS = [
    ("locks",),
    ("inspect", "n"),
    ("watch", "--count", "1"),
    ("audit",),
    ("release", "n", "--reason", "r", "--yes"),
]


@pytest.fixture
def bare(shell: Shell) -> dict[str, str]:
    """An environment that names no store."""
    return {"HOLDFAST_URL": "", "XDG_STATE_HOME": str(shell.directory / "state")}


@pytest.fixture
def hold() -> Iterator[Callable[[str, str], None]]:
    """Holds a lock in a store until the end of the test."""
    with ExitStack() as stack:

        def take(url: str, name: str) -> None:
            locks = stack.enter_context(holdfast.connect(url, service="other"))
            stack.enter_context(locks.lock(name, ttl=600))

        yield take


@pytest.mark.requires("R22")
@pytest.mark.parametrize("command", READS, ids=" ".join)
@pytest.mark.parametrize("named", ["default", "--url", FILE, "--database", "$HOLDFAST_DATABASE"])
def test_reading_a_store_that_is_not_there_is_an_error_and_creates_nothing(
    shell: Shell, bare: dict[str, str], command: tuple[str, ...], named: str
) -> None:
    url, words, env = f"sqlite:///{shell.directory}/gone.db", [*command], dict(bare)
    if named == FILE:
        (shell.directory / FILE).write_text(f'database = "{url}"')
    elif named == "$HOLDFAST_DATABASE":
        env["HOLDFAST_DATABASE"] = url
    elif named != "default":
        words += [named, url]
    before = set(shell.directory.rglob("*"))
    done = shell.run(*words, env=env)
    assert (done.code, done.out) == (64, "")
    assert "no lease store at" in done.err
    assert f"(from {named}" in done.err
    assert set(shell.directory.rglob("*")) == before


@pytest.mark.parametrize("command", READS, ids=" ".join)
def test_a_file_without_lease_tables_is_refused_and_left_as_it_is(shell: Shell, command: tuple[str, ...]) -> None:
    path = shell.directory / "app.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE mine (id INTEGER)")
    before = path.read_bytes()
    done = shell.run(*command, "--url", f"sqlite:///{path}")
    assert (done.code, done.out) == (78, "")
    assert "no lease store in" in done.err
    assert path.read_bytes() == before


@pytest.mark.requires("R22")
@pytest.mark.parametrize("command", READS, ids=" ".join)
def test_a_store_that_is_down_is_69_and_never_an_empty_answer(
    shell: Shell, bare: dict[str, str], command: tuple[str, ...]
) -> None:
    (shell.directory / FILE).write_text(f'leases = "redis://127.0.0.1:{free_port()}"')
    done = shell.run(*command, env=bare)
    assert (done.code, done.out) == (69, "")
    assert "(lease store from holdfast.toml:1)" in done.err


@pytest.mark.parametrize("command", ["locks", "audit"])
def test_an_empty_list_in_json_is_printed_with_its_store_too(shell: Shell, command: str) -> None:
    url = f"sqlite:///{shell.directory}/leases.db"
    with holdfast.connect(url) as locks:
        assert locks.lock("n").acquire().release()
    done = shell.run(command, "--json", "--url", url)
    assert done.json == []
    assert done.err == f"holdfast: lease store: {url} (from --url)\n"


@pytest.mark.server
@pytest.mark.requires("R22")
def test_the_leases_of_a_plane_are_found_by_its_settings(shell: Shell, bare: dict[str, str]) -> None:
    with start_redis(redis_executables()[0]) as server:
        (shell.directory / FILE).write_text(f'database = "sqlite:///plane.db"\nleases = "{server.url}"')
        with holdfast.connect(server.url) as locks, locks.lock("holdfast:scheduler:job:1", ttl=600) as lease:
            for command in (["locks"], ["inspect", lease.key], ["watch", "--count", "1"]):
                done = shell.run(*command, env=bare)
                assert lease.key in done.out
                assert done.err == f"holdfast: lease store: {server.url} (from holdfast.toml:2)\n"
            (found,) = shell.run("locks", "--json", env=bare).json
            assert (found["store"], found["source"]) == (server.url, "holdfast.toml:2")
            busy = shell.run("run", lease.key, "--on-busy", "fail", "--", "true", env=bare)
            assert busy.code == 75


@pytest.mark.server
def test_leases_in_postgres_are_shown_broken_and_audited(shell: Shell, bare: dict[str, str], postgres_url: str) -> None:
    for command in (["locks"], ["inspect", "job"], ["audit"], ["release", "job", "--reason", "why", "--yes"]):
        done = shell.run(*command, "--url", postgres_url, env=bare)
        assert done.code == 78, (command, done.err)
        assert "the database has no lease tables" in done.err
    with holdfast.connect(postgres_url) as locks:
        lease = locks.lock("job", ttl=600).acquire()
        (found,) = shell.run("locks", "--json", "--url", postgres_url, env=bare).json
        assert (found["key"], found["fence"]) == ("job", lease.fence)
        assert "job" in shell.run("watch", "--count", "1", "--url", postgres_url, env=bare).out
        assert shell.run("run", "job", "--on-busy", "fail", "--url", postgres_url, "--", "true", env=bare).code == 75
        broken = shell.run("release", "job", "--reason", "stuck", "--yes", "--url", postgres_url, env=bare)
        assert broken.code == 0, broken.err
        (record,) = shell.run("audit", "--json", "--url", postgres_url, env=bare).json
        assert (record["key"], record["reason"]) == ("job", "stuck")
        assert not lease.release()
    assert shell.run("run", "job", "--url", postgres_url, "--", "true", env=bare).code == 0


def test_the_first_that_is_named_decides_for_every_command(
    shell: Shell, bare: dict[str, str], hold: Callable[[str, str], None]
) -> None:
    here = shell.directory
    urls = {name: f"sqlite:///{here}/{name}.db" for name in ("url", "config", "database", "plane", "variable", "found")}
    for name, url in urls.items():
        hold(url, name)
    (here / "given.toml").write_text(f'database = "{urls["config"]}"')
    (here / FILE).write_text(f'database = "{urls["found"]}"')
    ranks: list[tuple[str, list[str], dict[str, str]]] = [
        ("url", ["--url", urls["url"]], {}),
        ("database", ["--database", urls["database"]], {}),
        ("config", ["--config", "given.toml"], {}),
        ("plane", [], {"HOLDFAST_DATABASE": urls["plane"]}),
        ("variable", [], {"HOLDFAST_URL": urls["variable"]}),
        ("found", [], {}),
    ]
    for place, (name, words, _) in enumerate(ranks):
        env = dict(bare)
        for _, _, variables in ranks[place:]:
            env.update(variables)
        if name == "config":  # the settings rank the environment above the file
            del env["HOLDFAST_DATABASE"]
        (lock,) = shell.run("locks", "--json", *words, env=env).json
        assert lock["key"] == name, name
        assert shell.run("inspect", name, *words, env=env).code == 0
        assert shell.run("run", name, "--on-busy", "fail", *words, "--", "true", env=env).code == 75


def test_what_was_not_chosen_is_named_too(shell: Shell, bare: dict[str, str], hold: Callable[[str, str], None]) -> None:
    shell.make_store()
    (shell.directory / FILE).write_text("")
    done = shell.run("locks")
    assert f"{FILE} in this directory is not used" in done.err
    (shell.directory / FILE).unlink()
    state = Path(bare["XDG_STATE_HOME"]) / "holdfast"
    state.mkdir(parents=True)
    hold(f"sqlite:///{state}/{FORMER_PLANE_FILE}", "of a plane")
    done = shell.run("locks", env=bare)
    assert (done.code, f"--database sqlite:///{state}/{FORMER_PLANE_FILE}" in done.err) == (64, True)


@pytest.mark.requires("R22")
def test_without_settings_the_library_the_plane_and_all_commands_use_one_file(
    shell: Shell, bare: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in bare.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("HOLDFAST_URL")
    state = Path(bare["XDG_STATE_HOME"]) / "holdfast"
    place = f"sqlite:///{state}/{DEFAULT_FILE} (from default)"
    with holdfast.connect() as locks, locks.lock("of an application", ttl=600):
        submitted = shell.run("jobs", "submit", "mail", "--id", "m1", env=bare)
        assert (submitted.code, f"holdfast: database: {place}" in submitted.err) == (0, True)
        plane = Up(shell, "--port", "0")
        seen = shell.run("locks", env=bare)
        assert seen.err == f"holdfast: lease store: {place}\n"
        assert "of an application" in seen.out
        assert "holdfast:scheduler:snapshot:writer" in seen.out
        assert plane.end().code == 0
    assert {each.name for each in state.glob("*.db")} == {DEFAULT_FILE}


def test_a_plane_of_an_older_version_stays_in_its_file_until_that_is_moved(shell: Shell, bare: dict[str, str]) -> None:
    state = Path(bare["XDG_STATE_HOME"]) / "holdfast"
    state.mkdir(parents=True)
    former = f"sqlite:///{state}/{FORMER_PLANE_FILE}"
    made = shell.run("jobs", "submit", "mail", "--id", "m1", "--database", former, env=bare)
    assert made.code == 0, made.err
    listed = shell.run("jobs", "list", env=bare)
    assert "m1" in listed.out
    assert f"holdfast: database: {former} (from default)" in listed.err
    assert "the plane of an older version" in listed.err
    assert "the plane of an older version" in shell.run("up", "--prepare", env=bare).err
    for file in state.glob(f"{FORMER_PLANE_FILE}*"):
        file.rename(state / file.name.replace(FORMER_PLANE_FILE, DEFAULT_FILE))
    listed = shell.run("jobs", "list", env=bare)
    assert "m1" in listed.out
    assert listed.err == f"holdfast: database: sqlite:///{state}/{DEFAULT_FILE} (from default)\n"
    assert shell.run("locks", env=bare).code == 0


@pytest.mark.parametrize(
    "command",
    [
        *("jobs submit mail --id m1", "jobs submit mail --json", "jobs cancel m1"),
        *("runs define flow.yaml", "runs start flow", "policy set high fail_closed --reason test"),
    ],
)
def test_a_command_that_writes_names_the_database_too(shell: Shell, command: str) -> None:
    """Typed in another directory, it would write into another plane and look the same."""
    (shell.directory / "flow.yaml").write_text("name: flow\nsteps:\n  rest: {kind: delay, delay: 1s}\n")
    (shell.directory / "holdfast.toml").write_text('database = "sqlite:///plane.db"\n')
    assert shell.run("jobs", "submit", "mail", "--id", "m1").code == 0
    assert shell.run("runs", "define", "flow.yaml").code == 0
    done = shell.run(*command.split())
    assert done.code == 0, done.err
    assert "holdfast: database: sqlite:///plane.db (from holdfast.toml:1)" in done.err.splitlines()


def test_memory_cannot_be_read_from_another_process(shell: Shell) -> None:
    done = shell.run("locks", "--url", "memory://")
    assert (done.code, "belongs to one process" in done.err) == (64, True)


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["run", "n", "--ttl", "30s", "--timeout", "500ms", "--grace", "1m30s", "--", "true"], 0),
        (["watch", "--count", "1", "--interval", "100ms"], 0),
        (["check", "none.ledger", "--skew", "50ms"], 64),
        (["alerts", "--scrape", "30s", "--list"], 0),
        (["run", "n", "--ttl", "30q", "--", "true"], 64),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_duration_is_typed_the_same_way_everywhere(shell: Shell, words: list[str], code: int) -> None:
    shell.make_store()
    done: Any = shell.run(*words)
    assert done.code == code, done
    if "30q" in words:
        assert "--ttl" in done.err
        assert "500ms, 30s, 5m, 1h30m" in done.err


def test_settings_take_durations_with_units(shell: Shell) -> None:
    (shell.directory / FILE).write_text('grace = "1m30s"\n[scheduler]\nbusy_delay = "250ms"\n')
    done = shell.run("up", "--check", "--json", env={"HOLDFAST_WORKER_HEARTBEAT": "2s"})
    assert done.code == 0, done
    shown = done.json.get("settings", done.json)
    values = [shown[key]["value"] for key in ("grace", "scheduler.busy_delay", "worker.heartbeat")]
    assert values == [90.0, 0.25, 2.0]
