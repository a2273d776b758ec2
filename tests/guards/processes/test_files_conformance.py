"""The guard kit on guarded files, in both colours."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from guard_subjects_files import open_awaited_file, open_file
from holdfast.guards.conformance import Check, checks_for, run_check


@pytest.mark.requires("R28", "R29", "R34", "R47")
@pytest.mark.parametrize("check", checks_for(deletes=True), ids=str)
@pytest.mark.parametrize(
    ("opened", "asynchronous"), [(open_file, False), (open_awaited_file, True)], ids=["blocking", "awaited"]
)
def test_guarded_files_keep_the_contract(check: Check, opened: Any, asynchronous: bool, tmp_path: Path) -> None:
    run_check(check, partial(opened, str(tmp_path)), asynchronous=asynchronous)
    assert not [path for path in tmp_path.iterdir() if path.name.endswith(".new")], "a draft was left"
