"""`holdfast jobs` as a user types it: with a plane that runs beside it, without one, and with bad input."""

from __future__ import annotations

import asyncio
import json

import pytest

from holdfast.plane.process.components import make_tables
from holdfast.plane.settings.settings import Settings
from support.cli.planes import Up, furnish
from support.cli.sessions import Shell, Typing


@pytest.fixture
def furnished(shell: Shell) -> Shell:
    furnish(shell)
    return shell


def test_a_job_from_its_submission_to_its_end(furnished: Shell) -> None:
    up = Up(furnished)
    done = furnished.run("jobs", "submit", "double", "--payload", "21", "--tenant", "acme", "--follow")
    assert done.code == 0
    submitted, store = done.err.splitlines()
    assert submitted in {f"holdfast: submitted: double of acme, {state}" for state in ("PENDING", "DISPATCHED")}
    assert store.startswith("holdfast: database: ")
    job = done.out.split()[0]
    assert done.out.splitlines()[-1] == f"{job} succeeded at attempt 1: 42"
    states = [line.split()[1] for line in done.out.splitlines()[1:-1]]
    assert (states[0], states[-1]) == ("PENDING", "SUCCEEDED")
    shown = furnished.run("jobs", "show", job)
    assert shown.out.splitlines()[0].split() == ["id", job]
    assert "result      42" in shown.out
    told = furnished.run("jobs", "show", job, "--json").json
    assert (told["job"]["state"], told["job"]["result"], told["job"]["tenant"]) == ("SUCCEEDED", 42, "acme")
    assert [each["after"] for each in told["events"]][-1] == "SUCCEEDED"
    over = furnished.run("jobs", "cancel", job)
    assert (over.code, over.out) == (1, f"{job} has already finished: SUCCEEDED\n")
    lines = [json.loads(line) for line in furnished.run("jobs", "follow", job, "--json").out.splitlines()]
    assert "event" in lines[0]
    assert lines[-1]["job"]["state"] == "SUCCEEDED"
    assert up.end().code == 0


def test_a_job_that_fails_is_a_dead_letter_that_can_be_tried_again(furnished: Shell) -> None:
    up = Up(furnished)
    done = furnished.run("jobs", "submit", "hopeless", "--follow")
    assert done.code == 1
    job = done.out.split()[0]
    assert f"{job} ended FAILED: " in done.out
    assert "this will never work" in done.out
    dead = furnished.run("jobs", "dead")
    assert dead.out.splitlines()[1].split()[0] == job
    (letter,) = furnished.run("jobs", "dead", "--json").json["items"]
    assert (letter["code"], "body" in letter) == ("fatal", False)
    assert furnished.run("jobs", "dead", job, "--json").json["body"]["payload"] is None
    assert '"payload": null' in furnished.run("jobs", "dead", job).out
    assert furnished.run("jobs", "dead", "nobodys").code == 1
    first = furnished.run("jobs", "retry", job, "--json").json
    second = furnished.run("jobs", "retry", job, "--json").json
    assert (first["made"], second["made"]) == (True, False)
    assert first["job"]["id"] == second["job"]["id"]
    assert first["job"]["id"].startswith(f"{job}-retry-")
    assert up.end().code == 0


def test_a_waiting_job_is_cancelled_by_the_scheduler(furnished: Shell) -> None:
    up = Up(furnished)
    job = furnished.run("jobs", "submit", "double", "--payload", "1", "--delay", "3600", "--json").json["job"]["id"]
    asked = furnished.run("jobs", "cancel", job, "--reason", "not needed")
    assert (asked.code, asked.out) == (0, f"cancellation requested for {job} (PENDING)\n")
    done = furnished.run("jobs", "follow", job)
    assert done.code == 1
    assert done.out.splitlines()[-1] == f"{job} ended CANCELLED: not needed"
    assert up.end().code == 0


def test_following_is_live_on_a_terminal(furnished: Shell) -> None:
    up = Up(furnished)
    typing = Typing(furnished, "jobs", "submit", "double", "--payload", "4", "--follow")
    try:
        typing.sees("submitted: double of default")
        typing.sees("SUCCEEDED")
        typing.sees("succeeded at attempt 1: 8")
        assert typing.ends() == 0
    finally:
        typing.close()
    assert up.end().code == 0


