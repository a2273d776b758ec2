"""Exercises of the error policy: the fallback path is used on purpose, so that it is tested. Pure.

An exercise makes a share of the acquisitions of one family meet a pretended store error, and the error policy reacts as
to a real one. It touches only acquisitions whose risk class is `fail_open` at that moment. For the others it would be
an outage, so they are left alone unless the exercise is forced. A lock without a risk class has no policy to exercise,
and is never touched.

Clock: the wall clock, for the end, because hosts agree on it and it is shown to people.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from holdfast.core.backoff import Draw
from holdfast.core.lease.error_policy import OnError
from holdfast.errors import BadInput, Unavailable
from holdfast.types import check_label

WHOLE: Final = 1_000_000
"""Shares are counted in parts of this."""


class Pretended(Unavailable):
    """The store was not asked: this acquisition was drawn for an exercise of the error policy."""


@dataclass(frozen=True, slots=True)
class Exercise:
    """The family to exercise, the share of acquisitions, and the end."""

    family: str
    parts: int  # of WHOLE
    until_ns: int | None = None  # wall clock; None: until it is stopped
    risk: str | None = None  # only this class; None: every one that is fail_open
    forced: bool = False  # also where a drawn acquisition fails

    @property
    def share(self) -> float:
        """Which share of the acquisitions is drawn."""
        return self.parts / WHOLE

    def over(self, now_ns: int) -> bool:
        """Whether its end has come."""
        return self.until_ns is not None and now_ns >= self.until_ns

    def concerns(self, risk: str | None, mode: OnError) -> bool:
        """Whether an acquisition of this risk class may be drawn while the class behaves like this."""
        if risk is None or (self.risk is not None and self.risk != risk):
            return False
        return self.forced or mode is OnError.FAIL_OPEN

    def draws(self, draw: Draw) -> bool:
        """Whether this acquisition is drawn."""
        return draw(WHOLE) < self.parts


def parse_exercise(
    family: str, share: float, *, until_ns: int | None = None, risk: str | None = None, forced: bool = False
) -> Exercise:
    """A checked exercise, or `BadInput`. The share is above 0 and at most 1."""
    check_label("family", family)
    if risk is not None:
        check_label("risk", risk)
    return Exercise(family, parts_of("share", share), until_ns, risk, bool(forced))


def parts_of(field: str, share: object) -> int:
    """A share above 0 and up to 1 in parts of `WHOLE`, or `BadInput`."""
    if isinstance(share, bool) or not isinstance(share, int | float) or not 0 < share <= 1:
        raise BadInput(field, f"{share!r:.40} is not a share", "give a number above 0 and up to 1, such as 0.01")
    parts = round(share * WHOLE)
    if parts == 0:
        raise BadInput(field, f"{share!r:.40} is too small to be drawn", f"give at least {1 / WHOLE:f}")
    return parts


def refusal(exercise: Exercise, modes: dict[str, OnError]) -> BadInput | None:
    """Why an exercise would do harm or nothing at all, given how each class behaves; None: it may begin."""
    if exercise.forced:
        return None
    if exercise.risk is not None:
        mode = modes.get(exercise.risk, OnError.FAIL_CLOSED)
        if mode is OnError.FAIL_OPEN:
            return None
        return BadInput(
            "risk",
            f"class {exercise.risk} is {mode}: a pretended store error would be an outage for each drawn acquisition",
            "exercise a class that is fail_open, or force it if an outage is what you want to see",
        )
    if OnError.FAIL_OPEN in modes.values():
        return None
    return BadInput(
        "exercise",
        "no risk class is fail_open, so there is no fallback to exercise",
        "switch a class to fail_open first, or force it if an outage is what you want to see",
    )
