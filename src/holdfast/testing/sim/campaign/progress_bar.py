"""How far a run of simulated worlds has come: a bar where there is a terminal, and a line now and then elsewhere."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

from holdfast.testing.sim.campaign.totals import Totals

LINE_EVERY_S = 10.0


@dataclass(frozen=True, slots=True)
class Goal:
    """Where a run wants to get to. What is not given has no end."""

    worlds: int | None = None
    lock_hours: float | None = None
    seconds: float | None = None  # of this run

    def share(self, totals: Totals, seconds: float) -> float:
        """How much of the way is behind it, from 0 to 1: by whichever end is nearest."""
        shares = [
            totals.worlds.total() / self.worlds if self.worlds else 0.0,
            totals.lock_hours / self.lock_hours if self.lock_hours else 0.0,
            seconds / self.seconds if self.seconds else 0.0,
        ]
        return min(1.0, max(shares))

    def reached(self, totals: Totals, seconds: float) -> bool:
        """Whether it is there."""
        return self.share(totals, seconds) >= 1.0


Show: TypeAlias = Callable[[Totals], None]


class Pace:
    """How fast this run is; what an earlier run of the same campaign did is left out."""

    def __init__(self, goal: Goal, before: Totals, clock: Callable[[], float] = time.monotonic) -> None:
        self._goal = goal
        self._clock = clock
        self._began = clock()
        self._worlds = before.worlds.total()
        self._lock_hours = before.lock_hours
        self._share = goal.share(before, 0.0)

    def seconds(self) -> float:
        """How long it has been running."""
        return max(self._clock() - self._began, 1e-9)

    def share(self, totals: Totals) -> float:
        """How much of the way is behind it."""
        return self._goal.share(totals, self.seconds())

    def text(self, totals: Totals) -> str:
        """One line of it."""
        seconds, share = self.seconds(), self.share(totals)
        worlds, hours = totals.worlds.total(), totals.lock_hours
        aim = "" if self._goal.lock_hours is None else f" of {self._goal.lock_hours:,.0f}"
        parts = [
            f"{worlds:,} worlds ({(worlds - self._worlds) / seconds:.1f}/s)",
            f"{hours:,.1f}{aim} lock-hours ({(hours - self._lock_hours) / seconds:.1f}/s)",
            f"{len(totals.failures)} with violations",
        ]
        if share >= 1.0:
            parts.append("done")
        elif share > self._share:
            parts.append(f"ends in about {_duration(seconds * (1 - share) / (share - self._share))}")
        return ", ".join(parts)


@contextlib.contextmanager
def showing(pace: Pace, quiet: bool) -> Iterator[Show]:
    """Be told after every world; show it on the standard error output."""
    if quiet:
        yield lambda _: None
        return
    if sys.stderr.isatty():
        with contextlib.suppress(ImportError):
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

            columns = (BarColumn(bar_width=24), TaskProgressColumn(), TextColumn("{task.description}"))
            with Progress(*columns, console=Console(stderr=True)) as bar:
                task = bar.add_task("", total=1.0)
                yield lambda totals: bar.update(task, completed=pace.share(totals), description=pace.text(totals))
                return
    due = LINE_EVERY_S

    def line(totals: Totals) -> None:
        nonlocal due
        if pace.seconds() >= due:
            due = pace.seconds() + LINE_EVERY_S
            sys.stderr.write(f"{pace.text(totals)}\n")
            sys.stderr.flush()

    yield line


def _duration(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 100 * 60 else f"{seconds / 3600:.1f} h"
