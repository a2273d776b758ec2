"""Showing outcomes: a table for the terminal, the same as Markdown, JSON for machines, and a plot."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.contender import Role, module
from benchmarks.results import Outcome, Score

WIDE = 120  # columns of a terminal that has room for everything
FILE_WIDTH = 200  # where the output is no terminal
STORED = "plane-stored-"  # how the scenarios of the curve begin
HEADINGS = ("scenario", "contender", "median", "spread", "of best peer", "of raw", "besides")

_EXTRAS = {
    "cpu_us": "{:.0f} µs CPU each",
    "p50_ms": "p50 {:.2f} ms",
    "p95_ms": "p95 {:.2f} ms",
    "p99_ms": "p99 {:.2f} ms",
    "submit_per_s": "{:.0f} accepted/s",
    "database_ms": "{:.2f} ms in the database each",
    "commands": "{:.1f} commands each",
    "reads": "{:.1f} requests each",
    "idle_per_s": "{:.1f} commands/s while waiting",
    "threads": "{:.0f} threads",
    "requests_per_s": "{:.0f} requests/s",
    "commands_per_s": "{:.0f} commands/s",
    "lost": "{:.0f} lost",
    "grants_per_s": "{:.0f} grants/s",
    "fewest": "fewest {:.0f}",
    "most": "most {:.0f}",
    "cycle_us": "{:.1f} µs without",
    "share": "{:+.2f} %",
}


def number(value: float) -> str:
    """Three figures or so, whatever the size."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def ratio(value: float | None) -> str:
    """A ratio, or nothing."""
    return "" if value is None else f"{value:.2f}×"


def rows(outcome: Outcome) -> list[tuple[str, ...]]:
    """One row for each contender, the best first. The first cell is empty but for the first row."""
    ordered = sorted(outcome.scores, key=lambda score: score.value, reverse=not outcome.less_is_better)
    return [_row(outcome, score, first=at == 0) for at, score in enumerate(ordered)]


def _row(outcome: Outcome, score: Score, *, first: bool) -> tuple[str, ...]:
    to_peer = ratio(outcome.of_best_peer(score)) if score.role is Role.OURS else ""
    if to_peer and outcome.aim is not None:
        to_peer += f" (aim {outcome.aim:g}×)"
    spread = "" if score.repeats == 1 else f"{number(score.spread[0])} to {number(score.spread[1])}"
    besides = ", ".join(_EXTRAS.get(name, name + " {:.3g}").format(value) for name, value in score.extras.items())
    return (
        f"{outcome.name} ({outcome.unit})" if first else "",
        score.name,
        number(score.value),
        spread,
        to_peer,
        ratio(outcome.of_raw(score)) if score.role is not Role.RAW else "",
        besides,
    )


def print_tables(console: Console, outcomes: Iterable[Outcome]) -> None:
    """For people at a terminal: a small table for each scenario."""
    wide = console.width >= WIDE
    for outcome in outcomes:
        title = f"[bold]{outcome.name}[/]: {outcome.title}, {outcome.unit}"
        table = Table(title=title, title_justify="left", title_style="", box=None, pad_edge=False)
        for at, heading in enumerate(HEADINGS[1:] if wide else HEADINGS[1:-1]):
            table.add_column(heading, justify="right" if 1 <= at <= 4 else "left", no_wrap=at <= 4, header_style="dim")
        for row in rows(outcome):
            table.add_row(*row[1:], style="green" if row[1].startswith("holdfast") else None)
        console.print(table, highlight=False)
        for name, why in outcome.left_out.items():
            console.print(f"{name}: {why}", style="dim", highlight=False)
        console.print()
    if not wide:
        console.print("CPU, latencies and commands are in the JSON file, and here in a wider terminal.", style="dim")


