"""Many runs of one workflow that has a step of every kind, and what must be true of them when the dust has settled.

How a run ends is its own wish: `succeeded`, `failed`, `denied` (rejected) or `cancelled`. What the steps of
a run that succeeds have made is known to the last job; of the others, what the rules leave open is left open.
"""

from __future__ import annotations

import threading
from itertools import cycle, islice
from types import TracebackType
from typing import Any, Final, Self

from holdfast.plane.model.job_states import JobState
from support.fleet.fleet import until
from support.fleet.flow_fleet import OVER, FlowFleet

CHILD: Final = {
    "name": "child",
    "steps": {
        "inner": {"topic": "flow.effect"},
        "note": {"kind": "transform", "after": "inner", "input": "noted"},
    },
}
ORDER: Final = {
    "name": "order",
    "steps": {
        "plan": {"topic": "flow.effect"},
        "each": {
            "topic": "flow.effect",
            "after": "plan",
            "for_each": "${ steps.plan.output.items }",
            "max_parallel": 2,
        },
        "shaky": {
            "topic": "flow.effect",
            "after": "plan",
            "input": {"fails": 1},
            "retry": {"retries": 2, "initial": "50ms"},
        },
        "pause": {"delay": "200ms", "after": "plan"},
        "agreed": {"message": "May ${ run.id } go on?", "after": "plan"},
        "sub": {"workflow": "child", "after": "agreed"},
        "broken": {"topic": "flow.broken", "after": "plan", "on_error": "mend"},
        "mend": {"topic": "flow.effect"},
        "last": {"topic": "flow.effect", "after": ["each", "shaky", "pause", "sub", "broken"]},
        "fatal": {"topic": "flow.broken", "after": "last", "when": "input.end == 'failed'"},
    },
}
ENDS: Final = ("succeeded", "succeeded", "denied", "succeeded", "failed", "succeeded", "cancelled")
EFFECTS: Final = {
    *("plan@1", "each[0]@1", "each[1]@1", "each[2]@1", "shaky@2", "sub@1:inner@1", "mend@1", "last@1"),
}
JOBS: Final = {*EFFECTS, "shaky@1", "agreed@1", "broken@1"}

_GOING_BACK: Final = """
    SELECT run, version, line, fence, before FROM (
        SELECT run, version, line, fence, lag(fence) OVER (PARTITION BY run ORDER BY version, line) AS before
        FROM plane_run_event WHERE fence IS NOT NULL) AS history
    WHERE fence < before
"""
_ENDED_TWICE: Final = """
    SELECT run, step, count(*) FROM plane_run_event
    WHERE kind IN ('succeeded', 'failed', 'denied', 'timed_out', 'cancelled', 'skipped')
    GROUP BY run, step HAVING count(*) > 1
"""
_TRIED_TWICE: Final = """
    SELECT run, step, attempt, count(*) FROM plane_run_event WHERE kind = 'retrying'
    GROUP BY run, step, attempt HAVING count(*) > 1
"""
_TERMINAL: Final = ", ".join(f"'{state}'" for state in JobState if state.terminal)
_JOBS_ENDED_TWICE: Final = (
    f"SELECT job, count(*) FROM plane_event WHERE after IN ({_TERMINAL}) GROUP BY job HAVING count(*) > 1"
)
_RUNS: Final = "SELECT id, status FROM plane_run WHERE id NOT LIKE '%@%'"


