"""Proving a guard on the user's own table by trying to break it.

Promises: everything is done in a transaction that is rolled back, also when the check is interrupted or killed; what is
left afterwards is what was there before, but for numbers that sequences have handed out. While it runs it holds the row
that it tries (in SQLite, the write lock), for some milliseconds.

What is not promised by what is installed, and works, is called `open` and is no failure: without triggers only the
clients that use the guard are held to it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from holdfast.guards.install.attacks import ATTACKS, Attack
from holdfast.guards.install.database import GuardDatabase
from holdfast.guards.install.migration import Inspected, fence_problem, problems
from holdfast.guards.install.target import KEY, AttackImpossible, AttackSucceeded, Target
from holdfast.guards.install.triggers import Trigger
from holdfast.guards.sql.identifiers import TableNames

_ORDER: Final = (Trigger.NONE, Trigger.RISING, Trigger.STRICT)

_HELD_TO_IT: Final = {
    Trigger.NONE: "clients that use the guard",
    Trigger.RISING: "every client that sets a fence; one that sets none is let through",
    Trigger.STRICT: "every client",
}


class AttackVerdict(StrEnum):
    """How an attempt ended."""

    HELD = "held"
    OPEN = "open"  # it works, and nothing that is installed has promised that it does not
    BROKEN = "broken"  # it works, and must not
    UNTRIED = "untried"


@dataclass(frozen=True, slots=True)
class AttackOutcome:
    """One attack, and what came of it."""

    name: str
    what: str
    happened: str
    verdict: AttackVerdict

    def as_dict(self) -> dict[str, str]:
        """For programs."""
        return {"name": self.name, "what": self.what, "happened": self.happened, "verdict": self.verdict.value}


@dataclass(frozen=True, slots=True)
class Proof:
    """What was tried on a table, and what held."""

    database: str
    table: str
    trigger: Trigger  # what is installed
    expected: Trigger | None
    row: str  # on what it was tried
    attempts: tuple[AttackOutcome, ...]
    problems: tuple[str, ...]  # what is wrong before anything is tried

    @property
    def held(self) -> bool:
        """Whether everything holds that is promised, and expected."""
        return not self.problems and all(each.verdict is not AttackVerdict.BROKEN for each in self.attempts)

    @property
    def held_to_it(self) -> str:
        """Which clients are held to the guard, if it holds."""
        return _HELD_TO_IT[self.trigger]

    def count(self, verdict: AttackVerdict) -> int:
        """How many attempts ended so."""
        return sum(each.verdict is verdict for each in self.attempts)

    def as_dict(self) -> dict[str, Any]:
        """For programs."""
        return {
            "database": self.database,
            "table": self.table,
            "held": self.held,
            "trigger": self.trigger.value,
            "expected": None if self.expected is None else self.expected.value,
            "held_to_it": self.held_to_it,
            "row": self.row,
            "problems": list(self.problems),
            "attempts": [each.as_dict() for each in self.attempts],
        }


def prove(database: GuardDatabase, names: TableNames, expected: Trigger | None) -> Proof:
    """Inspect, try every attack, undo everything."""
    with database.reading():
        found = database.inspect(names)
    wrong = [*_problems(found, expected)]
    if not found.prepared:
        install = f"holdfast guard install {names.shown}"
        wrong.append(f"{names.shown} is not prepared for a guard: {install}")
        return _proof(database, found, expected, "", [], wrong)
    with _quiet(), database.translating(), database.trying():
        target = Target(database, found)
        try:
            target.choose()
        except AttackImpossible as error:
            wrong.append(f"nothing could be tried: {error}")
            return _proof(database, found, expected, "", [], wrong)
        shown = "one that was made up, for the table is empty" if target.made else f"{names.shown} {target.row_id}"
        attempts = [_attempted(target, each) for each in ATTACKS if each.engine in (None, found.engine)]
    return _proof(database, found, expected, shown, attempts, wrong)


def _proof(
    database: GuardDatabase,
    found: Inspected,
    expected: Trigger | None,
    row: str,
    attempts: list[AttackOutcome],
    wrong: list[str],
) -> Proof:
    return Proof(database.shown, found.names.shown, found.trigger, expected, row, tuple(attempts), tuple(wrong))


def _problems(found: Inspected, expected: Trigger | None) -> Iterator[str]:
    column = found.columns.get(found.names.fence_column)
    if column is not None and (problem := fence_problem(found.engine, found.names.fence_column, column)):
        yield problem
    if found.id_problem is not None:
        yield found.id_problem
    if not any(set(each) == set(found.names.id_columns) for each in found.unique):
        yield f"({', '.join(found.names.id_columns)}) has no unique index, so a row is not one row"
    yield from (f"the trigger {each}" for each in problems(found))
    if expected is not None and _ORDER.index(found.trigger) < _ORDER.index(expected):
        yield f"expected {expected}, but what is installed is {found.trigger}"


def _attempted(target: Target, attack: Attack) -> AttackOutcome:
    verdict, promised = AttackVerdict.HELD, _ORDER.index(attack.promised_by) <= _ORDER.index(target.found.trigger)
    try:
        with target.database.trying():
            happened = attack.attempt(target)
    except AttackImpossible as error:
        verdict, happened = AttackVerdict.UNTRIED, str(error)
    except AttackSucceeded as error:
        verdict, happened = (AttackVerdict.BROKEN if promised else AttackVerdict.OPEN), str(error)
    except Exception as error:
        refusal = target.database.refusal(error)
        if refusal is None:
            raise
        verdict, happened = AttackVerdict.UNTRIED, f"the database says: {refusal.text}"
    return AttackOutcome(attack.name, attack.what, happened, verdict)


@contextmanager
def _quiet() -> Iterator[None]:
    """Refusals that are provoked here are no news."""
    log = logging.getLogger("holdfast.guards")
    unprovoked = _Unprovoked()
    log.addFilter(unprovoked)
    try:
        yield
    finally:
        log.removeFilter(unprovoked)


class _Unprovoked(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        return getattr(record, "holdfast", {}).get("key") != KEY
