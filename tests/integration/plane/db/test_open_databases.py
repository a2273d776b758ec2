"""URLs of the plane's databases, and the tables that are prepared in them."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import pytest

from holdfast.errors import BadInput, Misconfigured, Unavailable
from holdfast.plane.db.migrations import prepare
from holdfast.plane.db.open import open_database
from holdfast.plane.db.ports import Database
from holdfast.plane.db.postgres.database import PostgresDatabase
from holdfast.plane.db.sqlite.database import SqliteDatabase
from holdfast.types import NS

FIRST = "-- Contract: a test.\nCREATE TABLE plane_a (x TEXT DEFAULT ';');\nINSERT INTO plane_a (x) VALUES ('1');"
SECOND = "ALTER TABLE plane_a ADD COLUMN y TEXT; UPDATE plane_a SET y = x"


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("", "no scheme"),
        ("plane.db", "no scheme"),
        (None, "not a URL"),
        (b"sqlite:///x", "not a URL"),
        ("redis://x", "is not a database of the plane"),
        ("sqlite://", "does not name a file"),
        ("sqlite://host/x.db", "does not name a file"),
        ("sqlite:///", "does not name a file"),
        ("sqlite:///dir/", "does not name a file"),
        ("sqlite:///a%00b", "does not name a file"),
        ("sqlite:///:memory:", "other processes"),
        ("sqlite:///x.db?mode=ro", "'mode' is not an option"),
        ("sqlite:///x.db?synchronous=off", "not a way to commit"),
        ("sqlite:///x.db?synchronous=full&synchronous=full", "twice"),
        ("sqlite:///x.db?busy_timeout=soon", "not a length of time"),
        ("sqlite:///x.db?busy_timeout=-1", "busy_timeout: -1 s is out of range"),
        ("sqlite:///x.db?busy_timeout=nan", "busy_timeout"),
        ("postgresql://h/d?pool_max=0", "out of range"),
        ("postgresql://h/d?pool_max=many", "out of range"),
        ("postgresql://h/d?pool_timeout=x", "not a length of time"),
        ("postgresql://h/d?what=1", "not understood"),
        ("postgresql://u:secret@h:port/d?what=1", "not understood"),
        ("sqlite:///x\0.db", "zero byte"),
    ],
)
def test_urls_that_cannot_be_right_are_refused_with_a_reason(url: str, problem: str) -> None:
    with pytest.raises(BadInput, match=problem) as caught:
        open_database(url)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("scheme", ["postgresql", "postgres", "PostgreSQL", "postgresql+psycopg"])
def test_every_spelling_of_postgres_is_understood(scheme: str) -> None:
    url = f"{scheme}://u:p@h:1/d?pool_max=3&sslmode=disable&pool_timeout=2.5"

    assert isinstance(open_database(url), PostgresDatabase)


def test_a_path_may_be_relative_absolute_or_escaped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for url, path in (
        ("sqlite:///a.db", tmp_path / "a.db"),
        (f"SQLite:///{tmp_path}/b.db?busy_timeout=1", tmp_path / "b.db"),
        ("sqlite:///with%20space%3F.db", tmp_path / "with space?.db"),
    ):
        database = open_database(url)
        assert isinstance(database, SqliteDatabase)
        assert database.path == str(path)
        assert not path.exists()


@pytest.mark.asyncio
async def test_a_name_full_of_signs_is_still_one_file(tmp_path: Path) -> None:
    database = SqliteDatabase(str(tmp_path / "a b?c#d%20&e=f.db"))
    await database.write(lambda tx: tx.query("CREATE TABLE t (x)"))
    await database.read(lambda tx: tx.query("SELECT x FROM t"))
    await database.close()

    assert os.listdir(tmp_path) == ["a b?c#d%20&e=f.db"]  # noqa: PTH208 - in a coroutine


@pytest.mark.parametrize("driver", ["psycopg", "psycopg_pool"])
def test_a_missing_driver_names_the_extra(monkeypatch: pytest.MonkeyPatch, driver: str) -> None:
    for name in [each for each in sys.modules if each.startswith("holdfast.plane.db.postgres")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, driver, None)

    with pytest.raises(Misconfigured, match=r'pip install "holdfast\[postgres-binary\]"'):
        open_database("postgresql://h/d")


async def columns(database: Database) -> list[str]:
    rows = await database.read(lambda tx: tx.query("SELECT * FROM plane_a"))
    return [*rows[0]]


@pytest.mark.asyncio
async def test_tables_are_made_once_and_brought_up_to_date_step_by_step(database: Database) -> None:
    assert await prepare(database, "a", text=FIRST) is True
    assert await prepare(database, "a", text=FIRST) is False
    assert await columns(database) == ["x"]

    assert await prepare(database, "a", text=FIRST, version=2, migrations={1: SECOND}) is True
    assert await columns(database) == ["x", "y"]
    assert await prepare(database, "a", text=FIRST, version=2, migrations={1: SECOND}) is False


@pytest.mark.asyncio
async def test_a_newer_version_is_left_alone(database: Database) -> None:
    await prepare(database, "a", text=FIRST, version=3)

    with pytest.raises(Misconfigured, match="version 3 of a, made by a newer Holdfast"):
        await prepare(database, "a", text=FIRST, version=2)
    with pytest.raises(Misconfigured, match="a version in between"):
        await prepare(database, "a", text=FIRST, version=5, migrations={4: SECOND})
    assert await columns(database) == ["x"]


@pytest.mark.asyncio
async def test_a_script_that_fails_leaves_nothing_behind(database: Database) -> None:
    with pytest.raises(Misconfigured):
        await prepare(database, "a", text=f"{FIRST}; CREATE NONSENSE;")

    assert await prepare(database, "a", text=FIRST) is True


@pytest.mark.asyncio
@pytest.mark.parametrize("table", ["plane_job", "plane_meta"])
async def test_tables_of_somebody_else_are_left_alone(database: Database, table: str) -> None:
    await database.write(lambda tx: tx.query(f"CREATE TABLE {table} (other TEXT)"))

    with pytest.raises(Misconfigured, match=f"not Holdfast's \\({table}\\)"):
        await prepare(database, "a", text=FIRST)


@pytest.mark.asyncio
async def test_several_that_start_at_once_make_the_tables_once(database: Database, plane_url: str) -> None:
    others = [open_database(plane_url) for _ in range(4)]
    made = await asyncio.gather(*(prepare(each, "a", text=FIRST) for each in others))

    assert sorted(made) == [False, False, False, True]
    assert len(await database.read(lambda tx: tx.query("SELECT x FROM plane_a"))) == 1
    await asyncio.gather(*(each.close() for each in others))


@pytest.mark.asyncio
async def test_the_planes_own_tables_can_be_made_on_both_engines(database: Database) -> None:
    assert await prepare(database) is True
    assert await prepare(database) is False
    assert await database.read(lambda tx: tx.query("SELECT id FROM plane_job")) == []


@pytest.mark.asyncio
async def test_two_schemas_live_side_by_side(database: Database) -> None:
    await prepare(database, "a", text=FIRST)
    await prepare(database, "b", text="CREATE TABLE plane_b (x TEXT)")

    assert await prepare(database, "a", text=FIRST) is False
    with pytest.raises(BadInput, match="no script"):
        await prepare(database, "missing")
    with pytest.raises(BadInput, match="name"):
        await prepare(database, "../etc")


@pytest.mark.asyncio
async def test_a_server_that_is_not_there_is_unavailable_without_the_password() -> None:
    base = PostgresDatabase("postgresql://u:se%20cret@127.0.0.1:1/x", pool_timeout_ns=2 * NS)

    with pytest.raises(Unavailable, match="cannot be reached") as caught:
        await base.write(lambda tx: tx.query("SELECT 1"))
    assert "cret" not in str(caught.value)
    await base.close()


def test_a_pool_that_cannot_be_is_refused() -> None:
    with pytest.raises(BadInput, match="pool_max"):
        PostgresDatabase("postgresql://x/y", pool_max=0)
    with pytest.raises(BadInput, match="url") as caught:
        PostgresDatabase("postgresql://u:secret@x/y?no_such_option=1")
    assert "secret" not in str(caught.value)
