"""What no session flushes of a guarded class, and which classes can be guarded, on a SQLite file and on Postgres."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import DeclarativeBase, Mapped, MappedAsDataclass, Session, mapped_column

from holdfast.errors import BadInput, FencedOut, Unfenced
from holdfast.guards.sqlalchemy import Guarded, GuardedEntity, unguarded
from support.fixtures.guards import carried
from support.fixtures.sqlalchemy import OpenSession
from support.guards.sqlalchemy_entities import (
    INVOICES,
    Account,
    Customer,
    Invoice,
    Joint,
    Savings,
    Stock,
    content,
    guarded,
    made,
)

A, B, C = carried(1), carried(2), carried(3)


@pytest.fixture
def session(open_session: OpenSession) -> Session:
    return open_session()


def test_what_was_changed_before_the_section_is_refused_and_not_forgotten(session: Session) -> None:
    made(session)
    for autoflush in (True, False):
        session.autoflush = autoflush
        invoice = session.get_one(Invoice, 42)
        invoice.total = 1
        with pytest.raises(Unfenced, match="Invoice 42 was changed before its section began"):
            guarded(session).section(A, 42).__enter__()
        assert invoice in session.dirty
        session.rollback()
    session.delete(session.get_one(Invoice, 42))
    with pytest.raises(Unfenced):
        guarded(session).section(A, 42).__enter__()
    session.rollback()


@pytest.mark.parametrize("change", ["insert", "update", "delete"])
def test_no_session_flushes_an_instance_that_was_not_entered(session: Session, change: str) -> None:
    made(session)
    with Session(session.bind) as stranger:
        if change == "insert":
            stranger.add(Invoice(id=43, total=1))
        elif change == "update":
            stranger.get_one(Invoice, 42).total = 1
        else:
            stranger.delete(stranger.get_one(Invoice, 42))
        with pytest.raises(Unfenced, match=rf"\({change}\) outside a section.*guard\.section\(lease"):
            stranger.commit()
    assert content(session) == [(42, 100, 1)]


def test_a_section_ends_with_its_block(session: Session) -> None:
    made(session)
    with guarded(session).section(A, 42) as invoice:
        pass
    invoice.total = 1
    with pytest.raises(Unfenced):
        session.flush()
    session.rollback()

    class Interrupted(Exception):
        pass

    with pytest.raises(Interrupted), guarded(session).section(A, 42) as invoice:
        invoice.total = 1
        raise Interrupted
    with pytest.raises(Unfenced):
        session.commit()
    session.rollback()
    assert content(session) == [(42, 100, 1)]


def test_a_section_is_for_its_own_row_only(session: Session) -> None:
    made(session)
    with pytest.raises(Unfenced, match="Invoice 43"), guarded(session).section(A, 42):
        session.add(Invoice(id=43, total=1))
    session.rollback()
    with pytest.raises(Unfenced, match="no primary key yet"), guarded(session).section(A, 42):
        session.add(Invoice(total=1))
    session.rollback()
    assert content(session) == [(42, 100, 1)]


@pytest.mark.parametrize(
    "statement",
    [
        sa.update(Invoice).values(total=0),
        sa.update(INVOICES).values(total=0),
        sa.delete(Invoice),
        sa.insert(Invoice).values(id=43, total=0),
    ],
    ids=str,
)
def test_a_statement_that_passes_by_the_unit_of_work_is_refused(session: Session, statement: Any) -> None:
    made(session)
    with pytest.raises(Unfenced, match="writes invoices as a whole"), guarded(session).section(A, 42):
        session.execute(statement)
    session.rollback()
    assert content(session) == [(42, 100, 1)]
    with unguarded(session):
        session.execute(statement)
    session.rollback()


def test_what_needs_no_lease_can_be_said_to_need_none(session: Session) -> None:
    with unguarded(session):
        session.add(Invoice(total=1))
        session.commit()
    session.add(Invoice(total=2))
    with pytest.raises(Unfenced):
        session.commit()
    session.rollback()
    assert [row[1:] for row in content(session)] == [(1, None)]


def test_implicit_changes_of_a_flush_are_checked_against_the_fence(session: Session) -> None:
    """Deleting the customer sets the foreign key of its invoices, which the session has not touched."""
    with unguarded(session):
        session.add(Customer(id=1, invoices=[Invoice(id=42, total=1)]))
        session.commit()
    session.delete(session.get_one(Customer, 1))
    with pytest.raises(Unfenced, match="Invoice 42 is changed by the flush itself"):
        session.flush()
    session.rollback()
    assert session.get_one(Invoice, 42).customer_id == 1
    assert session.get_one(Customer, 1).invoices == [session.get_one(Invoice, 42)]


def test_other_classes_and_untouched_rows_are_flushed_as_ever(session: Session) -> None:
    made(session)
    invoice = session.get_one(Invoice, 42)
    invoice.total = invoice.total  # touched, and not changed
    session.add(Customer(id=2))
    session.commit()
    assert session.scalars(sa.select(Customer.id)).all() == [2]
    assert content(session) == [(42, 100, 1)]


def test_what_the_guard_keeps_cannot_be_set_by_hand(session: Session) -> None:
    made(session)
    with pytest.raises(BadInput, match="holdfast_fence"), guarded(session).section(A, 42) as invoice:
        invoice.holdfast_fence = 9
    session.rollback()
    with pytest.raises(BadInput, match="primary key"), guarded(session).section(A, 42) as invoice:
        invoice.id = 43
    session.rollback()
    assert content(session) == [(42, 100, 1)]


def test_a_detached_instance_of_an_earlier_fence_is_not_merged_over_newer_work(session: Session) -> None:
    made(session)
    old = session.get_one(Invoice, 42)
    session.expunge(old)
    with guarded(session).section(B, 42) as invoice:
        invoice.total = 200
    session.commit()
    with pytest.raises(BadInput, match="read it again"):
        guarded(session).upsert(C, old)
    session.rollback()
    assert content(session) == [(42, 200, 2)]


def test_a_subclass_in_the_same_table_is_guarded_by_its_own_guard_or_by_that_of_its_base(session: Session) -> None:
    bases, guard = GuardedEntity(session, Account), GuardedEntity(session, Savings)
    guard.insert(A, Savings(id=1, total=1, rate=1))
    bases.insert(A, Account(id=2, total=1))
    with guard.section(B, 1) as savings:
        savings.rate = 2
    with bases.section(B, 1) as account:
        assert account is savings
        account.total = 2
    with pytest.raises(FencedOut):
        guard.delete(A, 1)
    with pytest.raises(BadInput, match="accounts 2 is a Account"):
        guard.delete(A, 2)
    session.commit()
    assert session.execute(sa.select(Savings.total, Savings.rate, Savings.holdfast_fence)).all() == [(2, 2, 2)]


def test_a_subclass_with_a_table_of_its_own_is_held_to_the_fence_of_its_base(open_session: OpenSession) -> None:
    mine, other = open_session(), open_session()
    guard = GuardedEntity(mine, Account)
    guard.insert(A, Joint(id=1, total=1, partner="old"))
    mine.commit()
    with pytest.raises(BadInput, match="Joint is spread over several tables"):
        GuardedEntity(mine, Joint)
    with pytest.raises(Unfenced):
        mine.execute(sa.update(Joint).values(partner="new"))
    mine.rollback()
    with guard.section(A, 1) as account:
        assert isinstance(account, Joint)
        mine.commit()
        with other.begin(), GuardedEntity(other, Account).section(B, 1):
            pass
        account.partner = "late"
        with pytest.raises(FencedOut):
            mine.flush()
        mine.rollback()
    with mine.begin(), guard.section(C, 1) as account:
        assert isinstance(account, Joint)
        account.partner = "new"
    assert mine.execute(sa.select(Joint.partner, Joint.holdfast_fence)).all() == [("new", 3)]
    guard.delete(C, 1)
    mine.commit()
    assert guard.seen(1) == 3


def test_a_dataclass_can_be_guarded(session: Session) -> None:
    class DataBase(MappedAsDataclass, DeclarativeBase):
        pass

    class Point(Guarded, DataBase):
        __tablename__ = "points"

        id: Mapped[int] = mapped_column(primary_key=True)
        x: Mapped[int] = mapped_column(default=0)
        holdfast_fence: Mapped[int | None] = mapped_column(sa.BigInteger, default=None, init=False)

    DataBase.metadata.create_all(session.connection())
    with GuardedEntity(session, Point).section_or_none(A, 1):
        session.add(Point(id=1, x=2))
    assert session.get_one(Point, 1).holdfast_fence == 1
    with pytest.raises(Unfenced):
        session.execute(sa.update(Point.__table__).values(x=0))  # type: ignore[arg-type]  # it is a Table


def test_what_cannot_be_guarded_is_refused(session: Session) -> None:
    with pytest.raises(BadInput, match=r"^entity: Customer is not a guarded class"):
        GuardedEntity(session, Customer)  # type: ignore[type-var]  # on purpose
    with pytest.raises(BadInput, match=r"^session: Connection is not a session"):
        GuardedEntity(session.connection(), Invoice)  # type: ignore[call-overload]  # on purpose
    with pytest.raises(BadInput, match=r"^id: is what the class says"):
        GuardedEntity(session, Invoice, id="total")
    with pytest.raises(BadInput, match=r"^instance: is a Stock"):
        guarded(session).insert(A, Stock(shop="a", sku=1, count=1))  # type: ignore[arg-type]  # on purpose
    with pytest.raises(BadInput, match=r"^row_id: "):
        guarded(session).insert(A, Invoice(total=1))
