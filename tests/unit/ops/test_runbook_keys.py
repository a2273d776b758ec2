"""The runbooks of each lock key of the plane, run while the key is held: they name its holder."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import holdfast.aio
from holdfast.ops.runbooks.page import page
from holdfast.ops.runbooks.text import report_lines
from holdfast.plane.locks.registry import FAMILIES
from holdfast.plane.settings.settings import Settings
from support.ops.runbook_harness import reported

ARGUMENTS = {"duplicate-dispatch": {"JOB": "7"}, "workflow-contention": {"RUN": "7"}}


def runbooks_by_family() -> dict[str, list[str]]:
    """The runbooks on the page for the key of each family."""
    table = page().partition("By the key in question")[2].partition("\n## ")[0]
    lines = [line.split("|") for line in table.splitlines() if line.startswith("| `")]
    return {cells[2].strip(): re.findall(r"\[`([a-z-]+)`\]", cells[3]) for cells in lines}


CASES = [(family, book) for family, books in runbooks_by_family().items() for book in books]


def test_every_key_has_a_runbook() -> None:
    assert set(runbooks_by_family()) == set(FAMILIES)
    assert all(runbooks_by_family().values())


@pytest.mark.asyncio
@pytest.mark.requires("R41")
@pytest.mark.parametrize(("name", "book"), CASES, ids=[f"{name}-{book}" for name, book in CASES])
async def test_the_runbook_of_a_key_shows_who_holds_it(name: str, book: str, tmp_path: Path) -> None:
    family = FAMILIES[name]
    leases = f"sqlite:///{tmp_path / 'leases.db'}"
    settings = Settings(database=f"sqlite:///{tmp_path / 'nowhere.db'}", leases=leases)
    ids: dict[str, Any] = dict.fromkeys(family.places, "7")
    arguments: dict[str, Any] = ARGUMENTS.get(book, {})
    async with holdfast.aio.connect(leases) as locks, family.lock(locks, **ids) as lease:
        report = await reported(book, settings, **arguments)
        said = "\n".join(line.text for line in report_lines(report))
        if book == "retry-waves":  # it judges delays, and names what the TTL of the family leaves for them
            assert f"{name} {family.renew_every:g} s" in said, said
        else:
            assert f"{lease.key} held by {lease.owner} " in said or f"{name}: 1 held" in said, said
