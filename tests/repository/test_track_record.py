"""Every bug of the track record is declared whole, its test and its commits are there, and the page says the same."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
from functools import cache
from pathlib import Path

import pytest

import track_record
import track_replay
from pages import ROOT
from track_record import Bug
from track_replay import Case, NoHistory, Run, Verdict

BUGS = track_record.bugs()
SENTENCE = re.compile(r"[A-Z`].{20,}\.", re.DOTALL)


@cache
def names_in(text: str) -> frozenset[str]:
    functions = (each for each in ast.walk(ast.parse(text)) if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef))
    return frozenset(each.name for each in functions if each.name.startswith("test_"))


@cache
def text_of(path: str, commit: str = "") -> str:
    """The text of a file today, or in a commit."""
    if commit:
        return track_replay.git("show", f"{commit}:{path}").decode()
    assert (ROOT / path).is_file(), path
    return (ROOT / path).read_text(encoding="utf-8")


@cache
def history() -> frozenset[str]:
    """Short hashes of all commits that are here."""
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("no history here: not a clone")
    if track_replay.git("rev-parse", "--is-shallow-repository").strip() == b"true":
        pytest.skip("a shallow clone has no history")
    return frozenset(track_replay.git("log", "--abbrev=7", "--format=%h").decode().split())


def test_the_tables_of_the_page_are_up_to_date() -> None:
    assert track_record.PAGE.read_text(encoding="utf-8") == track_record.render(), "run `make docs`"


def test_every_bug_is_declared_whole() -> None:
    assert len({bug.symptom for bug in BUGS}) == len(BUGS)
    for bug in BUGS:
        assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)+", bug.id), bug.id
        assert bug.area in track_record.AREAS, bug.id
        assert SENTENCE.fullmatch(bug.symptom), bug.id
        assert bug.found, bug.id
        assert bug.mechanism, bug.id
        assert bug.fix or bug.before, f"{bug.id}: without a fix, say which commit has it"
        if bug.cannot:
            assert SENTENCE.fullmatch(bug.cannot), bug.id
            assert bug.sign == bug.seen == "", f"{bug.id}: it cannot be shown, or it was seen; not both"
        else:
            re.compile(bug.sign)
            assert len(bug.sign) >= 4, f"{bug.id}: a sign that matches anything shows nothing"


def own_tests(bug: Bug) -> list[str]:
    """The tests of the fix that are in files of `own`."""
    return [node for node in bug.then if node.partition("::")[0] in bug.own]


def assert_is_there(bug: Bug, node: str, commit: str = "") -> None:
    file, _, name = node.partition("[")[0].partition("::")
    assert not name or name in names_in(text_of(file, commit)), f"{bug.id}: {node}"


def test_every_test_that_is_named_is_there_today() -> None:
    for bug in BUGS:
        assert_is_there(bug, bug.test)
        if not bug.own_of:
            for node in (*bug.own, *own_tests(bug)):
                assert text_of(node.partition("::")[0]), f"{bug.id}: {node}"
                assert_is_there(bug, node)


def test_every_file_that_is_taken_from_a_commit_is_in_that_commit() -> None:
    history()
    for bug in BUGS:
        for node in (*bug.own, *own_tests(bug)) if bug.own_of else ():
            assert text_of(node.partition("::")[0], bug.own_of), f"{bug.id}: {node}"
            assert_is_there(bug, node, bug.own_of)


def test_every_commit_that_is_named_is_in_the_history() -> None:
    known = history()
    for bug in BUGS:
        for each in filter(None, (bug.fix, bug.before, bug.tests_of)):
            assert each in known or track_replay.commit(each), f"{bug.id}: {each}"


@pytest.mark.parametrize(
    ("code", "output", "verdict"),
    [
        (0, "1 passed", Verdict.PASSED),
        (1, "x\nE   the key is taken\n", Verdict.SHOWN),
        (1, '    assert free, "the key is taken"\nE   NameError: free', Verdict.OTHER),
        (1, "E   ModuleNotFoundError: No module named 'x'", Verdict.OTHER),
        (2, "the key is taken", Verdict.OTHER),
        (None, "the key is taken", Verdict.OTHER),
    ],
)
def test_only_a_failure_with_the_sign_of_the_bug_shows_it(code: int | None, output: str, verdict: Verdict) -> None:
    found = track_replay.judged("the key is taken", "abc", code, output)
    assert found.verdict is verdict
    assert verdict is not Verdict.SHOWN or found.line == "E   the key is taken"


def test_without_history_it_says_what_is_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    bug = next(each for each in BUGS if not each.cannot)
    monkeypatch.setattr(track_replay, "ROOT", tmp_path)
    assert track_record.main(["--show", bug.id]) == 2
    assert "a source package has no history" in capsys.readouterr().out
    if shutil.which("git") is None:
        return
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    with pytest.raises(NoHistory, match="does not have it"):
        track_replay.commit("0000000")


@pytest.mark.parametrize(
    ("runs", "code"),
    [
        ([Verdict.SHOWN, Verdict.PASSED], 0),
        ([Verdict.SHOWN, Verdict.SHOWN], 2),
        ([Verdict.PASSED], 1),
        ([Verdict.OTHER], 2),
    ],
)
def test_the_exit_code_says_whether_it_was_shown(
    runs: list[Verdict], code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, *after = runs
    monkeypatch.setattr(track_record, "show", lambda case: _run(case, before))
    monkeypatch.setattr(track_record, "control", lambda case: _run(case, *after))
    bug = next(each for each in BUGS if not each.cannot)
    assert track_record.shown(bug, with_control=True) == code


def _run(case: Case, verdict: Verdict) -> Run:
    assert case.tests
    return Run(verdict, "abc", "output", "line")


def test_a_bug_that_cannot_be_shown_says_why_and_names_its_test(capsys: pytest.CaptureFixture[str]) -> None:
    bug = next(each for each in BUGS if each.cannot)
    assert track_record.shown(bug, with_control=False) == 2
    said = capsys.readouterr().out
    assert bug.cannot in said
    assert bug.test in said


def test_a_declaration_with_a_word_too_many_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bugs.toml").write_text('[a-b]\narea = "Leases"\nnonsense = 1\n')
    monkeypatch.setattr(track_record, "ENTRIES", tmp_path / "bugs.toml")
    with pytest.raises(TypeError, match="nonsense"):
        track_record.bugs()


def test_what_is_laid_over_replaces_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root, tree = tmp_path / "root", tmp_path / "tree"
    for folder, names in ((root, ("new", "both")), (tree, ("old", "both"))):
        (folder / "tests").mkdir(parents=True)
        for name in names:
            (folder / "tests" / name).write_text(folder.name)
    monkeypatch.setattr(track_replay, "ROOT", root)
    track_replay.lay_over("tests", None, tree)
    assert {each.name: each.read_text() for each in (tree / "tests").iterdir()} == {"new": "root", "both": "root"}
    (root / "one.py").write_text("1")
    track_replay.lay_over("one.py", None, tree)
    assert (tree / "one.py").read_text() == "1"


def test_the_plugin_of_todays_package_is_not_loaded_into_older_trees(tmp_path: Path) -> None:
    assert "no:holdfast" in track_replay.options(tmp_path)
    assert "no:holdfast" not in track_replay.options(ROOT)
