"""Where in a run an attempt belongs, and the id that says so: `run:step@attempt`, of a child `run:step[3]@attempt`.

Promises: an id is read back to the place it was made for and to no other; a text that no run of this id can have made
is None. Ids of nested runs (`run:step@1:inner@2`) belong to the inner run alone. The form is reserved: callers cannot
submit jobs, nor start runs, under an id that an attempt may have (`is_attempt_id`).
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

ID_CHARS_MAX: Final = 200  # of any id; those of nested runs grow with every level

_PATH: Final = re.compile(r"(?P<step>[^\[\]@:]+)(?:\[(?P<index>0|[1-9][0-9]{0,8})\])?@(?P<attempt>[1-9][0-9]{0,8})")


class Slot(NamedTuple):
    """A step of a run, or one child of its fan-out."""

    step: str
    child: int | None = None  # its number, from 0

    @property
    def path(self) -> str:
        """How people and ids spell it."""
        return self.step if self.child is None else f"{self.step}[{self.child}]"


def attempt_id(run: str, slot: Slot, attempt: int) -> str:
    """The id of what an attempt makes: a job, a gate, a run."""
    return f"{run}:{slot.path}@{attempt}"


def is_attempt_id(text: str) -> bool:
    """Whether a text has the form of these ids, of whatever run: no caller may choose such an id for a job."""
    _, colon, last = text.rpartition(":")
    return bool(colon) and _PATH.fullmatch(last) is not None


def root_of(run: str) -> str:
    """The run that a caller started, from the id of a run: of itself, or of one that was started through it."""
    before, at, _ = run.partition("@")  # a caller cannot choose an id with an @
    return before.rpartition(":")[0] if at else run


def read_attempt_id(run: str, text: str) -> tuple[Slot, int] | None:
    """The place and the attempt that an id of this run names."""
    if not text.startswith(f"{run}:"):
        return None
    found = _PATH.fullmatch(text, len(run) + 1)
    if found is None:
        return None
    index = found["index"]
    return Slot(found["step"], None if index is None else int(index)), int(found["attempt"])
