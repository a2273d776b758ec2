"""The page about planted bugs says what their declarations say, and the files that it names are there."""

from __future__ import annotations

import zoo_page
from mutation.catalog import ZOO
from mutation.detectors import Test
from pages import ROOT


def test_the_page_of_planted_bugs_is_up_to_date() -> None:
    assert zoo_page.PAGE.read_text(encoding="utf-8") == zoo_page.render(), "run `make docs`"


def test_every_file_that_the_page_names_is_there() -> None:
    for mutant in ZOO:
        assert (ROOT / "src" / "holdfast" / mutant.where).is_file(), mutant.where
        if isinstance(mutant.finder, Test):
            path = ROOT / "tests" / f"{mutant.finder.module.replace('.', '/')}.py"
            assert f"def {mutant.finder.name}(" in path.read_text(encoding="utf-8"), mutant.finder.who