class Orders:
    """Runs that are started one after the other for the length of the block, and decided about as they ask."""

    def __init__(self, it: FlowFleet, number: int) -> None:
        self._it = it
        self._number = number
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=each) for each in (self._start, self._decide)]
        self._trouble: list[BaseException] = []
        self.wanted: dict[str, str] = {}  # by run: how it is to end

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None:
                self.settled()
        finally:
            self._stop.set()
            for thread in self._threads:
                thread.join()
        if error is None and self._trouble:
            raise self._trouble[0]

    @property
    def over(self) -> int:
        """How many of them are over."""
        return sum(run in self.wanted and status in OVER for run, status in self._it.query(_RUNS))

    def settled(self) -> None:
        """Return when all are over, and every message was handled."""
        until(lambda: self._trouble or self.over == self._number, "all runs to be over")
        if self._trouble:
            raise self._trouble[0]
        until(lambda: not self._it.left(), "every message to be handled")

    def _start(self) -> None:
        try:
            for end in islice(cycle(ENDS), self._number):
                if self._stop.is_set():
                    return
                run = self._it.start("order", {"end": end})
                self.wanted[run] = end
        except BaseException as error:  # raised again where the block ends
            self._trouble.append(error)

    def _decide(self) -> None:
        said = {"succeeded": "approve", "failed": "approve", "denied": "reject"}
        cancelled: set[str] = set()
        try:
            while not self._stop.wait(0.05):
                wanted = self.wanted.copy()
                self._it.decide({run: said[end] for run, end in wanted.items() if end in said})
                for run in {run for run, end in wanted.items() if end == "cancelled"} - cancelled:
                    if self._it.run(run)["status"] == "waiting":
                        self._it.cancel(run)
                        cancelled.add(run)
        except BaseException as error:  # as above
            self._trouble.append(error)


def check(it: FlowFleet, wanted: dict[str, str]) -> None:
    """Say what is wrong with any run. All of them must be over."""
    assert wanted, "nothing was started: this proves nothing"
    found = dict(it.query(_RUNS))
    assert {run: found.get(run) for run in wanted} == wanted
    children = it.query("SELECT id, status FROM plane_run WHERE id LIKE '%@%'")
    assert [each for each in children if each[1] not in OVER] == []

    assert it.query(_GOING_BACK) == [], "the fence of a run went back"
    assert it.query(_ENDED_TWICE) == [], "a step ended twice"
    assert it.query(_TRIED_TWICE) == [], "an attempt failed twice"
    assert it.query(_JOBS_ENDED_TWICE) == [], "a job ended twice"
    effects = dict(it.effects())
    assert {job: number for job, number in effects.items() if number != 1} == {}, "an effect happened twice"
    states = dict(it.query("SELECT id, state FROM plane_job"))
    assert [job for job, state in states.items() if state == "SUCCEEDED" and _acts(job) and job not in effects] == []
    jobs: dict[str, set[str]] = {run: set() for run in wanted}
    done: dict[str, set[str]] = {run: set() for run in wanted}
    for into, names in ((jobs, states), (done, effects)):
        for name in names:
            run, _, step = name.partition(":")
            if run in into:
                into[run].add(step)
    good = {run for run, end in wanted.items() if end == "succeeded"}
    assert {run: jobs[run] ^ JOBS for run in good if jobs[run] != JOBS} == {}, "not the jobs of a run that succeeded"
    assert {run: done[run] ^ EFFECTS for run in good if done[run] != EFFECTS} == {}, "not its effects"
    failed = {run for run, end in wanted.items() if end == "failed"}
    assert {run: jobs[run] for run in failed if jobs[run] != JOBS | {"fatal@1"}} == {}
    for run, end in wanted.items():
        if end in ("denied", "cancelled"):
            assert jobs[run] < JOBS
            assert not done[run] & {"sub@1:inner@1", "last@1"}, "a step ran without an approval"


def _acts(job: str) -> bool:
    return "agreed@" not in job


def signs(it: FlowFleet) -> dict[str, float]:
    """What the engines that run now have seen of work that came twice."""
    steps = (
        f'holdfast_engine_events_total{{event="{event}",outcome="repeated"}}' for event in ("JobEnded", "ChildEnded")
    )
    return {
        "steps": sum(map(it.metrics, steps)),
        "publishes": it.metrics("holdfast_engine_repeated_publishes_total"),
    }


def furnish(it: FlowFleet, *more: dict[str, Any]) -> None:
    """Keep the workflows."""
    for each in (CHILD, ORDER, *more):
        it.define(each)
