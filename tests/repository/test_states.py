"""The page about the life of a lease says what the table says."""

from __future__ import annotations

import states


def test_the_page_of_states_is_up_to_date() -> None:
    assert states.PAGE.read_text(encoding="utf-8") == states.render(), "run `make docs`"
