"""The role that `holdfast access postgres --guarded` makes: it writes under guards, and cannot take them off."""

from __future__ import annotations

from contextlib import closing

import psycopg
import pytest

from holdfast.errors import BadInput, FencedOut
from holdfast.guards.install import install
from holdfast.guards.postgres import GuardedTable
from holdfast.ops.access.postgres import writer_access
from support.fixtures.guards import carried

pytestmark = [pytest.mark.server, pytest.mark.threat("X7")]

OLD, NEW = carried(1), carried(2)
REFUSED = [
    *("DROP TABLE invoices", "TRUNCATE invoices", "ALTER TABLE invoices DISABLE TRIGGER ALL", "SELECT * FROM payroll"),
    *("DROP TABLE holdfast_guard_fence", "CREATE TABLE public.mine (id int)", "UPDATE payroll SET pay = 1"),
]


@pytest.mark.parametrize("mode", ["none", "rising", "strict"])
@pytest.mark.parametrize("place", ["invoices", "public.invoices"])
def test_a_writer_of_a_guarded_table_has_that_table_and_no_more(postgres_url: str, mode: str, place: str) -> None:
    with closing(psycopg.connect(postgres_url, autocommit=True)) as owner:
        owner.execute("CREATE TABLE invoices (id bigint PRIMARY KEY, total bigint)")
        owner.execute("CREATE TABLE payroll (id bigint PRIMARY KEY, pay bigint)")
        install(postgres_url, "invoices", trigger=mode)
        for _ in range(2):
            owner.execute(writer_access([place]).text.encode())
    url = postgres_url.replace("postgres@", "holdfast_writer@", 1)
    with closing(psycopg.connect(url, autocommit=True)) as connection:
        table = GuardedTable(connection, "invoices")
        with table.section(OLD, 1) as row:
            row.upsert(total=1)
        with table.section(NEW, 1) as row:
            row.update(total=2)
        with pytest.raises(FencedOut):
            table.update(OLD, 1, {"total": 3})
        table.delete(NEW, 1)
        with pytest.raises(FencedOut):
            table.upsert(OLD, 1, {"total": 3})
        for statement in REFUSED:
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute(statement.encode())


@pytest.mark.parametrize("table", ["", "a b", 'x"; DROP TABLE y', "a.b.c", "a'b", "a" * 64])
def test_a_name_that_is_none_never_gets_into_the_text(table: str) -> None:
    with pytest.raises(BadInput, match="table"):
        writer_access([table])
