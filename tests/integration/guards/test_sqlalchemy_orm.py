"""Guarded classes of the ORM: what sections read, flush and refuse, on a SQLite file and on Postgres."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from datetime import datetime

import pytest
from sqlalchemy import event
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

import holdfast
from holdfast.core import failpoints
from holdfast.errors import BadInput, FencedOut, LeaseLost, NotEntered, RowExists, RowMissing, Unfenced
from holdfast.guards import GuardStatistics
from holdfast.guards.sql.rows import RowId
from holdfast.guards.sqlalchemy import GuardedEntity, GuardedTable
from holdfast.guards.sqlalchemy.rows import SqlalchemyRows
from support.fixtures.guards import carried
from support.fixtures.sqlalchemy import OpenSession
from support.guards.sqlalchemy_entities import Invoice, Stock, content, guarded, made

A, B, C = carried(1), carried(2), carried(3)


@pytest.fixture
def session(open_session: OpenSession) -> Session:
    return open_session()


@pytest.mark.requires("R58", "R47")
def test_what_a_section_changes_is_flushed_with_its_fence(session: Session) -> None:
    made(session)
    guard = guarded(session)
    with session.begin(), guard.section(B, 42) as invoice:
        assert (invoice.total, invoice.holdfast_fence) == (100, 2)
        invoice.total += 5
        session.flush()
        invoice.total += 6
    assert content(session) == [(42, 111, 2)]
    assert guard.seen(42) == 2
    assert guard.statistics() == GuardStatistics(entered=1, accepted=2)


def test_a_section_is_entered_in_one_statement(session: Session) -> None:
    made(session)
    sent: list[str] = []
    event.listen(session.connection(), "before_cursor_execute", lambda *given: sent.append(given[2]))
    with guarded(session).section(B, 42):
        pass
    assert [statement.split()[0] for statement in sent] == ["UPDATE"]
    assert "RETURNING" in sent[0]


@pytest.mark.requires("R58", "R65")
def test_a_lower_fence_is_refused_and_changes_nothing(session: Session) -> None:
    made(session, lease=B)
    guard = guarded(session)
    steps: list[Callable[[], object]] = [
        lambda: guard.section(A, 42).__enter__(),
        lambda: guard.insert(A, Invoice(id=42, total=9)),
        lambda: guard.upsert(A, Invoice(id=42, total=9)),
        lambda: guard.delete(A, 42),
    ]
    for step in steps:
        with pytest.raises(FencedOut) as refused:
            step()
        assert (refused.value.fence, refused.value.seen, refused.value.resource) == (1, 2, "invoices 42")
        session.commit()
    assert content(session) == [(42, 100, 2)]
    assert guard.statistics().refused == 4


@pytest.mark.requires("R69", "R71", "R73")
def test_a_pause_between_read_and_write_loses_no_update(open_session: OpenSession) -> None:
    """A enters and pauses; B enters, reads, and A wakes before B has written."""
    late, new = open_session(), open_session()
    made(late)
    with guarded(late).section(A, 42) as stale:
        late.commit()
        with guarded(new).section(B, 42) as invoice:
            new.commit()
            stale.total += 1
            with pytest.raises(FencedOut) as refused:
                late.commit()
            assert refused.value.seen == 2
            late.rollback()
            invoice.total += 10
        new.commit()
    assert content(new) == [(42, 110, 2)]


def test_between_the_check_of_a_flush_and_its_commit_no_holder_overtakes(open_session: OpenSession) -> None:
    mine, other = open_session(), open_session()
    made(mine)
    tried = []

    def overtake() -> None:
        with pytest.raises(OperationalError, match="lock"):
            guarded(other).section(B, 42).__enter__()
        other.rollback()
        tried.append(True)

    with guarded(mine).section(A, 42) as invoice:
        mine.commit()
        invoice.total = 101
        with failpoints.armed("guard.reserved", overtake), failpoints.armed("guard.written", overtake):
            mine.flush()
        mine.commit()
    assert len(tried) == 2
    assert content(mine) == [(42, 101, 1)]


@pytest.mark.requires("R58", "R65")
def test_a_row_that_a_newer_holder_makes_during_the_check_is_a_newer_fence(
    open_session: OpenSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The row does not exist yet, then the ledger entry does not exist anymore: the fence moved to the row."""
    late, new = open_session(), open_session()
    noted = SqlalchemyRows.noted
    made_meanwhile: list[bool] = []

    async def make_it_first(rows: SqlalchemyRows, row: RowId) -> int | None:
        if not made_meanwhile:
            made_meanwhile.append(True)
            with suppress(OperationalError), guarded(new).section_or_none(B, 42):  # SQLite has one writer at a time
                new.add(Invoice(id=42, total=200))
                new.commit()
            new.rollback()
        return await noted(rows, row)

    with guarded(late).section_or_none(A, 42):
        late.commit()
        with guarded(new).section_or_none(B, 42):
            new.commit()
        late.add(Invoice(id=42, total=100))
        monkeypatch.setattr(SqlalchemyRows, "noted", make_it_first)
        with pytest.raises(FencedOut) as refused:
            late.flush()
        late.rollback()
    assert refused.value.seen == 2
    assert made_meanwhile


