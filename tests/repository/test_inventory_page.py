"""The page about the locks and settings of the plane says what their declarations say."""

from __future__ import annotations

import inventory


def test_the_page_of_locks_and_settings_is_up_to_date() -> None:
    assert inventory.PAGE.read_text(encoding="utf-8") == inventory.render(), "run `make docs`"
