"""Counts what an evaluation does, so that a charge that is too low is found without a clock."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from holdfast.errors import BadExpression, ExpressionFailed
from holdfast.plane.workflows.expressions.builtins import COST_MAX, Budget

CALLS_PER_UNIT: Final = 10
"""Calls of functions, also of compiled ones, that one unit may stand for: a step of the tree makes about ten."""

FREE_CALLS: Final = 20_000  # for reading the texts, which is not charged by call: they are bounded by their length
WORKS: Final = 2  # an evaluation is charged for what it does, and for the size of what it gives


def costs_what_it_is_charged(act: Callable[[Budget], Any]) -> None:
    """Call this with a budget, and see that the calls that it makes were charged, and that the charge is bounded."""
    budget = Budget()
    calls = 0

    def count(*_: object) -> None:
        nonlocal calls
        calls += 1

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        with suppress(BadExpression, ExpressionFailed):
            act(budget)
    finally:
        sys.setprofile(before)
    # The last charge of each work may be larger than what was left of it: nothing is done for that.
    done = min(budget.spent, WORKS * COST_MAX)
    most = 2 * CALLS_PER_UNIT * done + FREE_CALLS  # each call is counted when it begins and when it returns
    assert calls <= most, f"{calls} calls for a charge of {done}"
