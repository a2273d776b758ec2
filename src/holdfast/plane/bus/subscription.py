"""What every bus does alike for a consumption: check how it is requested, and see its end through."""

from __future__ import annotations

from typing import Final

from holdfast.errors import BadInput
from holdfast.plane.bus.envelope import check_subject
from holdfast.plane.db.ports import Consumption
from holdfast.plane.model.records import check_whole
from holdfast.types import MS, NS

CONCURRENCY_MAX: Final = 10_000
FAILURES_MAX: Final = 1_000
SUBJECTS_MAX: Final = 10_000
ACK_WAIT_MIN_NS: Final = 100 * MS
ACK_WAIT_MAX_NS: Final = 3600 * NS
AGE_MAX_NS: Final = 366 * 86_400 * NS


def check_consumption(how: Consumption) -> Consumption:
    """The consumption itself, or `BadInput` that names the field."""
    if not len(set(how.subjects)) == len(how.subjects) <= SUBJECTS_MAX:
        raise BadInput("also", "repeats a subject, or has too many", f"give at most {SUBJECTS_MAX} different subjects")
    for subject in how.subjects:
        groups = check_subject(subject)
        if how.group not in groups:
            fix = f"use {' or '.join(groups)}" if groups else "declare the group in plane/model/messages.py"
            raise BadInput("group", f"{how.group!r} does not consume {subject}", fix)
    check_whole("concurrency", how.concurrency, 1, CONCURRENCY_MAX)
    check_whole("ack_wait_ns", how.ack_wait_ns, ACK_WAIT_MIN_NS, ACK_WAIT_MAX_NS)
    check_whole("max_failures", how.max_failures, 1, FAILURES_MAX)
    check_whole("max_age_ns", how.max_age_ns, 0, AGE_MAX_NS)
    return how
