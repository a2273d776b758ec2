"""Contenders for one busy lock that retry after a delay, as a scheduler's messages do (`RetryLater`).

Each contender tries, and retries after the delay if the lock is busy. No contender waits at the store, so only the
delay determines when retries happen. Clock: monotonic for waiting, the wall clock for reports.

`retry-waves`: many contenders for one lock, and the effect of the delay between their retries (R153–R157).

The same load runs with each delay: a fixed 500 ms, 500 ± 200 ms, and exponential with full jitter. The drill compares
how bunched the retries are (Fano factor in buckets of 50 ms; 1 is random), the p95 of the wait, and the number of
retries. First it runs real contenders on the real store, then a deterministic simulation of many more
(`core.tuning.retry`).

"""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from holdfast.core.backoff import Backoff, Exponential, Fixed, Jittered
from holdfast.core.tuning.percentiles import of_durations
from holdfast.core.tuning.retry import Arrival, guardrails, replay, worst_minute
from holdfast.drills.env.stage import DrillHarness, SceneHarness
from holdfast.drills.model import DrillClaim, ReportFigure, SceneRecord, curve
from holdfast.errors import BackendError, LeaseLost
from holdfast.leases.sync.client import Locks
from holdfast.types import MS, NS

BASE_NS: Final = 500 * MS
DELAYS: Final[Mapping[str, Backoff]] = MappingProxyType(
    {
        "fixed 500 ms": Fixed(BASE_NS),
        "500 ± 200 ms": Jittered(BASE_NS, 200 * MS),
        "exponential with jitter": Exponential(100 * MS, 2 * NS),
    }
)


def contend(
    locks: Locks,
    key: str,
    delay: str,
    threads: int,
    holds: int,
    hold: float,
    seed: int,
    stop: threading.Event,
    *,
    ttl: float,
) -> dict[str, Any]:
    """All contenders of one process, until each has held the lock so often. Waits and failed retries, in ns."""
    waits: list[int] = []
    busy: list[int] = []
    failed = [0]
    backoff = DELAYS[delay]

    def one(number: int) -> None:
        chance = random.Random(f"{seed}:{number}")  # noqa: S311 - spreads retries; guards nothing
        lock = locks.lock(key, ttl=ttl, family="drill")
        for _ in range(holds):
            began, attempt, last_ns = time.monotonic_ns(), 0, 0
            while not stop.is_set():
                lease = None
                with contextlib.suppress(BackendError, LeaseLost):
                    lease = lock.try_acquire()
                if lease is not None:
                    waits.append(time.monotonic_ns() - began)
                    stop.wait(hold)
                    lease.release()
                    break
                if attempt:  # the first collision comes from the load; later ones come from the delay
                    busy.append(time.time_ns())
                last_ns = backoff.delay_ns(attempt, last_ns, chance.randrange)
                attempt += 1
                stop.wait(last_ns / NS)
            else:
                failed[0] += 1

    crew = [threading.Thread(target=one, args=(number,)) for number in range(threads)]
    for thread in crew:
        thread.start()
    for thread in crew:
        thread.join()
    return {"waits": waits, "busy": busy, "unserved": failed[0]}


PROCESSES: Final = 4
HOLD_S: Final = 0.04
BUCKET_NS: Final = 50 * MS
SIMULATED: Final = 300
TTL_NS: Final = 60 * NS  # of the job lock, whose safety budget bounds the spread
_WAVE_S: Final = 0.5


def play(stage: DrillHarness, seconds: float) -> None:
    """The same contention with each delay; as many contenders as the time allows."""
    threads = max(1, int(seconds / len(DELAYS) / _WAVE_S / PROCESSES))
    compared = SceneRecord("compared", "times of failed retries, with each delay.", None)
    for number, name in enumerate(DELAYS):
        words = f"{threads * PROCESSES} concurrent contenders request a lock and hold it for {HOLD_S * 1000:g} ms each"
        with stage.scene(name, f"{words}; those that find it held retry after {name}.", None) as it:
            _contend(it, name, threads, 4 * seconds / len(DELAYS), stage.plan.seed + number)
        _compare(compared, it.scene)
    stage.scenes.insert(0, compared)
    stage.scenes.append(simulated(stage.plan.seed))


def _compare(compared: SceneRecord, scene: SceneRecord) -> None:
    """Add the curve of a scene to the comparison, with a common time axis, and its figures in one line."""
    compared.curves += (each._replace(from_ns=0) for each in scene.curves)
    scene.curves.clear()
    told = ", ".join(f"{each.name} {each.value}" for each in scene.figures)
    compared.figures.append(ReportFigure(scene.title, told))


def _contend(it: SceneHarness, name: str, threads: int, limit_s: float, seed: int) -> None:
    crew = it.crew.enter(*(f"process-{number + 1}" for number in range(PROCESSES)))
    key, began_ns = it.key("busy"), time.time_ns()
    for number, actor in enumerate(crew):
        words = {"threads": threads, "holds": 1, "hold": HOLD_S, "seed": seed * 1000 + number}
        actor.order("contend", key=key, delay=name, **words)
    waits: list[int] = []
    busy: list[int] = []
    unserved = 0
    for actor in crew:
        told = it.crew.next("contended", actor, limit_s + 30.0).fields
        waits += told["waits"]
        busy += told["busy"]
        unserved += told["unserved"]
    it.claim("every contender gets the lock", unserved == 0, f"{len(waits)} served, {unserved} not")
    it.scene.figures += _shown(waits, busy)
    it.scene.curves.append(curve(name, busy, began_ns, time.time_ns(), BUCKET_NS))
    it.report(", ".join(f"{each.name} {each.value}" for each in it.scene.figures))


def _shown(waits: Sequence[int], busy: Sequence[int]) -> list[ReportFigure]:
    burst = worst_minute(busy)
    return [
        ReportFigure("retries", str(len(busy))),
        ReportFigure("p95 wait", f"{of_durations(waits, 'waits').p95_ns / NS:.2f} s"),
        ReportFigure("burstiness", f"{burst.fano:.1f}", "Fano factor in buckets of 50 ms; 1 is random"),
        ReportFigure("peak to mean", f"{burst.peak_to_mean:.1f}", "the worst bucket against the average one"),
    ]


def simulated(seed: int) -> SceneRecord:
    """The same contention with many more contenders, in virtual time. The same seed gives the same numbers."""
    words = f"the same, with {SIMULATED} contenders in virtual time; the same seed gives the same numbers."
    scene = SceneRecord(f"{SIMULATED} contenders, simulated", words, None)
    arrivals = [Arrival(number * MS // 10, "busy", round(HOLD_S * NS)) for number in range(SIMULATED)]
    fano: dict[str, float] = {}
    for name, backoff in DELAYS.items():
        found = replay(name, arrivals, backoff, seed=seed)
        fano[name] = found.burst.fano
        wait = f"p95 wait {found.p95_wait_ns / NS:.1f} s, {found.busy:,} retries"
        scene.figures.append(ReportFigure(name, f"burstiness {found.burst.fano:.1f}", wait))
        wrong = guardrails(backoff, TTL_NS, round(HOLD_S * NS))
        scene.figures += [ReportFigure(f"{name}: guardrail", problem) for problem in wrong]
    fixed, *others = (fano[name] for name in DELAYS)
    kept = all(each < fixed for each in others)
    seen = ", ".join(f"{name} {value:.1f}" for name, value in fano.items())
    scene.claims.append(DrillClaim("spreading the delay flattens the waves", kept, f"burstiness: {seen}"))
    return scene
