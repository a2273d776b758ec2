"""Files with payloads, tokens and history belong to their owner alone, whatever the umask; sharing is a choice."""

from __future__ import annotations

import os
import sqlite3
import stat
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast
from holdfast.guards.records import SqliteRecord
from holdfast.observe.ledger.writer import Ledger
from holdfast.plane.db.migrations import prepare
from holdfast.plane.db.open import open_database
from holdfast.runtime.policy_switch import edit_policy_file
from holdfast.runtime.run_sync import run_now

pytestmark = pytest.mark.threat("X21")


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def modes(folder: Path) -> dict[str, int]:
    return {each.name: mode(each) for each in folder.iterdir() if not each.is_symlink()}


def write_ledger(folder: Path) -> None:
    with Ledger(folder) as ledger, holdfast.connect("memory://", observers=[ledger]) as locks, locks.lock("x"):
        pass


@pytest.fixture(params=[0o000, 0o022, 0o077], ids=oct)
def umask(request: pytest.FixtureRequest) -> Iterator[None]:
    before = os.umask(request.param)
    yield
    os.umask(before)


@pytest.mark.usefixtures("umask")
def test_a_lease_file_belongs_to_its_owner_alone(tmp_path: Path) -> None:
    (tmp_path / "link.db").symlink_to(tmp_path / "leases.db")  # to a file that is not there yet
    with holdfast.connect(f"sqlite:///{tmp_path}/link.db") as locks, locks.lock("x"):
        found = modes(tmp_path)
    assert found == dict.fromkeys(["leases.db", "leases.db-wal", "leases.db-shm"], 0o600)


@pytest.mark.asyncio
@pytest.mark.usefixtures("umask")
async def test_a_database_of_a_plane_belongs_to_its_owner_alone(tmp_path: Path) -> None:
    database = open_database(f"sqlite:///{tmp_path}/plane.db")
    try:
        await prepare(database)
        found = modes(tmp_path)
    finally:
        await database.close()
    assert found == dict.fromkeys(["plane.db", "plane.db-wal", "plane.db-shm"], 0o600)


@pytest.mark.usefixtures("umask")
def test_ledgers_fence_records_and_policies_belong_to_their_owner_alone(tmp_path: Path) -> None:
    write_ledger(tmp_path / "ledger")
    record = SqliteRecord(tmp_path / "fences.db")
    assert run_now(record.note("orders", "1", 7)) == 7
    record.close()
    edit_policy_file(tmp_path / "policy.toml", "money", "fail_closed")
    assert mode(tmp_path / "ledger") == 0o700
    assert {mode(each) for each in (tmp_path / "ledger").iterdir()} == {0o600}
    assert mode(tmp_path / "fences.db") == 0o600
    assert mode(tmp_path / "policy.toml") == 0o600


def test_a_file_that_was_made_to_be_shared_stays_shared(tmp_path: Path) -> None:
    path = tmp_path / "leases.db"
    path.touch()
    path.chmod(0o660)
    tmp_path.chmod(0o2775)
    with holdfast.connect(f"sqlite:///{path}") as locks, locks.lock("x"):  # a warning would fail the test
        assert {mode(each) for each in tmp_path.iterdir()} == {0o660}
    (tmp_path / "ledger").mkdir()
    (tmp_path / "ledger").chmod(0o2750)
    write_ledger(tmp_path / "ledger")
    assert {mode(each) for each in (tmp_path / "ledger").iterdir()} == {0o640}


def test_a_file_that_every_user_can_open_keeps_its_mode_and_is_warned_about_once(tmp_path: Path) -> None:
    path = tmp_path / "leases.db"
    sqlite3.connect(path).close()
    path.touch()
    path.chmod(0o644)
    tmp_path.chmod(0o755)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for _ in range(2):
            with holdfast.connect(f"sqlite:///{path}") as locks, locks.lock("x"):
                pass
    assert mode(path) == 0o644
    (only,) = told
    assert "mode 0644" in str(only.message)
    assert "chmod 600" in str(only.message)
