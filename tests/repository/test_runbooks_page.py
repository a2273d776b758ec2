"""The page about the runbooks says what their declarations say, and what belongs beside them is there."""

from __future__ import annotations

import pytest

import runbooks
from holdfast.ops.runbooks import RUNBOOKS
from holdfast.ops.runbooks.page import page
from holdfast.plane.locks.registry import FAMILIES


def test_the_page_of_runbooks_is_up_to_date() -> None:
    assert runbooks.PAGE.read_text(encoding="utf-8") == runbooks.render(), "run `make docs`"


@pytest.mark.requires("R41", "R43", "R59", "R60", "R61", "R62", "R63", "R64", "R130")
def test_the_page_has_every_runbook_every_key_every_finding_and_an_example() -> None:
    text = page()
    for book in RUNBOOKS.values():
        assert f"\n## {book.name}\n" in text
        assert f"$ holdfast runbook {book.name}" in text
        for rule in book.rules:
            assert f"| {rule.name} | {rule.severity} |" in text
    for family in FAMILIES.values():
        assert f"`{family.pattern.replace('{', '<').replace('}', '>')}`" in text
