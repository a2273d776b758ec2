"""Bugs in the plane: jobs, messages, and the door."""

from __future__ import annotations

import asyncio
import itertools
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from holdfast.aio.locks import Locks
from holdfast.core import delivering, jobs, reports
from holdfast.core.jobs import JobState
from holdfast.core.retry import AnyDelays, SwitchableDelays
from holdfast.errors import LockBusy
from holdfast.guards.bearer import CarriedFence
from holdfast.plane import engine, flowparts, jobchanges, manyrows, parts, runlock, subjects
from holdfast.plane.embedded_bus import EmbeddedBus
from holdfast.plane.embedded_consumer import EmbeddedConsumer
from holdfast.plane.engine import Engine
from holdfast.plane.families import RETRY_DELAYS
from holdfast.plane.hands import Hands
from holdfast.plane.model import Job, Message
from holdfast.plane.opening import Ground
from holdfast.plane.placement import Placement
from holdfast.plane.ports import Tx
from holdfast.plane.signals import Signals
from holdfast.web import auth
from holdfast.web.auth import Access
from zoo.finders import Test
from zoo.species import House

house = House()
keep = house.keep


@keep(
    "celery #2481, #5935: redelivered after the visibility timeout",
    where="plane/hands.py",
    found_by=Test(
        "plane.test_bus_endings",
        "test_a_handler_may_take_much_longer_than_the_ack_wait",
        at="assert len(got.got) == 1",
    ),
)
def a_message_in_hand_is_not_prolonged(patch: pytest.MonkeyPatch) -> None:
    """Nobody tells the bus that a message is still being worked on, so another worker gets it too."""
    patch.setattr(Hands, "silent_since", lambda self, before_s: [])


@keep(
    "celery: acknowledged before the work, as is its default",
    where="plane/embedded_consumer.py",
    found_by=Test(
        "plane.test_bus",
        "test_a_message_is_acknowledged_when_its_handler_has_returned_and_not_before",
        at="assert (consumer.handling, await bus.pending(SUBJECT, GROUP)) == (1, 1)",
    ),
)
def acknowledged_before_the_work_is_done(patch: pytest.MonkeyPatch) -> None:
    """A message counts as done when it is handed over; if the worker dies it is lost."""
    work = EmbeddedConsumer._work

    async def done_with_the_claim(self: EmbeddedConsumer, tx: Tx, *rest: Any) -> Any:
        found = await work(self, tx, *rest)
        for row in found.rows:
            claim = {"id": row["id"], "recipient": row["recipient"], "deliveries": row["deliveries"], "due_ns": 0}
            await tx.query(self._sql["ack"], claim)
        return found

    patch.setattr(EmbeddedConsumer, "_work", done_with_the_claim)


@keep(
    "many: contention counted as failure",
    where="core/delivering.py",
    found_by=Test(
        "core.test_delivering",
        "test_contention_and_store_trouble_never_use_up_the_budget",
        at="assert isinstance(found, GiveBack)",
        given={"cause": LockBusy("busy"), "wrapped": True},
    ),
)
def busy_counted_against_the_budget(patch: pytest.MonkeyPatch) -> None:
    """A lock that is taken uses up the deliveries of a message, and patience ends in a dead letter."""
    patch.setattr(delivering.Kind, "counts", property(lambda self: self is not delivering.Kind.HANDLED))


@keep(
    "many: the result of an overtaken worker counts",
    where="core/reports.py",
    found_by=Test(
        "plane.test_scheduler",
        "test_a_result_of_a_worker_that_was_overtaken_is_refused",
        at="assert (await plane.job(job)).state is JobState.RUNNING",
    ),
    attacks=("R71",),
)
def a_result_under_a_stale_fence_is_accepted(patch: pytest.MonkeyPatch) -> None:
    """A report is believed by the number of its attempt, whatever fence it comes under."""
    patch.setattr(reports, "accepts", lambda seen, fence: True)


@keep(
    "many: no fence in the WHERE clause",
    where="plane/jobchanges.py",
    found_by=Test(
        "plane.test_jobstore",
        "test_a_scheduler_whose_fence_was_overtaken_changes_nothing",
        at="with pytest.raises(FencedOut) as refused",
    ),
    attacks=("R71",),
)
def a_write_that_does_not_compare_the_fence(patch: pytest.MonkeyPatch) -> None:
    """A job is written by its id and version: neither the decision nor the statement compares the fence."""
    patch.setattr(jobchanges, "accepts", lambda seen, fence: True)
    script = manyrows.script

    def unfenced(name: str, dialect: str) -> str:
        text = script(name, dialect)
        if not name.startswith("job_change"):
            return text
        without = re.sub(r"\s+AND \((job\.)?holdfast_fence IS NULL OR [^)]*\)", "", text)
        assert without != text, "the statement has changed"
        return without

    patch.setattr(manyrows, "script", unfenced)


