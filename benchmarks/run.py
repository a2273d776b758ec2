"""The command: `python -m benchmarks.run [--scenario NAME …] [--repeats N] [--seconds S] [--quick] …`.

Repeats are interleaved: one round over all contenders, then the next, so that a noisy minute of a shared machine hits
all of them. Nothing is asserted: the exit code is 1 only if Holdfast itself could not be measured.
"""

from __future__ import annotations

import argparse
import gc
import importlib.util
import logging
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks import facts, report, results
from benchmarks.contender import Place, Role
from benchmarks.jobs.scenarios import Fleet
from benchmarks.jobs.servers import nats, postgres
from benchmarks.measure import Measurement
from benchmarks.results import Outcome
from benchmarks.scenarios import Bench, Entrant, Scenario, all_scenarios
from benchmarks.server import NoServer, find_executable, running

RESULTS = Path(__file__).parent / "results"


def parser() -> argparse.ArgumentParser:
    """The options."""
    result = argparse.ArgumentParser(
        prog="python -m benchmarks.run", description="Holdfast beside its peers, in one run."
    )
    result.add_argument(
        "--scenario", nargs="+", metavar="NAME", help="only these (default: all); a prefix names several"
    )
    result.add_argument("--only", nargs="+", metavar="CONTENDER", help="only these contenders")
    result.add_argument("--repeats", type=int, help="rounds over all contenders (default 5; 1 when quick)")
    result.add_argument("--seconds", type=float, help="length of one measurement (default 0.3; 0.15 when quick)")
    result.add_argument(
        "--renew-seconds", type=float, help="length of a measurement of renewal (default 12; 4.5 when quick)"
    )
    result.add_argument("--quick", action="store_true", help="a short run over the smaller sizes: under a minute")
    result.add_argument("--json", type=Path, metavar="FILE", help="where to write the results")
    result.add_argument("--plot", type=Path, metavar="FILE", help="where to write the picture (needs matplotlib)")
    result.add_argument("--markdown", type=Path, metavar="FILE", help="write the table as Markdown too")
    result.add_argument(
        "--redis-server", metavar="PATH", help="the server to start (default: one on the PATH, or the wheel's)"
    )
    result.add_argument("--list", action="store_true", help="say which scenarios there are")
    return result


def choose(scenarios: Sequence[Scenario], names: Sequence[str] | None, *, quick: bool) -> list[Scenario]:
    """The scenarios that were requested. A name that fits nothing is an error that says what there is."""
    if names is None:
        return [scenario for scenario in scenarios if scenario.quick or not quick]
    exact = {scenario.name for scenario in scenarios}
    for name in names:
        if not any(known.startswith(name) for known in exact):
            raise SystemExit(f"no scenario is called {name!r}; there are: {', '.join(sorted(exact))}")
    return [
        scenario
        for scenario in scenarios
        if any(scenario.name == name or (name not in exact and scenario.name.startswith(name)) for name in names)
    ]