def test_a_fence_that_comes_while_a_lease_without_one_makes_the_row_is_remembered(
    open_session: OpenSession, degraded: holdfast.DegradedLease, monkeypatch: pytest.MonkeyPatch
) -> None:
    unfenced, new = open_session(), open_session()
    noted = SqlalchemyRows.noted
    entered: list[bool] = []

    async def enter_afterwards(rows: SqlalchemyRows, row: RowId) -> int | None:
        before = await noted(rows, row)
        if not entered:
            entered.append(True)
            with suppress(OperationalError), guarded(new).section_or_none(B, 42):  # SQLite has one writer at a time
                new.commit()
            new.rollback()
        return before

    with monkeypatch.context() as patched:
        patched.setattr(SqlalchemyRows, "noted", enter_afterwards)
        GuardedEntity(unfenced, Invoice, allow_degraded=True).insert(degraded, Invoice(id=42, total=3))
        unfenced.commit()
    assert entered
    met = None if unfenced.get_bind().dialect.name == "sqlite" else 2
    assert guarded(new).seen(42) == met


@pytest.mark.parametrize("overtaken", [True, False])
def test_after_a_commit_in_the_middle_of_a_section_the_fence_is_checked_again(
    open_session: OpenSession, overtaken: bool
) -> None:
    mine, other = open_session(), open_session()
    made(mine)
    with guarded(mine).section(A, 42) as invoice:
        invoice.total = 101
        mine.commit()
        if overtaken:
            with other.begin(), guarded(other).section(B, 42) as theirs:
                theirs.total = 200
        invoice.total += 1
        if overtaken:
            with pytest.raises(FencedOut):
                mine.flush()
            mine.rollback()
    mine.commit()
    assert content(mine) == [(42, 200, 2) if overtaken else (42, 102, 1)]


@pytest.mark.parametrize("savepoint", [True, False])
def test_a_registration_that_was_rolled_back_is_found_by_the_next_flush(session: Session, savepoint: bool) -> None:
    made(session)
    outer = session.begin_nested() if savepoint else session
    with guarded(session).section(B, 42) as invoice:
        outer.rollback()
        invoice.total = 7
        with pytest.raises(NotEntered) as refused:
            session.flush()
        assert (refused.value.fence, refused.value.seen) == (2, 1)
        session.rollback()
    assert content(session) == [(42, 100, 1)]


def test_what_the_session_knew_before_does_not_survive_entering(open_session: OpenSession) -> None:
    mine, other = open_session(), open_session()
    made(mine)
    known = mine.get_one(Invoice, 42)
    assert known.total == 100
    with other.begin(), guarded(other).section(A, 42) as theirs:
        theirs.total = 150
    with guarded(mine).section(B, 42) as invoice:
        assert invoice is known
        assert invoice.total == 150


def test_if_one_row_of_a_flush_is_refused_none_is_written(open_session: OpenSession) -> None:
    mine, other = open_session(), open_session()
    guard = GuardedEntity(mine, Invoice)
    for number in (41, 42):
        guard.insert(A, Invoice(id=number, total=1))
    mine.commit()
    with guard.section(A, 41) as first, guard.section(A, 42) as second:
        mine.commit()
        with other.begin(), GuardedEntity(other, Invoice).section(B, 42):
            pass
        first.total = second.total = 2
        with pytest.raises(FencedOut) as refused:
            mine.flush()
        assert refused.value.resource == "invoices 42"
        mine.rollback()
    assert sorted(content(mine)) == [(41, 1, 1), (42, 1, 2)]


def test_a_row_that_is_missing_can_be_added_in_its_section_and_by_no_older_holder(open_session: OpenSession) -> None:
    mine, other = open_session(), open_session()
    guard = guarded(mine)
    with pytest.raises(RowMissing, match="section_or_none"), guard.section(B, 42):
        raise AssertionError("not reached")
    with guard.section_or_none(B, 42) as nothing:
        assert nothing is None
        mine.commit()
        with pytest.raises(FencedOut) as refused:
            guarded(other).insert(A, Invoice(id=42, total=1))
        other.rollback()
        assert refused.value.seen == 2
        mine.add(Invoice(id=42, total=5))
    mine.commit()
    assert content(mine) == [(42, 5, 2)], "and the memory is given up"


def test_a_row_that_exists_is_told_apart_from_a_stale_writer(session: Session) -> None:
    made(session)
    guard = guarded(session)
    with pytest.raises(RowExists):
        guard.insert(B, Invoice(id=42, total=9))
    assert not session.new
    session.rollback()
    assert content(session) == [(42, 100, 1)]


def test_deleting_leaves_a_memory_so_that_nothing_old_comes_back(session: Session) -> None:
    made(session)
    guard = guarded(session)
    guard.delete(B, 42)
    session.commit()
    assert content(session) == [("invoices", "42", 2)]
    for step in (guard.insert, guard.upsert):
        with pytest.raises(FencedOut) as refused:
            step(A, Invoice(id=42, total=1))
        assert refused.value.seen == 2
        session.rollback()
    with pytest.raises(RowMissing):
        guard.delete(B, 42)
    session.rollback()
    guard.insert(C, Invoice(id=42, total=3))
    session.commit()
    assert content(session) == [(42, 3, 3)]


