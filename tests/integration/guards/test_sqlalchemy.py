"""Guarded tables through SQLAlchemy Core: refusals, transactions, types and names, on a SQLite file and on Postgres."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import UTC, datetime
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.dialects import mysql
from sqlalchemy.exc import IntegrityError, OperationalError
from sqlalchemy.orm import Session

import holdfast
from holdfast.errors import BadInput, FencedOut, LeaseLost, Misconfigured, NotEntered, RowExists, RowMissing
from holdfast.guards import GuardStatistics
from holdfast.guards.sqlalchemy import GuardedTable, fence_column, ledger_table
from holdfast.guards.sqlalchemy.schema import check_dialect
from support.fixtures.guards import carried
from support.guards.subjects_sqlalchemy import KitRow, prepare

A, B = carried(1), carried(2)

Connect = Callable[[], sa.Connection]


class Colour(enum.Enum):
    RED = "r"
    BLUE = "b"


class Reversed(sa.TypeDecorator[str]):
    """A type that stores something else than it shows."""

    impl = sa.Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: sa.Dialect) -> str | None:
        return None if value is None else value[::-1]

    def process_result_value(self, value: Any, dialect: sa.Dialect) -> str | None:
        return None if value is None else str(value)[::-1]


METADATA = sa.MetaData()
INVOICES = sa.Table(
    "invoices",
    METADATA,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("total", sa.Integer),
    sa.Column("colour", sa.Enum(Colour)),
    sa.Column("data", sa.JSON),
    sa.Column("due", sa.DateTime(timezone=True)),
    sa.Column("code name", Reversed, key="code"),
    sa.Column("version", sa.Integer, default=1, onupdate=lambda context: 7),
    sa.Column("changed", sa.DateTime),
    fence_column(),
)
LINES = sa.Table(
    "lines",
    METADATA,
    sa.Column("tenant", sa.Text, primary_key=True),
    sa.Column("nr", sa.Integer, primary_key=True),
    sa.Column("total", sa.Integer),
    fence_column("fence"),
)
LEDGER = ledger_table(METADATA)


@pytest.fixture
def connect(database_url: str, impatient_engine: sa.Engine) -> Iterator[Connect]:
    """Opens connections to the test's database, which do not wait for locks; all are closed at the end."""
    prepare(database_url, METADATA)
    with ExitStack() as stack:
        yield lambda: stack.enter_context(impatient_engine.connect())


@pytest.fixture
def data(connect: Connect) -> sa.Connection:
    return connect()


def content(connection: sa.Connection) -> list[Any]:
    """Everything that a refused step must leave alone."""
    rows = connection.execute(sa.select(INVOICES.c.id, INVOICES.c.total, INVOICES.c.holdfast_fence)).all()
    noted = connection.execute(sa.select(LEDGER.c.place, LEDGER.c.resource, LEDGER.c.fence)).all()
    return [tuple(row) for row in [*rows, *noted]]


@pytest.mark.requires("R58", "R47")
def test_writes_are_accepted_in_order_and_again_under_the_same_fence(data: sa.Connection) -> None:
    table = GuardedTable(data, INVOICES)
    table.insert(A, 42, {"total": 1})
    table.update(A, 42, {"total": 2})
    table.upsert(A, 42, {"total": 3})
    found = table.update(B, 42, {"total": 4})
    assert (found["id"], found["total"], found["holdfast_fence"], table.seen(42)) == (42, 4, 2, 2)


@pytest.mark.requires("R58", "R65")
@pytest.mark.parametrize("step", ["enter", "insert", "update", "upsert", "delete"])
def test_a_lower_fence_is_refused_and_changes_nothing(data: sa.Connection, step: str) -> None:
    table = GuardedTable(data, INVOICES)
    table.insert(B, 42, {"total": 1})
    before = content(data)
    with pytest.raises(FencedOut) as refused:
        getattr(table, step)(A, 42, *([] if step in {"enter", "delete"} else [{"total": 9}]))
    assert (refused.value.fence, refused.value.seen, refused.value.resource) == (1, 2, "invoices 42")
    assert content(data) == before
    assert table.statistics() == GuardStatistics(accepted=1, refused=1)


@pytest.mark.requires("R69", "R71")
def test_nothing_can_come_between_the_read_of_a_section_and_its_write(connect: Connect) -> None:
    mine, other = connect(), connect()
    with mine.begin():
        GuardedTable(mine, INVOICES).insert(A, 42, {"total": 100})
    with GuardedTable(mine, INVOICES).section(A, 42) as late:
        mine.commit()
        with other.begin(), GuardedTable(other, INVOICES).section(B, 42) as row:
            row.update(total=row["total"] + 10)
        with pytest.raises(FencedOut) as refused:
            late.update(total=late["total"] + 1)
        assert refused.value.seen == 2
        mine.rollback()
    assert content(mine) == [(42, 110, 2)]


