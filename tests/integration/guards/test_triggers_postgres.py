"""What is special to Postgres: other triggers in any order of names, TRUNCATE, roles, MERGE, COPY, concurrency."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import psycopg
import pytest

from holdfast.errors import FencedOut
from holdfast.guards import install
from support.cli.sessions import until
from support.fixtures.guards import carried
from support.fixtures.postgres import PostgresConnect
from support.fixtures.tables import INVOICES, Place

BOTH = pytest.mark.parametrize("mode", ["rising", "strict"])


@pytest.fixture
def server(postgres_url: str) -> Iterator[Place]:
    place = Place("postgres", postgres_url, lambda: psycopg.connect(postgres_url, autocommit=True))
    place.run(INVOICES)
    place.run("INSERT INTO invoices (id, total, email) VALUES (1, 10, 'a'), (2, 20, 'b')")
    yield place
    place.close()


def prepared(server: Place, mode: str) -> Place:
    install.install(server.url, "invoices", trigger=mode)
    server.run("UPDATE invoices SET holdfast_fence = 7 WHERE id = 1")
    return server


def test_the_fence_that_was_seen_is_in_the_detail(server: Place) -> None:
    prepared(server, "strict")
    with pytest.raises(psycopg.Error) as caught:
        server.run("UPDATE invoices SET holdfast_fence = 6 WHERE id = 1")
    assert (caught.value.sqlstate, caught.value.diag.message_detail) == ("HF001", "seen 7")


@BOTH
@pytest.mark.parametrize("name", ["a_touch", "holdfast", "touch", "zzz"])
def test_a_trigger_of_others_that_touches_the_row_does_not_matter_whatever_its_name(
    server: Place, mode: str, name: str
) -> None:
    server.run(
        "CREATE FUNCTION touch() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN NEW.total := NEW.total + 100; NEW.email := 'fence ' || NEW.holdfast_fence; RETURN NEW; END $$"
    )
    install.install(server.url, "invoices", trigger=mode)
    server.run(f"CREATE TRIGGER {name} BEFORE INSERT OR UPDATE ON invoices FOR EACH ROW EXECUTE FUNCTION touch()")
    server.run("UPDATE invoices SET total = 0, holdfast_fence = 7 WHERE id = 1")
    assert server.run("SELECT total, email, holdfast_fence FROM invoices WHERE id = 1") == [(100, "fence 7", 7)]
    assert server.refused("UPDATE invoices SET total = 0, holdfast_fence = 6 WHERE id = 1") == "HF001"
    if mode == "strict":
        assert server.refused("UPDATE invoices SET total = 0 WHERE id = 1") == "HF002"
    assert install.check(server.url, "invoices", expect=mode).held


@pytest.mark.parametrize("name", ["a_meddler", "zzz"])
@BOTH
def test_a_trigger_of_others_cannot_lower_the_fence(server: Place, mode: str, name: str) -> None:
    """What counts is what is stored in the end."""
    prepared(server, mode)
    server.run(
        "CREATE FUNCTION meddle() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN NEW.holdfast_fence := 3; RETURN NEW; END $$"
    )
    server.run(f"CREATE TRIGGER {name} BEFORE UPDATE ON invoices FOR EACH ROW EXECUTE FUNCTION meddle()")
    assert server.refused("UPDATE invoices SET holdfast_fence = 8 WHERE id = 1") in ("HF001", "HF002")
    assert server.rows()[0] == (1, 10, 7)


@BOTH
def test_an_id_that_a_later_trigger_gives_is_known_to_the_ledger(server: Place, mode: str) -> None:
    prepared(server, mode)
    server.guard().delete(carried(9), 1)
    server.run("CREATE FUNCTION number() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN NEW.id := 1; RETURN NEW; END $$")
    server.run("CREATE TRIGGER zzz BEFORE INSERT ON invoices FOR EACH ROW EXECUTE FUNCTION number()")
    assert server.refused("INSERT INTO invoices (id, holdfast_fence) VALUES (NULL, 8)") == "HF001"
    if mode == "rising":
        server.run("INSERT INTO invoices (id) VALUES (NULL)")
    else:
        server.run("INSERT INTO invoices (id, holdfast_fence) VALUES (NULL, 9)")
    assert (server.rows()[0], server.ledger()) == ((1, 0, 9), {})


def test_truncate_is_remembered_or_refused(server: Place) -> None:
    prepared(server, "strict")
    assert server.refused("TRUNCATE invoices") == "HF003"
    prepared(server, "rising")
    server.run("TRUNCATE invoices")
    assert (server.rows(), server.ledger()) == ([], {"1": 7})


@BOTH
def test_merge_and_copy_are_held_to_it(server: Place, mode: str) -> None:
    prepared(server, mode)
    merge = (
        "MERGE INTO invoices AS t USING (VALUES (1, {0}), (3, {0})) AS s (id, fence) ON t.id = s.id "
        "WHEN MATCHED THEN UPDATE SET total = 0, holdfast_fence = s.fence "
        "WHEN NOT MATCHED THEN INSERT (id, holdfast_fence) VALUES (s.id, s.fence)"
    )
    assert server.refused(merge.format(6)) == "HF001"
    server.run(merge.format(8))
    assert server.rows() == [(1, 0, 8), (2, 20, None), (3, 0, 8)]
    copying = server.connection.cursor().copy("COPY invoices (id, holdfast_fence) FROM STDIN")
    with pytest.raises(psycopg.Error, match="not a fence"), copying as copy:
        copy.write("4\t-1\n")


@BOTH
def test_a_role_without_rights_on_the_ledger_is_held_to_it_too(server: Place, mode: str) -> None:
    prepared(server, mode)
    server.run("CREATE ROLE clerk")
    try:
        server.run("GRANT SELECT, INSERT, UPDATE, DELETE ON invoices TO clerk")
        server.run("SET ROLE clerk")
        assert server.refused("UPDATE invoices SET holdfast_fence = 6 WHERE id = 1") == "HF001"
        server.run("UPDATE invoices SET total = 1, holdfast_fence = 8 WHERE id = 1")
        server.run("INSERT INTO invoices (id, holdfast_fence) VALUES (3, 1)")
        assert server.refused("INSERT INTO invoices (id, holdfast_fence) VALUES (4, -1)") == "HF004"
    finally:
        server.run("RESET ROLE")
        server.run("DROP OWNED BY clerk")
        server.run("DROP ROLE clerk")


@BOTH
def test_a_plain_insert_and_a_guard_that_enters_the_same_absent_row_take_turns(
    server: Place, postgres_connect: PostgresConnect, mode: str
) -> None:
    """The second session sees what the first has done, as if there had been no overlap."""
    prepared(server, mode)
    guard, plain = postgres_connect(), server.connect()
    guard.execute("SELECT 1")  # a transaction of the caller: what is entered is not committed yet
    server.guard(connection=guard).enter(carried(9), 5)
    errors: list[BaseException] = []

    def insert() -> None:
        try:
            plain.execute("INSERT INTO invoices (id, holdfast_fence) VALUES (5, 8)")
        except psycopg.Error as error:
            errors.append(error)

    thread = threading.Thread(target=insert)
    thread.start()
    pid = plain.info.backend_pid
    until(
        lambda: server.run(f"SELECT 1 FROM pg_stat_activity WHERE pid = {pid} AND wait_event_type = 'Lock'"),
        "the plain client to wait",
    )
    guard.commit()
    thread.join()
    assert [error.sqlstate for error in errors if isinstance(error, psycopg.Error)] == ["HF001"]
    assert len(server.rows()) == 2


def test_a_guard_waits_for_a_plain_insert_and_then_sees_its_fence(
    server: Place, postgres_connect: PostgresConnect
) -> None:
    prepared(server, "strict")
    plain, guard = postgres_connect(), server.connect()
    plain.execute("INSERT INTO invoices (id, holdfast_fence) VALUES (5, 9)")  # not committed yet
    refused: list[FencedOut] = []

    def enter() -> None:
        try:
            server.guard(connection=guard).enter(carried(8), 5)
        except FencedOut as error:
            refused.append(error)

    thread = threading.Thread(target=enter)
    thread.start()
    pid = guard.info.backend_pid
    until(
        lambda: server.run(f"SELECT 1 FROM pg_stat_activity WHERE pid = {pid} AND wait_event_type = 'Lock'"),
        "the guard to wait",
    )
    plain.commit()
    thread.join()
    assert [each.seen for each in refused] == [9]
    assert server.ledger() == {}
