"""Installing and removing: shown before it runs, safe to run twice, all or nothing, and only where it can work."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

from holdfast.errors import BadInput, Misconfigured, Unavailable
from holdfast.guards import install
from holdfast.guards.install import migration
from support.fixtures.guards import carried
from support.fixtures.tables import Place, every_engine, postgres_only

MODES = ("none", "rising", "strict")


@pytest.mark.parametrize("mode", MODES)
@every_engine
def test_installing_twice_changes_nothing_and_removing_leaves_what_was_before(place: Place, mode: str) -> None:
    before = place.content()
    assert install.install(place.url, "invoices", trigger=mode).changed
    installed = place.content()
    again = install.install(place.url, "invoices", trigger=mode)
    assert (again.steps, again.trigger, again.done) == ((), mode, True)
    assert place.content() == installed
    assert install.remove(place.url, "invoices").changed
    assert place.content() == before
    assert install.remove(place.url, "invoices").steps == ()
    assert place.content() == before


def test_a_plan_is_what_is_done_statement_by_statement(place: Place) -> None:
    before = place.content()
    planned = install.plan(place.url, "invoices", trigger="strict")
    assert place.content() == before
    assert not planned.done
    with_hands = [step.sql for step in planned.steps]
    done = install.install(place.url, "invoices", trigger="strict")
    assert [step.sql for step in done.steps] == with_hands
    installed = place.content()
    removal = install.remove(place.url, "invoices", dry_run=True)
    assert place.content() == installed
    for step in removal.steps:
        place.run(step.sql)
    assert place.content() == before
    for statement in with_hands:  # a DBA runs what --dry-run has printed
        place.run(statement)
    assert place.content() == installed
    assert install.plan(place.url, "invoices", trigger="strict").steps == ()


@every_engine
def test_each_step_is_listed_under_a_name_of_its_own(place: Place) -> None:
    """On Postgres a trigger takes two statements, and both had the name of the trigger."""
    made = [step.what for step in install.install(place.url, "invoices", trigger="strict").steps]
    gone = [step.what for step in install.remove(place.url, "invoices").steps]
    assert (len(set(made)), len(set(gone))) == (len(made), len(gone))


@pytest.mark.parametrize("first", MODES)
@pytest.mark.parametrize("second", MODES)
def test_another_mode_replaces_the_one_before(place: Place, first: str, second: str) -> None:
    install.install(place.url, "invoices", trigger=second)
    wanted = place.content()
    install.install(place.url, "invoices", trigger=first)
    install.install(place.url, "invoices", trigger=second)
    assert sorted(map(str, place.content())) == sorted(map(str, wanted))
    assert install.check(place.url, "invoices", expect=second).held


def test_without_a_mode_the_triggers_stay_and_are_mended(place: Place) -> None:
    install.install(place.url, "invoices", trigger="strict")
    assert install.install(place.url, "invoices").steps == ()
    name = "holdfast_guard_invoices_delete" if place.engine == "sqlite" else "holdfast_guard_delete ON invoices"
    place.run(f"DROP TRIGGER {name}")
    mended = install.install(place.url, "invoices")
    assert mended.changed
    assert mended.trigger == "strict"
    assert install.check(place.url, "invoices", expect="strict").problems == ()


@postgres_only
def test_a_function_without_its_trigger_is_removed_too(place: Place) -> None:
    before = place.content()
    install.install(place.url, "invoices", trigger="strict")
    place.run("DROP TRIGGER holdfast_guard_delete ON invoices")
    install.remove(place.url, "invoices")
    assert place.content() == before


def test_the_column_is_null_for_rows_that_never_met_a_fence(place: Place) -> None:
    install.install(place.url, "invoices")
    assert place.rows() == [(1, 10, None), (2, 20, None)]
    place.guard().update(carried(3), 1, {"total": 11})
    assert place.rows() == [(1, 11, 3), (2, 20, None)]


def test_the_ledger_is_shared_and_goes_with_the_last_table(place: Place) -> None:
    place.run("CREATE TABLE parts (a BIGINT, b TEXT, n BIGINT, PRIMARY KEY (a, b))")
    before = place.content()
    install.install(place.url, "invoices", trigger="rising")
    install.install(place.url, "parts", id=("a", "b"), trigger="strict")
    place.guard("parts", id=("a", "b")).enter(carried(4), (1, "x"))
    place.guard().enter(carried(9), 77)
    install.remove(place.url, "invoices")
    assert place.ledger() == {'[1,"x"]': 4}  # the other table's memory stays, ours is gone
    assert install.check(place.url, "parts", id=("a", "b"), expect="strict").held
    install.remove(place.url, "parts")
    assert place.content() == before


def test_a_ledger_that_others_have_entries_in_stays(place: Place) -> None:
    install.install(place.url, "invoices")
    place.run("INSERT INTO holdfast_guard_fence (place, resource, fence) VALUES ('http', '/x', 3)")
    install.remove(place.url, "invoices")
    assert place.ledger() == {"/x": 3}


def test_a_ledger_can_be_kept(place: Place) -> None:
    install.install(place.url, "invoices")
    place.guard().enter(carried(9), 77)
    install.remove(place.url, "invoices", keep_ledger=True)
    assert place.ledger() == {}


def test_another_fence_column_can_be_chosen(place: Place) -> None:
    before = place.content()
    install.install(place.url, "invoices", fence_column="epoch", trigger="strict")
    place.guard(fence_column="epoch").update(carried(3), 1, {"total": 4})
    assert place.refused("UPDATE invoices SET total = 5 WHERE id = 1") == "HF002"
    assert install.check(place.url, "invoices", fence_column="epoch", expect="strict").held
    install.remove(place.url, "invoices", fence_column="epoch")
    place.run("UPDATE invoices SET total = 10 WHERE id = 1")
    assert place.content() == before


def test_a_column_that_is_not_a_fence_is_not_dropped(place: Place) -> None:
    before = place.content()
    for column in ("total", "email", "id"):
        with pytest.raises(Misconfigured, match="not dropped"):
            install.remove(place.url, "invoices", fence_column=column)
    assert place.content() == before


WRONG = [
    ("CREATE TABLE t (a BIGINT)", {"id": "a"}, "no primary key and no unique index"),
    ("CREATE TABLE t (id BIGINT PRIMARY KEY)", {"id": "nope"}, "has no column nope"),
    ("CREATE TABLE t (id BIGINT, b BIGINT, PRIMARY KEY (id, b))", {}, "no unique index on (id)"),
    ("CREATE TABLE t (id BIGINT PRIMARY KEY, holdfast_fence TEXT)", {}, "is TEXT, not"),
    ("CREATE TABLE t (id BIGINT PRIMARY KEY, holdfast_fence BIGINT NOT NULL)", {}, "NOT NULL"),
    ("CREATE TABLE t (id BIGINT PRIMARY KEY, holdfast_fence BIGINT DEFAULT 0)", {}, "has a default"),
    ("CREATE TABLE t (id REAL PRIMARY KEY)", {}, "an id is a whole number"),
    ("CREATE VIEW t AS SELECT * FROM invoices", {}, "is a view"),
    ("CREATE TABLE holdfast_guard_fence (x BIGINT); CREATE TABLE t (id BIGINT PRIMARY KEY)", {}, "not Holdfast's"),
]


@pytest.mark.parametrize(("made", "settings", "said"), WRONG)
def test_what_cannot_be_guarded_is_refused_before_anything_is_changed(
    place: Place, made: str, settings: dict[str, Any], said: str
) -> None:
    for statement in made.split(";"):
        place.run(statement)
    before = place.content()
    with pytest.raises(Misconfigured, match=r"(?i)" + re.escape(said)):
        install.install(place.url, "t", trigger="strict", **settings)
    assert place.content() == before


def test_a_table_that_is_missing_is_said_to_be(place: Place) -> None:
    for act in (install.plan, install.install, install.check, install.remove):
        with pytest.raises(Misconfigured, match="has no table nothing"):
            act(place.url, "nothing")


@pytest.mark.parametrize(
    ("made", "said"),
    [
        ("CREATE TABLE t (id BIGINT, PRIMARY KEY (id)) PARTITION BY RANGE (id)", "is partitioned"),
        ("CREATE MATERIALIZED VIEW t AS SELECT 1 AS id", "materialised view"),
        ("CREATE TABLE t (id NUMERIC PRIMARY KEY)", "is numeric"),
        ("CREATE TABLE t (id CHAR(8) PRIMARY KEY)", "is character"),
        ("CREATE TABLE t (id BIGINT); CREATE UNIQUE INDEX ON t (id) WHERE id > 3", "no unique index"),
        ("CREATE TABLE t (id TEXT); CREATE UNIQUE INDEX ON t (lower(id))", "no unique index"),
        ("CREATE TABLE t (id BIGINT UNIQUE DEFERRABLE)", "no unique index"),
    ],
)
def test_what_postgres_has_and_cannot_be_guarded(postgres_url: str, made: str, said: str) -> None:
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        for statement in made.split(";"):
            connection.execute(statement)
    with pytest.raises(Misconfigured, match=said):
        install.install(postgres_url, "t")


@pytest.mark.parametrize(
    ("made", "said"),
    [
        ("CREATE VIRTUAL TABLE t USING fts5(id)", "virtual table"),
        ("CREATE TABLE t (id TEXT COLLATE NOCASE PRIMARY KEY)", "no unique index"),
        ("CREATE TABLE t (id INT); CREATE UNIQUE INDEX i ON t (id) WHERE id > 3", "no unique index"),
        ("CREATE TABLE t (id TEXT); CREATE UNIQUE INDEX i ON t (lower(id))", "no unique index"),
        ("CREATE TABLE T (id INTEGER PRIMARY KEY)", "is called T, not t"),
    ],
)
def test_what_sqlite_has_and_cannot_be_guarded(tmp_path: Path, made: str, said: str) -> None:
    with closing(sqlite3.connect(tmp_path / "x.db")) as connection:
        connection.executescript(made)
    with pytest.raises(Misconfigured, match=said):
        install.install(f"sqlite:///{tmp_path}/x.db", "t")


@pytest.fixture
def schema(postgres_url: str) -> Iterator[Place]:
    place = Place("postgres", postgres_url, lambda: psycopg.connect(postgres_url, autocommit=True))
    place.run("CREATE SCHEMA billing")
    place.run("CREATE TABLE billing.invoices (id BIGINT PRIMARY KEY, total BIGINT)")
    yield place
    place.close()


@pytest.mark.parametrize("mode", ["rising", "strict"])
def test_a_table_in_a_schema_has_its_ledger_there(schema: Place, mode: str) -> None:
    before = schema.content()
    install.install(schema.url, "billing.invoices", trigger=mode)
    assert schema.run("SELECT schemaname FROM pg_tables WHERE tablename = 'holdfast_guard_fence'") == [("billing",)]
    guard = schema.guard("billing.invoices")
    guard.insert(carried(5), 1, {"total": 1})
    guard.delete(carried(6), 1)
    assert schema.refused("INSERT INTO billing.invoices VALUES (1, 1, 5)") == "HF001"
    assert install.check(schema.url, "billing.invoices", expect=mode).held
    install.remove(schema.url, "billing.invoices")
    assert schema.content() == before


def test_a_ledger_that_the_guard_would_not_find_is_refused(schema: Place) -> None:
    schema.run("CREATE TABLE things (id BIGINT PRIMARY KEY)")
    install.install(schema.url, "things")
    schema.run(f"ALTER DATABASE {schema.connection.info.dbname} SET search_path = public, billing")
    with pytest.raises(Misconfigured, match=r"name it billing\.invoices"):
        install.install(schema.url, "invoices")


def test_a_long_name_does_not_collide_with_another(schema: Place) -> None:
    first, second = "a" * 62 + "1", "a" * 62 + "2"
    for name in (first, second):
        schema.run(f"CREATE TABLE {name} (id BIGINT PRIMARY KEY, n BIGINT)")
        install.install(schema.url, name, trigger="strict")
    for name in (first, second):
        assert install.install(schema.url, name, trigger="strict").steps == ()
        assert install.check(schema.url, name, expect="strict").held


def test_a_busy_table_is_left_alone_instead_of_blocking_its_readers(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    import holdfast.guards.install.postgres as postgres
    import holdfast.guards.install.sqlite as sqlite

    monkeypatch.setattr(sqlite, "BUSY_TIMEOUT_S", 0.1)
    monkeypatch.setattr(postgres.PostgresGuardDatabase.opened.__func__, "__defaults__", (0.1,))  # type: ignore[attr-defined]  # a classmethod's function
    before = place.content()
    other = place.connect()
    place.run("BEGIN", other)
    place.run("UPDATE invoices SET total = total WHERE id = 1", other)
    with pytest.raises(Unavailable, match="nothing was changed"):
        install.install(place.url, "invoices", trigger="strict")
    place.run("ROLLBACK", other)
    assert place.content() == before


@pytest.mark.parametrize("number", range(1, 9))
def test_a_migration_that_fails_anywhere_leaves_what_was_before(
    place: Place, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    before = place.content()
    planned = migration.installing

    def failing(*arguments: Any) -> Any:
        steps = list(planned(*arguments))
        return (*steps[:number], install.MigrationStep("fail", "SELECT nonsense"), *steps[number:])

    monkeypatch.setattr(install, "installing", failing)
    with pytest.raises(Misconfigured, match="nothing was changed"):
        install.install(place.url, "invoices", trigger="strict")
    assert place.content() == before


def test_a_connection_of_the_caller_is_used_and_his_transaction_is_his(place: Place) -> None:
    before = place.content()
    connection = place.connect()
    place.run("BEGIN", connection)
    install.install(connection, "invoices", trigger="strict")
    assert install.check(connection, "invoices", expect="strict").held
    place.run("ROLLBACK", connection)
    assert place.content() == before
    install.install(connection, "invoices", trigger="strict")  # without one, it is committed
    assert place.refused("UPDATE invoices SET total = 1") == "HF002"
    assert install.check(connection, "invoices", expect="strict").held
    install.remove(connection, "invoices")
    assert place.content() == before
    place.run("SELECT 1", connection)  # it is still open


def test_a_connection_without_autocommit_is_committed(place: Place) -> None:
    connection: Any
    if place.engine == "sqlite":
        connection = sqlite3.connect(place.url.removeprefix("sqlite:///"))
        connection.row_factory = sqlite3.Row
    else:
        connection = psycopg.connect(place.url, row_factory=psycopg.rows.dict_row)
    with closing(connection):
        assert install.install(connection, "invoices", trigger="rising").changed
        assert install.install(place.url, "invoices", trigger="rising").steps == ()


@pytest.mark.parametrize(
    ("database", "said"),
    [
        (None, "HOLDFAST_GUARD_DATABASE"),
        ("mysql://x", "not a database that can be guarded"),
        ("invoices.db", "not a database that can be guarded"),
        ("sqlite:invoices.db", "names no file"),
        ("sqlite:///:memory:", "names no file"),
        (17, "int is not a database"),
        ("mysql://joe:secret@host/db", r"joe:\*\*\*@host"),
    ],
)
def test_what_is_no_database_is_refused(database: Any, said: str) -> None:
    with pytest.raises(BadInput, match=said) as caught:
        install.install(database, "invoices")
    assert "secret" not in str(caught.value)


@pytest.mark.threat("X5")
@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"table": "in voices"}, "table"),
        ({"table": 'x"; DROP TABLE invoices; --'}, "table"),
        ({"table": "invoices", "id": "a b"}, "id"),
        ({"table": "invoices", "id": ()}, "id"),
        ({"table": "invoices", "fence_column": "x'y"}, "fence_column"),
        ({"table": "invoices", "trigger": "severe"}, "trigger"),
    ],
)
def test_names_are_checked_before_anything_is_opened(settings: dict[str, Any], field: str) -> None:
    with pytest.raises(BadInput) as caught:
        install.install("sqlite:///no-such.db", **settings)
    assert caught.value.field == field


def test_a_file_is_not_made_and_a_password_not_shown(tmp_path: Path) -> None:
    with pytest.raises(Misconfigured, match="there is no file"):
        install.install(f"sqlite:///{tmp_path}/no.db", "invoices")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "text.db").write_text("not a database, but long enough to be mistaken for one" * 100)
    with pytest.raises(Misconfigured, match="not an SQLite database"):
        install.install(f"sqlite:///{tmp_path}/text.db", "invoices")
    with pytest.raises(Unavailable) as caught:
        install.install("postgresql://joe:s3cret@/db?host=/nonexistent", "invoices")
    assert "s3cret" not in str(caught.value)
    assert "joe:***" in str(caught.value)


@pytest.mark.parametrize("mode", ["rising", "strict"])
def test_the_guards_of_all_ids_work_after_a_table_was_renamed_and_installed_again(place: Place, mode: str) -> None:
    install.install(place.url, "invoices", trigger=mode)
    place.run("ALTER TABLE invoices RENAME TO bills")
    assert not install.check(place.url, "bills").held  # its triggers still speak of invoices
    install.install(place.url, "bills")
    assert install.check(place.url, "bills", expect=mode).held
