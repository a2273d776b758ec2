"""`soak`: the drills in rounds, beside a resident process for each store that runs the whole time.

Promises: runs for about the given duration, and finishes the current drill; Ctrl-C ends it with the verdict so far. Its
own memory is bounded: of a passed drill only counts are kept. The longer the soak, the lower the operation rate of the
residents, so that the common checker can judge their whole history at the end.

Resource usage of the residents must be flat (`leaks`); the drills must pass; the histories must break no rule.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from holdfast.drills.env.flaky_network import NetworkFaults
from holdfast.drills.env.processes import Stalled, WorkerHandle
from holdfast.drills.env.proxy import FaultProxy
from holdfast.drills.env.redis_server import redis_server, running
from holdfast.drills.env.stage import DrillHarness, SceneHarness
from holdfast.drills.env.stores import ProxyLink, StoreLink
from holdfast.drills.model import DrillClaim, DrillPlan, DrillVerdict, Guard, ReportFigure, SceneRecord
from holdfast.drills.runner import run
from holdfast.drills.verdict.leaks import ENOUGH, flat_figures, flat_plots, judge_flat
from holdfast.drills.verdict.leases import grants
from holdfast.drills.verdict.resource_usage import Usage
from holdfast.errors import HoldfastError, Misconfigured

if TYPE_CHECKING:
    from holdfast.drills.catalog import Drill

TITLE: Final = "drills in rounds"
DEEDS_MAX: Final = 50_000  # operations of each resident task, so that its history fits into memory
PACE_S: Final = 0.1
SAMPLES: Final = 1_000
FAILURES_MAX: Final = 20
RESIDENT_TTLS: Final = 5.0
END_S: Final = 60.0
WAITERS, KEYS = 200, 400


class Piece(NamedTuple):
    """A drill of the mixture, in a short form."""

    drill: str
    store: str  # the drill's own store; ignored by drills without a choice
    seconds: float


MIXTURE: Final = (
    Piece("quick", "sqlite", 1.0),
    Piece("pause", "redis", 1.0),
    Piece("kill", "sqlite", 1.0),
    Piece("kill", "redis", 1.0),
    Piece("compound", "sqlite", 1.0),
    Piece("compound", "redis", 1.0),
    Piece("outage", "sqlite", 3.0),
    Piece("outage", "redis", 3.0),
    Piece("retry-waves", "redis", 6.0),
    Piece("pause-and-delay", "redis", 1.0),
    Piece("failover", "redis", 2.0),
    Piece("clock", "redis", 1.0),
    Piece("storm", "sqlite", 5.0),
    Piece("storm", "redis", 5.0),
    Piece("rolling-restart", "sqlite", 1.0),
)


@dataclass(slots=True)
class SoakTally:
    """The results of the rounds so far."""

    rounds: int = 0
    passed: Counter[str] = field(default_factory=Counter)
    failed: Counter[str] = field(default_factory=Counter)
    failures: list[DrillClaim] = field(default_factory=list)
    grants: int = 0
    lost_bare: int = 0  # updates lost without a full guard
    lost_guarded: int = 0
    refused: int = 0
    took_s: float = 0.0

    def add(self, name: str, verdict: DrillVerdict) -> None:
        """Count one drill, and drop its details."""
        (self.passed if verdict.passed else self.failed)[name] += 1
        self.took_s += verdict.took_s
        for each in verdict.judged:
            self.grants += len(grants(each.scene.history))
            self.refused += each.refused
            if each.scene.bites:
                self.lost_bare += each.lost
            else:
                self.lost_guarded += each.lost
            for problem in each.problems:
                self.fail(name, f"round {self.rounds}, {each.scene.title}: {problem}")

    def fail(self, name: str, seen: str) -> None:
        """Keep the first failures."""
        if len(self.failures) < FAILURES_MAX:
            self.failures.append(DrillClaim(f"{name} ends as expected", kept=False, seen=seen))

    def claims(self) -> Iterator[DrillClaim]:
        """The required conditions of the rounds."""
        yield from self.failures
        wrong, right = self.failed.total(), self.passed.total()
        yield DrillClaim("every drill ends as expected", wrong == 0, f"{right:,} passed, {wrong:,} failed")
        yield DrillClaim("nothing is lost with guards", self.lost_guarded == 0, f"{self.lost_guarded:,} updates lost")

    def figures(self) -> Iterator[ReportFigure]:
        """The rounds in numbers."""
        yield ReportFigure("rounds", f"{self.rounds:,}", f"{self.passed.total() + self.failed.total():,} drills")
        for name in sorted({*self.passed, *self.failed}):
            yield ReportFigure(name, f"{self.passed[name]:,} passed", f"{self.failed[name]:,} failed")
        yield ReportFigure("grants", f"{self.grants:,}", "of the drills")
        yield ReportFigure("updates lost without full guards", f"{self.lost_bare:,}", "which the drills must show")
        yield ReportFigure("updates lost with guards", f"{self.lost_guarded:,}")
        yield ReportFigure("stale steps refused", f"{self.refused:,}")


def play(stage: DrillHarness, seconds: float, drill: Callable[[str], Drill]) -> None:
    """Mix drills for that long, with a resident on each store. `drill` finds one by its name."""
    end = time.monotonic() + seconds
    rounds = SceneRecord(TITLE, f"short drills on all stores, shuffled in each round, for {seconds:g} s.", None)
    tally = SoakTally()
    with _residents(stage, seconds):
        try:
            _rounds(stage, end, tally, drill)
        except KeyboardInterrupt:
            stage.report(TITLE, "ended early; this is the verdict so far")
            stage.cannot.append(f"the rest of {seconds:g} s: it was ended early")
    rounds.claims += tally.claims()
    rounds.figures += tally.figures()
    stage.scenes.insert(0, rounds)


def _rounds(stage: DrillHarness, end: float, tally: SoakTally, drill: Callable[[str], Drill]) -> None:
    chance = random.Random(f"soak:{stage.plan.seed}")  # noqa: S311 - the order of drills; guards nothing
    mixture = list(MIXTURE)
    while mixture:  # ends with the time, or when no drill can run here
        tally.rounds += 1
        chance.shuffle(mixture)
        for piece in tuple(mixture):
            if not _played(stage, piece, tally, drill(piece.drill)):
                mixture.remove(piece)
            if time.monotonic() >= end:
                return


def _played(stage: DrillHarness, piece: Piece, tally: SoakTally, drill: Drill) -> bool:
    """Run one drill. False: it cannot run here, which is reported once."""
    asked, name = stage.plan, f"{piece.drill} on {piece.store}"
    plan = DrillPlan(
        own=piece.store,
        ttl_s=asked.ttl_s,
        slo_s=asked.slo_s,
        duration_s=piece.seconds,
        seed=asked.seed + tally.rounds,
        waiters=WAITERS if piece.drill == "storm" else None,
        keys=KEYS if piece.drill == "storm" else None,
    )

    def report(scene: str, text: str, *, good: bool | None = None) -> None:
        if good is False:
            stage.report(TITLE, f"{name}, {scene}: {text}", good=False)

    try:
        verdict = run(drill, plan, report, f"holdfast drill {piece.drill}")
    except Misconfigured as missing:
        stage.cannot.append(f"{name}: {missing}")
        return False
    except HoldfastError as error:
        tally.failed[name] += 1
        tally.fail(name, f"round {tally.rounds}: {error}")
        stage.report(TITLE, f"{name}: {error}", good=False)
        return True
    tally.add(name, verdict)
    told = f"round {tally.rounds}: {name} {'passed' if verdict.passed else 'FAILED'} in {verdict.took_s:.0f} s"
    stage.report(TITLE, told, good=verdict.passed)
    return True


@contextmanager
def _residents(stage: DrillHarness, seconds: float) -> Iterator[None]:
    """A resident on each available store, and network faults for all of them, for the duration of the block."""
    with ExitStack() as stack:
        ways: list[StoreLink] = [stage.way]
        try:
            executable = redis_server()
        except Misconfigured as missing:
            stage.cannot.append(f"the resident on Redis: {missing}")
        else:
            server = stack.enter_context(running(executable, stage.directory / "resident-redis"))
            proxy = stack.enter_context(FaultProxy(("127.0.0.1", server.port)))
            ways.append(ProxyLink(f"redis://127.0.0.1:{proxy.port}", "Redis", proxy))
        settled = list(filter(None, [_moved_in(stack, stage, way, seconds) for way in ways]))
        with NetworkFaults(ways, stage.plan.seed) as weather:
            yield
        for it, actor in settled:
            _moved_out(it, actor, weather.faults)


def _moved_in(
    stack: ExitStack, stage: DrillHarness, way: StoreLink, seconds: float
) -> tuple[SceneHarness, WorkerHandle] | None:
    """A resident on a store. None: it did not start, which its scene reports, and the others continue."""
    kind = "SQLite" if way is stage.way else "Redis"
    words = "one process acquires, waits for, keeps, guards and releases leases continuously, over a faulty link."
    it = stack.enter_context(stage.scene(f"resident on {kind}", words, Guard.ON, url=way.url))
    try:
        [actor] = it.crew.enter("resident")
    except Stalled as stalled:
        stage.report(it.scene.title, str(stalled), good=False)
        it.claim("the resident starts", kept=False, seen=str(stalled))
        return None
    pace, every = max(PACE_S, seconds / DEEDS_MAX), min(60.0, max(0.2, seconds / SAMPLES))
    key = it.key("work")
    it.key("work:kept")
    actor.order("run_resident", key=key, ttl=RESIDENT_TTLS * stage.plan.ttl_s, pace=pace, every=every)
    return it, actor


def _moved_out(it: SceneHarness, actor: WorkerHandle, faults: int) -> None:
    actor.order("stop")
    try:
        told = it.crew.next("resident_done", actor, END_S).fields
    except Stalled as stalled:
        it.claim("the resident lives, and stops on command", kept=False, seen=str(stalled))
        return
    samples = [Usage(*each) for each in told["samples"]]
    it.scene.figures += resident_figures(told["counts"], faults)
    it.scene.figures += flat_figures(samples)
    it.scene.plots += flat_plots(samples)
    found = list(judge_flat(samples))
    if not found:
        it.stage.cannot.append(f"whether the {it.scene.title} is flat: too short for {ENOUGH} samples after warm-up")
    for claim in found:
        it.claim(*claim)
    written = it.account.inspect(it.key("work")).balance
    counted = told["counts"].get("writes", 0)
    it.claim("acknowledged writes exist", written == counted, f"{counted:,} acknowledged, {written:,} exist")


def resident_figures(counts: dict[str, int], faults: int) -> Sequence[ReportFigure]:
    """The counters of a resident."""
    order = ("grants", "writes", "refused", "lost", "timed out", "cancelled", "store errors", "renewed")
    return [
        *(ReportFigure(name, f"{counts.get(name, 0):,}") for name in order),
        ReportFigure("faults", f"{faults:,}", "on the links to all stores together"),
    ]
