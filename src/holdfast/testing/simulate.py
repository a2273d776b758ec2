"""`python -m holdfast.testing.simulate`: live through as many simulated worlds as wanted, and say what was found.

A profile and a seed are one world with its own faults. A violation is printed in plain words with the one command that
replays it; then the exit code is 1, and the other worlds are lived through all the same. Replay is exact on the same
minor version of Python. With --campaign, a run can be stopped or killed and continues where it was.
"""

# ruff: noqa: T201 - a command prints

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

from holdfast.errors import BadInput
from holdfast.testing.sim.campaign.campaign_file import Campaign, open_campaign, this_maker
from holdfast.testing.sim.campaign.processes import MIXED, PROFILES, WorldName, live, world_of
from holdfast.testing.sim.campaign.progress_bar import Goal, Pace, showing
from holdfast.testing.sim.campaign.totals import replay_command
from holdfast.testing.sim.worlds.faults import Profile, draw_swarm
from holdfast.testing.sim.worlds.world import run_seed

__all__ = ["main", "replay_command"]

SEEDS = 1000
SAVE_EVERY_S = 1.0
INTERRUPTED = 130  # as shells say for Ctrl-C


def _replay(world: WorldName, trace: bool) -> int:
    """One world, in full."""
    seed, swarm = world.seed, draw_swarm(world.seed, world.profile)
    print(f"seed {seed}: {swarm}")
    outcome = run_seed(seed, swarm, print if trace else None)
    for violation in outcome.violations:
        print(violation)
    print(f"seed {seed}: {len(outcome.violations)} violations, trace {outcome.digest}")
    return 1 if outcome.violations else 0


def _run(campaign: Campaign, goal: Goal, jobs: int, quiet: bool, path: Path | None) -> bool:
    """Go on with it until the goal. False: told to stop before that."""
    totals, before_s = campaign.totals, campaign.seconds
    pace = Pace(goal, totals)
    last = None if goal.worlds is None else campaign.first + goal.worlds
    seeds = itertools.count(campaign.next) if last is None else range(campaign.next, last)
    worlds = (world_of(campaign.profile, seed) for seed in seeds)
    saved = time.monotonic()

    def reached() -> bool:
        return goal.reached(totals, pace.seconds())

    def save() -> None:
        campaign.seconds = before_s + pace.seconds()
        if path is not None:
            campaign.save(path)

    with _told_to_stop() as stopped, showing(pace, quiet) as show:
        if not goal.reached(totals, 0.0):  # what an earlier run has done may be all there is to do
            try:
                for lived in live(worlds, jobs, lambda: stopped() or reached()):
                    totals.add(*lived)
                    campaign.next += 1
                    show(totals)
                    if time.monotonic() - saved >= SAVE_EVERY_S:
                        save()
                        saved = time.monotonic()
            except BrokenProcessPool:  # the signal that ends this process may have ended its whole group
                if not stopped():
                    raise
    save()
    return reached()


@contextlib.contextmanager
def _told_to_stop() -> Iterator[Callable[[], bool]]:
    """Whether an end was requested, by Ctrl-C or otherwise. Totals in progress are completed first.

    A second request ends it immediately; the file is then up to a second old.
    """
    asked = False

    def ask(number: int, _: object) -> None:
        nonlocal asked
        asked = True
        signal.signal(number, signal.SIG_DFL)

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _arguments(argv: list[str] | None) -> tuple[argparse.ArgumentParser, argparse.Namespace]:
    parser = argparse.ArgumentParser(prog="python -m holdfast.testing.simulate", description=__doc__)
    add = parser.add_argument
    add(
        "--profile",
        choices=PROFILES,
        help="which worlds; mixed: long and busy in turn (busy; with --hours: mixed)",
    )
    add("--seeds", type=int, help=f"how many worlds ({SEEDS}, unless --hours or --minutes is given)")
    add("--hours", type=float, help="go on until so many lock-hours are simulated")
    add("--minutes", type=float, help="go on for so many real minutes at most")
    add("--first", type=int, default=0, help="the first seed (0)")
    add("--seed", type=int, help="live through this one world alone")
    add("--trace", action="store_true", help="with --seed: print everything that happens")
    add("--jobs", type=int, default=min(os.cpu_count() or 1, 8), help="processes (one for each core)")
    add("--campaign", type=Path, metavar="FILE", help="keep what was done in this file, and go on from there")
    add("--anyway", action="store_true", help="go on with a campaign that was begun by another version")
    add("--json", action="store_true", help="the report as JSON")
    arguments = parser.parse_args(argv)
    limits = (arguments.seeds, arguments.hours, arguments.minutes, arguments.jobs)
    if any(limit is not None and not limit > 0 for limit in limits):
        parser.error("--seeds, --hours, --minutes and --jobs must be above zero")
    if arguments.trace and arguments.seed is None:
        parser.error("--trace needs --seed: it shows one world")
    if arguments.profile is None:
        arguments.profile = str(Profile.BUSY) if arguments.hours is None else MIXED
    if arguments.seeds is None and arguments.hours is None and arguments.minutes is None:
        arguments.seeds = SEEDS
    return parser, arguments


def main(argv: list[str] | None = None) -> int:
    """Run it. 0: nothing found. 1: a violation. 2: wrong usage. 130: interrupted."""
    parser, arguments = _arguments(argv)
    if arguments.seed is not None:
        return _replay(world_of(arguments.profile, arguments.seed), arguments.trace)
    goal = Goal(arguments.seeds, arguments.hours, None if arguments.minutes is None else 60 * arguments.minutes)
    try:
        if arguments.campaign is None:
            campaign = Campaign(arguments.profile, arguments.first, [this_maker()], arguments.first)
        else:
            campaign = open_campaign(
                arguments.campaign, arguments.profile, arguments.first, this_maker(), anyway=arguments.anyway
            )
        finished = _run(campaign, goal, arguments.jobs, arguments.json, arguments.campaign)
    except BadInput as error:
        parser.error(str(error))
    if arguments.json:
        print(json.dumps(campaign.to_json(), indent=2))
    else:
        print("\n".join([*campaign.totals.lines(campaign.seconds), f"by {', '.join(map(str, campaign.makers))}"]))
    if not finished:
        where = "" if arguments.campaign is None else f"; the same command goes on with {arguments.campaign}"
        print(f"interrupted{where}", file=sys.stderr)
        return INTERRUPTED
    return 1 if campaign.totals.failures else 0


if __name__ == "__main__":
    sys.exit(main())
