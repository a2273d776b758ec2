"""Every runbook there is, by name. Alerts, the command and the page refer to these."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from holdfast.errors import BadInput
from holdfast.ops import (
    runbook_contention,
    runbook_debt,
    runbook_duplicates,
    runbook_not_owned,
    runbook_outage,
    runbook_snapshot,
    runbook_ttl,
    runbook_waves,
)
from holdfast.ops.runbook import Runbook

RUNBOOKS: Final[Mapping[str, Runbook]] = {
    each.RUNBOOK.name: each.RUNBOOK
    for each in (
        runbook_not_owned,
        runbook_duplicates,
        runbook_contention,
        runbook_snapshot,
        runbook_outage,
        runbook_debt,
        runbook_waves,
        runbook_ttl,
    )
}


def runbook(name: str) -> Runbook:
    """One of them, or `BadInput` that lists them."""
    found = RUNBOOKS.get(name)
    if found is None:
        raise BadInput("runbook", f"there is no {name[:60]!r}", f"use one of {', '.join(RUNBOOKS)}")
    return found
