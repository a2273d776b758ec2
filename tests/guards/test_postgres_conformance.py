"""The guard kit on real servers, through psycopg in both colours."""

from __future__ import annotations

import pytest

from fixtures_postgres import every_postgres
from guard_subjects_postgres import prepared, prepared_async
from holdfast.guards.conformance import Check, checks_for, run_check


@every_postgres
@pytest.mark.requires("R28", "R29", "R34", "R47")
@pytest.mark.parametrize("check", checks_for(deletes=True), ids=str)
@pytest.mark.parametrize("colour", ["blocking", "asyncio"])
def test_guarded_rows_keep_the_contract(check: Check, colour: str, postgres_url: str) -> None:
    asynchronous = colour == "asyncio"
    run_check(check, (prepared_async if asynchronous else prepared)(postgres_url), asynchronous=asynchronous)
