"""Rows that several columns name, on tables whose triggers hold every client to the fence: guard and trigger agree."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from holdfast.errors import FencedOut
from holdfast.guards.install import install
from holdfast.guards.postgres import GuardedTable as PostgresTable
from holdfast.guards.sqlite import GuardedTable as SqliteTable
from support.fixtures.guards import carried

TABLE = "CREATE TABLE invoices (tenant TEXT, nr BIGINT, total BIGINT, PRIMARY KEY (tenant, nr))"
IDS = ("tenant", "nr")
ROWS = [("acme", 7), ("Müller & Söhne", 7), ("日本", -1), ('a"b\\c', 2**40), ("tab\tnew\nline", 0)]


@pytest.mark.parametrize("row", ROWS, ids=repr)
def test_a_row_can_be_made_changed_deleted_and_is_remembered_on_sqlite(row: tuple[str, int], tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "app.db")) as data:
        data.execute(TABLE)
        install(data, "invoices", id=IDS, trigger="strict")
        table = SqliteTable(data, "invoices", id=IDS)
        table.insert(carried(2), row, {"total": 1})
        table.update(carried(2), row, {"total": 2})
        assert table.delete(carried(2), row)["total"] == 2
        with pytest.raises(FencedOut):
            table.insert(carried(1), row, {"total": 1})
        with pytest.raises(sqlite3.IntegrityError, match="HF001"):
            data.execute("INSERT INTO invoices VALUES (?, ?, 9, 1)", row)
        data.rollback()


@pytest.mark.parametrize("row", ROWS, ids=repr)
def test_a_row_can_be_made_changed_deleted_and_is_remembered_on_postgres(
    row: tuple[str, int], postgres_url: str
) -> None:
    with psycopg.connect(postgres_url, autocommit=True) as data:
        data.execute(TABLE)
        install(data, "invoices", id=IDS, trigger="strict")
        table = PostgresTable(data, "invoices", id=IDS)
        table.insert(carried(2), row, {"total": 1})
        table.update(carried(2), row, {"total": 2})
        assert table.delete(carried(2), row)["total"] == 2
        with pytest.raises(FencedOut):
            table.insert(carried(1), row, {"total": 1})
        with pytest.raises(psycopg.Error) as refused:
            data.execute("INSERT INTO invoices VALUES (%s, %s, 9, 1)", row)
        assert refused.value.sqlstate == "HF001"