def test_a_row_can_be_deleted_and_added_again_in_one_section(session: Session) -> None:
    made(session)
    with session.begin(), guarded(session).section(B, 42) as invoice:
        session.delete(invoice)
        session.add(Invoice(id=42, total=7))  # one flush, which makes an update of the two
    assert content(session) == [(42, 7, 2)]
    with session.begin(), guarded(session).section(B, 42) as invoice:
        session.delete(invoice)
        session.flush()
        session.add(Invoice(id=42, total=8))
    assert content(session) == [(42, 8, 2)]


def test_an_upsert_changes_the_row_or_adds_it(session: Session) -> None:
    guard = guarded(session)
    guard.upsert(A, Invoice(id=42, total=1))
    merged = guard.upsert(B, Invoice(id=42, total=2))
    assert merged in session
    session.commit()
    assert content(session) == [(42, 2, 2)]


def test_a_row_that_another_client_deleted_is_gone_for_the_section(open_session: OpenSession) -> None:
    mine, other = open_session(), open_session()
    made(mine)
    ghost = mine.get_one(Invoice, 42)
    mine.commit()
    guarded(other).delete(B, 42)
    other.commit()
    with guarded(mine).section_or_none(C, 42) as nothing:
        assert nothing is None
        assert ghost not in mine
        mine.add(Invoice(id=42, total=3))
    mine.commit()
    assert content(mine) == [(42, 3, 3)]


def test_a_newer_section_inside_an_older_one_ends_the_older_one(session: Session) -> None:
    made(session)
    guard = guarded(session)
    with guard.section(A, 42) as outer:
        with guard.section(B, 42) as inner:
            inner.total = 2
        outer.total = 3
        with pytest.raises(FencedOut):
            session.flush()
        session.expire(outer)
    session.commit()
    assert content(session) == [(42, 2, 2)]


def test_ids_may_have_several_columns(session: Session) -> None:
    guard = GuardedEntity(session, Stock, key="stock:{shop}:{sku}")
    lease, older = carried(2, "stock:a:1"), carried(1, "stock:a:1")
    with guard.section_or_none(lease, ("a", 1)) as nothing:
        assert nothing is None
        session.add(Stock(shop="a", sku=1, count=1))
    with guard.section(lease, ("a", 1)) as stock:
        stock.count += 1
    session.commit()
    assert session.get_one(Stock, ("a", 1)).count == 2
    guard.delete(lease, ("a", 1))
    with pytest.raises(FencedOut):
        guard.upsert(older, Stock(shop="a", sku=1, count=1))
    session.rollback()
    with pytest.raises(BadInput, match="hold 'stock:b:1'"):
        guard.insert(lease, Stock(shop="b", sku=1, count=1))


def test_the_update_time_is_the_databases_and_the_instance_shows_it(session: Session) -> None:
    made(session)
    guard = GuardedEntity(session, Invoice, updated_column="changed")
    with guard.section(A, 42) as invoice:
        before = invoice.changed
        invoice.total = 1
    assert before is None, "a read is not an update"
    shown = invoice.changed
    assert isinstance(shown, datetime)
    session.commit()
    assert session.get_one(Invoice, 42).changed == shown


@pytest.mark.requires("R29")
def test_a_lease_that_is_lost_inside_a_section_flushes_nothing(session: Session, lease: holdfast.Lease) -> None:
    made(session)
    guard = guarded(session)
    with pytest.raises(LeaseLost), guard.section(lease, 42) as invoice:
        lease.release()
        invoice.total = 1
    session.rollback()
    assert content(session) == [(42, 100, 1)]
    assert guard.statistics().lost == 1


@pytest.mark.requires("R44")
def test_a_degraded_lease_needs_to_be_allowed_and_leaves_the_fence_alone(
    session: Session, degraded: holdfast.DegradedLease
) -> None:
    made(session, lease=B)
    with pytest.raises(Unfenced):
        guarded(session).section(degraded, 42).__enter__()  # type: ignore[arg-type]  # on purpose
    guard = GuardedEntity(session, Invoice, allow_degraded=True)
    with guard.section(degraded, 42) as invoice:
        invoice.total = 1
    session.commit()
    assert content(session) == [(42, 1, 2)]
    guard.delete(degraded, 42)
    session.commit()
    assert content(session) == [("invoices", "42", 2)]
    guard.insert(degraded, Invoice(id=42, total=3))
    session.commit()
    assert content(session) == [(42, 3, 2)], "what is made without a fence carries the one that is remembered"
    assert guard.statistics().unfenced == 6


def test_a_table_and_a_class_guard_the_same_rows(session: Session) -> None:
    table, guard = GuardedTable(session, Invoice), guarded(session)
    table.insert(B, 42, {"total": 1})
    with pytest.raises(FencedOut):
        guard.delete(A, 42)
    guard.delete(B, 42)
    with pytest.raises(FencedOut):
        table.insert(A, 42, {"total": 1})
