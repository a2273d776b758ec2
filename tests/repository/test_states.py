"""The pages about the life of a lease and of a job contain their tables."""

from __future__ import annotations

import job_states
import states
from holdfast.plane.model.job_states import MOVES


def test_the_page_of_states_is_up_to_date() -> None:
    assert states.PAGE.read_text(encoding="utf-8") == states.render(), "run `make docs`"


def test_the_page_of_job_states_is_up_to_date() -> None:
    assert job_states.PAGE.read_text(encoding="utf-8") == job_states.render(), "run `make docs`"


def test_every_move_of_the_table_is_in_the_diagram() -> None:
    lines = set(job_states.diagram().splitlines())
    for before, afters in MOVES.items():
        start = "[*]" if before is None else job_states.node(before)
        for after in afters:
            assert start == job_states.node(after) or f"    {start} --> {job_states.node(after)}" in lines
