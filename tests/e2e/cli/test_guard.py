"""`holdfast guard install`, `check` and `remove` as a user types them."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from support.cli.sessions import Shell


def database(shell: Shell, statements: str = "CREATE TABLE invoices (id INTEGER PRIMARY KEY, total INT)") -> str:
    with closing(sqlite3.connect(shell.directory / "app.db")) as connection:
        connection.executescript(statements + "; INSERT INTO invoices (total) VALUES (5);")
    return "sqlite:///app.db"


def dump(shell: Shell) -> list[str]:
    with closing(sqlite3.connect(shell.directory / "app.db")) as connection:
        return list(connection.iterdump())


def test_the_commands_from_the_first_look_to_the_last(shell: Shell) -> None:
    words = ("invoices", "--database", database(shell))
    before = dump(shell)
    shown = shell.run("guard", "install", *words, "--trigger", "strict", "--dry-run")
    assert (shown.code, shown.err) == (0, "")
    assert dump(shell) == before
    with closing(sqlite3.connect(":memory:")) as elsewhere:  # what is printed is SQL, and all of it
        elsewhere.executescript("CREATE TABLE invoices (id INTEGER PRIMARY KEY, total INT);" + shown.out)
        (count,) = elsewhere.execute("SELECT count(*) FROM sqlite_master WHERE name LIKE 'holdfast%'").fetchone()
    assert count >= 8
    done = shell.run("guard", "install", *words, "--trigger", "strict")
    assert (done.code, done.err) == (0, "")
    assert done.out.splitlines()[-1] == "done: invoices, trigger strict"
    again = shell.run("guard", "install", *words)
    assert again == (0, "nothing to do: invoices is up to date\n", "")
    installed = dump(shell)
    checked = shell.run("guard", "check", *words, "--expect", "strict")
    assert (checked.code, checked.err) == (0, "")
    assert checked.out.splitlines()[0].split() == ["TRIED", "VERDICT", "WHAT", "HAPPENED"]
    assert checked.out.splitlines()[-1] == "holds: invoices, for every client"
    assert "plain SQL: UPDATE without a fence  " in checked.out
    assert dump(shell) == installed
    removed = shell.run("guard", "remove", *words)
    assert (removed.code, removed.out.splitlines()[-1]) == (0, "done: invoices, trigger none")
    assert dump(shell) == before
    assert shell.run("guard", "remove", *words).out.startswith("nothing to do")


def test_check_exits_1_when_something_expected_is_not_there(shell: Shell) -> None:
    words = ("invoices", "--database", database(shell))
    never = shell.run("guard", "check", *words)
    assert (never.code, "is not prepared" in never.out) == (1, True)
    shell.run("guard", "install", *words, "--trigger", "rising")
    assert shell.run("guard", "check", *words, "--expect", "rising").code == 0
    failed = shell.run("guard", "check", *words, "--expect", "strict")
    assert failed.code == 1
    assert "expected strict, but what is installed is rising" in failed.out


def test_programs_read_json(shell: Shell) -> None:
    words = ("invoices", "--database", database(shell), "--json")
    planned = shell.run("guard", "install", *words, "--trigger", "rising", "--dry-run").json
    assert (planned["done"], planned["changed"], planned["trigger"]) == (False, False, "rising")
    done = shell.run("guard", "install", *words, "--trigger", "rising").json
    assert done["steps"] == planned["steps"]
    assert (done["done"], done["changed"]) == (True, True)
    proof = shell.run("guard", "check", *words).json
    assert proof["held"] is True
    assert {each["verdict"] for each in proof["attempts"]} == {"held", "open"}
    assert shell.run("guard", "remove", *words).json["changed"] is True
    assert shell.run("guard", "remove", *words).json["changed"] is False


def test_ids_columns_and_the_environment(shell: Shell) -> None:
    url = database(shell, "CREATE TABLE invoices (a INT, b TEXT, total INT, PRIMARY KEY (a, b))")
    env = {"HOLDFAST_GUARD_DATABASE": url, "HOLDFAST_DATABASE": "sqlite:///plane.db"}
    words = ("invoices", "--id", "a", "--id", "b", "--fence-column", "epoch")
    assert shell.run("guard", "install", *words, "--trigger", "strict", env=env).code == 0
    assert shell.run("guard", "check", *words, "--expect", "strict", env=env).code == 0
    asked = shell.run("guard", "remove", "invoices", "--fence-column", "epoch", env=env)
    assert (asked.code, "--yes" in asked.err) == (64, True)
    assert shell.run("guard", "remove", "invoices", "--fence-column", "epoch", "--yes", env=env).code == 0


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("install", "invoices"), 64, "HOLDFAST_GUARD_DATABASE"),
        (("install", "in voices", "--database", "sqlite:///app.db"), 64, "not a usable name"),
        (("install", "nothing", "--database", "sqlite:///app.db"), 78, "has no table nothing"),
        (("install", "invoices", "--database", "sqlite:///app.db", "--id", "total"), 78, "unique index"),
        (("check", "invoices", "--database", "sqlite:///none.db"), 78, "there is no file"),
        (("install", "invoices", "--database", "mysql://joe:secret@host/x"), 64, "joe:***@host"),
        (("install", "x", "--database", "postgresql://joe:secret@/x?host=/none"), 69, "joe:***@"),
        (("install", "invoices", "--database", "sqlite:///app.db", "--trigger", "severe"), 64, "severe"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(shell: Shell, words: tuple[str, ...], code: int, said: str) -> None:
    database(shell)
    done = shell.run("guard", *words)
    assert (done.code, done.out) == (code, "")
    assert len(done.err.splitlines()) == 1
    assert said in done.err
    assert "secret" not in done.err


def test_a_note_about_triggers_of_others_is_said(shell: Shell, tmp_path: Path) -> None:
    url = database(shell)
    with closing(sqlite3.connect(tmp_path / "app.db")) as connection:
        connection.execute("CREATE TRIGGER touch AFTER UPDATE ON invoices BEGIN UPDATE invoices SET total = 1; END")
    done = shell.run("guard", "install", "invoices", "--database", url, "--trigger", "strict")
    assert (done.code, "note: triggers of others (touch)" in done.err) == (0, True)
