"""The page about the locks and settings of the plane says what their declarations say."""

from __future__ import annotations

import pytest

import inventory
from holdfast.plane.locks.registry import FAMILIES, LockFamily


def row(family: LockFamily) -> list[str]:
    """The cells of a lock on the page."""
    lines = inventory.PAGE.read_text(encoding="utf-8").splitlines()
    (line,) = [each for each in lines if each.startswith(f"| {family.name} |")]
    return [cell.strip() for cell in line.strip("|").split("|")]


@pytest.mark.requires("R125")
def test_the_page_of_locks_and_settings_is_up_to_date() -> None:
    assert inventory.PAGE.read_text(encoding="utf-8") == inventory.render(), "run `make docs`"


@pytest.mark.requires("R125")
def test_the_page_states_the_60_and_20_seconds_of_the_lock_that_a_job_is_given() -> None:
    job = FAMILIES["scheduler.job"]
    assert (job.ttl, job.renew_every) == (60.0, 20.0)
    cells = row(job)
    assert "60 s" in cells
    assert any("20 s" in cell for cell in cells)


@pytest.mark.requires("R49")
def test_what_a_busy_lock_and_a_store_that_fails_mean_differs_by_path_on_purpose() -> None:
    policies = {family.name: (family.when_busy, family.when_failed) for family in FAMILIES.values()}
    assert policies["scheduler.job"] == ("wait 2 s, then retry after 500 ms", "retry after 1 s")
    assert policies["workflow.run"] == ("wait 2 s, then retry after 500 ms", "by risk class")
    assert policies["approval"] == ("wait 2 s, then 409 approval lock busy", "immediate error")
    assert policies["reconciler"] == ("skip the tick", "skip the tick")
    assert len(set(policies.values())) >= 4
    for family in FAMILIES.values():
        assert {family.when_busy, family.when_failed} <= set(row(family)), family.name
