"""Measuring several processes on one key, without a server: how often the lock changes hands.

Each process notes when it got the lock. Put in order (all read the same monotonic clock, and only one holds at a time),
two grants in a row by different processes are an owner change. A lock that one process takes ten thousand times while
the others starve has many grants and no owner changes.
"""

from __future__ import annotations

import itertools
import multiprocessing
import time
from multiprocessing.connection import Connection
from typing import Any

from benchmarks import contenders_files
from benchmarks.contender import Connect, Contender, Place
from benchmarks.measure import LIMIT_S, Measurement

KEY = "shared"


def _work(name: str, place: Place, seconds: float, parent: Connection) -> None:
    """The life of one process. It is given a name and not a contender, because a closure cannot be sent to it."""
    contender = next(each for each in contenders_files.WAITING if each.name == name)
    grants: list[int] = []
    with contender.connect(place) as make:
        cycle = make(KEY)
        cycle.acquire()
        cycle.release()
        parent.send(None)
        parent.recv()
        until = time.monotonic_ns() + int(seconds * 1e9)
        while time.monotonic_ns() < until:
            cycle.acquire()
            grants.append(time.monotonic_ns())
            cycle.release()
        parent.send(grants)


def on_one_key(contender: Contender[Connect], place: Place, seconds: float, processes: int) -> Measurement:
    """Fresh processes (not forks of this one), started together."""
    context = multiprocessing.get_context("spawn")
    pipes = [context.Pipe() for _ in range(processes)]
    workers = [
        context.Process(target=_work, args=(contender.name, place, seconds, theirs), daemon=True) for _, theirs in pipes
    ]
    try:
        for worker in workers:
            worker.start()
        for ours, _ in pipes:
            _receive(ours, LIMIT_S)
        for ours, _ in pipes:
            ours.send(None)
        answers: list[list[int]] = [_receive(ours, seconds + LIMIT_S) for ours, _ in pipes]
    finally:
        for worker in workers:
            worker.join(5)
            if worker.is_alive():
                worker.kill()
    grants = sorted((at, owner) for owner, times in enumerate(answers) for at in times)
    changes = sum(one[1] != other[1] for one, other in itertools.pairwise(grants))
    counts = [len(times) for times in answers]
    return Measurement(
        changes / seconds, {"grants_per_s": len(grants) / seconds, "fewest": min(counts), "most": max(counts)}
    )


def _receive(pipe: Connection, limit_s: float) -> Any:
    if not pipe.poll(limit_s):
        raise TimeoutError("a process did not answer")
    try:
        return pipe.recv()
    except EOFError:
        raise RuntimeError("a process ended before its time") from None
