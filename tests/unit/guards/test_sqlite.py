"""A guarded table through sqlite3: refusals, transactions of the caller, missing rows, names, and ids of all shapes."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Literal
from uuid import UUID

import pytest

import holdfast
from holdfast.errors import BadInput, Closed, FencedOut, LeaseLost, Misconfigured, NotEntered, RowExists, RowMissing
from holdfast.guards import CarriedFence, Fenced
from holdfast.guards.admission import GuardStatistics
from holdfast.guards.settings import sql
from holdfast.guards.sqlite import GuardedTable
from support.fixtures.guards import carried

A, B = carried(1), carried(2)


def prepared(path: Path | str, ids: str = "id INTEGER PRIMARY KEY", **settings: Any) -> sqlite3.Connection:
    connection: sqlite3.Connection = sqlite3.connect(path, **settings)
    connection.execute(f"CREATE TABLE IF NOT EXISTS invoices (total INTEGER, note TEXT, holdfast_fence INTEGER, {ids})")
    connection.execute(sql("ledger_sqlite"))
    connection.commit()
    return connection


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "app.db"


@pytest.fixture
def data(path: Path) -> Iterator[sqlite3.Connection]:
    with closing(prepared(path)) as connection:
        yield connection


@pytest.fixture
def table(data: sqlite3.Connection) -> GuardedTable[Fenced]:
    return GuardedTable(data, "invoices")


def content(data: sqlite3.Connection) -> list[Any]:
    """Everything that a refused step must leave alone."""
    rows = data.execute("SELECT id, total, holdfast_fence FROM invoices ORDER BY id").fetchall()
    return rows + data.execute("SELECT place, resource, fence FROM holdfast_guard_fence ORDER BY 1, 2").fetchall()


@pytest.mark.requires("R58", "R47")
def test_writes_are_accepted_in_order_and_again_under_the_same_fence(table: GuardedTable[Fenced]) -> None:
    table.insert(A, 42, {"total": 1})
    table.update(A, 42, {"total": 2})
    table.update(A, 42, {"total": 3})
    assert table.update(B, 42, {"total": 4}) == {"id": 42, "total": 4, "note": None, "holdfast_fence": 2}
    assert table.seen(42) == 2


@pytest.mark.requires("R58", "R65")
@pytest.mark.parametrize("step", ["enter", "insert", "update", "upsert", "delete"])
def test_a_lower_fence_is_refused_and_changes_nothing(
    table: GuardedTable[Fenced], data: sqlite3.Connection, step: str
) -> None:
    table.insert(B, 42, {"total": 1})
    before = content(data)
    values = () if step in {"enter", "delete"} else ({"total": 9},)
    with pytest.raises(FencedOut) as refused:
        getattr(table, step)(A, 42, *values)
    assert (refused.value.fence, refused.value.seen, refused.value.resource) == (1, 2, "invoices 42")
    assert content(data) == before
    assert table.statistics() == GuardStatistics(accepted=1, refused=1)


@pytest.mark.requires("R69", "R71")
def test_nothing_can_come_between_the_read_of_a_section_and_its_write(table: GuardedTable[Fenced]) -> None:
    table.insert(A, 42, {"total": 100})
    with table.section(A, 42) as late, table.section(B, 42) as row:
        with pytest.raises(FencedOut):
            late.update(total=late["total"] + 1)
        row.update(total=row["total"] + 10)
        assert row["total"] == 110
    assert table.statistics().refused == 1


def test_a_write_only_check_would_lose_an_acknowledged_update_here(
    table: GuardedTable[Fenced], data: sqlite3.Connection
) -> None:
    """What sections are for: the same steps without one. B's read is not registered, so A's late write is accepted."""
    table.insert(A, 42, {"total": 100})
    ((read_by_b,),) = data.execute("SELECT total FROM invoices WHERE id = 42").fetchall()
    assert table.update(A, 42, {"total": 101})["total"] == 101, "acknowledged"
    assert table.update(B, 42, {"total": read_by_b + 10})["total"] == 110, "and gone: with it, it would be 111"


def test_a_missing_row_is_told_apart_from_a_stale_writer(table: GuardedTable[Fenced]) -> None:
    with pytest.raises(RowMissing):
        table.update(A, 42, {"total": 1})
    with pytest.raises(RowMissing):
        table.delete(A, 42)
    table.insert(B, 42, {"total": 1})
    with pytest.raises(RowExists):
        table.insert(B, 42, {"total": 2})
    table.delete(B, 42)
    with pytest.raises(FencedOut):
        table.update(A, 42, {"total": 1})
    with pytest.raises(RowMissing):
        table.update(B, 42, {"total": 1})


def test_entering_a_row_that_does_not_exist_keeps_older_holders_from_making_it(table: GuardedTable[Fenced]) -> None:
    with table.section(B, 42) as row:
        assert not row
        assert not row.exists
        with pytest.raises(RowMissing):
            row["total"]
        with pytest.raises(FencedOut):
            table.insert(A, 42, {"total": 1})
        with pytest.raises(FencedOut):
            table.upsert(A, 42, {"total": 1})
        row.insert(total=2)
        assert row["total"] == 2
        row.delete()
        assert not row.exists
        row.upsert(total=3)
        assert dict(row) == {"id": 42, "total": 3, "note": None, "holdfast_fence": 2}


def test_deleting_leaves_a_memory_so_that_nothing_old_comes_back(
    table: GuardedTable[Fenced], data: sqlite3.Connection
) -> None:
    table.insert(B, 42, {"total": 1})
    assert table.delete(B, 42)["total"] == 1
    for step in (table.insert, table.upsert):
        with pytest.raises(FencedOut) as refused:
            step(A, 42, {"total": 9})
        assert refused.value.seen == 2
    assert table.seen(42) == 2
    table.insert(B, 42, {"total": 5})
    assert content(data) == [(42, 5, 2)], "the memory is given up when the row can carry its fence again"


def test_a_section_ends_with_its_block(table: GuardedTable[Fenced]) -> None:
    with table.section(A, 42) as row:
        row.insert(total=1)
    assert row["total"] == 1
    for step in (row.update, row.insert, row.upsert):
        with pytest.raises(Closed, match="section on invoices 42 is over"):
            step(total=2)
    with pytest.raises(Closed):
        row.delete()


def test_the_registration_and_its_loss_follow_the_callers_transaction(path: Path) -> None:
    """Entered, read, rolled back: an older writer may come in between, so a write from that read is refused."""
    with closing(prepared(path)) as mine, closing(prepared(path)) as other:
        GuardedTable(other, "invoices").insert(A, 42, {"total": 100})
        table = GuardedTable(mine, "invoices")
        mine.execute("BEGIN")
        with table.section(B, 42) as row:
            mine.execute("ROLLBACK")
            assert GuardedTable(other, "invoices").update(A, 42, {"total": 101})["total"] == 101
            with pytest.raises(NotEntered) as refused:
                row.update(total=row["total"] + 10)
            assert (refused.value.fence, refused.value.seen) == (2, 1)
        assert table.enter(B, 42) == {"id": 42, "total": 101, "note": None, "holdfast_fence": 2}


@pytest.mark.parametrize("made", [True, False], ids=["a row", "no row"])
def test_a_step_in_the_callers_transaction_is_undone_with_it(path: Path, made: bool) -> None:
    with closing(prepared(path)) as mine:
        table = GuardedTable(mine, "invoices")
        if made:
            table.insert(A, 42, {"total": 100})
        before = content(mine)
        mine.execute("BEGIN")
        table.upsert(B, 42, {"total": 5})
        with pytest.raises(FencedOut):
            table.upsert(A, 42, {"total": 6})
        assert mine.in_transaction, "a refusal ends no transaction of the caller's"
        mine.execute("ROLLBACK")
        assert content(mine) == before


@pytest.mark.parametrize("level", ["", None, "IMMEDIATE"])
def test_every_step_is_committed_alone_when_the_caller_has_no_transaction_open(
    path: Path, level: Literal["IMMEDIATE", ""] | None
) -> None:
    with closing(prepared(path, isolation_level=level)) as mine, closing(prepared(path)) as other:
        table = GuardedTable(mine, "invoices")
        table.insert(A, 42, {"total": 1})
        table.enter(B, 42)
        with pytest.raises(FencedOut):
            table.update(A, 42, {"total": 2})
        assert not mine.in_transaction
        assert content(other) == [(42, 1, 2)]


def test_another_writer_is_waited_for_as_long_as_the_connection_says_and_then_nothing_has_happened(path: Path) -> None:
    with closing(prepared(path, timeout=0.05)) as mine, closing(prepared(path)) as other:
        table = GuardedTable(mine, "invoices")
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            table.insert(A, 42, {"total": 1})
        other.execute("ROLLBACK")
        assert not mine.in_transaction
        assert content(mine) == []


def test_the_callers_row_factory_does_not_matter(data: sqlite3.Connection) -> None:
    data.row_factory = sqlite3.Row
    table = GuardedTable(data, "invoices")
    assert table.upsert(A, 42, {"total": 1}) == {"id": 42, "total": 1, "note": None, "holdfast_fence": 1}
    assert data.row_factory is sqlite3.Row


@pytest.mark.parametrize(
    ("ids", "column", "row"),
    [
        ("id TEXT PRIMARY KEY", "id", "run:7/ä ' \" ;--"),
        ("id TEXT PRIMARY KEY", "id", UUID(int=7)),
        ("tenant TEXT, nr INTEGER, PRIMARY KEY (tenant, nr)", ("tenant", "nr"), ("acme", 7)),
    ],
)
def test_ids_may_be_text_or_several_columns(path: Path, ids: str, column: Any, row: Any) -> None:
    with closing(prepared(path, ids)) as data:
        table = GuardedTable(data, "invoices", id=column)
        with table.section(B, row) as entered:
            entered.insert(total=1)
        table.delete(B, row)
        with pytest.raises(FencedOut):
            table.insert(A, row, {"total": 1})
        table.upsert(B, row, {"total": 2})
        assert table.seen(row) == 2


@pytest.mark.parametrize("wrong", [None, True, 1.5, b"x", ["x"], ("a", "b"), (), "a\0b", {"id": 1}])
def test_what_cannot_be_an_id_is_refused(table: GuardedTable[Fenced], wrong: Any) -> None:
    with pytest.raises(BadInput, match=r"^row_id: "):
        table.update(A, wrong, {"total": 1})


@pytest.mark.parametrize(
    "wrong", ['invoices"; DROP TABLE invoices; --', "", "a b", "1st", "a.b.c", "x" * 64, None, 7, "naïve-", "per%cent"]
)
def test_names_that_would_need_escaping_are_refused_and_never_pasted(data: sqlite3.Connection, wrong: Any) -> None:
    with pytest.raises(BadInput, match=r"^table: "):
        GuardedTable(data, wrong)
    for field in ("id", "fence_column", "updated_column"):
        if wrong is not None:
            with pytest.raises(BadInput, match=field):
                GuardedTable(data, "invoices", **{field: wrong})
    with pytest.raises(BadInput, match=r"^values: "):
        GuardedTable(data, "invoices").update(A, 42, {wrong: 1})
    assert content(data) == []


def test_words_that_sql_reserves_are_ordinary_names(path: Path) -> None:
    with closing(sqlite3.connect(path)) as data:
        data.execute('CREATE TABLE "order" ("group" INTEGER PRIMARY KEY, "select" TEXT, "where" INTEGER)')
        data.execute(sql("ledger_sqlite"))
        table = GuardedTable(data, "order", id="group", fence_column="where")
        assert table.upsert(A, 1, {"select": "x"}) == {"group": 1, "select": "x", "where": 1}


@pytest.mark.parametrize("values", [{"id": 1}, {"holdfast_fence": 9}, {}, [("total", 1)], None, "total=1"])
def test_columns_that_the_guard_keeps_cannot_be_set_by_hand(table: GuardedTable[Fenced], values: Any) -> None:
    with pytest.raises(BadInput, match=r"^values: "):
        table.upsert(A, 42, values)


@pytest.mark.requires("R58")
def test_payload_fence_and_update_time_are_stored_together(path: Path) -> None:
    with closing(prepared(path)) as data:
        data.execute("ALTER TABLE invoices ADD COLUMN changed TEXT")
        table = GuardedTable(data, "invoices", updated_column="changed")
        first = table.insert(A, 42, {"total": 1})
        assert first["changed"] is not None
        data.execute("UPDATE invoices SET changed = NULL")
        data.commit()
        table.enter(A, 42)
        assert data.execute("SELECT changed FROM invoices").fetchone() == (None,), "a read is not an update"
        assert table.update(A, 42, {"total": 2})["changed"] is not None


def test_a_table_that_was_not_prepared_says_how_to_prepare_it(path: Path) -> None:
    with closing(sqlite3.connect(path)) as data:
        data.execute("CREATE TABLE invoices (id INTEGER PRIMARY KEY, total INTEGER)")
        for step in (GuardedTable(data, "invoices").upsert, GuardedTable(data, "invoices").insert):
            with pytest.raises(Misconfigured, match="holdfast guard install invoices"):
                step(A, 42, {"total": 1})
        data.execute("ALTER TABLE invoices ADD COLUMN holdfast_fence INTEGER")
        with pytest.raises(Misconfigured, match=r"holdfast_guard_fence.*holdfast guard install invoices"):
            GuardedTable(data, "invoices").insert(A, 42, {"total": 1})
        with pytest.raises(sqlite3.OperationalError, match="no such table: other"):
            GuardedTable(data, "other").update(A, 42, {"total": 1})


def test_what_is_no_connection_is_refused() -> None:
    with pytest.raises(BadInput, match=r"^connection: str is not a connection"):
        GuardedTable("app.db", "invoices")  # type: ignore[call-overload]  # on purpose


def test_a_setting_that_does_not_exist_is_refused(data: sqlite3.Connection) -> None:
    with pytest.raises(BadInput, match=r"^idd: is not a setting.* id, key,"):
        GuardedTable(data, "invoices", idd="id")  # type: ignore[call-overload]  # on purpose


def test_rows_belong_to_the_lock_that_the_guard_names(data: sqlite3.Connection) -> None:
    table = GuardedTable(data, "invoices", key="invoice:{id}")
    table.insert(A, 42, {"total": 1})
    with pytest.raises(BadInput, match="hold 'invoice:43'"):
        table.insert(A, 43, {"total": 1})


@pytest.mark.requires("R29")
def test_a_lease_that_was_lost_writes_nothing_and_hears_of_its_successor(
    table: GuardedTable[Fenced], data: sqlite3.Connection, lease: holdfast.Lease
) -> None:
    table.insert(lease, 42, {"total": 1})
    lease.release()
    with pytest.raises(LeaseLost):
        table.update(lease, 42, {"total": 2})
    table.update(CarriedFence("invoice:42", lease.fence + 1), 42, {"total": 3})
    with pytest.raises(FencedOut) as refused:
        table.update(lease, 42, {"total": 4})
    assert refused.value.seen == lease.fence + 1
    assert content(data) == [(42, 3, lease.fence + 1)]
    assert table.statistics() == GuardStatistics(accepted=2, lost=1, refused=1)


@pytest.mark.requires("R44")
def test_a_degraded_lease_that_is_allowed_leaves_the_fence_alone_and_is_counted(
    data: sqlite3.Connection, degraded: holdfast.DegradedLease
) -> None:
    table = GuardedTable(data, "invoices", allow_degraded=True)
    table.insert(B, 42, {"total": 1})
    assert table.update(degraded, 42, {"total": 2})["holdfast_fence"] == 2
    with table.section(degraded, 42) as row:
        row.update(total=3)
        row.delete()
    with pytest.raises(FencedOut):
        table.insert(A, 42, {"total": 9})
    assert table.seen(42) == 2, "also across a delete"
    assert table.statistics().unfenced == 4