def test_jobs_wait_in_the_database_until_a_plane_comes(furnished: Shell) -> None:
    assert furnished.run("up", "--prepare").code == 0
    assert furnished.run("jobs", "list").out == "No jobs found.\n"
    assert furnished.run("jobs", "dead").out == "No dead letters found.\n"
    first = furnished.run("jobs", "submit", "double", "--id", "one", "--payload", "1", "--idempotency-key", "k")
    assert first[:2] == (0, "one\n")
    warning, submitted, store = first.err.splitlines()
    assert warning.startswith("holdfast: warning: no worker serves topic double")
    assert submitted == "holdfast: submitted: double of default, PENDING"
    again = furnished.run("jobs", "submit", "double", "--id", "one", "--payload", "1", "--idempotency-key", "k")
    assert again[:2] == (0, "one\n")
    assert again.err.splitlines() == [warning, "holdfast: existed already: double of default, PENDING", store]
    other = furnished.run("jobs", "submit", "double", "--payload", "2", "--idempotency-key", "k")
    assert (other.code, "was used for another job" in other.err) == (1, True)
    for number in range(3):
        furnished.run("jobs", "submit", "slow", "--id", f"slow-{number}", "--tenant", "acme", "--label", "a=b=c")
    page = furnished.run("jobs", "list", "--tenant", "acme", "--limit", "2", "--json").json
    assert [each["id"] for each in page["items"]] == ["slow-2", "slow-1"]
    assert page["items"][0]["labels"] == {"a": "b=c"}
    assert not {"payload", "result"} & set(page["items"][0])
    rest = furnished.run("jobs", "list", "--tenant", "acme", "--after", page["next"], "--json").json
    assert ([each["id"] for each in rest["items"]], rest["next"]) == (["slow-0"], None)
    table = furnished.run("jobs", "list", "--state", "pending", "--topic", "double").out.splitlines()
    assert [line.split()[0] for line in table] == ["ID", "one"]
    counts = furnished.run("jobs", "stats", "--json").json
    assert (counts["jobs"]["PENDING"], counts["workers"]) == (4, 0)
    assert furnished.run("jobs", "stats", "--tenant", "acme").out.splitlines()[1].split() == ["PENDING", "3"]
    late = furnished.run("jobs", "follow", "one", "--timeout", "0.3")
    assert (late.code, late.out.splitlines()[-1]) == (124, "one is PENDING and has not finished yet")


