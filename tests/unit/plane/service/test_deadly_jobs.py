"""Jobs that kill their workers are told from a single crash, while they still run."""

from __future__ import annotations

import pytest

from holdfast.ops.runbooks import RUNBOOKS
from holdfast.ops.runbooks.evidence.work import WorkFact
from holdfast.ops.runbooks.examples import case_of, everything
from holdfast.ops.runbooks.model import judged
from holdfast.plane.model.records import Heartbeat
from holdfast.plane.service.overview import PlaneOverview, RunningAttempt
from holdfast.types import NS

AT_NS = 1_000_000 * NS


def overview(starts: int, *, alive: bool) -> PlaneOverview:
    """A job that so many workers have started; the last one lives or has ended without a word."""
    attempt = RunningAttempt("j-1", "acme", "pdf.render", "default", "w-3", 1, 4.0, 4.0, starts=starts)
    beat = Heartbeat("w-3", "default", ("pdf.render",), 4, 1, AT_NS - 60 * NS)
    return PlaneOverview(AT_NS, attempts=[attempt], workers=[beat], live=frozenset({"w-3"} if alive else ()))


@pytest.mark.parametrize(
    ("starts", "alive", "ended"),
    [(1, True, 0), (2, True, 0), (1, False, 0), (3, True, 2), (2, False, 2), (3, False, 3)],
)
def test_a_job_is_deadly_after_two_workers_ended_while_they_ran_it(starts: int, alive: bool, ended: int) -> None:
    found = overview(starts, alive=alive).deadly
    assert [number for _, number in found] == ([ended] if ended else [])


def test_the_finding_names_the_job_and_how_to_stop_it() -> None:
    case = case_of(RUNBOOKS["why"], everything(work=WorkFact(overview(2, alive=False))))
    first = judged(RUNBOOKS["why"], case)[0]
    assert first.rule == "poison job"
    assert "Poison job j-1 of acme (pdf.render): 2 workers ended without a result while they ran it" in first.sentence
    assert first.next[0].command == "holdfast jobs cancel j-1"