def markdown(outcomes: Iterable[Outcome]) -> str:
    """The same table for a document."""
    lines = ["| " + " | ".join(HEADINGS) + " |", "|" + "---|" * len(HEADINGS)]
    for outcome in outcomes:
        lines += ["| " + " | ".join(row) + " |" for row in rows(outcome)]
        lines += [f"| | {name} | – | | | | {why} |" for name, why in outcome.left_out.items()]
    return "\n".join(lines) + "\n"


def write_json(path: Path, facts: dict[str, Any], outcomes: Sequence[Outcome]) -> None:
    """For machines."""
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {"facts": facts, "scenarios": [outcome.as_json() for outcome in outcomes]}
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def plot(path: Path, facts: dict[str, Any], outcomes: Sequence[Outcome]) -> None:
    """Bars on a logarithmic scale, one picture for each scenario. Needs matplotlib."""
    matplotlib = module("matplotlib")
    matplotlib.use("Agg")
    pyplot = module("matplotlib.pyplot")
    columns = min(3, len(outcomes))
    lines = -(-len(outcomes) // columns)
    figure, axes = pyplot.subplots(lines, columns, figsize=(5 * columns, 2.2 * lines + 0.6), squeeze=False)
    colours = {Role.OURS: "#1b7f4d", Role.PEER: "#9aa5b1", Role.RAW: "#d0a24c"}
    for axis in axes.flat[len(outcomes) :]:
        axis.set_visible(False)
    for axis, outcome in zip(axes.flat, outcomes, strict=False):
        scores = sorted(outcome.scores, key=lambda score: score.value, reverse=outcome.less_is_better)
        bars = axis.barh(
            [score.name for score in scores],
            [score.value for score in scores],
            color=[colours[score.role] for score in scores],
        )
        axis.bar_label(bars, [number(score.value) for score in scores], padding=3, fontsize=7)
        axis.set_xscale("log")
        values = [score.value for score in scores if score.value > 0]
        axis.set_xlim(min(values) / 3, max(values) * 5)  # the shortest bar is still a bar, and labels have room
        axis.tick_params(which="both", labelsize=7)
        better = "less is better" if outcome.less_is_better else "more is better"
        axis.set_title(f"{outcome.name}: {outcome.unit} ({better})", fontsize=8)
    figure.suptitle(f"Holdfast beside its peers, {facts['date'][:10]}, {facts['cpus']} CPUs, logarithmic", fontsize=10)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
    pyplot.close(figure)


def plot_curve(path: Path, facts: dict[str, Any], outcomes: Sequence[Outcome]) -> bool:
    """Speed over stored jobs, a line for each engine. False: nothing of the kind was measured."""
    curves: dict[str, list[tuple[int, float, float]]] = {}
    for outcome in outcomes:
        if outcome.name.startswith(STORED):
            stored = int(outcome.name.removeprefix(STORED))
            for score in outcome.scores:
                curves.setdefault(score.name, []).append((stored, score.value, score.extras["database_ms"]))
    if not curves:
        return False
    matplotlib = module("matplotlib")
    matplotlib.use("Agg")
    pyplot = module("matplotlib.pyplot")
    figure, axes = pyplot.subplots(1, 2, figsize=(10, 3.4))
    for name, points in curves.items():
        for axis, at in zip(axes, (1, 2), strict=True):
            axis.plot([each[0] for each in points], [each[at] for each in points], marker="o", label=name)
    for axis, title in zip(axes, ("jobs/s", "ms in the database for each job"), strict=True):
        axis.set_xscale("log")
        axis.set_ylim(0, 1.1 * axis.get_ylim()[1])  # from nothing, and no point on the frame
        axis.set_xlabel("stored jobs that are over", fontsize=8)
        axis.set_title(title, fontsize=9)
        axis.tick_params(which="both", labelsize=7)
        axis.legend(fontsize=7)
    figure.suptitle(f"Scheduling beside stored jobs, {facts['date'][:10]}, {facts['cpus']} CPUs", fontsize=10)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
    pyplot.close(figure)
    return True
