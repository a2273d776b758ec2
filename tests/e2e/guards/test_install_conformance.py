"""The guards pass their own kit on tables with triggers: what the triggers refuse, the guards never send."""

from __future__ import annotations

import pytest

from holdfast.guards.conformance import Check, checks_for, run_check
from support.fixtures.tables import Place
from support.guards.subjects_install import prepared

CASES = [
    pytest.param(mode, check, id=f"{mode}-{check}")
    for mode in ("rising", "strict")
    for check in checks_for(deletes=True, processes=mode == "strict")
]


@pytest.mark.requires("R58", "R73")
@pytest.mark.parametrize(("mode", "check"), CASES)
def test_a_guarded_table_with_triggers_keeps_the_contract(place: Place, mode: str, check: Check) -> None:
    run_check(check, prepared(place.connection, place.url, mode), threads=4)
