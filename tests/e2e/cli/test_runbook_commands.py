"""`holdfast runbook`: what a tired person at a shell sees, and what its exit code says."""

from __future__ import annotations

from contextlib import closing

import pytest

from holdfast.ops.runbooks import RUNBOOKS
from support.cli.sessions import Shell, Typing


def test_they_are_listed_with_when_and_what_they_need(shell: Shell) -> None:
    done = shell.run("runbook", "--list")
    assert (done.code, done.err) == (0, "")
    head, *rows = done.out.splitlines()
    assert head.split() == ["NAME", "WHEN", "NEEDS"]
    assert [row.split()[0] for row in rows] == list(RUNBOOKS)
    listed = shell.run("runbook", "--list", "--json").json
    named = {each["name"]: each for each in listed}
    assert named["duplicate-dispatch"]["argument"] == "JOB"
    assert named["duplicate-dispatch"]["searches"] == ["jobs in ledger", "jobs in database"]
    assert named["snapshot-leader"]["searches"] == []
    assert all(each["rules"] and each["steps"] for each in listed)


def test_what_was_not_given_is_said_and_nothing_is_made(shell: Shell) -> None:
    (shell.directory / "holdfast.toml").write_text('database = "sqlite:///plane.db"\n')
    done = shell.run("runbook", "snapshot-leader")
    assert done.code == 1
    assert "not inspected: there is no lease store at plane.db: give --url URL" in done.out
    assert "not inspected: no metrics: give --metrics URL for each process, or --prometheus URL" in done.out
    assert "FINDING (insufficient evidence)" in done.out
    assert not (shell.directory / "plane.db").exists()


@pytest.mark.requires("R39")
def test_a_finding_that_needs_action_has_an_exit_code_of_its_own_and_a_command_to_type(shell: Shell) -> None:
    assert shell.run("up", "--prepare", "--database", "sqlite:///plane.db").code == 0
    asked = ("runbook", "snapshot-leader", "--database", "sqlite:///plane.db")
    done = shell.run(*asked)
    assert done.code == 3
    assert "FINDING (act now) No snapshot was ever written here" in done.out
    assert "$ holdfast up --only snapshot --database sqlite:///plane.db" in done.out
    said = shell.run(*asked, "--json").json
    assert (said["severity"], said["exit"]) == ("act", 3)
    assert [each["command"] for each in said["next"]] == ["holdfast up --only snapshot --database sqlite:///plane.db"]


@pytest.mark.parametrize(("name", "noun"), [("duplicate-dispatch", "job"), ("workflow-contention", "run")])
@pytest.mark.requires("R39")
def test_what_an_alert_names_can_be_typed_as_it_stands(shell: Shell, name: str, noun: str) -> None:
    """No alert knows an id, and a plane that is not there yet has none."""
    lost = shell.run("runbook", name, "--database", "sqlite:///plane.db")
    assert (lost.code, lost.err) == (1, "")
    assert f"FINDING (insufficient evidence) The {noun} cannot be determined" in lost.out
    assert not (shell.directory / "plane.db").exists()
    assert shell.run("up", "--prepare", "--database", "sqlite:///plane.db").code == 0
    done = shell.run("runbook", name, "--database", "sqlite:///plane.db", "--interval", "0.1", "--json")
    said = done.json
    assert (done.code, said["severity"], said["suspects"]) == (3, "act", []), done.out
    told = {each["rule"]: each["sentence"] for each in said["findings"]}
    assert told["no suspects"].startswith("Nothing suspicious in the last 15 min. Searched: ")
    assert "No process holds" in told["no leader"]


@pytest.mark.requires("R20", "R21", "R22", "R23", "R24")
def test_the_one_that_writes_asks_before_and_is_done_with_yes(shell: Shell) -> None:
    with shell.locks() as locks:
        locks.ping()
    refused = shell.run("runbook", "before-ttl-change", "--url", shell.url)
    assert (refused.code, refused.out) == (64, "")
    assert "holdfast:runbook:before-ttl-change:…" in refused.err
    assert shell.run("locks").out == "No locks found.\n"
    done = shell.run("runbook", "before-ttl-change", "--url", shell.url, "--yes", "--timeout", "30")
    assert (done.code, done.err) == (0, ""), done.out
    assert "answer: lock not owned" in done.out
    assert "log: lock release skipped: token mismatch: key=holdfast:runbook:before-ttl-change:" in done.out
    assert "second acquire: empty" in done.out
    assert shell.run("locks").out == "No locks found.\n"


def test_on_a_terminal_a_no_writes_nothing(shell: Shell) -> None:
    with shell.locks() as locks:
        locks.ping()
    with closing(Typing(shell, "runbook", "before-ttl-change", "--url", shell.url)) as typing:
        typing.sees("Is that a test store?")
        typing.type("n\r")
        assert typing.ends() == 1
        assert "proved" not in typing.shown


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("nope",), "'nope' does not exist; use one of why, not-owned"),
        (("duplicate-dispatch", "no spaces"), "JOB: 'no spaces' is not an id"),
        (("snapshot-leader", "job-1"), "ID: 'job-1' is not needed"),
        (("not-owned", "--metrics", "ftp://h"), "--metrics: is not an address"),
        (
            ("not-owned", "--metrics", "http://h:1", "--prometheus", "http://h:2"),
            "--prometheus: cannot be combined with",
        ),
        (("not-owned", "--since", "often"), "--since: 'often' is not a time; give 15m for 15 minutes ago"),
        (("not-owned", "--since", "900"), "--since: '900' has no unit; write 900s for 900 seconds ago"),
        (("not-owned", "--since", "40d"), "--since: 3.456e+06 s is out of range"),
        (("not-owned", "--interval", "0"), "--interval"),
        (("not-owned", "--url", "ftp://h"), "ftp"),
    ],
)
def test_bad_input_is_refused_with_its_name_and_a_fix(shell: Shell, words: tuple[str, ...], problem: str) -> None:
    done = shell.run("runbook", *words)
    assert (done.code, done.out) == (64, "")
    assert problem in done.err
