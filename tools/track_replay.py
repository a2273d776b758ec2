"""A bug of ours, shown once more: the code before its fix, and whether the tests of its fix fail on it by its sign.

The code is that of the commit before the fix, taken out of the history into a temporary directory; nothing of the
repository is touched, and the directory is gone afterwards. Over it are laid the tests as they are in the fix (or in
the working tree, while a fix is not committed). They are run by the interpreter that runs this, with the packages that
it has; the package itself, also in child processes, is that of the directory, and that is looked at first.

A test that fails for another reason shows nothing: what pytest prints must have the sign of the bug in it.
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
WHOLE = ("tests", "tools", "pyproject.toml")  # what is laid over the older code, unless a bug says otherwise
SHOWN_LINES = 12


class NoHistory(Exception):
    """The commits that are needed are not here."""


class Verdict(StrEnum):
    """What came of a run."""

    SHOWN = "reproduced"
    PASSED = "not reproduced: the test passes"
    OTHER = "not reproduced: something else went wrong"


@dataclass(frozen=True, slots=True)
class Case:
    """What is to be run, and on what."""

    fix: str  # a commit, or the beginning of its subject; empty: not committed yet
    before: str  # the commit that has the bug; empty: the one before the fix
    tests_of: str  # the commit whose tests are laid over it; empty: the fix, or the working tree while there is none
    tests: tuple[str, ...]  # node ids
    take: tuple[str, ...]  # paths that are laid over the older code
    own: tuple[str, ...]  # of those tests, files of today's tree: they were written for older code too
    sign: str  # a regular expression that must match in what pytest prints
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
    """The verdict about what was printed."""
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
    """What git answers."""
    return subprocess.run(["git", "-C", str(ROOT), *words], check=True, capture_output=True).stdout


def unpack(of: str, paths: Sequence[str], tree: Path) -> None:
    """The files of a commit, all or some, put into a directory."""
    with tarfile.open(fileobj=io.BytesIO(git("archive", "--format=tar", of, *paths))) as archive:
        archive.extractall(tree, filter="data")


def lay_over(path: str, fix: str | None, tree: Path) -> None:
    """One path as it is in the fix, in place of what the directory has there. A path that the fix lacks is removed."""
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
    """The exit code of pytest (None: it took too long) and what it printed."""
    environment = surroundings(tree)
    where = "import holdfast, pathlib; print(pathlib.Path(holdfast.__file__).resolve().parent)"
    asked = [sys.executable, "-c", where]
    found = subprocess.run(asked, cwd=tree, env=environment, check=True, capture_output=True, text=True).stdout.strip()
    if Path(found) != (tree / "src" / "holdfast").resolve():
        raise RuntimeError(f"the package would be that of {found}, and not of {tree}")
    options = ["-q", "-n", "0", "-p", "no:randomly", "-p", "no:cacheprovider", "--tb=short", "-rf"]
    with group([sys.executable, "-m", "pytest", *options, *tests], tree, environment) as process:
        try:
            output, _ = process.communicate(timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            return None, f"it did not end within {LIMIT_S:.0f} s"
    return process.returncode, output


def surroundings(tree: Path) -> Mapping[str, str]:
    """The environment of a run: nothing of a pytest around this one, and the package of the directory."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "COV_", "HOLDFAST_"))}
    return {**kept, "PYTHONPATH": str(tree / "src"), "PYTHONDONTWRITEBYTECODE": "1"}


@contextmanager
def group(words: Sequence[str], tree: Path, environment: Mapping[str, str]) -> Iterator[subprocess.Popen[str]]:
    """A process in its own group, all of which is gone at the end."""
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
    """The last lines that were printed."""
    return "\n".join(f"    {line}" for line in output.rstrip().splitlines()[-SHOWN_LINES:])
