"""Mapped classes behind guards, and what the tests of the ORM need to look at them."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, relationship

from holdfast.guards import Fenced
from holdfast.guards.sqlalchemy import Guarded, GuardedEntity, ledger_table
from support.fixtures.guards import carried


class Base(DeclarativeBase):
    pass


class Invoice(Guarded, Base):
    __tablename__ = "invoices"

    id: Mapped[int] = mapped_column(primary_key=True)
    total: Mapped[int]
    customer_id: Mapped[int | None] = mapped_column(sa.ForeignKey("customers.id"))
    changed: Mapped[datetime | None]


class Customer(Base):
    __tablename__ = "customers"

    id: Mapped[int] = mapped_column(primary_key=True)
    invoices: Mapped[list[Invoice]] = relationship(order_by=Invoice.id)


class Stock(Base, Guarded):
    __tablename__ = "stock"

    shop: Mapped[str] = mapped_column(primary_key=True)
    sku: Mapped[int] = mapped_column(primary_key=True)
    count: Mapped[int]


class Account(Guarded, Base):
    __tablename__ = "accounts"
    __mapper_args__ = {"polymorphic_on": "kind", "polymorphic_identity": "account"}  # noqa: RUF012 - as SQLAlchemy declares it

    id: Mapped[int] = mapped_column(primary_key=True)
    kind: Mapped[str]
    total: Mapped[int]


class Savings(Account):  # in the table of its base
    __mapper_args__ = {"polymorphic_identity": "savings"}  # noqa: RUF012 - as SQLAlchemy declares it

    rate: Mapped[int | None]


class Joint(Account):  # in a table of its own, besides
    __tablename__ = "joint_accounts"
    __mapper_args__ = {"polymorphic_identity": "joint"}  # noqa: RUF012 - as SQLAlchemy declares it

    id: Mapped[int] = mapped_column(sa.ForeignKey("accounts.id"), primary_key=True)
    partner: Mapped[str]


LEDGER = ledger_table(Base.metadata)
FIRST = carried(1)
INVOICES = Base.metadata.tables["invoices"]


def guarded(session: Session) -> GuardedEntity[Invoice, Fenced]:
    return GuardedEntity(session, Invoice, key="invoice:{id}")


def made(session: Session, total: int = 100, lease: Fenced = FIRST) -> None:
    """Invoice 42, committed."""
    guarded(session).insert(lease, Invoice(id=42, total=total))
    session.commit()
    session.expunge_all()


def content(session: Session) -> list[Any]:
    """Everything that a refused flush must leave alone, read through another connection."""
    assert isinstance(session.bind, sa.Engine)
    with session.bind.connect() as connection:
        rows = connection.execute(sa.select(INVOICES.c.id, INVOICES.c.total, INVOICES.c.holdfast_fence)).all()
        noted = connection.execute(sa.select(LEDGER.c.place, LEDGER.c.resource, LEDGER.c.fence)).all()
        return [tuple(row) for row in [*rows, *noted]]
