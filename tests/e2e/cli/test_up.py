"""`holdfast up` as a user runs it: what it prints, how it is reached, how it ends, and how it fails."""

from __future__ import annotations

import json
import signal
import socket
import sqlite3
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import httpx
import pytest

from holdfast.cli.server.http_server import tokens_in
from holdfast.core.duration_text import EXAMPLES
from holdfast.errors import BadInput
from holdfast.plane.process.plane import PARTS
from holdfast.web.middleware.auth import Role, digest_of
from support.cli.planes import Up, furnish
from support.cli.sessions import Shell, Typing, until

SECRET = "s3cr3t-word"


@pytest.fixture
def furnished(shell: Shell) -> Shell:
    furnish(shell)
    return shell


def wishes(shell: Shell) -> int:
    """How many wait to have a resource alone."""
    with closing(sqlite3.connect(shell.directory / "plane.db")) as file:
        return int(file.execute("SELECT COUNT(*) FROM plane_resource_wish").fetchone()[0])


def fetched(url: str) -> object:
    with urllib.request.urlopen(url, timeout=30) as answer:
        return json.load(answer)


def test_a_plane_comes_up_answers_drains_and_goes(furnished: Shell) -> None:
    up = Up(furnished)
    assert fetched(f"{up.address}/healthz") == {"status": "alive"}
    assert fetched(f"{up.address}/readyz") == {
        "status": "ready",
        "parts": {"database": "ok", "bus": "ok", "leases": "ok"},
    }
    started = up.said("started")[0]
    assert started["probe"] is None
    assert {part["part"]: part["state"] for part in started["parts"]} == dict.fromkeys(
        PARTS,
        "running",
    )
    assert started["places"]["bus"] == "in the database"
    assert furnished.run("jobs", "submit", "double", "--payload", "21", "--follow").code == 0
    done = up.end()
    assert (done.code, done.err) == (0, "")
    assert [each["event"] for each in up.events] == ["started", "draining", "ended"]
    assert up.said("ended")[0]["finished"] is True
    assert furnished.run("locks", "holdfast:", "--url", "sqlite:///plane.db").out == (
        "No locks with the prefix holdfast: found.\n"
    )


def test_ending_waits_for_what_runs(furnished: Shell) -> None:
    up = Up(furnished)
    here = json.dumps(str(furnished.directory))
    job = furnished.run("jobs", "submit", "slow", "--payload", here, "--json").json["job"]["id"]
    until((furnished.directory / "begun").exists, "a function that runs")
    up.process.send_signal(signal.SIGTERM)
    until(lambda: up.said("draining"), "a plane that drains")
    assert up.said("draining")[0]["running"] == 1
    assert fetched(f"{up.address}/healthz") == {"status": "alive"}
    for path, code in (("/readyz", "not-ready"), ("/api/v1/jobs", "closing")):
        with pytest.raises(urllib.error.HTTPError) as refused:
            fetched(up.address + path)
        with refused.value as answer:
            assert (answer.code, json.load(answer)["code"]) == (503, code)
    assert up.process.poll() is None
    (furnished.directory / "go").touch()
    assert up.ended().code == 0
    again = Up(furnished, "--only", "scheduler")
    assert furnished.run("jobs", "follow", job).code == 0
    assert again.end().code == 0


def test_a_process_that_has_ended_its_work_is_gone_without_a_last_search_for_garbage(furnished: Shell) -> None:
    """It took half a second of the grace period."""
    works, left = furnished.directory / "works.py", furnished.directory / "left"
    seen = f"lambda: pathlib.Path({str(left)!r}).write_text(str(gc.get_freeze_count() > 0))"
    works.write_text(f"{works.read_text()}\nimport atexit, gc\natexit.register({seen})\n")
    assert Up(furnished).end().code == 0
    assert left.read_text() == "True"
    left.unlink()
    alone = furnished.start("worker", "works:app", "--no-probe", "--json")
    assert alone.stderr is not None
    assert json.loads(alone.stderr.readline())["event"] == "ready"
    alone.terminate()
    assert furnished.finish(alone).code == 0
    assert left.read_text() == "True"


