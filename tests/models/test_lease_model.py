"""The model of leases and fences: what must fail fails, what must not does not, and the page says the same."""

from __future__ import annotations

from pathlib import Path

import pytest

import model

pytestmark = pytest.mark.skipif(bool(model.missing()), reason="spin or gcc is not installed")

BY_NAME = {each.name: each for each in model.VARIANTS}
WRITES_ONLY = "read-modify-write, fence checked on writes only"


@pytest.mark.parametrize(
    "name",
    [
        WRITES_ONLY,
        "read-modify-write, fence checked on reads and writes",
        "likewise, failover forgets the last fence",
        "likewise, fences carry the epoch",
    ],
)
def test_a_variant_comes_out_as_it_must(name: str, tmp_path: Path) -> None:
    found = model.check(BY_NAME[name], 2, 3, tmp_path, optimised="-O0")
    assert found.as_expected
    assert found.states > 100
    assert bool(found.steps) != found.safe
    if name == WRITES_ONLY:
        accepted = [step for step in found.steps if "accepts" in step]
        assert [step.rpartition("fence ")[2] for step in accepted] == ["1", "2"], "in order, and yet one is lost"


def test_the_page_has_the_figures_of_every_variant() -> None:
    page = model.PAGE.read_text(encoding="utf-8")
    for variant in model.VARIANTS:
        row = next(line for line in page.splitlines() if line.startswith(f"| {variant.name} |"))
        assert ("no error" in row) == variant.safe
