"""Lives of a process: each is forked from one that has imported everything, and may be killed at a failpoint.

A fork costs some ten milliseconds where a start costs a second. The parent has no thread and no open file of a
store; what the lives share is on disk, as for processes that know nothing of each other.
"""

from __future__ import annotations

import json
import os
import signal
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from holdfast.testing import faults

Say = Callable[[Any], None]


@dataclass(frozen=True)
class Death:
    """Where a life is to end: the `hit`-th time that it comes to this point."""

    point: str
    hit: int

    def __str__(self) -> str:
        return f"{self.point} #{self.hit}"


@dataclass(frozen=True)
class Life:
    """How one ended, and what it said before."""

    killed: bool
    said: Sequence[Any]


def live(body: Callable[[Say], None], death: Death | None = None) -> Life:
    """Let a child do something. It ends when that is done, or at its point; an error in it is an error here."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        _be(body, death, lambda what: _say(writing, what))
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        lines = pipe.read().splitlines()
    _, status = os.waitpid(pid, 0)
    said = [json.loads(line) for line in lines]
    killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
    if not killed and status != 0:
        raise RuntimeError(f"a life that was to end at {death} failed: {said[-1] if said else status}")
    return Life(killed, said)


def _be(body: Callable[[Say], None], death: Death | None, say: Say) -> None:
    code = 1
    try:
        with ExitStack() as stack:
            if death is not None:
                stack.enter_context(faults.armed(death.point, faults.kill(), hit=death.hit))
            body(say)
        code = 0
    except BaseException:
        say(traceback.format_exc())
    finally:
        os._exit(code)


def _say(pipe: int, what: Any) -> None:
    os.write(pipe, json.dumps(what).encode() + b"\n")


def recorded(body: Callable[[Say], None]) -> list[str]:
    """The points that a life comes to, in their order."""

    def watched(say: Say) -> None:
        with faults.recorded() as points:
            body(say)
        say({"points": points})

    points: list[str] = live(watched).said[-1]["points"]
    return points


def deaths(points: Sequence[str], most: Callable[[str], int]) -> list[Death]:
    """Where to die, of the points that a life comes to: at each as often as it came there, and at most so often."""
    count = Counter(points)
    return [Death(point, hit) for point in count for hit in range(1, min(count[point], most(point)) + 1)]
