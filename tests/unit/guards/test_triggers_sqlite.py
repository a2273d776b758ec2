"""What is special to SQLite: REPLACE, conflict clauses, marks, tables without rowid, generated ids."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.errors import FencedOut
from holdfast.guards import install
from support.fixtures.guards import carried
from support.fixtures.tables import INVOICES, Place, sqlite_place

BOTH = pytest.mark.parametrize("mode", ["rising", "strict"])


@pytest.fixture
def file(tmp_path: Path) -> Iterator[Place]:
    with sqlite_place(tmp_path) as place:
        place.run(INVOICES)
        place.run("INSERT INTO invoices (id, total, email) VALUES (1, 10, 'a'), (2, 20, 'b')")
        yield place


def prepared(file: Place, mode: str) -> Place:
    install.install(file.url, "invoices", trigger=mode)
    file.run("UPDATE invoices SET holdfast_fence = 7 WHERE id = 1")
    return file


def marks(file: Place) -> list[object]:
    return file.run("SELECT * FROM holdfast_guard_mark")


@BOTH
@pytest.mark.parametrize("recursive", [False, True])
def test_replace_does_not_get_around_it(file: Place, mode: str, recursive: bool) -> None:
    """REPLACE deletes a row without asking the delete triggers, unless recursive triggers are on."""
    prepared(file, mode)
    file.run(f"PRAGMA recursive_triggers = {int(recursive)}")
    before = file.content()
    for verb in ("REPLACE INTO", "INSERT OR REPLACE INTO"):
        refused = file.refused(f"{verb} invoices (id, total, holdfast_fence) VALUES (1, 0, 6)")
        assert refused == ("HF003" if recursive and mode == "strict" else "HF001")
    assert file.content() == before
    if mode == "rising":
        file.run("REPLACE INTO invoices (id, total) VALUES (1, 3)")
        assert (file.rows()[0], file.ledger(), marks(file)) == ((1, 3, 7), {}, [])
    else:
        assert file.refused("REPLACE INTO invoices (id, total) VALUES (1, 3)") in ("HF002", "HF003")
    if mode == "rising" or not recursive:
        file.run("REPLACE INTO invoices (id, total, holdfast_fence) VALUES (1, 4, 8)")
        assert (file.rows()[0], file.ledger(), marks(file)) == ((1, 4, 8), {}, [])


@BOTH
@pytest.mark.parametrize("recursive", [False, True])
def test_a_row_that_is_replaced_by_another_is_remembered(file: Place, mode: str, recursive: bool) -> None:
    """The other unique column makes REPLACE remove a row with another id."""
    prepared(file, mode)
    file.run(f"PRAGMA recursive_triggers = {int(recursive)}")
    file.run("REPLACE INTO invoices (id, email, holdfast_fence) VALUES (3, 'a', 1)")
    assert [row[0] for row in file.rows()] == [2, 3]
    assert file.ledger() == {"1": 7}
    with pytest.raises(FencedOut):
        file.guard().insert(carried(6), 1, {"total": 0})
    file.run("UPDATE invoices SET holdfast_fence = 5 WHERE id = 2")
    file.run("UPDATE OR REPLACE invoices SET email = 'b', holdfast_fence = 9 WHERE id = 3")
    assert [row[0] for row in file.rows()] == [3]
    assert file.ledger() == {"1": 7, "2": 5}


@BOTH
@pytest.mark.parametrize("clause", ["OR IGNORE", "OR FAIL", "OR ABORT", "OR REPLACE"])
def test_a_conflict_clause_does_not_soften_a_refusal(file: Place, mode: str, clause: str) -> None:
    prepared(file, mode)
    before = file.content()
    assert file.refused(f"UPDATE {clause} invoices SET total = 0, holdfast_fence = 6 WHERE id = 1") == "HF001"
    if mode == "strict":
        assert file.refused(f"UPDATE {clause} invoices SET total = 0 WHERE id = 1") == "HF002"
        assert file.refused(f"INSERT {clause} INTO invoices (id) VALUES (3)") == "HF002"
    assert file.content() == before


def test_or_rollback_rolls_back(file: Place) -> None:
    prepared(file, "strict")
    file.run("BEGIN")
    file.run("UPDATE invoices SET total = 1, holdfast_fence = 8 WHERE id = 1")
    assert file.refused("UPDATE OR ROLLBACK invoices SET total = 0, holdfast_fence = 6 WHERE id = 1") == "HF001"
    if file.connection.in_transaction:
        file.run("ROLLBACK")
    assert file.rows()[0] == (1, 10, 7)


def test_a_cancelled_write_leaves_no_permission_behind(file: Place) -> None:
    """UPDATE OR IGNORE has presented a fence, and then did nothing: the next one has to present its own."""
    prepared(file, "strict")
    file.run("UPDATE OR IGNORE invoices SET email = 'b', holdfast_fence = 7 WHERE id = 1")
    assert file.rows()[0] == (1, 10, 7)
    assert len(marks(file)) == 1
    assert file.refused("UPDATE invoices SET total = 0 WHERE id = 1") == "HF002"
    file.run("UPDATE invoices SET total = 1, holdfast_fence = 7 WHERE id = 1")
    assert file.refused("UPDATE invoices SET total = 0 WHERE id = 1") == "HF002"
    for _ in range(100):
        file.run("UPDATE OR IGNORE invoices SET email = 'b', holdfast_fence = 7 WHERE id = 1")
    assert len(marks(file)) < 60  # and what means nothing does not pile up
    assert file.refused("UPDATE invoices SET total = 0 WHERE id = 1") == "HF002"
    assert install.check(file.url, "invoices", expect="strict").held


def test_a_write_of_one_row_is_no_permission_for_another(file: Place) -> None:
    prepared(file, "strict")
    file.run("CREATE TABLE log (what TEXT)")
    file.run("CREATE TRIGGER zz_log AFTER UPDATE ON invoices BEGIN INSERT INTO log VALUES ('seen'); END")
    file.run("UPDATE invoices SET holdfast_fence = 8")
    assert file.refused("UPDATE invoices SET total = 0 WHERE id = 2") == "HF002"
    assert marks(file) == []


@pytest.mark.parametrize("younger", [False, True])
def test_a_trigger_of_others_that_writes_to_the_table_has_to_set_the_fence_too(file: Place, younger: bool) -> None:
    touch = "CREATE TRIGGER touch AFTER UPDATE OF total ON invoices BEGIN UPDATE invoices SET {} WHERE id = NEW.id; END"
    if younger:
        install.install(file.url, "invoices", trigger="strict")
    file.run(touch.format("email = 'touched'"))
    report = install.install(file.url, "invoices", trigger="strict")
    assert "touch" in report.notes[0]
    assert file.refused("UPDATE invoices SET total = 1, holdfast_fence = 3 WHERE id = 1") == "HF002"
    assert not install.check(file.url, "invoices").held  # the guard's own writes are refused
    file.run("DROP TRIGGER touch")
    if not younger:
        install.install(file.url, "invoices", trigger="none")
    file.run(touch.format("email = 'touched', holdfast_fence = NEW.holdfast_fence"))
    install.install(file.url, "invoices", trigger="strict")
    file.run("UPDATE invoices SET total = 1, holdfast_fence = 3 WHERE id = 1")
    assert file.run("SELECT email, holdfast_fence FROM invoices WHERE id = 1") == [("touched", 3)]
    assert file.refused("UPDATE invoices SET total = 1 WHERE id = 1") == "HF002"  # its fence is not lent to others
    assert marks(file) == []
    assert install.check(file.url, "invoices").held


@BOTH
@pytest.mark.parametrize("made", ["id INTEGER PRIMARY KEY", "id INTEGER PRIMARY KEY AUTOINCREMENT"])
def test_ids_that_the_database_gives_are_known_to_the_ledger(file: Place, mode: str, made: str) -> None:
    file.run(f"CREATE TABLE notes ({made}, body TEXT)")
    install.install(file.url, "notes", trigger=mode)
    file.run("INSERT INTO notes (body, holdfast_fence) VALUES ('x', 5)")
    file.run("INSERT INTO holdfast_guard_fence (place, resource, fence) VALUES ('notes', '1', 6)")
    file.run("DELETE FROM notes")
    if "AUTO" in made:
        file.run("INSERT INTO notes (body, holdfast_fence) VALUES ('y', 1)")
    else:  # the number is used again, and means the same row
        assert file.refused("INSERT INTO notes (body, holdfast_fence) VALUES ('y', 5)") == "HF001"


@BOTH
def test_tables_without_rowid_and_strict_tables_can_be_guarded(file: Place, mode: str) -> None:
    file.run("CREATE TABLE kv (k TEXT PRIMARY KEY, v TEXT) STRICT, WITHOUT ROWID")
    install.install(file.url, "kv", id="k", trigger=mode)
    file.run("INSERT INTO kv (k, v, holdfast_fence) VALUES ('a', 'b', 5)")
    assert file.refused("REPLACE INTO kv (k, v, holdfast_fence) VALUES ('a', 'c', 4)") == "HF001"
    assert install.check(file.url, "kv", id="k", expect=mode).held


def test_a_row_needs_an_id(file: Place) -> None:
    file.run("CREATE TABLE kv (k TEXT PRIMARY KEY, v TEXT)")  # SQLite lets a primary key be NULL
    install.install(file.url, "kv", id="k", trigger="rising")
    assert file.refused("INSERT INTO kv (v) VALUES ('x')") == "HF005"
