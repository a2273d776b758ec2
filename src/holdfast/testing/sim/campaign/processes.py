"""Those who live through simulated worlds: this process, or several, each with one core.

Results arrive in the order of the requests, not of completion. A world in which the simulator itself fails is a
finding like any other, and does not end the run.
"""

from __future__ import annotations

import itertools
import multiprocessing
import multiprocessing.connection
import os
import signal
import threading
import time
import traceback
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from typing import NamedTuple

from holdfast.core.history.invariants import Breach
from holdfast.testing.sim.worlds.faults import Profile
from holdfast.testing.sim.worlds.world import WorldOutcome, run_seed

CHUNK = 4  # worlds in one request to a process
MIXED = "mixed"
PROFILES = (*(str(each) for each in Profile), MIXED)


class WorldName(NamedTuple):
    """The name of a world."""

    profile: Profile
    seed: int


class Lived(NamedTuple):
    """The outcome of a world, and what it cost."""

    outcome: WorldOutcome
    cpu_ns: int


def world_of(profile: str, seed: int) -> WorldName:
    """The world of a seed: in a mix, that of an even one is long and that of an odd one is busy."""
    if profile == MIXED:
        return WorldName(Profile.BUSY if seed % 2 else Profile.LONG, seed)
    return WorldName(Profile(profile), seed)


def live(worlds: Iterable[WorldName], jobs: int, enough: Callable[[], bool]) -> Iterator[Lived]:
    """Live through these worlds in so many processes, until they are used up or it is enough.

    `enough` is asked again and again; what was begun by then is still finished and handed over.
    """
    if jobs == 1:
        for world in worlds:
            yield _live(world)
            if enough():
                return
        return
    chunks = _chunks(worlds)
    # Not by fork: a bar of progress has a thread, and a copy of a process with threads may hang.
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(jobs, context, initializer=_sign_on)
    try:
        begun: deque[Future[list[Lived]]] = deque()
        begun.extend(pool.submit(_lived, chunk) for chunk in itertools.islice(chunks, 2 * jobs))
        while begun:
            yield from begun.popleft().result()
            if not enough():
                begun.extend(pool.submit(_lived, chunk) for chunk in itertools.islice(chunks, 1))
    finally:
        pool.shutdown(cancel_futures=True)


def _lived(chunk: list[WorldName]) -> list[Lived]:
    return [_live(world) for world in chunk]


def _live(world: WorldName) -> Lived:
    began = time.process_time_ns()
    try:
        outcome = run_seed(world.seed, profile=world.profile)
    except Exception:  # noqa: BLE001 - whatever it is, it belongs to this world, and the others go on
        text = f"the simulator itself failed: {traceback.format_exc()}"
        outcome = WorldOutcome(
            seed=world.seed,
            violations=[Breach("C0", "simulator", text)],
            digest="",
            virtual_ns=0,
            lock_ns=0,
            steps=0,
            counts=Counter(),
            profile=world.profile,
        )
    return Lived(outcome, time.process_time_ns() - began)


def _chunks(worlds: Iterable[WorldName]) -> Iterator[list[WorldName]]:
    numbers = iter(worlds)
    while chunk := list(itertools.islice(numbers, CHUNK)):
        yield chunk


def _sign_on() -> None:
    """In each process of the crew. Whether to stop is for its parent to say; but it does not outlive it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_follow, args=(parent.sentinel,), daemon=True).start()


def _follow(sentinel: int) -> None:
    multiprocessing.connection.wait([sentinel])
    os._exit(1)
