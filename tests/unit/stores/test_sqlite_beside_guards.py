"""Leases and guarded tables live in one SQLite file, whichever was there first."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

import holdfast
from holdfast.errors import Misconfigured
from holdfast.guards.settings import sql


def test_a_file_that_had_guards_before_leases_takes_leases(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "app.db")) as connection:
        connection.execute(sql("ledger_sqlite"))
    with holdfast.connect(f"sqlite:///{tmp_path}/app.db") as locks, locks.lock("x", ttl=30) as lease:
        assert lease.held


def test_foreign_tables_under_our_name_are_still_refused(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "app.db")) as connection:
        connection.execute(sql("ledger_sqlite"))
        connection.execute("CREATE TABLE holdfast_guardian (x)")
    locks = holdfast.connect(f"sqlite:///{tmp_path}/app.db")
    with locks, pytest.raises(Misconfigured, match="holdfast_guardian"):
        locks.lock("x", ttl=30).acquire()
