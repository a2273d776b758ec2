"""The guard kit on real servers, through psycopg in both colors."""

from __future__ import annotations

import pytest

from holdfast.guards.conformance import Check, checks_for, run_check
from support.fixtures.postgres import every_postgres
from support.guards.subjects_postgres import prepared, prepared_async

# What other processes can do is a matter of the statements, which both colors share.
CASES = [
    pytest.param(colour, check, id=f"{colour}-{check}")
    for colour in ("blocking", "asyncio")
    for check in checks_for(deletes=True, processes=colour == "blocking")
]


@every_postgres
@pytest.mark.requires("R28", "R29", "R34", "R47")
@pytest.mark.parametrize(("colour", "check"), CASES)
def test_guarded_rows_keep_the_contract(check: Check, colour: str, kit_postgres_url: str) -> None:
    asynchronous = colour == "asyncio"
    run_check(check, (prepared_async if asynchronous else prepared)(kit_postgres_url), asynchronous=asynchronous)
