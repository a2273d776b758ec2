"""`lease.condition()`: the user's own transaction depends on owning the lease, where both lie in one SQLite file."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast
from holdfast import BadInput, LeaseLost, Misconfigured


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "app.db"


@pytest.fixture
def locks(path: Path) -> Iterator[holdfast.Locks]:
    with holdfast.connect(f"sqlite:///{path}") as locks:
        yield locks


@pytest.fixture
def data(path: Path, locks: holdfast.Locks) -> Iterator[sqlite3.Connection]:
    """The user's own connection to the file in which the leases are."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("CREATE TABLE account (id INTEGER PRIMARY KEY, balance INTEGER)")
    connection.execute("INSERT INTO account VALUES (1, 100)")
    yield connection
    connection.close()


def balance(data: sqlite3.Connection) -> int:
    ((found,),) = data.execute("SELECT balance FROM account WHERE id = 1").fetchall()
    return int(found)


def write(data: sqlite3.Connection, condition: holdfast.Condition, new: int) -> int:
    values = {"new": new, "id": 1, **condition.parameters}
    return data.execute(f"UPDATE account SET balance = :new WHERE id = :id AND {condition}", values).rowcount


@pytest.mark.requires("R34", "R69")
def test_a_statement_with_the_condition_writes_while_the_lease_is_ours_and_not_after(
    locks: holdfast.Locks, data: sqlite3.Connection
) -> None:
    with locks.lock("account:1", ttl=30) as lease:
        condition = lease.condition()
        assert write(data, condition, 90) == 1
    assert write(data, condition, 80) == 0, "the lease was released"
    with locks.lock("account:1", ttl=30) as other:
        assert write(data, condition, 70) == 0, "and another owner has it now"
        assert write(data, other.condition(), 60) == 1
    assert balance(data) == 60


@pytest.mark.requires("R47", "R65")
def test_a_lease_that_was_broken_cannot_write_though_its_holder_has_not_noticed(
    locks: holdfast.Locks, data: sqlite3.Connection, path: Path
) -> None:
    lease = locks.lock("account:1", ttl=30).acquire()
    condition = lease.condition()
    with holdfast.connect(f"sqlite:///{path}") as operator:
        operator.force_release("account:1", reason="stuck", actor="ops")
    assert write(data, condition, 0) == 0
    with pytest.raises(LeaseLost, match="account:1") as lost, condition.transaction(data):
        raise AssertionError("the block must not be entered")
    assert (lost.value.key, lost.value.reason, lost.value.fence) == ("account:1", "stolen", lease.fence)
    assert not data.in_transaction
    assert balance(data) == 100
    lease.release()


def test_a_lease_cannot_be_taken_while_a_transaction_in_which_it_held_is_open(
    locks: holdfast.Locks, data: sqlite3.Connection, path: Path
) -> None:
    lease = locks.lock("account:1", ttl=30).acquire()
    with holdfast.connect(f"sqlite:///{path}?busy_timeout=0.05") as operator:
        with lease.condition().transaction(data):
            data.execute("UPDATE account SET balance = balance - 1 WHERE id = 1")
            with pytest.raises(holdfast.Unavailable):
                operator.force_release("account:1", reason="stuck", actor="ops")
        assert operator.force_release("account:1", reason="stuck", actor="ops") is not None
    assert balance(data) == 99
    lease.release()


def test_an_error_in_the_block_rolls_back_and_passes_through(locks: holdfast.Locks, data: sqlite3.Connection) -> None:
    with locks.lock("account:1", ttl=30) as lease:
        with pytest.raises(ZeroDivisionError), lease.condition().transaction(data) as connection:
            connection.execute("UPDATE account SET balance = 0")
            raise ZeroDivisionError
        assert (balance(data), data.in_transaction) == (100, False)


def test_it_can_be_ensured_inside_a_transaction_of_ones_own(locks: holdfast.Locks, data: sqlite3.Connection) -> None:
    lease = locks.lock("account:1", ttl=30).acquire()
    condition = lease.condition()
    data.execute("BEGIN")
    condition.ensure(data)
    data.execute("UPDATE account SET balance = 1")
    data.execute("COMMIT")
    lease.release()
    data.execute("BEGIN")
    with pytest.raises(LeaseLost):
        condition.ensure(data)
    data.execute("ROLLBACK")


def test_a_check_outside_a_transaction_is_refused_for_it_would_prove_nothing(
    locks: holdfast.Locks, data: sqlite3.Connection
) -> None:
    with locks.lock("account:1", ttl=30) as lease:
        with pytest.raises(BadInput, match="no transaction open"):
            lease.condition().ensure(data)
        data.execute("BEGIN")
        with pytest.raises(BadInput, match="has a transaction open"), lease.condition().transaction(data):
            raise AssertionError("the block must not be entered")
        data.execute("ROLLBACK")
        with pytest.raises(BadInput, match="str is not a connection"):
            lease.condition().holds("app.db")  # type: ignore[arg-type]  # what a hurried caller might pass


def test_the_row_factory_of_the_callers_connection_does_not_matter(
    locks: holdfast.Locks, data: sqlite3.Connection
) -> None:
    data.row_factory = lambda _cursor, row: {"surprise": row}
    with locks.lock("account:1", ttl=30) as lease:
        assert lease.condition().holds(data)


def test_an_attached_lease_file_is_asked_under_its_name(tmp_path: Path) -> None:
    data = sqlite3.connect(tmp_path / "data.db", isolation_level=None)
    with holdfast.connect(f"sqlite:///{tmp_path}/leases.db") as locks, locks.lock("x", ttl=30) as lease:
        with pytest.raises(Misconfigured, match=r"leases\.db.*data\.db.*ATTACH"):
            lease.condition().holds(data)
        data.execute("ATTACH ? AS held", (str(tmp_path / "leases.db"),))
        assert lease.condition(schema="held").holds(data)
        assert lease.condition().holds(data), "SQLite finds the table where the name is unambiguous"
        with pytest.raises(BadInput, match="schema"):
            lease.condition(schema='x".y')
    data.close()


def test_a_lease_that_is_known_to_be_lost_has_no_condition(locks: holdfast.Locks) -> None:
    lease = locks.lock("account:1", ttl=30).acquire()
    lease.release()
    with pytest.raises(LeaseLost):
        lease.condition()


def test_leases_that_lie_in_no_database_say_so_and_name_the_way_out() -> None:
    with holdfast.connect("memory://") as locks:
        lease = locks.lock("x", ttl=30).acquire()
        with pytest.raises(Misconfigured, match=r"memory do not lie in a database with transactions.*guard"):
            lease.condition()
        lease.release()


def test_the_condition_shows_neither_token_nor_what_is_kept_of_it(locks: holdfast.Locks) -> None:
    with locks.lock("account:1", ttl=30) as lease:
        condition = lease.condition()
        assert lease._lease_record.token not in f"{condition!r} {condition} {condition.parameters}"
        assert str(condition.parameters["holdfast_owned"]) not in f"{condition!r} {condition}"


@pytest.mark.asyncio
async def test_an_awaited_lease_has_the_same_condition(path: Path) -> None:
    async with holdfast.aio.connect(f"sqlite:///{path}") as locks:
        data = sqlite3.connect(path)
        async with locks.lock("x", ttl=30) as lease:
            condition = lease.condition()
            assert condition.holds(data)
        assert not condition.holds(data)
        data.close()