def test_a_payload_comes_from_the_line_a_file_or_standard_input(furnished: Shell) -> None:
    (furnished.directory / "payload.json").write_text('{"from": "file"}')
    words = ("jobs", "submit", "double", "--json", "--payload")
    assert furnished.run(*words, '"text"').json["job"]["payload"] == "text"
    assert furnished.run(*words, "@payload.json").json["job"]["payload"] == {"from": "file"}
    assert furnished.run(*words, "-", input='["stdin"]').json["job"]["payload"] == ["stdin"]


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("submit", "double", "--payload", "{bad"), 64, "payload: is not JSON"),
        (("submit", "double", "--payload", '{"n": 1, "n": 2}'), 64, "payload.n: is given 2 times; give it once"),
        (("submit", "double", "--payload", "NaN"), 64, "payload: is NaN, which is not a number in JSON"),
        (("submit", "double", "--payload", "[" * 100_000), 64, "payload: is nested too deeply"),
        (("submit", "double", "--payload", "@nowhere.json"), 64, "cannot be read: No such file"),
        (("submit", "double", "--payload", '"\\u0000"'), 64, "payload: contains a zero character"),
        (("submit", "no topic"), 64, "topic: 'no topic' is not usable"),
        (("submit", ""), 64, "topic: '' is not a name"),
        (("submit", "double", "--tenant", "a b"), 64, "tenant: 'a b' is not usable"),
        (("submit", "double", "--id", "../x"), 64, "id: '../x' is not an id"),
        (("submit", "double", "--priority", "101"), 64, "priority: 101 is out of range"),
        (("submit", "double", "--max-attempts", "0"), 64, "max_attempts: 0 is out of range"),
        (("submit", "double", "--timeout", "0"), 64, "timeout: 0 s is out of range"),
        (("submit", "double", "--deadline", "nan"), 64, "'nan' is not a length of time"),
        (("submit", "double", "--deadline", "-1"), 64, "deadline: -1 s is out of range"),
        (("submit", "double", "--label", "x"), 64, "label: 'x' is not a new NAME=TEXT"),
        (("submit", "double", "--label", "x=1", "--label", "x=2"), 64, "give each name once"),
        (("submit", "double", "--pool", "a.b"), 64, "pool: 'a.b' is not a name"),
        (("list", "--state", "nope"), 64, "'nope' is no state; use one of PENDING"),
        (("list", "--after", "x"), 64, "after: is not a cursor in a list"),
        (("list", "--limit", "0"), 64, "--limit"),
        (("list", "--database", "mysql://h/db"), 64, "--database: 'mysql://h/db' cannot be used here"),
        (("show", "missing"), 1, "there is no job 'missing'"),
        (("show", "\x1b[31m"), 1, "there is no job"),
        (("follow", "missing"), 1, "there is no job 'missing'"),
        (("follow", "missing", "--timeout", "-1"), 64, "timeout: -1 s is out of range"),
        (("cancel", "missing"), 1, "there is no job 'missing'"),
        (("retry", "missing"), 1, "there is no dead letter 'missing'"),
        (("dead", "--tenant", "a b"), 64, "tenant: 'a b' is not usable"),
    ],
)
def test_bad_input_has_a_defined_answer(
    furnished: Shell, capfd: pytest.CaptureFixture[str], words: tuple[str, ...], code: int, said: str
) -> None:
    """In this process, which is quicker and changes nothing: the command line has one entrance."""
    from holdfast.cli import main

    asyncio.run(make_tables(Settings(database=f"sqlite:///{furnished.directory}/plane.db")))
    place = () if "--database" in words else ("--database", f"sqlite:///{furnished.directory}/plane.db")
    found = main(["jobs", *words, *place, "--config", str(furnished.directory / "holdfast.toml")])
    shown = capfd.readouterr()
    assert (found, shown.out) == (code, ""), shown.err
    assert said in shown.err
    assert "\x1b" not in shown.err
    assert len(shown.err.splitlines()) == 1


def test_a_command_with_another_prefix_of_keys_is_refused_until_the_plane_is_switched(shell: Shell) -> None:
    place = ("--database", "sqlite:///plane.db")
    assert shell.run("up", "--switch-keys", *place, env={"HOLDFAST_NAMES_KEYS": "acme"}).code == 0
    refused = shell.run("jobs", "submit", "t", "--delay", "5", *place)
    assert (refused.code, refused.out) == (64, "")
    assert "holdfast: names.keys: the keys of this plane begin with acme:, and here they would" in refused.err
    bad = shell.run("up", "--switch-keys", *place, env={"HOLDFAST_NAMES_KEYS": "a:b"})
    assert bad.code == 64
    assert "holdfast: $HOLDFAST_NAMES_KEYS (names.keys): 'a:b' contains a colon; give the word before" in bad.err
    switched = shell.run("up", "--switch-keys", *place)
    assert (switched.code, switched.err) == (
        0,
        "holdfast: the keys of the plane have the prefix holdfast:; until now acme:\n",
    )
    assert shell.run("jobs", "submit", "t", "--id", "one", *place).code == 0


def test_a_cancel_on_another_bus_is_refused_until_the_bus_is_switched(shell: Shell) -> None:
    place = ("--database", "sqlite:///plane.db")
    assert shell.run("up", "--switch-bus", *place, "--bus", "nats://127.0.0.1:1?stream=MINE").code == 0
    refused = shell.run("jobs", "submit", "t", "--delay", "5", *place)
    assert (refused.code, refused.out) == (64, "")
    assert "holdfast: bus: this plane speaks through NATS, in the stream MINE, and here" in refused.err
    switched = shell.run("up", "--switch-bus", *place)
    assert (switched.code, switched.err) == (
        0,
        "holdfast: the plane uses the database; until now NATS, in the stream MINE\n",
    )
    assert shell.run("jobs", "submit", "t", "--id", "one", *place).code == 0
    assert shell.run("jobs", "cancel", "one", *place).code == 0
