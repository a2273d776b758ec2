"""The guard kit on guarded files, in both colors."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from holdfast.guards.conformance import Check, checks_for, run_check
from support.guards.subjects_files import open_awaited_file, open_file

# The awaited guard takes the same steps on a thread; what other processes can do is shown by the blocking one.
CASES = [
    pytest.param(opened, asynchronous, check, id=f"{'awaited' if asynchronous else 'blocking'}-{check}")
    for opened, asynchronous in [(open_file, False), (open_awaited_file, True)]
    for check in checks_for(deletes=True, processes=not asynchronous)
]


@pytest.mark.requires("R28", "R29", "R34", "R47")
@pytest.mark.parametrize(("opened", "asynchronous", "check"), CASES)
def test_guarded_files_keep_the_contract(check: Check, opened: Any, asynchronous: bool, tmp_path: Path) -> None:
    run_check(check, partial(opened, str(tmp_path)), asynchronous=asynchronous)
    assert not [path for path in tmp_path.iterdir() if path.name.endswith(".new")], "a draft was left"
