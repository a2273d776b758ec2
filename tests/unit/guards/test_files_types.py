"""What a type checker knows about guarded files, inboxes and outboxes; and that they need no driver to be imported."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from support.type_program import disagreements

ROOT = Path(__file__).parents[3]

# Each line that ends with "# error" must be refused by the checker, and no other.
PROGRAM = """
import sqlite3
import holdfast
from holdfast.guards import Bearer, CarriedFence, Fenced
from holdfast.guards.aio import files as aio
from holdfast.guards.files import GuardedFiles
from holdfast.guards.messages import Inbox, Outbox, stamped
from holdfast.guards.records import SqliteRecord

strict = GuardedFiles("/srv")
lenient = GuardedFiles("/srv", allow_degraded=True)


def full(lease: holdfast.Lease, fence: CarriedFence) -> None:
    strict.write(lease, "x", b"1")
    lenient.write(fence, "x", "1")
    with strict.section(lease, "x") as file:
        file.replace(file.text() + "1")
        file.replace(file.data + b"1")  # error
        file.replace(1)  # error
    stamped(lease)
    Outbox(sqlite3.connect(":memory:")).add(lease, "x", b"1")


def degraded(lease: holdfast.DegradedLease) -> None:
    strict.write(lease, "x", b"1")  # error
    strict.enter(lease, "x")  # error
    lenient.write(lease, "x", b"1")
    with strict.section(lease, "x"):  # error
        pass
    stamped(lease)  # error
    Outbox(sqlite3.connect(":memory:")).add(lease, "x", b"1")  # error


def forgotten() -> None:
    strict.write("x", b"1")  # error
    strict.delete(7, "x")  # error


async def awaited(lease: holdfast.aio.Lease, wrong: holdfast.aio.DegradedLease) -> None:
    files = aio.GuardedFiles("/srv")
    await files.write(lease, "x", b"1")
    await files.write(wrong, "x", b"1")  # error


def consumed(headers: dict[str, str], files: GuardedFiles[Fenced]) -> None:
    record = SqliteRecord("fences.db")
    files.write(Inbox(record).admit(headers), "x", b"1")
    files.write(Inbox(record, on_stale="drop").admit(headers), "x", b"1")  # error
    carried = Inbox(record, on_stale="drop").admit(headers)
    if carried is not None:
        files.write(carried, "x", b"1")
    Inbox(record, on_stale="ignore")  # error


def charge(files: GuardedFiles[Fenced]) -> None: ...


def lend(files: GuardedFiles[Bearer]) -> None:
    charge(files)  # a guard that takes more may stand where one is wanted that takes less
"""


@pytest.mark.requires("R28", "R34")
def test_the_checker_refuses_forgotten_and_degraded_leases_and_dropped_messages(tmp_path: Path) -> None:
    assert disagreements(PROGRAM, tmp_path) == ([], [])


@pytest.mark.parametrize(
    "module", ["files", "messages", "outbox", "relay", "aio.files", "aio.messages"], ids=lambda name: str(name)
)
def test_importing_needs_only_the_standard_library(module: str) -> None:
    code = (
        f"import sys, holdfast.guards.{module}\n"
        "new = {name.partition('.')[0] for name in sys.modules} - set(sys.stdlib_module_names) - {'holdfast'}\n"
        "print(*sorted(name for name in new if getattr(sys.modules.get(name), '__file__', None)))"
    )
    done = subprocess.run(
        [sys.executable, "-S", "-c", code],
        env={"PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "", "")


@pytest.mark.parametrize("module", ["outbox", "relay"])
def test_the_awaited_outbox_says_which_extra_it_needs(module: str) -> None:
    done = subprocess.run(
        [sys.executable, "-S", "-c", f"import holdfast.guards.aio.{module}"],
        env={"PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert 'pip install "holdfast[postgres-binary]"' in done.stderr