class Run:
    """One run over the chosen scenarios."""

    def __init__(self, bench: Bench, repeats: int, only: Sequence[str] | None, console: Console) -> None:
        self._bench = bench
        self._repeats = repeats
        self._only = only
        self._console = console
        self._steps = 0
        self.failed_ours = False

    def all(self, scenarios: Sequence[Scenario]) -> list[Outcome]:
        """Measure them one after the other, and show how far it is."""
        columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
        total = sum(len(self._present(each)) * self._rounds(each) for each in scenarios)
        # No refresh in the background: its thread would take part in every measurement.
        with Progress(*columns, console=self._console, transient=True, auto_refresh=False) as progress:
            bar = progress.add_task("", total=total)

            def show(what: str) -> None:
                progress.update(bar, description=what, completed=self._steps, refresh=True)

            return [self._one(each, show) for each in scenarios]

    def _rounds(self, scenario: Scenario) -> int:
        return min(self._repeats, scenario.rounds_most or self._repeats)

    def _present(self, scenario: Scenario) -> list[Entrant]:
        chosen = [each for each in scenario.entrants if self._only is None or each.name in self._only]
        return [each for each in chosen if each.left_out is None]

    def _one(self, scenario: Scenario, show: Callable[[str], None]) -> Outcome:
        left_out = {each.name: each.left_out for each in scenario.entrants if each.left_out is not None}
        for name, why in left_out.items():
            self._console.print(f"[dim]{scenario.name}: {name} is left out: {why}[/]")
        entrants = self._present(scenario)
        measured: dict[str, list[Measurement]] = {each.name: [] for each in entrants}
        for number in range(self._rounds(scenario)):
            for each in entrants:
                if each.name not in left_out:
                    show(f"{scenario.name}, round {number + 1}: {each.name}")
                    try:
                        measured[each.name].append(self._measure(each))
                    except Exception as error:
                        left_out[each.name] = f"failed: {type(error).__name__}: {error}"
                        self.failed_ours = self.failed_ours or each.role is Role.OURS
                        self._console.print(f"[red]{scenario.name}: {each.name} {left_out[each.name]}[/]")
                self._steps += 1
        kept = [each for each in entrants if each.name not in left_out]
        return results.outcome(
            scenario, [results.score(each.name, each.role, measured[each.name]) for each in kept], left_out
        )

    def _measure(self, entrant: Entrant) -> Measurement:
        """One measurement, on an empty server and in a directory of its own."""
        if self._bench.server is not None:
            self._bench.server.empty()
        gc.collect()  # what others left behind is not this one's to clean up
        with tempfile.TemporaryDirectory(dir=self._bench.place.directory) as directory:
            place = replace(self._bench.place, directory=Path(directory))
            return entrant.run(replace(self._bench, place=place))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, print, write."""
    options = parser().parse_args(arguments)
    console = Console() if sys.stdout.isatty() else Console(width=report.FILE_WIDTH)
    if options.list:
        for each in all_scenarios():
            console.print(f"{each.name:22}{each.title} ({each.unit})", highlight=False)
        return 0
    scenarios = choose(all_scenarios(), options.scenario, quick=options.quick)
    seconds = options.seconds or (0.15 if options.quick else 0.3)
    renew_seconds = options.renew_seconds or (4.5 if options.quick else 12.0)
    logging.getLogger("redis_lock").setLevel(logging.ERROR)
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="holdfast-bench-")))
        server = None
        if any(each.server for each in scenarios):
            try:
                server = stack.enter_context(running(find_executable(options.redis_server), directory))
            except NoServer as error:
                console.print(f"[red]{error}[/]")
                return 1
        fleet = None
        if any(each.fleet for each in scenarios):
            try:
                synced = stack.enter_context(running(find_executable(options.redis_server), directory, synced=True))
                fleet = Fleet(
                    stack.enter_context(postgres(directory)),
                    stack.enter_context(nats(directory)),
                    f"redis://127.0.0.1:{synced.port}",
                )
            except NoServer as error:
                console.print(f"[dim]without scenarios of jobs: {error}[/]")
                scenarios = [each for each in scenarios if not each.fleet]
        place = Place("127.0.0.1", server.port if server else 0, directory)
        about = facts.machine(server.version if server else None)
        run = Run(
            Bench(place, server, seconds, renew_seconds, fleet),
            options.repeats or (1 if options.quick else 5),
            options.only,
            console,
        )
        began = time.monotonic()
        outcomes = run.all(scenarios)
        about["took_s"] = round(time.monotonic() - began, 1)
    report.print_tables(console, outcomes)
    _write(console, options, about, outcomes)
    return 1 if run.failed_ours else 0


def _write(console: Console, options: argparse.Namespace, about: dict[str, Any], outcomes: list[Outcome]) -> None:
    stem = "quick" if options.quick else "latest"
    to_json: Path = options.json or RESULTS / f"{stem}.json"
    to_plot: Path = options.plot or RESULTS / f"{stem}.png"
    report.write_json(to_json, about, outcomes)
    written = [to_json]
    if options.markdown is not None:
        options.markdown.write_text(report.markdown(outcomes), encoding="utf-8")
        written.append(options.markdown)
    if importlib.util.find_spec("matplotlib") is None:
        console.print("no plot: matplotlib is not installed")
    else:
        report.plot(to_plot, about, outcomes)
        written.append(to_plot)
        to_curve = to_plot.with_name(f"{to_plot.stem}-stored.png")
        if report.plot_curve(to_curve, about, outcomes):
            written.append(to_curve)
    console.print(f"took {about['took_s']} s; written: {', '.join(map(str, written))}", highlight=False)


if __name__ == "__main__":
    sys.exit(main())
