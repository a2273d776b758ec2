"""Guarded files and processes that are killed: at each point of each step, at any moment, and with children left."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from e2e.guards.files_worker import NAME, composed, fence_of
from holdfast.errors import FencedOut
from holdfast.guards.files import GuardedFiles
from holdfast.guards.files.names import OWN_PREFIX, draft_name
from support.fixtures.guards import carried

WORKER = Path(__file__).with_name("files_worker.py")
TESTS = Path(__file__).parent.parent.parent
LIMIT_S = 60.0

POINTS = {
    "section": ("admitted", "entered", "reserved", "generation", "replaced", "written"),
    "section delete": ("admitted", "entered", "reserved", "replaced", "written"),
    "write": ("admitted", "reserved", "generation", "replaced", "written"),
    "delete": ("admitted", "reserved", "replaced", "written"),
}


@contextmanager
def worker(*arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process that is ended in any case."""
    paths = os.pathsep.join([str(TESTS.parent / "src"), str(TESTS)])
    process = subprocess.Popen(
        [sys.executable, str(WORKER), *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": paths},
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate(timeout=LIMIT_S)


@pytest.mark.requires("R73", "R58")
@pytest.mark.parametrize(("step", "point"), [(step, point) for step, points in POINTS.items() for point in points])
def test_a_killed_writer_leaves_whole_content_under_a_fence_that_fits(tmp_path: Path, step: str, point: str) -> None:
    files = GuardedFiles(tmp_path, timeout=30)
    files.write(carried(1), NAME, composed(1))
    with worker("die", str(tmp_path), point, step) as killed:
        _, errors = killed.communicate(timeout=LIMIT_S)
        assert killed.returncode == -signal.SIGKILL, errors.decode()

    path, seen = tmp_path / NAME, files.seen(NAME)
    content = fence_of(path.read_bytes()) if path.exists() else None
    changed = point in {"replaced", "written"}
    entered = changed or point in {"entered", "reserved"} or (step == "section" and point == "generation")
    assert content == ((None if "delete" in step else 2) if changed else 1)
    assert seen == (2 if entered else 1)

    if entered:
        with pytest.raises(FencedOut):
            files.write(carried(1), NAME, composed(1))
    with files.section(carried(3), NAME) as file:
        assert (None if file.data is None else fence_of(file.data)) == content
        file.replace(composed(3))
    assert fence_of(path.read_bytes()) == 3
    assert not (tmp_path / draft_name(NAME)).exists()


@pytest.mark.requires("R73")
def test_a_forked_child_does_not_keep_the_lock_of_a_parent_that_was_killed(tmp_path: Path) -> None:
    files = GuardedFiles(tmp_path, timeout=30)
    with worker("fork", str(tmp_path)) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"ready\n"
        assert parent.wait(LIMIT_S) == -signal.SIGKILL
        files.write(carried(3), NAME, composed(3))  # while the child is still there: it ends with its input
        assert parent.stdin is not None
        parent.stdin.close()
        parent.stdin = None
        assert parent.stdout.read() == b""
    assert fence_of((tmp_path / NAME).read_bytes()) == 3


@pytest.mark.requires("R73", "R58")
def test_no_reader_ever_sees_half_a_file_or_content_above_its_fence_while_writers_are_killed(tmp_path: Path) -> None:
    """Readers that know nothing of guards, writers that are killed at any moment; content tells its own fence."""
    files = GuardedFiles(tmp_path, timeout=30)
    files.write(carried(0), NAME, composed(0))
    path, chance, highest, rounds = tmp_path / NAME, random.Random(7), 0, 0
    for _ in range(6):
        with worker("write", str(tmp_path)) as one, worker("write", str(tmp_path)) as other:
            begun, budget = highest, chance.randrange(5, 60)
            limit = time.monotonic() + LIMIT_S
            while highest == begun or budget:
                assert time.monotonic() < limit
                assert (one.poll(), other.poll()) == (None, None)
                content = fence_of(path.read_bytes())
                seen = files.seen(NAME)
                assert seen is not None
                assert content <= seen, "new content under an old fence"
                assert seen >= highest, "the fence went down"
                highest, rounds, budget = seen, rounds + 1, max(0, budget - 1)
        # Both were killed wherever they were.
        seen = files.seen(NAME)
        assert seen is not None
        assert fence_of(path.read_bytes()) <= seen
    files.write(carried(time.monotonic_ns()), NAME, composed(1))
    assert rounds > 30
    left = {each.name for each in tmp_path.iterdir() if not each.name.startswith(OWN_PREFIX)}
    assert left == {NAME}
    assert not (tmp_path / draft_name(NAME)).exists()