@pytest.mark.parametrize("made", [True, False], ids=["a row", "no row"])
def test_until_the_registration_is_committed_no_holder_overtakes(connect: Connect, made: bool) -> None:
    mine, other = connect(), connect()
    if made:
        with mine.begin():
            GuardedTable(mine, INVOICES).insert(A, 42, {"total": 100})
    with GuardedTable(mine, INVOICES).section(A, 42) as row:
        with pytest.raises(OperationalError, match=r"lock"), other.begin():
            GuardedTable(other, INVOICES).enter(B, 42)
        row.upsert(total=101)
        mine.commit()
    with other.begin():
        found = GuardedTable(other, INVOICES).enter(B, 42)
        assert found is not None
        assert found["total"] == 101


@pytest.mark.parametrize("made", [True, False], ids=["a row", "no row"])
def test_a_registration_that_was_rolled_back_is_found_by_the_next_write(connect: Connect, made: bool) -> None:
    mine, other = connect(), connect()
    if made:
        with other.begin():
            GuardedTable(other, INVOICES).insert(A, 42, {"total": 100})
    table = GuardedTable(mine, INVOICES)
    with table.section(B, 42) as row:
        mine.rollback()
        with other.begin():
            GuardedTable(other, INVOICES).upsert(A, 42, {"total": 101})
        with pytest.raises(NotEntered) as refused:
            row.upsert(total=110)
        assert (refused.value.fence, refused.value.seen) == (2, 1)
        mine.rollback()
    found = table.enter(B, 42)
    assert found is not None
    assert found["total"] == 101


def test_a_refused_step_ends_no_transaction_of_the_callers_and_is_undone_with_it(connect: Connect) -> None:
    mine = connect()
    table = GuardedTable(mine, INVOICES)
    transaction = mine.begin()
    table.insert(B, 42, {"total": 1})
    with pytest.raises(FencedOut):
        table.insert(A, 42, {"total": 2})
    with pytest.raises(RowExists):
        table.insert(B, 42, {"total": 2})
    with pytest.raises(IntegrityError), mine.begin_nested():
        mine.execute(sa.insert(INVOICES).values(id=42))
    table.delete(B, 42)
    assert content(mine) == [("invoices", "42", 2)]
    transaction.rollback()
    assert content(mine) == []


def test_the_guard_never_commits(connect: Connect) -> None:
    mine, other = connect(), connect()
    GuardedTable(mine, INVOICES).insert(A, 42, {"total": 1})
    GuardedTable(mine, INVOICES).enter(A, 43)
    assert mine.in_transaction()
    assert content(other) == []
    mine.commit()
    assert sorted(content(other), key=str) == [("invoices", "43", 1), (42, 1, 1)]


def test_a_missing_row_is_told_apart_from_a_stale_writer(data: sa.Connection) -> None:
    table = GuardedTable(data, INVOICES)
    with pytest.raises(RowMissing):
        table.update(A, 42, {"total": 1})
    with pytest.raises(RowMissing):
        table.delete(A, 42)
    table.insert(B, 42, {"total": 1})
    with pytest.raises(RowExists):
        table.insert(B, 42, {"total": 2})
    assert table.delete(B, 42)["total"] == 1
    for step in (table.update, table.insert, table.upsert):
        with pytest.raises(FencedOut) as refused:
            step(A, 42, {"total": 1})
        assert refused.value.seen == 2
    with pytest.raises(RowMissing):
        table.update(B, 42, {"total": 1})
    table.insert(B, 42, {"total": 5})
    assert content(data) == [(42, 5, 2)], "the memory is given up when the row can carry its fence again"


def test_the_types_of_the_columns_are_applied_both_ways(data: sa.Connection) -> None:
    table = GuardedTable(data, INVOICES)
    due = datetime(2026, 2, 3, 4, 5, 6, tzinfo=UTC)
    values = {"colour": Colour.BLUE, "data": {"a": [1, None]}, "due": due, "code": "abc", "total": None}
    made = table.insert(A, 42, values)
    with table.section(A, 42) as row:
        row.update(colour=Colour.RED, data=[*row["data"], "ä"])
        written = dict(row)
    if data.dialect.name == "sqlite":  # which keeps no zone
        values["due"] = due.replace(tzinfo=None)
    assert {name: made[name] for name in values} == values
    assert (written["colour"], written["data"], written["code"]) == (Colour.RED, ["a", "ä"], "abc")
    assert data.execute(sa.text('SELECT "code name" FROM invoices')).scalar() == "cba"


