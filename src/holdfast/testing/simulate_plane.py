"""`python -m holdfast.testing.simulate_plane`: live through simulated planes, and say what was found.

Each seed is one world with its own faults, its own settings and its own work. A violation is printed in plain words
with the one command that replays it; then the exit code is 1. Replay is exact on the same minor version of Python and
the same code.
"""

# ruff: noqa: T201 - a command prints

from __future__ import annotations

import argparse
import concurrent.futures
import itertools
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from holdfast.testing.sim.plane.plane_faults import draw_plane_swarm
from holdfast.testing.sim.plane.simulated_plane import PlaneOutcome, run_plane
from holdfast.types import NS

CHUNK = 4  # seeds in one request to a worker process


@dataclass(slots=True)
class PlaneReport:
    """What a run came to."""

    worlds: int = 0
    virtual_ns: int = 0
    steps: int = 0
    jobs: int = 0
    commits: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    failed: list[PlaneOutcome] = field(default_factory=list)

    def add(self, outcome: PlaneOutcome) -> None:
        """One more world."""
        self.worlds += 1
        self.virtual_ns += outcome.virtual_ns
        self.steps += outcome.steps
        self.jobs += outcome.jobs
        self.commits += outcome.commits
        self.counts.update({str(what): number for what, number in outcome.counts.items()})
        if outcome.violations:
            self.failed.append(outcome)


def replay_plane_command(seed: int) -> str:
    """The one command that shows a world again, step by step."""
    return f"python -m holdfast.testing.simulate_plane --seed {seed} --trace"


def _worlds(seeds: list[int]) -> list[PlaneOutcome]:
    return [run_plane(seed) for seed in seeds]


def _chunks(seeds: Iterable[int]) -> Iterator[list[int]]:
    numbers = iter(seeds)
    while chunk := list(itertools.islice(numbers, CHUNK)):
        yield chunk


def simulate_planes(seeds: Iterable[int], jobs: int, *, until: float | None = None, quiet: bool = True) -> PlaneReport:
    """Live through the worlds of these seeds in `jobs` processes, until they are used up or the time is."""
    report = PlaneReport()

    def take(outcomes: list[PlaneOutcome]) -> None:
        for outcome in outcomes:
            report.add(outcome)
            if outcome.violations and not quiet:
                _show(outcome)
            if report.worlds % 100 == 0 and not quiet:
                print(f"{report.worlds} worlds, {len(report.failed)} with violations", file=sys.stderr, flush=True)

    chunks = _chunks(seeds)
    if jobs == 1:
        for chunk in chunks:
            take(_worlds(chunk))
            if until is not None and time.monotonic() > until:
                break
        return report
    with concurrent.futures.ProcessPoolExecutor(jobs) as pool:
        waiting = [pool.submit(_worlds, chunk) for chunk in itertools.islice(chunks, 2 * jobs)]
        while waiting:
            take(waiting.pop(0).result())
            if until is None or time.monotonic() <= until:
                waiting += [pool.submit(_worlds, chunk) for chunk in itertools.islice(chunks, 1)]
    return report


def _show(outcome: PlaneOutcome) -> None:
    print(f"seed {outcome.seed}: {len(outcome.violations)} violations; the first:")
    print(outcome.violations[0])
    print(f"replay it with: {replay_plane_command(outcome.seed)}", flush=True)


def _replay(seed: int, trace: bool) -> int:
    """One world, in full."""
    swarm = draw_plane_swarm(seed)
    print(f"seed {seed}: {swarm}")
    outcome = run_plane(seed, swarm, print if trace else None)
    for violation in outcome.violations:
        print(violation)
    print(f"seed {seed}: {len(outcome.violations)} violations, trace {outcome.digest}")
    return 1 if outcome.violations else 0


def _print(report: PlaneReport, seconds: float) -> None:
    hours = report.virtual_ns / NS / 3600
    print(
        f"{report.worlds} planes ({report.worlds / seconds:.1f}/s), {hours:.2f} simulated plane-hours "
        f"({hours * 3600 / seconds:.0f} x real time), {report.jobs} jobs ({report.jobs / seconds:.0f}/s), "
        f"{report.commits} commits, {report.counts['handed']} grants, {report.steps} steps: "
        f"{len(report.failed)} with violations"
    )


def _json(report: PlaneReport, seconds: float) -> str:
    return json.dumps(
        {
            "worlds": report.worlds,
            "seconds": round(seconds, 3),
            "plane_hours": report.virtual_ns / NS / 3600,
            "jobs": report.jobs,
            "commits": report.commits,
            "steps": report.steps,
            "counts": dict(sorted(report.counts.items())),
            "failed": [
                {
                    "seed": outcome.seed,
                    "violations": [str(violation) for violation in outcome.violations],
                    "replay": replay_plane_command(outcome.seed),
                }
                for outcome in report.failed
            ],
        },
        indent=2,
    )


def _arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m holdfast.testing.simulate_plane", description=__doc__)
    parser.add_argument("--seeds", type=int, default=200, help="how many worlds (200)")
    parser.add_argument("--first", type=int, default=0, help="the first seed (0)")
    parser.add_argument("--hours", type=float, help="go on for so many real hours instead, from the first seed on")
    parser.add_argument("--seed", type=int, help="live through this one world alone")
    parser.add_argument("--trace", action="store_true", help="with --seed: print everything that happens")
    parser.add_argument("--jobs", type=int, default=min(os.cpu_count() or 1, 8), help="processes (one for each core)")
    parser.add_argument("--json", action="store_true", help="the report as JSON")
    arguments = parser.parse_args(argv)
    if arguments.seeds < 1 or arguments.jobs < 1 or (arguments.hours is not None and arguments.hours <= 0):
        parser.error("--seeds, --jobs and --hours must be above zero")
    if arguments.trace and arguments.seed is None:
        parser.error("--trace needs --seed: it shows one world")
    return arguments


def main(argv: list[str] | None = None) -> int:
    """Run it. 0: nothing found. 1: a violation. 2: wrong usage."""
    arguments = _arguments(argv)
    if arguments.seed is not None:
        return _replay(arguments.seed, arguments.trace)
    began = time.monotonic()
    until = None if arguments.hours is None else began + arguments.hours * 3600
    numbers = itertools.count(arguments.first)
    seeds = numbers if until is not None else itertools.islice(numbers, arguments.seeds)
    report = simulate_planes(seeds, arguments.jobs, until=until, quiet=arguments.json)
    seconds = max(time.monotonic() - began, 1e-9)
    if arguments.json:
        print(_json(report, seconds))
    else:
        _print(report, seconds)
    return 1 if report.failed else 0


if __name__ == "__main__":
    sys.exit(main())
