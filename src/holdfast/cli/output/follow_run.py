"""Follows a run until it finishes: a live tree on a terminal, a line for each event elsewhere, or JSON."""

from __future__ import annotations

from functools import partial
from types import TracebackType
from typing import Any, Self, TypeAlias

from rich.console import Group
from rich.live import Live
from rich.text import Text

from holdfast.cli.exit_codes import Exit
from holdfast.cli.output.follow import FollowView, Shown, followed, looked_at, view_of
from holdfast.cli.output.jobs import as_json, short
from holdfast.cli.output.runs import event_dict, run_dict, run_tree, timeline_line
from holdfast.cli.output.screen import cell, out
from holdfast.plane.process.components import Components
from holdfast.plane.service.service import Caller
from holdfast.plane.workflows.core.run import RunStatus, StoredRun
from holdfast.plane.workflows.run_rows import RunEvent

_View: TypeAlias = FollowView[StoredRun, RunEvent]


async def follow(components: Components, caller: Caller, run_id: str, *, timeout: float | None, json: bool) -> Exit:
    """Show the events of a run until it finishes, or until the timeout. Returns the exit code for its outcome."""
    shown: Shown[StoredRun, RunEvent] = Shown(
        _document, lambda event: {"event": event_dict(event)}, partial(timeline_line, audit=False), verdict, _unfinished
    )
    view = view_of(shown, lambda: _TreeView(components), json=json)
    stored = await followed(
        view,
        lambda view: _watch(components, caller, run_id, view),
        lambda: components.flows.run(caller, run_id),
        timeout,
    )
    if stored is None:
        return Exit.UNFINISHED
    return Exit.OK if stored.run.status is RunStatus.SUCCEEDED else Exit.NO


async def _watch(components: Components, caller: Caller, run_id: str, view: _View) -> StoredRun:
    seen = (0, -1)

    async def look() -> StoredRun | None:
        nonlocal seen
        stored = await components.flows.run(caller, run_id)
        news = await components.flows.timeline(caller, run_id, after=seen) if stored.version >= seen[0] else []
        view.show(stored, news)
        seen = (news[-1].version, news[-1].line) if news else seen
        return stored if stored.run.status.terminal and seen[0] >= stored.version else None

    return await looked_at(look, view.failed)


class _TreeView:
    """The steps as a live tree."""

    def __init__(self, components: Components) -> None:
        self._clock = components.clock
        self._live = Live(console=out(), refresh_per_second=8, transient=True)
        self._shown: StoredRun | None = None

    def __enter__(self) -> Self:
        self._live.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.__exit__(kind, error, trace)
        if self._shown is not None:  # following was stopped early
            out().print(run_tree(self._shown, self._clock.now().wall))

    def show(self, stored: StoredRun, news: list[RunEvent]) -> None:
        self._shown = stored
        hint = cell("(Ctrl-C stops following, not the run)", "dim")
        self._live.update(Group(run_tree(stored, self._clock.now().wall), Text(), hint))

    def failed(self, error: str) -> None:
        self._live.console.print(cell(error, "red"))

    def over(self, stored: StoredRun) -> None:
        self._last(stored, verdict(stored))

    def unfinished(self, stored: StoredRun) -> None:
        self._last(stored, cell(_unfinished(stored), "yellow"))

    def _last(self, stored: StoredRun, said: Text) -> None:
        """Keep the tree, and print the outcome below it."""
        self._shown = None
        self._live.update(Text())
        self._live.console.print(run_tree(stored, self._clock.now().wall))
        self._live.console.print(said)


def _document(stored: StoredRun) -> dict[str, Any]:
    return {"run": run_dict(stored)}


def _unfinished(stored: StoredRun) -> str:
    return f"{stored.run.id} is {stored.run.status} and has not finished yet"


def verdict(stored: StoredRun) -> Text:
    """The outcome on one line."""
    run = stored.run
    if run.status is RunStatus.SUCCEEDED:
        told = "" if run.output is None else f": {short(as_json(run.output))}"
        return cell(f"{run.id} succeeded{told}", "bold green")
    return cell(f"{run.id} ended {run.status}: {run.error or 'no reason was given'}", "bold red")