def test_who_waits_for_a_resource_does_not_hold_up_the_end_and_the_api_answers_to_it(furnished: Shell) -> None:
    up = Up(furnished)
    here = json.dumps(str(furnished.directory))
    furnished.run("jobs", "submit", "slow", "--payload", here)
    until((furnished.directory / "begun").exists, "a function that runs")
    with httpx.Client(base_url=up.address, timeout=60, trust_env=False) as client, ThreadPoolExecutor(1) as pool:
        asked = {"resource": "db", "owner": "first", "ttl": 600}
        assert client.post("/api/v1/resource-locks/acquire", json=asked).status_code == 200
        waiting = pool.submit(client.post, "/api/v1/resource-locks/acquire", json={**asked, "timeout": 30})
        until(lambda: wishes(furnished) == 1, "a waiter")
        up.process.send_signal(signal.SIGTERM)
        began = time.monotonic()
        answer = waiting.result(60)
        assert (answer.status_code, answer.json()["code"], answer.headers["retry-after"]) == (503, "closing", "1")
        assert time.monotonic() - began < 15, "it would have waited for 30 s"
        assert client.get("/healthz").status_code == 200
        assert client.get("/api/v1/jobs").json()["code"] == "closing"
        (furnished.directory / "go").touch()
    assert up.ended().code == 0


def test_a_function_that_fails_is_shown_with_its_traceback(furnished: Shell) -> None:
    with (furnished.directory / "works.py").open("a") as more:
        more.write('\n@app.job("broken")\ndef broken(payload):\n    return {}[payload]\n')
    submit = ("jobs", "submit", "broken", "--payload", '"nowhere"', "--max-attempts", "1", "--follow")
    up = Up(furnished)
    assert furnished.run(*submit).code == 1
    up.end()
    (line,) = up.said("log")
    assert line["text"] == "the attempt failed (KeyError: 'nowhere')"
    assert (line["traceback"][0], line["traceback"][-1]) == (
        "Traceback (most recent call last):",
        "KeyError: 'nowhere'",
    )
    assert any("return {}[payload]" in each for each in line["traceback"])
    plain = furnished.start("up")
    assert furnished.run(*submit).code == 1
    plain.send_signal(signal.SIGTERM)
    lines = furnished.finish(plain).err.splitlines()
    begin = next(number for number, each in enumerate(lines) if "the attempt failed (KeyError: 'nowhere')" in each)
    assert lines[begin + 1] == "  Traceback (most recent call last):"
    assert "  KeyError: 'nowhere'" in lines[begin:]


def test_a_second_signal_gives_back_what_runs_and_the_next_start_finishes_it(furnished: Shell) -> None:
    up = Up(furnished)
    here = json.dumps(str(furnished.directory))
    job = furnished.run("jobs", "submit", "slow", "--payload", here, "--json").json["job"]["id"]
    until((furnished.directory / "begun").exists, "a function that runs")
    up.process.send_signal(signal.SIGINT)
    until(lambda: up.said("draining"), "a plane that drains")
    done = up.end(signal.SIGINT)
    assert done.code == 1
    assert up.said("ended")[0]["finished"] is False
    (furnished.directory / "go").touch()
    again = Up(furnished)
    assert furnished.run("jobs", "follow", job).code == 0
    assert again.end().code == 0


def test_a_killed_plane_loses_nothing(furnished: Shell) -> None:
    (furnished.directory / "holdfast.toml").write_text(
        (furnished.directory / "holdfast.toml").read_text().replace("[replayer]", "lease_ttl = 2\n\n[replayer]")
    )
    up = Up(furnished)
    here = json.dumps(str(furnished.directory))
    running = furnished.run("jobs", "submit", "slow", "--payload", here, "--json").json["job"]["id"]
    until((furnished.directory / "begun").exists, "a function that runs")
    up.process.kill()
    up.ended()
    waiting = furnished.run("jobs", "submit", "double", "--payload", "4", "--json").json["job"]["id"]
    (furnished.directory / "go").touch()
    again = Up(furnished)
    for job in (waiting, running):
        assert furnished.run("jobs", "follow", job).code == 0
        events = furnished.run("jobs", "show", job, "--json").json["events"]
        assert [each["after"] for each in events].count("SUCCEEDED") == 1
    assert again.end().code == 0


