"""The guard kit on messages that are handed on to a table, and on the outbox."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from functools import partial
from pathlib import Path

import psycopg
import pytest

from holdfast.guards.conformance import Check, checks_for, run_check
from holdfast.guards.outbox import prepare
from support.guards.subjects_messages import open_message, open_outbox


@pytest.mark.requires("R28", "R29", "R34", "R47")
@pytest.mark.parametrize("check", checks_for(deletes=True, processes=False), ids=str)
def test_messages_that_are_handed_on_to_a_table_keep_the_contract(check: Check, tmp_path: Path) -> None:
    run_check(check, partial(open_message, str(tmp_path)))
    assert (tmp_path / "fences.db").exists()


@pytest.mark.requires("R28", "R29", "R34", "R47")
@pytest.mark.parametrize("check", checks_for(deletes=False), ids=str)
def test_the_outbox_in_sqlite_keeps_the_contract(check: Check, tmp_path: Path) -> None:
    path = str(tmp_path / "app.db")
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        prepare(connection)
    run_check(check, partial(open_outbox, path))
    assert Path(path).exists()


@pytest.mark.requires("R28", "R29", "R34", "R47")
@pytest.mark.parametrize("check", checks_for(deletes=False, processes=False), ids=str)
def test_the_outbox_in_postgres_keeps_the_contract(check: Check, postgres_url: str) -> None:
    with psycopg.connect(postgres_url) as connection:
        prepare(connection)
    run_check(check, partial(open_outbox, postgres_url))
    assert postgres_url
