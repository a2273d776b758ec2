"""The page about mutants says what their declarations say, and the files that it names are there."""

from __future__ import annotations

import mutants_page
from mutation.catalog import MUTANTS
from mutation.detectors import Test
from pages import ROOT


def test_the_page_of_planted_bugs_is_up_to_date() -> None:
    assert mutants_page.PAGE.read_text(encoding="utf-8") == mutants_page.render(), "run `make docs`"


def test_every_file_that_the_page_names_is_there() -> None:
    for mutant in MUTANTS:
        assert (ROOT / "src" / "holdfast" / mutant.where).is_file(), mutant.where
        if isinstance(mutant.detector, Test):
            path = ROOT / "tests" / f"{mutant.detector.module.replace('.', '/')}.py"
            assert f"def {mutant.detector.name}(" in path.read_text(encoding="utf-8"), mutant.detector.who
