"""Reproduces a fixed bug: runs the tests of its fix on the code before the fix, and checks that they fail as expected.

The commit before the fix is extracted from the history into a temporary directory, which is deleted afterwards. The
repository does not change. The tests of the fix (or of the working tree, if the fix is not committed) replace the older
tests there. The current interpreter runs them with its installed packages; a check ensures that Holdfast itself is
imported from the directory, in child processes too.

A test that fails for another reason proves nothing: the output of pytest must match the sign of the bug.
"""

from __future__ import annotations

import io
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from pages import ROOT

LIMIT_S = 600.0  # of one run, with the servers that its tests start
WHOLE = (
    "tests",
    "tools",
    "pyproject.toml",
)  # replace those of the older code, unless an entry lists others
SHOWN_LINES = 12


class NoHistory(Exception):
    """The history lacks a commit that is needed."""


class Verdict(StrEnum):
    """The outcome of a run."""

    SHOWN = "reproduced"
    PASSED = "not reproduced: the test passes"
    OTHER = "not reproduced: something else went wrong"


@dataclass(frozen=True, slots=True)
class Case:
    """The tests to run, and the commits that they run on."""

    fix: str  # a commit, or the beginning of its subject; empty: not committed yet
    before: str  # the commit that has the bug; empty: the one before the fix
    tests_of: str  # the commit of the tests; empty: the fix, or the working tree if there is none
    tests: tuple[str, ...]  # node ids
    take: tuple[str, ...]  # paths that replace those of the older code
    own: tuple[str, ...]  # test files of the current tree, which also work on the older code
    sign: str  # a regular expression that must match the output of pytest
    own_of: str = ""  # the commit that `own` is taken from, when not the working tree


@dataclass(frozen=True, slots=True)
class Run:
    """A run and what was seen."""

    verdict: Verdict
    commit: str  # the one whose code was run
    output: str
    line: str = ""  # the first line with the sign in it


def show(case: Case) -> Run:
    """Run the tests on the code before the fix."""
    return _run_on(commit(case.before or f"{commit(case.fix)}^"), case)


def control(case: Case) -> Run:
    """Run the same tests on the code of the fix, where they must pass."""
    if not case.fix:
        return judged(case.sign, "the working tree", *run(ROOT, case.tests))
    return _run_on(commit(case.fix), case)


def _run_on(of: str, case: Case) -> Run:
    newer = case.tests_of or case.fix
    with tempfile.TemporaryDirectory(prefix="holdfast-track-") as name:
        tree = Path(name)
        unpack(of, (), tree)
        for each in case.take:
            lay_over(each, commit(newer) if newer else None, tree)
        for each in case.own:
            lay_over(each, commit(case.own_of) if case.own_of else None, tree)
        return judged(case.sign, of, *run(tree, case.tests))


def judged(sign: str, of: str, code: int | None, output: str) -> Run:
    """The verdict on the output of pytest."""
    if code == 0:
        return Run(Verdict.PASSED, of, output)
    said = (each for each in output.splitlines() if not each[:1].isspace())  # what is indented is source
    found = next((each.strip() for each in said if re.search(sign, each)), "")
    return Run(Verdict.SHOWN if found and code == 1 else Verdict.OTHER, of, output, found)


def commit(name: str) -> str:
    """The short hash of a commit, given by a hash (with `^`: the one before it) or the beginning of its subject."""
    if not (ROOT / ".git").exists() or shutil.which("git") is None:
        raise NoHistory("this needs git, and a clone of the repository: a source package has no history")
    with suppress(subprocess.CalledProcessError):
        return git("rev-parse", "--short", "--verify", "--quiet", f"{name}^{{commit}}").decode().strip()
    with suppress(subprocess.CalledProcessError):  # no commit at all
        for line in git("log", "--format=%h %s").decode().splitlines():
            known, _, subject = line.partition(" ")
            if subject.startswith(name):
                return known
    shallow = git("rev-parse", "--is-shallow-repository").decode().strip() == "true"
    why = "this clone is shallow: `git fetch --unshallow`" if shallow else "the history here does not have it"
    raise NoHistory(f"no commit {name!r}: {why}")


def git(*words: str) -> bytes:
    """The output of a git command."""
    return subprocess.run(["git", "-C", str(ROOT), *words], check=True, capture_output=True).stdout


def unpack(of: str, paths: Sequence[str], tree: Path) -> None:
    """Extract files of a commit, all or some, into a directory."""
    with tarfile.open(fileobj=io.BytesIO(git("archive", "--format=tar", of, *paths))) as archive:
        archive.extractall(tree, filter="data")


def lay_over(path: str, fix: str | None, tree: Path) -> None:
    """Replace one path of the directory by that of the fix. A path that the fix lacks is removed."""
    target = tree / path
    if target.is_dir():
        shutil.rmtree(target)
    else:
        target.unlink(missing_ok=True)
    if fix is not None:
        with suppress(subprocess.CalledProcessError):
            unpack(fix, [path], tree)
    elif (ROOT / path).is_dir():
        shutil.copytree(ROOT / path, target, ignore=shutil.ignore_patterns("__pycache__"))
    else:
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / path, target)


def run(tree: Path, tests: Sequence[str]) -> tuple[int | None, str]:
    """The exit code of pytest (None: it took too long) and its output."""
    environment = surroundings(tree)
    where = "import holdfast, pathlib; print(pathlib.Path(holdfast.__file__).resolve().parent)"
    asked = [sys.executable, "-c", where]
    found = subprocess.run(asked, cwd=tree, env=environment, check=True, capture_output=True, text=True).stdout.strip()
    if Path(found) != (tree / "src" / "holdfast").resolve():
        raise RuntimeError(f"the package would be that of {found}, and not of {tree}")
    with group([sys.executable, "-m", "pytest", *options(tree), *tests], tree, environment) as process:
        try:
            output, _ = process.communicate(timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            return None, f"it did not end within {LIMIT_S:.0f} s"
    return process.returncode, output


def options(tree: Path) -> list[str]:
    """Of pytest. The environment names the plugin of today's package, which pytest cannot load from older ones."""
    older = [] if (tree / "src" / "holdfast" / "testing" / "pytest_plugin.py").exists() else ["-p", "no:holdfast"]
    return ["-q", "-n", "0", "-p", "no:randomly", "-p", "no:cacheprovider", "--tb=short", "-rf", *older]


def surroundings(tree: Path) -> Mapping[str, str]:
    """The environment of a run: no variables of an outer pytest, and the package of the directory."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "COV_", "HOLDFAST_"))}
    return {**kept, "PYTHONPATH": str(tree / "src"), "PYTHONDONTWRITEBYTECODE": "1"}


@contextmanager
def group(words: Sequence[str], tree: Path, environment: Mapping[str, str]) -> Iterator[subprocess.Popen[str]]:
    """A process in its own process group, which is killed at the end."""
    process = subprocess.Popen(
        words,
        cwd=tree,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def tail(output: str) -> str:
    """The last lines of the output."""
    return "\n".join(f"    {line}" for line in output.rstrip().splitlines()[-SHOWN_LINES:])
