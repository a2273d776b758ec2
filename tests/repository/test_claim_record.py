"""What a full run of the tests leaves behind for `make ledger`, and that no other run does."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

import run_results
from run_results import Cases, Record
from support.scratch_repository import run_pytest

CONFTEST = """
from support import claim_record

def pytest_configure(config):
    config.pluginmanager.register(claim_record)
"""
SETTINGS = """
[tool.pytest.ini_options]
testpaths = ["tests"]
markers = ["requires(*ids)"]
"""
TESTS = """
import os
import pytest

def by(name):
    return pytest.param(name, marks=pytest.mark.requires("R2", by=f"kit[{name}]"))

@pytest.mark.requires("R1", "R2")
@pytest.mark.parametrize("x", [1, 2, 3])
def test_a(x):
    if x == 3:
        pytest.skip("no server")

@pytest.fixture
def breaks():
    yield
    raise OSError("cannot be closed")

@pytest.mark.requires("R1")
def test_b(breaks):
    assert True

@pytest.mark.requires("R3")
def test_c():
    assert "DIES" not in os.environ or os._exit(1)

@pytest.mark.parametrize("name", [by("one"), by("two")])
def test_kit(name):
    assert name == "one"
"""


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A clone with one commit, and tests with claims."""
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "conftest.py").write_text(CONFTEST)
    (tmp_path / "tests" / "test_it.py").write_text(TESTS)
    (tmp_path / "pyproject.toml").write_text(SETTINGS)
    (tmp_path / ".gitignore").write_text("/build/\n__pycache__/\n")
    git(tmp_path, "init", "--quiet")
    commit(tmp_path, "one")
    return tmp_path


def git(folder: Path, *words: str) -> None:
    who = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false")
    subprocess.run(["git", *who, *words], cwd=folder, check=True, capture_output=True)


def commit(folder: Path, message: str) -> None:
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--allow-empty", "--message", message)


def recorded(folder: Path) -> Record:
    record, _ = run_results.of_this_tree(folder)
    assert record is not None
    return record


@pytest.mark.parametrize("options", [(), ("-p", "xdist", "-n", "2")], ids=["one process", "workers"])
def test_a_full_run_records_what_each_claimant_did(clone: Path, options: tuple[str, ...]) -> None:
    done = run_pytest(clone, *options)
    assert "recorded for `make ledger`: a full run of " in done.stdout
    found = recorded(clone)
    a, b, c = (f"tests/test_it.py::test_{name}" for name in "abc")
    partly = Cases(passed=2, skipped={"no server": 1})
    assert found.claims == {
        "R1": {a: partly, b: Cases(failed=1)},
        "R2": {a: partly, "kit[one]": Cases(passed=1), "kit[two]": Cases(failed=1)},
        "R3": {c: Cases(passed=1)},
    }
    assert found.totals == Cases(passed=4, failed=2, skipped={"no server": 1})
    assert found.tree.changes == ""


def test_a_run_of_some_tests_records_nothing_and_leaves_the_record_of_all(clone: Path) -> None:
    chosen = [("-k", "test_a"), ("-m", "requires"), ("tests/test_it.py",), ("--deselect", "tests/test_it.py::test_c")]
    for options in chosen:
        assert "not recorded for `make ledger`: some" in run_pytest(clone, *options).stdout
    assert run_results.of_this_tree(clone)[0] is None
    run_pytest(clone)
    before = recorded(clone)
    run_pytest(clone, "-k", "test_a")
    assert "tests did not run to their end" in run_pytest(clone, "-x").stdout
    assert recorded(clone) == before


def test_a_run_that_broke_off_records_nothing(clone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (clone / "tests" / "test_other.py").write_text("import nothing_of_this_name\n")
    assert "not all tests were collected" in run_pytest(clone).stdout
    (clone / "tests" / "test_other.py").unlink()
    monkeypatch.setenv("DIES", "1")
    assert "tests did not run to their end" in run_pytest(clone, "-p", "xdist", "-n", "1").stdout
    assert run_results.of_this_tree(clone)[0] is None


def test_untracked_links_and_clones_are_part_of_the_state(clone: Path) -> None:
    states = [run_results.tree(clone)]
    (clone / "link").symlink_to(clone / "tests", target_is_directory=True)
    states.append(run_results.tree(clone))
    (clone / "link").unlink()
    (clone / "link").symlink_to(clone / "elsewhere")
    states.append(run_results.tree(clone))
    (clone / "nested").mkdir()
    git(clone / "nested", "init", "--quiet")
    (clone / "nested" / "file.py").write_text("")
    states.append(run_results.tree(clone))
    assert None not in states
    assert len(set(states)) == len(states)


def test_a_record_is_of_one_state_of_the_files(clone: Path) -> None:
    assert "(clean tree)" in run_pytest(clone).stdout
    (clone / "added.py").write_text("more = 1\n")
    record, said = run_results.of_this_tree(clone)
    assert record is None
    assert "(with changes): `make test` records it." in said

    assert "(with changes)" in run_pytest(clone).stdout
    assert recorded(clone).tree.changes
    (clone / "added.py").write_text("more = 2\n")
    assert run_results.of_this_tree(clone)[0] is None

    commit(clone, "two")
    assert run_results.of_this_tree(clone)[0] is None
    run_pytest(clone)
    commit(clone, "three")
    assert run_results.of_this_tree(clone)[0] is None


def test_without_a_clone_nothing_is_recorded(clone: Path) -> None:
    (clone / ".git").rename(clone / "elsewhere")
    assert "the files are in no clone" in run_pytest(clone).stdout
    assert run_results.read(clone) is None
