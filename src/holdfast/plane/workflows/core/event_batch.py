"""Applies several events to one run as one change. Pure.

Promises: the run is the one that `advance` gives when it is called for each event in turn, at the same time and under
the same lease. Effects and notes keep that order. Each event has its own `EventOutcome`; an event that cannot be
applied does not affect the others. Once the expressions of these events cost as much as an advance may, the remaining
events are left for another change, so that fan-out results with costly outputs are not one long computation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from holdfast.core.backoff import Draw
from holdfast.plane.workflows.core.advance import advance, always
from holdfast.plane.workflows.core.run import Advance, Effect, Event, EventOutcome, Run, TimelineEntry
from holdfast.plane.workflows.core.run_draft import ADVANCE_COST_MAX
from holdfast.plane.workflows.expressions.builtins import Budget


def advance_all(
    run: Run,
    events: Sequence[Event],
    now_ns: int,
    draw: Draw,
    *,
    may_start: Callable[[str], bool] = always,
    budget: Budget | None = None,
) -> tuple[Advance, list[EventOutcome]]:
    """Apply at least one event to a run. Also returns the `EventOutcome` of each applied event.

    All of them share the budget; the list is shorter than `events` if it was spent before the last one. The whole
    change is `APPLIED` if one of the events was; otherwise it is like the last one's.
    """
    shared = Budget() if budget is None else budget
    effects: list[Effect] = []
    notes: list[TimelineEntry] = []
    heard: list[EventOutcome] = []
    found = Advance(run, EventOutcome.NOTHING)
    for event in events:
        if heard and shared.spent >= ADVANCE_COST_MAX:
            break
        found = advance(found.run, event, now_ns, draw, may_start=may_start, budget=shared)
        heard.append(found.outcome)
        effects += found.effects
        notes += found.notes
    whole = EventOutcome.APPLIED if EventOutcome.APPLIED in heard else found.outcome
    return replace(found, outcome=whole, effects=tuple(effects), notes=tuple(notes)), heard
