"""The guard kit on tables and mapped classes of SQLAlchemy, on both kinds of database and in both colors."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from holdfast.guards.conformance import Check, checks_for, run_check
from support.guards.subjects_sqlalchemy import (
    AsyncCoreSubject,
    AsyncEntitySubject,
    Base,
    CoreSubject,
    EntitySubject,
    prepare,
    sqlite_url,
)

SUBJECTS = [
    ("core", CoreSubject, False),
    ("orm", EntitySubject, False),
    ("core-asyncio", AsyncCoreSubject, True),
    ("orm-asyncio", AsyncEntitySubject, True),
]


def cases(among_processes: str) -> pytest.MarkDecorator:
    """Every check for every subject; what other processes can do is shown for one of them on each database."""
    return pytest.mark.parametrize(
        ("subject", "asynchronous", "check"),
        [
            pytest.param(subject, asynchronous, check, id=f"{name}-{check}")
            for name, subject, asynchronous in SUBJECTS
            for check in checks_for(deletes=True, processes=name == among_processes)
        ],
    )


@pytest.fixture(scope="module")
def kit_sqlite(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A file with the tables of the kit, whose every check has rows of its own."""
    url = sqlite_url(tmp_path_factory.mktemp("kit") / "app.db")
    prepare(url, Base.metadata)
    return url


@pytest.fixture(scope="module")
def kit_postgres(kit_postgres_url: str) -> str:
    """A database with the same tables."""
    prepare(kit_postgres_url, Base.metadata)
    return kit_postgres_url


@pytest.mark.requires("R28", "R29", "R34", "R47")
@cases(among_processes="core")
def test_rows_of_a_sqlite_file_keep_the_contract(
    check: Check, subject: Callable[[str, str], Any], asynchronous: bool, kit_sqlite: str
) -> None:
    run_check(check, partial(subject, kit_sqlite), asynchronous=asynchronous, threads=4)


@pytest.mark.requires("R28", "R29", "R34", "R47")
@cases(among_processes="orm")
def test_rows_of_postgres_keep_the_contract(
    check: Check, subject: Callable[[str, str], Any], asynchronous: bool, kit_postgres: str
) -> None:
    run_check(check, partial(subject, kit_postgres), asynchronous=asynchronous, threads=4)