def test_parts_run_in_processes_of_their_own(furnished: Shell) -> None:
    processes = [Up(furnished, "--only", parts) for parts in ("scheduler", "worker", "reconciler,replayer", "api")]
    assert [len(each.said("started")[0]["parts"]) for each in processes] == [1, 1, 2, 1]
    assert furnished.run("jobs", "submit", "double", "--payload", "3", "--follow").code == 0
    assert [each.end().code for each in processes] == [0, 0, 0, 0]


def test_a_busy_port_is_said_before_anything_is_opened(furnished: Shell) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = furnished.run("up", "--port", str(port))
    assert (done.code, done.out) == (64, "")
    assert done.err.startswith(
        f"holdfast: port: {port} is in use, perhaps by another holdfast up; use --port {port + 1}"
    )
    assert len(done.err.splitlines()) == 1
    assert not (furnished.directory / "plane.db").exists()


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("--only", "sheduler"), 64, "--only: 'sheduler' is no part; use some of snapshot, reconciler"),
        (("--only", ""), 64, "--only: '' is no part"),
        (("--app", "nowhere:app"), 64, "there is no module 'nowhere'"),
        (("--app", "works:nothing"), 64, "use works:app"),
        (("--sample",), 64, "--sample: cannot be combined with the app works:app"),
        (("--port", "99999"), 64, "--port: api.port: 99999 is out of range"),
        (("--host", "203.0.113.7"), 64, "no tokens authenticate callers"),
        (("--workers", "0"), 64, "--workers: worker.count: 0 is out of range"),
        (("--config", "none.toml"), 64, "none.toml: cannot be read: No such file or directory"),
        (("--database", "sqlite:////nowhere/at/all.db"), 78, "/nowhere/at/all.db"),
    ],
)
def test_what_cannot_come_up_says_why_in_a_line_and_a_code(
    furnished: Shell, words: tuple[str, ...], code: int, said: str
) -> None:
    done = furnished.run("up", *words)
    assert (done.code, done.out) == (code, ""), done.err
    assert said in done.err
    assert "Traceback" not in done.err


def test_without_an_app_there_are_no_workers_and_it_says_so(shell: Shell) -> None:
    typing = Typing(shell, "up", "--port", "0", "--database", "sqlite:///plane.db")
    try:
        typing.sees("open")
        typing.sees("http://127.0.0.1:")
        typing.sees("none here; use --app module:name")
        typing.type("\x03")
        typing.sees("ended; all started work is finished")
        assert typing.ends() == 0
    finally:
        typing.close()
    asked = shell.run("up", "--only", "worker", "--database", "sqlite:///plane.db")
    assert (asked.code, "--app: is missing, and workers need it" in asked.err) == (64, True)


@pytest.mark.parametrize(
    ("given", "named"),
    [
        (("--config", "other.toml"), "jobs list --config other.toml"),
        (
            ("--database", "sqlite:///here.db", "--leases", "sqlite:///leases.db"),
            "jobs list --database sqlite:///here.db",
        ),
    ],
)
def test_what_it_tells_one_to_type_finds_this_plane(shell: Shell, given: tuple[str, ...], named: str) -> None:
    (shell.directory / "other.toml").write_text('database = "sqlite:///other.db"')
    typing = Typing(shell, "up", "--port", "0", *given)
    try:
        typing.sees(f"holdfast {named}\r\n")
        listed = shell.run(*named.split())
        assert (listed.code, listed.out) == (0, "No jobs found.\n")
        typing.type("\x03")
        assert typing.ends() == 0
    finally:
        typing.close()


