"""What a type checker knows about guards: a lease is needed, and one without a fence only where that was allowed."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.type_program import disagreements

ROOT = Path(__file__).parents[3]

# Each line that ends with "# error" must be refused by the checker, and no other.
PROGRAM = """
import sqlite3
import holdfast
from holdfast import aio
from holdfast.guards import CarriedFence, carried
from holdfast.guards.sqlite import GuardedTable

connection = sqlite3.connect(":memory:")
strict = GuardedTable(connection, "invoices", key="invoice:{id}")
lenient = GuardedTable(connection, "invoices", allow_degraded=True)


def full(lease: holdfast.Lease, awaited: aio.Lease, fence: CarriedFence) -> None:
    for each in (strict, lenient):
        each.update(lease, 42, {"total": 1})
        each.update(awaited, 42, {"total": 1})
        each.update(fence, 42, {"total": 1})
        each.update(carried(lease), 42, {"total": 1})
    with strict.section(lease, 42) as row:
        row.update(total=row["total"] + 1)


def degraded(lease: holdfast.DegradedLease, awaited: aio.DegradedLease) -> None:
    strict.update(lease, 42, {"total": 1})  # error
    strict.update(awaited, 42, {"total": 1})  # error
    strict.enter(lease, 42)  # error
    strict.delete(lease, 42)  # error
    with strict.section(lease, 42) as row:  # error
        row.update(total=1)
    lenient.update(lease, 42, {"total": 1})
    lenient.update(awaited, 42, {"total": 1})
    with lenient.section(lease, 42) as row:
        row.update(total=1)


def either(lease: holdfast.Lease | holdfast.DegradedLease) -> None:
    strict.update(lease, 42, {"total": 1})  # error
    if isinstance(lease, holdfast.Lease):
        strict.update(lease, 42, {"total": 1})


def forgotten(lock: holdfast.Lock[holdfast.Lease]) -> None:
    strict.update(42, {"total": 1})  # error
    strict.update(7, 42, {"total": 1})  # error
    strict.update("invoice:42", 42, {"total": 1})  # error
    strict.update(None, 42, {"total": 1})  # error
    strict.update(lock, 42, {"total": 1})  # error
    strict.update(lock.try_acquire(), 42, {"total": 1})  # error
    with strict.section(42) as row:  # error
        row.update(total=1)


GuardedTable(connection, "invoices", idd="x")  # error
carried(holdfast.connect("memory://").lock("x", risk="low").acquire())  # error


def charge(table: GuardedTable[holdfast.guards.Fenced], lease: holdfast.Lease) -> None: ...


def lend(table: GuardedTable[holdfast.guards.Bearer], lease: holdfast.Lease) -> None:
    charge(table, lease)  # a guard that takes more may stand where one is wanted that takes less


def borrow(table: GuardedTable[holdfast.guards.Fenced], lease: holdfast.Lease) -> None:
    lend(table, lease)  # error
"""


@pytest.mark.requires("R28", "R34")
def test_the_checker_refuses_a_forgotten_lease_and_a_degraded_one(tmp_path: Path) -> None:
    assert disagreements(PROGRAM, tmp_path) == ([], [])
