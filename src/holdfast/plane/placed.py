"""A document as somebody wrote it, with the place of everything in it, so that an error can point at the line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from holdfast.core.workflow_problems import Path, Place, Problem

DEPTH_MAX: Final = 100
DIGITS_MAX: Final = 300
BYTES_MAX: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class Spot:
    """Where something stands."""

    key: Place  # its key, or itself in a list
    value: Place  # the first character of its text, if it is one
    inline: bool = False  # a text on one line as it is, so that its characters can be counted


@dataclass(frozen=True, slots=True)
class Placed:
    """A document and its places."""

    value: Any
    spots: Mapping[Path, Spot]
    repeated: tuple[tuple[Path, Place], ...] = ()  # keys that stood there already

    def place(self, problem: Problem) -> Place | None:
        """Where a problem is: at the character, at the field, or at what should have the field."""
        for length in range(len(problem.path), -1, -1):
            spot = self.spots.get(problem.path[:length])
            if spot is not None:
                if length == len(problem.path) and problem.position is not None and spot.inline:
                    return spot.value[0], spot.value[1] + problem.position
                return spot.key
        return None


class Unreadable(Exception):
    """A text is no document at all."""

    def __init__(self, problem: str, fix: str, place: Place | None = None) -> None:
        super().__init__(problem)
        self.problem, self.fix, self.place = problem, fix, place
