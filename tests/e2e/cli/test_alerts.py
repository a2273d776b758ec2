"""`holdfast alerts`: rules, their tests and a table, for people, Prometheus and programs."""

from __future__ import annotations

import json
import shlex
import subprocess

import pytest
import yaml

from holdfast.ops.alerts import alerts
from support.cli.sessions import Shell
from support.ops.alert_plans import PLANS, needs_promtool


def test_it_prints_rules_made_from_the_settings(shell: Shell) -> None:
    (shell.directory / "holdfast.toml").write_text("[snapshot]\ninterval = 10\n")
    done = shell.run("alerts")
    assert (done.code, done.err) == (0, "")
    document = yaml.safe_load(done.out)
    rules = [rule for group in document["groups"] for rule in group["rules"]]
    late = [each for each in rules if each.get("alert") == "HoldfastLoopLate" and each["labels"]["loop"] == "snapshot"]
    assert "> 111 and" in late[0]["expr"]
    assert shell.run("alerts", "--json").json == document


def test_it_writes_rules_and_tests_into_files(shell: Shell) -> None:
    done = shell.run("alerts", "--out", "rules.yml", "--match", "plane=blue", "--scrape", "15")
    assert (done.code, done.out) == (0, "")
    assert "promtool check rules rules.yml" in done.err
    text = (shell.directory / "rules.yml").read_text()
    assert 'plane="blue"' in text
    assert "holdfast-loops-blue" in text
    done = shell.run(
        "alerts", "--tests", "--rules", "rules.yml", "--json", "--out", "tests.json", "--only", "api,worker"
    )
    assert done.code == 0, done.err
    document = json.loads((shell.directory / "tests.json").read_text())
    assert document["rule_files"] == ["rules.yml"]
    assert "no process leads a loop" not in {each["name"] for each in document["tests"]}


def test_it_lists_alerts_for_people_and_programs(shell: Shell) -> None:
    head, *rows = shell.run("alerts", "--list").out.splitlines()
    assert head.split() == ["ALERT", "SEVERITY", "FOR", "MEANING", "NEXT", "EXPRESSION"]
    assert [row.split()[0] for row in rows] == [each.name for each in alerts(PLANS["default"])]
    listed = shell.run("alerts", "--list", "--json").json
    assert listed == [each.as_dict() for each in alerts(PLANS["default"])]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--match", "plane"), "is no label with a value"),
        (("--scrape", "0"), "is out of range"),
        (("--only", "kitchen"), "is no part"),
        (("--list", "--tests"), "omit them"),
        (("--config", "missing.toml"), "missing.toml"),
        (("--out", "nowhere/rules.yml"), "cannot be written"),
        (("--out", ""), "is a directory"),
    ],
)
def test_bad_input_is_said_and_nothing_is_written(shell: Shell, words: tuple[str, ...], said: str) -> None:
    before = sorted(shell.directory.iterdir())
    done = shell.run("alerts", *words)
    assert (done.code, done.out) == (64, "")
    assert said in done.err
    assert sorted(shell.directory.iterdir()) == before


@needs_promtool
def test_the_printed_promtool_commands_work(shell: Shell) -> None:
    folder = shell.directory / "my rules"
    folder.mkdir()
    done = shell.run("alerts", "--out", "my rules/rules.yml")
    _typed(shell, done.err)
    done = shell.run("alerts", "--tests", "--only", "cleanup", "--out", "my rules/tests.yml")
    assert "holdfast-rules.yml, for the tests" in done.err
    tests = yaml.safe_load((folder / "tests.yml").read_text())
    (folder / "tests.yml").write_text(yaml.safe_dump({**tests, "tests": tests["tests"][:1]}))  # all take a minute
    _typed(shell, done.err)
    kept = folder / "holdfast-rules.yml"
    kept.write_text("groups: []\n")
    assert shell.run("alerts", "--tests", "--out", "my rules/tests.yml").code == 0
    assert kept.read_text() == "groups: []\n"


def _typed(shell: Shell, said: str) -> None:
    """Run the command at the end of what was printed, as a person would."""
    line = said.splitlines()[-1]
    words = shlex.split(line[line.index("promtool ") :])
    done = subprocess.run(words, cwd=shell.directory, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
