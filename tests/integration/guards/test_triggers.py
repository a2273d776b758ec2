"""Triggers: a client that knows nothing of Holdfast, with plain SQL, is held to the fence all the same."""

from __future__ import annotations

import sqlite3
from typing import Any
from uuid import UUID

import psycopg
import pytest

import holdfast
from holdfast.errors import FencedOut
from holdfast.guards import install
from support.fixtures.guards import carried
from support.fixtures.tables import Place, postgres_only

MODES = ("rising", "strict")
BOTH = pytest.mark.parametrize("mode", MODES)


def prepared(place: Place, mode: str, **settings: Any) -> Place:
    install.install(place.url, "invoices", trigger=mode, **settings)
    return place


def announce(place: Place, fence: int, resource: object = 1, by: Any = None) -> None:
    """Raise the ledger entry of a row, as a client does that is about to delete it."""
    place.run(
        f"INSERT INTO holdfast_guard_fence (place, resource, fence) VALUES ('invoices', '{resource}', {fence}) "
        "ON CONFLICT (place, resource) DO UPDATE SET fence = excluded.fence",
        by,
    )


@BOTH
@pytest.mark.requires("R58")
def test_a_fence_rises_and_never_goes_down(place: Place, mode: str) -> None:
    prepared(place, mode)
    for fence in (0, 5, 5, 2**53 + 1, 2**63 - 1):
        place.run(f"UPDATE invoices SET total = total + 1, holdfast_fence = {fence} WHERE id = 1")
    before = place.content()
    assert place.refused("UPDATE invoices SET total = 0, holdfast_fence = 9223372036854775806 WHERE id = 1") == "HF001"
    assert place.refused("UPDATE invoices SET total = 0, holdfast_fence = 0 WHERE id = 1") == "HF001"
    assert place.refused("UPDATE invoices SET total = 0, holdfast_fence = NULL WHERE id = 1") == "HF002"
    assert place.content() == before
    assert place.rows()[0] == (1, 15, 2**63 - 1)


@BOTH
def test_what_is_no_fence_is_refused(place: Place, mode: str) -> None:
    prepared(place, mode)
    before = place.content()
    assert place.refused("UPDATE invoices SET holdfast_fence = -1 WHERE id = 1") == "HF004"
    assert place.refused("INSERT INTO invoices (id, holdfast_fence) VALUES (3, -7)") == "HF004"
    if place.engine == "sqlite":
        for wrong in ("'x'", "1.5", "X'01'"):
            assert place.refused(f"UPDATE invoices SET holdfast_fence = {wrong} WHERE id = 1") == "HF004"
            assert place.refused(f"INSERT INTO invoices (id, holdfast_fence) VALUES (3, {wrong})") == "HF004"
    assert place.content() == before


@BOTH
@pytest.mark.requires("R58")
def test_a_row_that_was_deleted_cannot_be_brought_back_under_a_lower_fence(place: Place, mode: str) -> None:
    prepared(place, mode)
    place.run("UPDATE invoices SET holdfast_fence = 7 WHERE id = 1")
    with place.transaction():
        announce(place, 8 if mode == "strict" else 7)
        place.run("DELETE FROM invoices WHERE id = 1")
    remembered = 8 if mode == "strict" else 7
    assert place.ledger() == {"1": remembered}
    assert place.refused("INSERT INTO invoices (id, holdfast_fence) VALUES (1, 6)") == "HF001"
    with pytest.raises(FencedOut):
        place.guard().insert(carried(6), 1, {"total": 0})
    place.run(f"INSERT INTO invoices (id, holdfast_fence) VALUES (1, {remembered})")
    assert (place.rows()[0], place.ledger()) == ((1, 0, remembered), {})


def test_rising_lets_writes_through_that_mention_no_fence_and_the_fence_stays(place: Place) -> None:
    prepared(place, "rising")
    place.run("UPDATE invoices SET holdfast_fence = 7 WHERE id = 1")
    place.run("UPDATE invoices SET total = 1 WHERE id = 1")
    assert place.rows()[0] == (1, 1, 7)
    place.run("DELETE FROM invoices WHERE id = 1")
    assert place.ledger() == {"1": 7}
    place.run("INSERT INTO invoices (id, total) VALUES (1, 5)")
    assert (place.rows()[0], place.ledger()) == ((1, 5, 7), {})  # it carries on where it was
    place.run("INSERT INTO invoices (id) VALUES (3)")
    place.run("DELETE FROM invoices WHERE id = 3")
    assert place.ledger() == {}  # it has never met a fence


def test_strict_refuses_writes_that_present_no_fence_and_says_what_to_do(place: Place) -> None:
    prepared(place, "strict")
    place.run("UPDATE invoices SET holdfast_fence = 7 WHERE id = 1")
    before = place.content()
    assert place.refused("UPDATE invoices SET total = 1 WHERE id = 1") == "HF002"
    assert place.refused("UPDATE invoices SET total = 1 WHERE id = 2") == "HF002"  # it has never met a fence
    assert place.refused("UPDATE invoices SET total = 1") == "HF002"
    assert place.refused("INSERT INTO invoices (id) VALUES (3)") == "HF002"
    assert place.refused("DELETE FROM invoices WHERE id = 1") == "HF003"
    assert place.refused("DELETE FROM invoices") == "HF003"
    assert place.content() == before
    place.run("UPDATE invoices SET total = 1, holdfast_fence = holdfast_fence WHERE id = 1")  # the same holder again
    with pytest.raises((sqlite3.Error, psycopg.Error), match="holdfast_fence") as caught:
        place.run("UPDATE invoices SET total = 1 WHERE id = 1")
    if isinstance(caught.value, psycopg.Error):
        assert "fence of your lease" in str(caught.value.diag.message_hint)


