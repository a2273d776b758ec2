"""`storm`: ten thousand waiters for one lock, and a hundred thousand concurrent leases.

Three scenes, each with a few processes: a plain lock and a fair one, whose holder releases it when all waiters are
queued; and many keys, each acquired, renewed a few times in batches, and released. They measure order, waits, requests
and memory; `verdict.storm` judges the results.
"""

from __future__ import annotations

from typing import Any, Final

from holdfast.drills.env.processes import WorkerHandle
from holdfast.drills.env.stage import DrillHarness, SceneHarness
from holdfast.drills.model import KEYS, WAITERS, Guard
from holdfast.drills.scenarios.storm_worker import RENEWALS
from holdfast.drills.verdict.storm import (
    judge_leases,
    judge_waits,
    lease_figures,
    lease_report_of,
    memory_plot,
    wait_figures,
    wait_plot,
    waiter_report_of,
)

PROCESSES: Final = 4
SECONDS: Final = 150.0  # the duration of the default sizes on two idle cores
RENEWALS_A_SECOND: Final = 5_000  # the maximum load of one store: with many keys, leases are longer
REQUEST_S: Final = 5.0
_TTLS: Final = 5.0  # of the lock, and of the lease beside it: slow moments of the machine are not the subject


def play(stage: DrillHarness, seconds: float) -> None:
    """All three scenes, in the given sizes, else as large as the time allows."""
    plan, scale = stage.plan, min(1.0, seconds / SECONDS)
    waiters = _even(round(WAITERS * scale) if plan.waiters is None else plan.waiters)
    keys = _even(round(KEYS * scale) if plan.keys is None else plan.keys)
    for fair in (False, True):
        kind = "a fair" if fair else "a plain"
        words = (
            f"{waiters:,} tasks in {PROCESSES} processes wait for {kind} lock, which is released when all are queued"
        )
        with stage.scene(
            f"{waiters:,} waiters for {kind} lock",
            f"{words}; each adds 1 to a balance, once.",
            Guard.ON,
            request_timeout=REQUEST_S,
        ) as it:
            _wait_for_one(it, waiters, fair=fair)
    words = f"{keys:,} locks are acquired by {PROCESSES} processes, all renewed {RENEWALS} times, and released."
    with stage.scene(f"{keys:,} concurrent leases", words, None, request_timeout=REQUEST_S) as it:
        _hold_many(it, keys)


def _even(number: int) -> int:
    """The number rounded so that all processes have the same share."""
    return max(1, number // PROCESSES) * PROCESSES


def _wait_for_one(it: SceneHarness, waiters: int, *, fair: bool) -> None:
    stage, key = it.stage, it.key("wanted")
    ttl = _TTLS * stage.plan.ttl_s
    crew = it.crew.enter(*_names())
    with stage.locks(REQUEST_S) as locks, locks.lock(key, ttl=ttl, family="drill", timeout=stage.left_s):
        for number, actor in enumerate(crew):
            words: dict[str, Any] = {"first": number + 1, "step": PROCESSES, "fair": fair, "ttl": ttl}
            words |= {"timeout": stage.left_s, "unrelated": it.key(f"beside-{number + 1}")}
            actor.order("queue_waiters", key=key, waiters=waiters // PROCESSES, **words)
        for actor in crew:
            it.crew.next("queued", actor, stage.left_s)
        it.report(f"all {waiters:,} waiters are queued; the lock is released")
    found = [waiter_report_of(actor.name, _followed(it, actor, "waiters_done", crew)) for actor in crew]
    for claim in judge_waits(found, waiters, it.account.inspect(key).balance, fair=fair):
        it.claim(*claim)
    it.scene.figures += wait_figures(found)
    it.scene.plots += [wait_plot(found), memory_plot(found)]
    it.report(", ".join(f"{each.name} {each.value}" for each in it.scene.figures), good=True)


def _hold_many(it: SceneHarness, keys: int) -> None:
    stage = it.stage
    ttl = max(_TTLS * stage.plan.ttl_s, 3.0 * keys / RENEWALS_A_SECOND)  # three renewals in a TTL
    it.report(f"leases of {ttl:g} s")
    crew = it.crew.enter(*_names())
    for number, actor in enumerate(crew):
        mine = keys // PROCESSES
        actor.order("hold_leases", first=number * mine, keys=mine, ttl=ttl, timeout=stage.left_s)
    found = [lease_report_of(actor.name, _followed(it, actor, "leases_done", crew)) for actor in crew]
    with stage.locks(REQUEST_S) as locks:
        left = len(locks.list(it.prefix))
    for claim in judge_leases(found, keys, left, RENEWALS):
        it.claim(*claim)
    it.scene.figures += lease_figures(found)
    it.scene.plots.append(memory_plot(found))
    it.report(", ".join(f"{each.name} {each.value}" for each in it.scene.figures), good=True)


def _names() -> list[str]:
    return [f"process-{number + 1}" for number in range(PROCESSES)]


def _followed(it: SceneHarness, actor: WorkerHandle, end: str, crew: list[WorkerHandle]) -> Any:
    """Wait for the report of a worker, and report the progress of the first one: the others are similar."""
    while (event := it.crew.next(("progress", end), actor, it.stage.left_s)).name != end:
        if actor is crew[0]:
            done, of = (event.fields[each] * len(crew) for each in ("done", "of"))
            it.report(f"{event.fields['what']}: about {done:,} of {of:,}")
    return event.fields
