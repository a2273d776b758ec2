"""Cursors of list pages: where a page begins and ends."""

from __future__ import annotations

from typing import Final, NamedTuple


class Place(NamedTuple):
    """A place between two rows of a list: that of the last row of a page, after which the next one begins."""

    at_ns: int
    id: str

    @property
    def text(self) -> str:
        """For an address or a command line; `place_of` reads it."""
        return f"{self.at_ns}~{self.id}"


BEFORE_ALL: Final = Place(-1, "")  # for lists that begin with the oldest

LATEST_NS: Final = 2**63 - 1

AFTER_ALL: Final = Place(LATEST_NS, "")  # for lists that begin with the newest