@keep(
    "many: a job that ends twice",
    where="core/jobs.py",
    found_by=Test(
        "plane.test_jobstore",
        "test_a_job_ends_once_and_a_second_end_is_refused_and_counted",
        at="with pytest.raises(InvalidTransition",
    ),
)
def a_terminal_state_is_written_twice(patch: pytest.MonkeyPatch) -> None:
    """An end is written over another end."""
    for state in JobState:
        if state.terminal:
            patch.setitem(
                jobs.MOVES, state, frozenset({*jobs.MOVES[state], *(each for each in JobState if each.terminal)})
            )


@keep(
    "many: the message beside the transaction",
    where="plane/embedded_bus.py",
    found_by=Test(
        "plane.test_bus",
        "test_what_is_undone_is_never_delivered_and_what_is_committed_is",
        at='assert got.ids == ["done"]',
    ),
)
def the_message_is_sent_outside_the_transaction(patch: pytest.MonkeyPatch) -> None:
    """State and message are two steps: what was rolled back is announced all the same."""
    prepare, stage = EmbeddedBus.prepare, EmbeddedBus.stage
    loops: dict[EmbeddedBus, asyncio.AbstractEventLoop] = {}

    async def prepared(self: EmbeddedBus) -> None:
        loops[self] = asyncio.get_running_loop()
        await prepare(self)

    async def beside(self: EmbeddedBus, _: Tx, messages: Sequence[Message]) -> None:
        sending = self._database.write(lambda tx: stage(self, tx, messages))
        asyncio.run_coroutine_threadsafe(sending, loops[self])

    patch.setattr(EmbeddedBus, "prepare", prepared)
    patch.setattr(EmbeddedBus, "stage", beside)


@keep(
    "many: a retry under a new message id",
    where="plane/embedded_bus.py",
    found_by=Test(
        "plane.test_bus", "test_an_id_is_one_message_however_often_it_is_published", at='assert got.ids == ["1", "2"]'
    ),
)
def a_message_published_again_is_another_message(patch: pytest.MonkeyPatch) -> None:
    """A publication that is repeated because its answer was lost gets a new id, and is delivered twice."""
    stage, numbers = EmbeddedBus.stage, itertools.count()

    async def renamed(self: EmbeddedBus, tx: Tx, messages: Sequence[Message]) -> None:
        await stage(self, tx, [replace(each, id=f"{each.id}.{next(numbers)}") for each in messages])

    patch.setattr(EmbeddedBus, "stage", renamed)


@keep(
    "many: a message id that names only the job",
    where="plane/subjects.py",
    found_by=Test(
        "plane.test_scheduler",
        "test_a_lost_dispatch_is_sent_again_as_the_same_attempt_under_a_newer_fence",
        at="first, second = await plane.staged(subjects.WORK)",
    ),
)
def a_message_sent_again_is_dropped_as_a_duplicate(patch: pytest.MonkeyPatch) -> None:
    """The id of a dispatch does not change when it is sent again, so the bus takes the second for the first."""
    dispatched = subjects.dispatched

    def under_one_id(job: Job, fence: CarriedFence, **how: bool) -> Message:
        return replace(dispatched(job, fence, **how), id=f"work:{job.id}")

    patch.setattr(subjects, "dispatched", under_one_id)


@keep(
    "Flower #1217: open to everybody by default",
    where="web/auth.py",
    found_by=Test(
        "web.test_auth",
        "test_without_tokens_a_server_that_others_can_reach_is_refused",
        at="with pytest.raises(BadInput",
        given={"host": "0.0.0.0"},
    ),
)
def a_server_without_tokens_is_open_to_the_network(patch: pytest.MonkeyPatch) -> None:
    """Without configured tokens the server serves everybody, on whatever interface it listens."""
    patch.setattr(auth, "is_loopback", lambda host: True)


