"""Places in statements, values for them, and scripts taken apart."""

from __future__ import annotations

import sqlite3

import pytest

from holdfast.errors import BadInput
from holdfast.plane.db.statements import compiled, split, value_of

EVERYWHERE: list[tuple[str, str, tuple[str, ...]]] = [
    ("SELECT :a", "SELECT $1", ("a",)),
    ("SELECT :a, :b, :a", "SELECT $1, $2, $1", ("a", "b")),
    ("SELECT ':a', :b", "SELECT ':a', $1", ("b",)),
    ("SELECT 'it''s :a', :b", "SELECT 'it''s :a', $1", ("b",)),
    ('SELECT ":a" FROM t', 'SELECT ":a" FROM t', ()),
    ("SELECT 1 -- :a\n, :b", "SELECT 1 -- :a\n, $1", ("b",)),
    ("SELECT /* :a\n */ :b", "SELECT /* :a\n */ $1", ("b",)),
    ("SELECT '%', '10 %s', x % :n", "SELECT '%', '10 %s', x % $1", ("n",)),
    ("SELECT :a_1+:B2", "SELECT $1+$2", ("a_1", "B2")),
    ("SELECT 'a' -- it's\n, :b", "SELECT 'a' -- it's\n, $1", ("b",)),
    ("SELECT 'unfinished :a", "SELECT 'unfinished $1", ("a",)),
    ("", "", ()),
]
POSTGRES: list[tuple[str, str, tuple[str, ...]]] = [
    ("SELECT :a::text, x::int8", "SELECT $1::text, x::int8", ("a",)),
    (r"SELECT E'\':a', :b", r"SELECT E'\':a', $1", ("b",)),
    ("SELECT $$ :a; $$, :b", "SELECT $$ :a; $$, $1", ("b",)),
    ("SELECT $x$ :a $$ :c $x$, :b", "SELECT $x$ :a $$ :c $x$, $1", ("b",)),
    ("SELECT a[1:2], b ? 'x', :c", "SELECT a[1:2], b ? 'x', $1", ("c",)),
    ("DELETE FROM t WHERE a = :a;\n-- the end", "DELETE FROM t WHERE a = $1;\n-- the end", ("a",)),
]


@pytest.mark.parametrize(("text", "expected", "names"), EVERYWHERE + POSTGRES)
def test_postgres_gets_numbers_for_places_and_nothing_else_is_touched(
    text: str, expected: str, names: tuple[str, ...]
) -> None:
    found = compiled(text, "postgres")

    assert (found.text, found.names) == (expected, names)


@pytest.mark.parametrize(("text", "expected", "names"), EVERYWHERE)
def test_sqlite_gets_numbers_as_well(text: str, expected: str, names: tuple[str, ...]) -> None:
    found = compiled(text, "sqlite")

    assert (found.text, found.names) == (expected.replace("$", "?"), names)


@pytest.mark.parametrize(
    ("text", "dialect"), [("SELECT $1", "postgres"), ("SELECT ?", "sqlite"), ("SELECT $1", "sqlite")]
)
def test_other_ways_to_write_places_are_refused(text: str, dialect: str) -> None:
    with pytest.raises(BadInput, match="write places as :name"):
        compiled(text, dialect)


def test_values_come_in_the_order_of_their_places_and_the_rest_is_left_out() -> None:
    statement = compiled("SELECT :b, :a, :b", "postgres")

    assert statement.ordered({"a": 1, "b": "x", "c": object()}) == ("x", 1)
    assert compiled("SELECT 1", "postgres").ordered(None) == ()
    with pytest.raises(BadInput, match=":b has no value"):
        statement.ordered(None)


@pytest.mark.parametrize("value", [None, True, False, 0, -1, 1.5, "", "x", b"", b"\0x"])
def test_plain_values_stay_as_they_are(value: object) -> None:
    assert value_of("a", value) is value or value_of("a", value) == value
    assert type(value_of("a", value)) is type(value)


def test_views_of_bytes_become_bytes() -> None:
    assert value_of("a", memoryview(b"x")) == b"x"
    assert type(value_of("a", bytearray(b"x"))) is bytes


def test_a_script_is_taken_apart_where_its_statements_end() -> None:
    script = (
        "-- head; not a statement\nCREATE TABLE a (x TEXT DEFAULT ';');\n\nINSERT INTO a VALUES ('y;')  ;;\n-- end\n"
    )

    for dialect in ("sqlite", "postgres"):
        found = list(split(script, dialect))
        assert [each.split()[-1][-1] for each in found] == [";", ";"]
        assert "CREATE TABLE" in found[0]
        assert found[1].startswith("INSERT")


def test_a_trigger_and_a_function_stay_in_one_piece() -> None:
    trigger = "CREATE TRIGGER t AFTER INSERT ON a BEGIN SELECT 1; SELECT 2; END;"
    function = "CREATE FUNCTION f() RETURNS int LANGUAGE sql AS $$ SELECT 1; SELECT 2; $$;"

    assert list(split(f"{trigger}\nSELECT 3", "sqlite")) == [trigger, "SELECT 3"]
    assert list(split(f"{function}\nSELECT 3", "postgres")) == [function, "SELECT 3"]


def test_what_is_compiled_for_sqlite_runs_there() -> None:
    for text, _, names in EVERYWHERE[:-2]:
        if "FROM t" in text or "x %" in text:
            continue
        statement = compiled(text, "sqlite")
        connection = sqlite3.connect(":memory:")
        assert connection.execute(statement.text, (1,) * len(names)).fetchone() is not None
        connection.close()


@pytest.mark.parametrize(
    ("text", "reads"),
    [
        ("SELECT id FROM thing", True),
        ("-- UPDATE\nselect 'insert into', \"delete\" FROM thing /* merge */", True),
        ("WITH RECURSIVE a AS (SELECT 1) SELECT * FROM a", True),
        ("SELECT updated_ns, last_update FROM thing WHERE inserted = :delete", True),
        ("SELECT * FROM thing FOR UPDATE", False),
        ("SELECT * FROM thing FOR KEY SHARE", False),
        ("WITH a AS (DELETE FROM thing RETURNING id) SELECT * FROM a", False),
        ("WITH a AS (SELECT 1) INSERT INTO thing SELECT * FROM a", False),
        ("SELECT 1 AS id INTO other", False),
        ("INSERT INTO thing (id) VALUES (1)", False),
        ("CREATE TABLE other (id BIGINT)", False),
        ("", False),
    ],
)
def test_what_writes_or_locks_is_told_from_what_only_looks(text: str, reads: bool) -> None:
    assert compiled(text, "postgres").reads is reads
