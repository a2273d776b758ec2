"""`guard check`: it finds what does not hold, leaves no trace, and says what it could not try."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest

from holdfast.core import failpoints
from holdfast.guards import install
from holdfast.guards.install.attacks import ATTACKS
from holdfast.guards.install.verify import AttackVerdict, Proof
from support.fixtures.tables import Place, every_engine, on, postgres_only

GUARD = {"accepts", "lower", "late", "return", "extremes", "second-writer", "plain-newer"}
DEPENDS_ON_DELETING = {"return", "plain-return", "plain-return-bare", "unfenced-insert", "plain-other-id"}
STRICT = {"unfenced-update", "unfenced-insert", "unfenced-delete"}


def names(proof: Proof, verdict: AttackVerdict) -> set[str]:
    return {each.name for each in proof.attempts if each.verdict is verdict}


def every(place: Place) -> set[str]:
    return {each.name for each in ATTACKS if each.engine in (None, place.engine)}


@pytest.mark.parametrize("rows", [True, False], ids=["row", "empty"])
@pytest.mark.parametrize(
    ("mode", "opened", "who"),
    [
        ("none", "rest", "clients that use the guard"),
        ("rising", "strict", "every client that sets a fence"),
        ("strict", "", "every client"),
    ],
)
@every_engine
def test_what_holds_and_for_whom_is_said(place: Place, mode: str, opened: str, who: str, rows: bool) -> None:
    install.install(place.url, "invoices")
    if not rows:
        place.run("DELETE FROM invoices")
    install.install(place.url, "invoices", trigger=mode)
    before = place.content()
    proof = install.check(place.url, "invoices")
    assert proof.held
    assert proof.held_to_it.startswith(who)
    expected = {"rest": every(place) - GUARD, "strict": STRICT, "": set()}[opened]
    assert names(proof, AttackVerdict.OPEN) == expected
    untried = names(proof, AttackVerdict.UNTRIED)
    assert untried == ({"second-writer"} if place.engine == "postgres" and not rows else set())
    assert names(proof, AttackVerdict.HELD) == every(place) - expected - untried
    assert place.content() == before


@pytest.mark.parametrize("mode", ["none", "rising", "strict"])
@pytest.mark.parametrize("expect", ["none", "rising", "strict"])
def test_what_is_expected_and_not_there_is_a_failure(place: Place, mode: str, expect: str) -> None:
    install.install(place.url, "invoices", trigger=mode)
    order = ["none", "rising", "strict"]
    proof = install.check(place.url, "invoices", expect=expect)
    assert proof.held == (order.index(mode) >= order.index(expect))
    assert [each for each in proof.problems if "expected" in each] == (
        [] if proof.held else [f"expected {expect}, but what is installed is {mode}"]
    )


def test_a_table_that_was_never_prepared_is_a_failure(place: Place) -> None:
    before = place.content()
    proof = install.check(place.url, "invoices")
    assert not proof.held
    assert "holdfast guard install invoices" in proof.problems[0]
    assert place.content() == before


def dropped(name: str) -> Callable[[Place], None]:
    def damage(place: Place) -> None:
        if place.engine == "sqlite":
            place.run(f"DROP TRIGGER holdfast_guard_invoices_{name}")
        else:
            order = {"present": "1_", "require": "2_"}.get(name, "")
            place.run(f"DROP TRIGGER holdfast_guard_{order}{name} ON invoices")

    return damage


def rewritten(name: str, old: str, new: str) -> Callable[[Place], None]:
    """Change a trigger by hand, as a well-meaning operator does."""

    def damage(place: Place) -> None:
        if place.engine == "sqlite":
            ((text,),) = place.run(f"SELECT sql FROM sqlite_master WHERE name = 'holdfast_guard_invoices_{name}'")
            place.run(f"DROP TRIGGER holdfast_guard_invoices_{name}")
        else:
            ((text,),) = place.run(f"SELECT pg_get_functiondef('holdfast_guard_invoices_{name}'::regproc)")
        assert old in text
        place.run(text.replace(old, new))

    return damage


def disabled(name: str) -> Callable[[Place], None]:
    return lambda place: void(place.run(f"ALTER TABLE invoices DISABLE TRIGGER holdfast_guard_{name}"))


def void(_: object) -> None:
    return None


F = '"holdfast_fence"'
DAMAGE: list[tuple[str, str, Callable[[Place], None], set[str]]] = [
    ("sqlite", "strict", dropped("present"), {"accepts", "plain-newer"}),
    ("sqlite", "strict", dropped("begin"), {"accepts", "plain-newer"}),
    ("sqlite", "strict", dropped("update"), {"plain-lower", "plain-null", "plain-other-id", "unfenced-update"}),
    ("sqlite", "strict", dropped("replace"), {"replace-lower"}),
    ("sqlite", "strict", dropped("insert"), {"plain-return", "replace-lower", "replace-bare", "unfenced-insert"}),
    ("sqlite", "strict", dropped("delete"), {"unfenced-delete"}),
    ("sqlite", "rising", dropped("update"), {"plain-lower", "plain-null", "upsert-lower"}),
    ("sqlite", "rising", dropped("insert"), {"plain-return", "plain-return-bare", "replace-bare"}),
    ("sqlite", "rising", dropped("delete"), {"plain-delete"}),
    ("sqlite", "strict", rewritten("update", f"NEW.{F} < OLD.{F}", f"NEW.{F} > OLD.{F}"), {"accepts", "plain-lower"}),
    ("sqlite", "rising", rewritten("update", f"NEW.{F} < OLD.{F}", f"NEW.{F} < 5"), {"plain-lower"}),
    ("sqlite", "strict", rewritten("insert", f"NEW.{F} IS NULL", f"NEW.{F} = 0"), {"unfenced-insert"}),
    ("postgres", "strict", dropped("present"), {"accepts", "plain-newer"}),
    ("postgres", "strict", dropped("require"), {"accepts", "plain-newer"}),
    ("postgres", "strict", dropped("update"), {"plain-lower", "plain-other-id", "upsert-lower"}),
    ("postgres", "strict", dropped("insert"), {"plain-return", "unfenced-insert"}),
    ("postgres", "strict", dropped("delete"), {"unfenced-delete"}),
    ("postgres", "strict", dropped("truncate"), {"truncate"}),
    ("postgres", "rising", dropped("update"), {"plain-lower", "plain-null", "upsert-lower"}),
    ("postgres", "rising", dropped("insert"), {"plain-return"}),
    ("postgres", "rising", dropped("delete"), {"plain-delete"}),
    ("postgres", "rising", disabled("update"), {"plain-lower", "plain-null", "upsert-lower"}),
    ("postgres", "rising", rewritten("update", f"NEW.{F} < seen", f"NEW.{F} > seen"), {"accepts", "plain-lower"}),
    ("postgres", "strict", rewritten("delete", "IF NOT FOUND", "IF false"), {"unfenced-delete"}),
]


@pytest.mark.parametrize(
    ("place", "mode", "damage", "found"),
    [on(engine, *rest, id=f"{rest[0]}-{number}") for number, (engine, *rest) in enumerate(DAMAGE)],
    indirect=["place"],
)
def test_a_damaged_installation_is_found_by_what_it_lets_through(
    place: Place, mode: str, damage: Callable[[Place], None], found: set[str]
) -> None:
    install.install(place.url, "invoices", trigger=mode)
    damage(place)
    before = place.content()
    proof = install.check(place.url, "invoices")
    assert not proof.held
    assert any("trigger" in each for each in proof.problems)  # it is seen to be different…
    assert names(proof, AttackVerdict.BROKEN) >= found  # …and it is shown what that means
    assert place.content() == before


def test_a_fence_that_is_kept_as_text_is_found(place: Place) -> None:
    """'9' is above '10' as text. Nothing refuses such a column at the time of writing."""
    install.install(place.url, "invoices")
    if place.engine == "sqlite":
        assert len(place.rows()) == 2  # a look at the table lets this connection see the new column, too
        place.run("ALTER TABLE invoices DROP COLUMN holdfast_fence")
        place.run("ALTER TABLE invoices ADD COLUMN holdfast_fence TEXT")
    else:
        place.run("ALTER TABLE invoices ALTER COLUMN holdfast_fence TYPE integer")
    before = place.content()
    proof = install.check(place.url, "invoices")
    assert not proof.held
    assert "holdfast_fence is" in proof.problems[0]
    if place.engine == "sqlite":
        assert names(proof, AttackVerdict.BROKEN) >= {"accepts", "lower", "extremes"}
    assert place.content() == before


def test_a_guard_whose_ledger_forgets_is_found(place: Place) -> None:
    install.install(place.url, "invoices")
    if place.engine == "sqlite":
        place.run(
            "CREATE TRIGGER forgetful AFTER INSERT ON holdfast_guard_fence BEGIN DELETE FROM holdfast_guard_fence; END"
        )
    else:
        place.run("CREATE RULE forgetful AS ON DELETE TO invoices DO ALSO DELETE FROM holdfast_guard_fence")
    proof = install.check(place.url, "invoices")
    assert names(proof, AttackVerdict.BROKEN) >= {"return"}


class Interrupted(BaseException):
    """Ctrl-C, at a place that was chosen."""


@pytest.mark.parametrize("point", ["guard.admitted", "guard.reserved", "guard.written", "guard.entered"])
@pytest.mark.parametrize("mode", ["none", "strict"])
def test_an_interrupted_check_leaves_no_trace(place: Place, mode: str, point: str) -> None:
    install.install(place.url, "invoices", trigger=mode)
    before = place.content()

    def interrupt() -> None:
        raise Interrupted

    with failpoints.armed(point, interrupt), pytest.raises(Interrupted):
        install.check(place.url, "invoices")
    assert place.content() == before
    place.run("UPDATE invoices SET total = total, holdfast_fence = 1 WHERE id = 1")  # and nothing is locked


def test_rows_that_have_met_high_fences_can_be_tried(place: Place) -> None:
    install.install(place.url, "invoices", trigger="strict")
    place.run(f"UPDATE invoices SET holdfast_fence = {2**60}")
    proof = install.check(place.url, "invoices")
    assert (proof.held, names(proof, AttackVerdict.UNTRIED)) == (True, set())
    place.run(f"UPDATE invoices SET holdfast_fence = {2**63 - 1}")
    before = place.content()
    proof = install.check(place.url, "invoices")
    assert not proof.held
    assert "there is none left above it" in proof.problems[0]
    assert place.content() == before


@postgres_only  # a connection of SQLite does not enforce foreign keys unless it is told to
def test_what_could_not_be_tried_is_said(place: Place) -> None:
    """Rows that others depend on cannot be deleted, not even on trial."""
    install.install(place.url, "invoices", trigger="strict")
    place.run("CREATE TABLE lines (id BIGINT REFERENCES invoices)")
    place.run("INSERT INTO lines VALUES (1), (2)")
    proof = install.check(place.url, "invoices")
    assert names(proof, AttackVerdict.UNTRIED) == DEPENDS_ON_DELETING
    said = {each.happened for each in proof.attempts if each.verdict is AttackVerdict.UNTRIED}
    assert all("foreign key" in each for each in said)
    assert proof.held


def test_an_empty_table_in_which_no_row_can_be_made_proves_nothing(place: Place) -> None:
    place.run("CREATE TABLE orders (id BIGINT PRIMARY KEY, size BIGINT NOT NULL CHECK (size > 100))")
    install.install(place.url, "orders")
    proof = install.check(place.url, "orders")
    assert not proof.held
    assert "no row could be made" in proof.problems[0]


def test_rows_are_made_up_for_columns_of_all_types(place: Place) -> None:
    kinds = (
        "a INTEGER NOT NULL, b TEXT NOT NULL, c REAL NOT NULL, d BLOB NOT NULL, e DATE NOT NULL"
        if place.engine == "sqlite"
        else "a SMALLINT NOT NULL, b VARCHAR(9) NOT NULL, c REAL NOT NULL, d BYTEA NOT NULL, e DATE NOT NULL, "
        "f JSONB NOT NULL, g TIMESTAMPTZ NOT NULL, h BOOLEAN NOT NULL, i NUMERIC NOT NULL, j UUID NOT NULL, "
        "k BIGINT GENERATED ALWAYS AS (a + 1) STORED, l TEXT NOT NULL DEFAULT 'x'"
    )
    place.run(f"CREATE TABLE wide (id TEXT PRIMARY KEY, {kinds})")
    install.install(place.url, "wide", trigger="strict")
    before = place.content()
    proof = install.check(place.url, "wide", expect="strict")
    assert proof.held, proof
    assert "return" in names(proof, AttackVerdict.HELD)
    assert place.content() == before


def test_refusals_that_are_provoked_are_not_logged(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    install.install(place.url, "invoices", trigger="strict")
    with caplog.at_level(logging.DEBUG, "holdfast"):
        install.check(place.url, "invoices")
    assert caplog.records == []


def test_a_proof_can_be_read_by_programs(place: Place) -> None:
    install.install(place.url, "invoices", trigger="strict")
    told = install.check(place.url, "invoices", expect="rising").as_dict()
    assert {"database", "table", "held", "trigger", "expected", "held_to_it", "row", "problems", "attempts"} == set(
        told
    )
    assert (told["held"], told["trigger"], told["expected"]) == (True, "strict", "rising")
    assert {"name", "what", "happened", "verdict"} == set(told["attempts"][0])