@keep(
    "Flower #1217: no protection against other sites",
    where="web/auth.py",
    found_by=Test(
        "web.test_auth",
        "test_an_open_server_serves_this_machine_and_no_page_from_elsewhere",
        at="assert (answer.status_code, cancel.status_code)",
        given={"headers": {"origin": "https://evil.example"}, "allowed": False},
    ),
)
def a_page_from_elsewhere_may_post(patch: pytest.MonkeyPatch) -> None:
    """Nobody looks where a request comes from, so a page that somebody visits cancels their jobs."""
    stranger = Access.stranger
    patch.setattr(Access, "stranger", lambda self, host, origin: stranger(self, host, None))


@keep(
    "Flower, CVE-2022-30034: a pattern that matches only the beginning",
    where="web/auth.py",
    found_by=Test(
        "web.test_auth",
        "test_an_open_server_serves_this_machine_and_no_page_from_elsewhere",
        at="assert (answer.status_code, cancel.status_code)",
        given={"headers": {"host": "localhost.evil.example"}, "allowed": False},
    ),
)
def a_name_that_begins_like_ours_is_ours(patch: pytest.MonkeyPatch) -> None:
    """A host is let in because its name begins like one that may."""
    is_loopback = auth.is_loopback
    patch.setattr(auth, "is_loopback", lambda host: is_loopback(host) or host.startswith("localhost"))


def _spread(at: str) -> Test:
    return Test(
        "plane.test_busy_jitter", "test_a_running_plane_spreads_busy_retries_and_stops_without_a_restart", at=at
    )


@keep(
    "many: a setting that is read and never used",
    where="plane/flowparts.py",
    found_by=_spread("assert varies(delays[subjects.RUN_LOOK])"),
)
def the_jitter_never_reaches_the_engine(patch: pytest.MonkeyPatch) -> None:
    """The engine of a plane is made without the retry delays of the plane: busy runs come back in step."""
    engine_of = flowparts.engine_of

    def unwired(ground: Ground, name: str = "engine") -> Engine:
        made = engine_of(ground, name)
        made.delays = RETRY_DELAYS
        return made

    patch.setattr(flowparts, "engine_of", unwired)


@keep(
    "many: a setting that is read and never used",
    where="plane/parts.py",
    found_by=_spread("assert varies(delays[subjects.CANCEL])"),
)
def the_jitter_never_reaches_the_scheduler(patch: pytest.MonkeyPatch) -> None:
    """The scheduler of a plane is made without the retry delays of the plane: busy jobs come back in step."""
    placement_of = parts.placement_of

    def unwired(ground: Ground, actor: str = "scheduler") -> Placement:
        placement = placement_of(ground, actor)
        placement._changes.delays = RETRY_DELAYS
        return placement

    patch.setattr(parts, "placement_of", unwired)


@keep(
    "many: a setting that is read and never used",
    where="plane/engine.py",
    found_by=_spread("assert varies(delays[subjects.RUN_LOOK])"),
)
def the_engine_ignores_its_delays(patch: pytest.MonkeyPatch) -> None:
    """The engine has the delays and takes the locks of runs with others."""
    take = runlock.run_lock

    def ignoring(locks: Locks, run_id: str, risk: str, delays: AnyDelays, **how: Any) -> Any:
        return take(locks, run_id, risk, **how)

    patch.setattr(engine, "run_lock", ignoring)


@keep(
    "many: a change of a setting that needs a restart",
    where="core/retry.py",
    found_by=_spread("assert set(fixed[subjects.CANCEL]) == {HALF}"),
)
def the_way_back_to_the_fixed_delay_needs_a_restart(patch: pytest.MonkeyPatch) -> None:
    """A jitter is switched on while a plane runs, and a switch to 0 is noted and changes no delay."""
    use = SwitchableDelays.use_jitter
    patch.setattr(SwitchableDelays, "use_jitter", lambda self, ns: use(self, ns) if ns else None)


@keep(
    "Holdfast itself: a counter that could not move",
    where="plane/signals.py",
    found_by=Test(
        "plane.test_fail_open_input",
        "test_jobs_of_a_run_that_fails_open_are_counted_as_unchecked_input",
        at="assert counted(cut_off) == 2",
    ),
)
def jobs_that_reach_the_scheduler_unchecked_are_not_counted(patch: pytest.MonkeyPatch) -> None:
    """Runs without the store submit jobs, and the counter of fail-open input stays at zero."""
    patch.setattr(Signals, "submitted_without_store", lambda self, jobs: None)
