"""The page about the dashboard lists the panels that there are."""

from __future__ import annotations

import dashboard as page


def test_the_page_of_the_dashboard_is_up_to_date() -> None:
    assert page.PAGE.read_text(encoding="utf-8") == page.render(), "run `make docs`"