def test_the_sample_has_something_to_see_on_a_terminal(shell: Shell) -> None:
    typing = Typing(shell, "up", "--sample", "--port", "0", "--database", "sqlite:///plane.db")
    try:
        typing.sees("the plane is running")
        typing.sees("agents of three tenants plan, call tools and report")
        typing.sees("holdfast jobs submit agent.plan")
        typing.sees("RUNNING")
        typing.sees("SUCCEEDED")
        typing.type("\x03")
        typing.sees("ending: no new work starts")
        typing.sees("ended")
        assert typing.ends() == 0
    finally:
        typing.close()


def test_check_prints_every_setting_and_where_it_came_from(furnished: Shell) -> None:
    environment = {"HOLDFAST_BUS": f"nats://me:{SECRET}@h:4222"}
    done = furnished.run("up", "--check", "--workers", "7", env=environment)
    assert (done.code, done.err) == (0, "")
    rows = {line.split()[0]: line.split() for line in done.out.splitlines() if line}
    assert rows["worker.count"] == ["worker.count", "7", "--workers"]
    assert rows["worker.heartbeat"] == ["worker.heartbeat", "0.2", "holdfast.toml:10"]
    assert rows["bus"] == ["bus", "nats://me:***@h:4222", "$HOLDFAST_BUS"]
    assert rows["grace"] == ["grace", "30.0", "default"]
    assert "a job that a worker was running" in done.out
    assert not (furnished.directory / "plane.db").exists()
    told = furnished.run("up", "--check", "--json", env=environment).json
    assert told["settings"]["bus"] == {"value": "nats://me:***@h:4222", "from": "$HOLDFAST_BUS"}
    assert told["takeover"][0]["seconds"] == 60.5
    assert told["file"].endswith("holdfast.toml")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--only", "sheduler"), "--only: 'sheduler' is no part"),
        (("--app", "nowhere:app"), "there is no module 'nowhere'"),
        (("--sample",), "--sample: cannot be combined with the app works:app"),
    ],
)
def test_check_looks_at_parts_and_the_app_too(furnished: Shell, words: tuple[str, ...], said: str) -> None:
    done = furnished.run("up", "--check", *words)
    assert (done.code, done.out) == (64, "")
    assert said in done.err


def test_check_tells_all_problems_a_line_each(furnished: Shell) -> None:
    (furnished.directory / "holdfast.toml").write_text("grace = 'x'\nfoo = 1\n")
    done = furnished.run("up", "--check")
    assert (done.code, done.out) == (64, "")
    assert done.err.splitlines() == [
        f"holdfast: holdfast.toml:1: grace: 'x' is not a length of time; {EXAMPLES}",
        "holdfast: holdfast.toml:2: foo: is not a key; remove it; holdfast up --check lists all keys",
    ]


def test_tokens_come_from_a_file_of_digests(tmp_path: Path) -> None:
    path = tmp_path / "tokens.toml"
    digest = digest_of("a-token-that-is-long-enough")
    path.write_text(f'[[tokens]]\nname = "ci"\ndigest = "{digest}"\nroles = ["operator"]\ntenant = "acme"\n')
    (entry,) = tokens_in(str(path))
    assert (entry.name, entry.roles, entry.tenant) == ("ci", (Role.OPERATOR,), "acme")
    assert digest not in repr(entry)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "tokens = 3",
        "tokens = []",
        "tokens = [3]",
        "[[tokens]]\nname = 'a'",
        "[[tokens]]\nname = 'a'\ndigest = 'x'",
        "[[tokens]]\nname = 'a'\ndigest = 'x'\ntoken = 'y'",
        f"[[tokens]]\nname = 'a'\ndigest = '{'0' * 64}'\nroles = 'admin'",
        f"[[tokens]]\nname = 'a'\ndigest = '{'0' * 64}'\nroles = ['king']",
        f"[[tokens]]\nname = 'a'\ndigest = '{'0' * 64}'\nroles = ['admin']\ntenant = 'acme'",
        "[[tokens]\n",
    ],
)
def test_tokens_that_cannot_be_right_are_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "tokens.toml"
    path.write_text(text)
    with pytest.raises(BadInput, match=r"api\.tokens"):
        tokens_in(str(path))
