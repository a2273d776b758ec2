"""The guard kit on guarded rows of a SQLite file; and no guard of the package is left without the kit."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import holdfast.guards
from holdfast.guards.conformance import CHECKS, Check, run_check
from support.guards.subjects_sqlite import prepared

TESTS = Path(__file__).resolve().parents[2]


@pytest.mark.requires("R28", "R34", "R47", "R58", "R65", "R69")
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: str(check).replace(" ", "_"))
def test_rows_of_a_sqlite_file_keep_the_contract(check: Check, tmp_path: Path) -> None:
    run_check(check, prepared(tmp_path))


def test_no_guard_is_left_without_the_kit() -> None:
    """What the package offers as a guard, in the list at its front door, is a subject of the kit somewhere."""
    offered = set(re.findall(r"from holdfast\.guards\.(\w+) import", holdfast.guards.__doc__ or ""))
    assert len(offered) >= 6
    subjects = {path: path.read_text(encoding="utf-8") for path in TESTS.glob("support/guards/subjects_*.py")}
    assert {
        name for name in offered if not any(f"holdfast.guards.{name}" in text for text in subjects.values())
    } == set()
    tests = [path.read_text(encoding="utf-8") for path in TESTS.glob("*/guards/test_*.py")]
    for path in subjects:
        assert any("run_check" in text and path.stem in text for text in tests), f"{path.name} is run by no test"
