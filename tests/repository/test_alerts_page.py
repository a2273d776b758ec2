"""The page about alerts says what their declarations say."""

from __future__ import annotations

import alerts


def test_the_page_of_alerts_is_up_to_date() -> None:
    assert alerts.PAGE.read_text(encoding="utf-8") == alerts.render(), "run `make docs`"
