"""The page about metrics says what their declaration says."""

from __future__ import annotations

import metrics_page


def test_the_page_of_metrics_is_up_to_date() -> None:
    assert metrics_page.PAGE.read_text(encoding="utf-8") == metrics_page.render(), "run `make docs`"