def test_strict_wants_a_delete_to_be_announced_by_a_fence_that_is_not_below_the_rows(place: Place) -> None:
    prepared(place, "strict")
    place.run("UPDATE invoices SET holdfast_fence = 7 WHERE id = 1")
    place.run("BEGIN")
    announce(place, 6)
    assert place.refused("DELETE FROM invoices WHERE id = 1") == "HF001"
    place.run("ROLLBACK")
    with place.transaction():
        announce(place, 7)
        place.run("DELETE FROM invoices WHERE id = 1")
    with place.transaction():
        announce(place, 3, 2)
        place.run("DELETE FROM invoices WHERE id = 2")
    assert (place.rows(), place.ledger()) == ([], {"1": 7, "2": 3})


@BOTH
def test_rows_are_judged_one_by_one_and_one_refusal_undoes_the_statement(place: Place, mode: str) -> None:
    prepared(place, mode)
    place.run("UPDATE invoices SET holdfast_fence = 5")
    place.run("UPDATE invoices SET holdfast_fence = 9 WHERE id = 2")
    before = place.content()
    assert place.refused("UPDATE invoices SET total = 0, holdfast_fence = 7") == "HF001"
    assert place.refused("INSERT INTO invoices (id, holdfast_fence) VALUES (3, 1), (4, -1)") == "HF004"
    assert place.content() == before
    place.run("UPDATE invoices SET total = 0, holdfast_fence = id + 8")
    assert place.rows() == [(1, 0, 9), (2, 0, 10)]


@BOTH
def test_an_upsert_is_held_to_it(place: Place, mode: str) -> None:
    prepared(place, mode)
    place.run("UPDATE invoices SET holdfast_fence = 7 WHERE id = 1")
    insert = "INSERT INTO invoices (id, total, holdfast_fence) VALUES (1, 99, {}) "
    upsert = insert + "ON CONFLICT (id) DO UPDATE SET total = 99{}"
    fence = ", holdfast_fence = excluded.holdfast_fence"
    assert place.refused(upsert.format(6, fence)) == "HF001"
    place.run(upsert.format(6, "").replace("DO UPDATE SET total = 99", "DO NOTHING"))
    assert place.rows()[0] == (1, 10, 7)
    if mode == "strict":
        assert place.refused(upsert.format(8, "")) == "HF002"  # what it updates does not set the fence
    else:
        place.run(upsert.format(8, ""))
        assert place.rows()[0] == (1, 99, 7)
    place.run(upsert.format(8, fence))
    assert (place.rows()[0], place.ledger()) == ((1, 99, 8), {})


@BOTH
def test_the_id_of_a_row_stays(place: Place, mode: str) -> None:
    prepared(place, mode)
    before = place.content()
    assert place.refused("UPDATE invoices SET id = 3, holdfast_fence = 1 WHERE id = 1") == "HF005"
    assert place.content() == before
    place.run("UPDATE invoices SET id = 1, holdfast_fence = 1 WHERE id = 1")


@BOTH
def test_degraded_writes_pass_where_triggers_let_unfenced_writes_pass(
    place: Place, mode: str, degraded: holdfast.DegradedLease
) -> None:
    prepared(place, mode)
    guard: Any = place.guard(allow_degraded=True)
    if mode == "rising":
        guard.update(degraded, 1, {"total": 3})
        assert place.rows()[0] == (1, 3, None)
        return
    before = place.content()
    steps: list[tuple[str, tuple[Any, ...]]] = [
        ("update", (1, {"total": 3})),
        ("insert", (3, {"total": 3})),
        ("delete", (1,)),
    ]
    for name, arguments in steps:
        with pytest.raises((sqlite3.IntegrityError, psycopg.Error), match=r"no fence|not announced"):
            getattr(guard, name)(degraded, *arguments)
    assert place.content() == before


@BOTH
@pytest.mark.parametrize(
    ("ids", "row"),
    [
        ("a BIGINT, b TEXT", (4, "x")),
        ("a TEXT, b TEXT", ('say "no"\\', "tab\tand\nline\x01")),
        ("a BIGINT, b BIGINT", (-1, 2**63 - 1)),
    ],
)
def test_ids_of_several_columns_mean_the_same_to_guard_and_trigger(
    place: Place, mode: str, ids: str, row: tuple[Any, ...]
) -> None:
    place.run(f"CREATE TABLE parts ({ids}, total BIGINT, PRIMARY KEY (a, b))")
    install.install(place.url, "parts", id=("a", "b"), trigger=mode)
    guard = place.guard("parts", id=("a", "b"))
    guard.insert(carried(5), row, {"total": 1})
    guard.delete(carried(6), row)
    assert list(place.ledger().values()) == [6]
    place_of = "?, ?" if place.engine == "sqlite" else "%s, %s"
    with pytest.raises((sqlite3.IntegrityError, psycopg.Error), match="stale fence"):
        place.connection.execute(f"INSERT INTO parts (a, b, holdfast_fence) VALUES ({place_of}, 5)", row)
    place.connection.execute(f"INSERT INTO parts (a, b, holdfast_fence) VALUES ({place_of}, 6)", row)
    assert place.ledger() == {}  # the trigger has found the guard's entry


@postgres_only
def test_uuids_mean_the_same_to_guard_and_trigger(place: Place) -> None:
    row = UUID("0F0E0D0C-0B0A-0908-0706-050403020100")
    place.run("CREATE TABLE things (id UUID PRIMARY KEY, total BIGINT)")
    install.install(place.url, "things", trigger="strict")
    place.guard("things").insert(carried(5), row, {"total": 1})
    place.guard("things").delete(carried(6), row)
    assert place.refused(f"INSERT INTO things (id, holdfast_fence) VALUES ('{row}', 5)") == "HF001"
