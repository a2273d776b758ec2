"""Apps with different topics in the default pool, for worker processes under test. All jobs are over immediately."""

from __future__ import annotations

from holdfast.plane import App


def answer(payload: object) -> str:
    """What every job returns."""
    return "done"


mail, bills, before, after = App("mail"), App("bills"), App("before"), App("after")

mail.job("mail")(answer)
bills.job("bill")(answer)
# Two versions of one app: `after` has a topic that `before` has not, and lacks one that `before` has.
before.job("kept")(answer)
before.job("removed")(answer)
after.job("kept")(answer)
after.job("added")(answer)