def test_a_write_applies_the_defaults_of_the_table_and_entering_does_not(data: sa.Connection) -> None:
    table = GuardedTable(data, INVOICES, updated_column="changed")
    assert table.insert(A, 42, {"total": 1})["version"] == 1
    data.execute(sa.update(INVOICES).values(changed=None, version=3))
    entered = table.enter(B, 42)
    assert entered is not None
    assert (entered["version"], entered["changed"], entered["holdfast_fence"]) == (3, None, 2)
    written = table.update(B, 42, {"total": 2})
    assert written["version"] == 7
    assert isinstance(written["changed"], datetime)


def test_ids_may_have_several_columns_and_the_fence_another_name(data: sa.Connection) -> None:
    table = GuardedTable(data, LINES, fence_column="fence", key="line:{tenant}:{nr}")
    a, b = carried(1, "line:acme:7"), carried(2, "line:acme:7")
    with table.section(b, ("acme", 7)) as row:
        row.insert(total=1)
    table.delete(b, ("acme", 7))
    with pytest.raises(FencedOut):
        table.upsert(a, ("acme", 7), {"total": 1})
    assert table.upsert(b, ("acme", 7), {"total": 2}) == {"tenant": "acme", "nr": 7, "total": 2, "fence": 2}
    with pytest.raises(BadInput, match="hold 'line:acme:8'"):
        table.enter(a, ("acme", 8))


def test_a_session_is_as_good_as_a_connection_and_a_class_as_its_table(connect: Connect) -> None:
    mine = connect()
    KitRow.metadata.create_all(mine)
    mine.commit()
    with Session(mine) as session:
        table = GuardedTable(session, KitRow)
        table.insert(B, "x", {"value": "v"})
        assert session.get_one(KitRow, "x").holdfast_fence == 2
        session.rollback()
        assert table.seen("x") is None


@pytest.mark.requires("R29")
def test_a_lease_that_was_lost_writes_nothing_and_hears_of_its_successor(
    data: sa.Connection, lease: holdfast.Lease
) -> None:
    table = GuardedTable(data, INVOICES)
    table.insert(lease, 42, {"total": 1})
    lease.release()
    with pytest.raises(LeaseLost):
        table.update(lease, 42, {"total": 2})
    table.update(carried(lease.fence + 1), 42, {"total": 3})
    with pytest.raises(FencedOut) as refused:
        table.update(lease, 42, {"total": 4})
    assert refused.value.seen == lease.fence + 1
    assert table.statistics() == GuardStatistics(accepted=2, lost=1, refused=1)


@pytest.mark.requires("R44")
def test_a_degraded_lease_that_is_allowed_leaves_the_fence_alone_and_is_counted(
    data: sa.Connection, degraded: holdfast.DegradedLease
) -> None:
    table = GuardedTable(data, INVOICES, allow_degraded=True)
    table.insert(B, 42, {"total": 1})
    assert table.update(degraded, 42, {"total": 2})["holdfast_fence"] == 2
    with table.section(degraded, 42) as row:
        row.update(total=3)
        row.delete()
    assert table.seen(42) == 2, "also across a delete"
    assert table.statistics().unfenced == 4


def test_what_cannot_be_guarded_is_refused(data: sa.Connection) -> None:
    keyless = sa.Table("keyless", sa.MetaData(), sa.Column("id", sa.Integer), fence_column())
    with pytest.raises(BadInput, match=r"^id: keyless has no primary key"):
        GuardedTable(data, keyless)
    with pytest.raises(BadInput, match=r"^id: invoices has no column 'nr'; there is id, total"):
        GuardedTable(data, INVOICES, id="nr")
    with pytest.raises(BadInput, match=r"^updated_column: invoices has no column"):
        GuardedTable(data, INVOICES, updated_column="when")
    with pytest.raises(BadInput, match=r"^values: invoices has no column 'totl'"):
        GuardedTable(data, INVOICES).upsert(A, 42, {"totl": 1})
    with pytest.raises(BadInput, match=r"^table: str is not a table"):
        GuardedTable(data, "invoices")  # type: ignore[call-overload]  # on purpose
    with pytest.raises(BadInput, match=r"^connection: Engine is not a connection"):
        GuardedTable(data.engine, INVOICES)  # type: ignore[call-overload]  # on purpose
    with pytest.raises(BadInput, match=r"^idd: is not a setting"):
        GuardedTable(data, INVOICES, idd="id")  # type: ignore[call-overload]  # on purpose
    with pytest.raises(Misconfigured, match="SQLite and Postgres, not mysql"):
        check_dialect(mysql.dialect())
