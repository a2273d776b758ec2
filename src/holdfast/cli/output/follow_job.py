"""Follows a job until it finishes: live on a terminal, a line for each event elsewhere, or JSON."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Self, TypeAlias

from rich.console import Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from holdfast.cli.exit_codes import Exit
from holdfast.cli.output.follow import FollowView, Shown, followed, looked_at, view_of
from holdfast.cli.output.jobs import (
    as_json,
    at,
    event_dict,
    event_line,
    job_dict,
    progress_dict,
    progress_text,
    short,
    state_cell,
    value_dict,
)
from holdfast.cli.output.screen import cell, moment, out, seconds
from holdfast.plane.jobs.progress import Progress
from holdfast.plane.jobs.timeline import EmittedValue
from holdfast.plane.model.job_states import JobState
from holdfast.plane.model.messages import attempt_text
from holdfast.plane.model.records import Job, JobEvent
from holdfast.plane.process.components import Components
from holdfast.plane.service.service import Caller
from holdfast.plane.service.timelines import TimelineReader
from holdfast.types import NS

_News: TypeAlias = JobEvent | EmittedValue | Progress
_View: TypeAlias = FollowView[Job, _News]


async def follow(components: Components, caller: Caller, job_id: str, *, timeout: float | None, json: bool) -> Exit:
    """Show the events of a job until it finishes, or until the timeout. Returns the exit code for its outcome."""
    shown: Shown[Job, _News] = Shown(_document, _event_document, _line, verdict, _unfinished)
    view = view_of(shown, lambda: _LiveView(components), json=json)
    job = await followed(
        view,
        lambda view: _watch(components, caller, job_id, view),
        lambda: components.service.job(caller, job_id),
        timeout,
    )
    return Exit.UNFINISHED if job is None else exit_of(job)


def exit_of(job: Job) -> Exit:
    """The exit code for the outcome of a job."""
    return Exit.OK if job.state is JobState.SUCCEEDED else Exit.NO


async def _watch(components: Components, caller: Caller, job_id: str, view: _View) -> Job:
    place, reader = "", TimelineReader()

    async def look() -> Job | None:
        nonlocal place
        while True:  # ends after a bounded number of pages, which are shown
            page = await components.service.timeline(caller, job_id, place)
            place = page.place.text
            view.show(page.job, [each if isinstance(each, Progress) else each.entry for each in reader.read(page)])
            if not page.more:
                return page.job if page.ended else None

    return await looked_at(look, view.failed)


class _LiveView:
    """The history so far, and the current state and progress of the job."""

    def __init__(self, components: Components) -> None:
        self._clock = components.clock
        self._live = Live(console=out(), refresh_per_second=8, transient=True)
        self._console = self._live.console
        self._spinner = Spinner("dots", style="cyan")
        self._progress: Progress | None = None

    def __enter__(self) -> Self:
        self._live.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.__exit__(kind, error, trace)

    def show(self, job: Job, news: list[_News]) -> None:
        for each in news:
            if isinstance(each, Progress):
                self._progress = each
            else:
                self._console.print(_line(each))
        now_ns = self._clock.now().wall
        line = Text.assemble(
            state_cell(job.state),
            cell(f" for {seconds((now_ns - job.updated_ns) / NS)}"),
            cell(f"   attempt {attempt_text(job.id, job.labels, job.attempt, job.max_attempts)}", "dim"),
            cell(f"   {job.worker}" if job.worker and not job.state.terminal else "", "dim"),
            cell("   (Ctrl-C stops following, not the job)", "dim"),
        )
        self._spinner.update(text=line)
        self._live.update(Group(*_bar(self._progress), self._spinner))

    def failed(self, error: str) -> None:
        self._console.print(cell(error, "red"))

    def over(self, job: Job) -> None:
        self._live.update(Text())
        self._console.print(verdict(job))

    def unfinished(self, job: Job) -> None:
        self._live.update(Text())
        self._console.print(cell(_unfinished(job), "yellow"))


def _bar(progress: Progress | None) -> list[RenderableType]:
    """The progress as a bar, as far as the function has reported it."""
    if progress is None:
        return []
    if progress.fraction is None:
        return [cell(progress_text(progress))]
    grid = Table.grid(padding=(0, 1))
    grid.add_row(ProgressBar(total=1.0, completed=progress.fraction, width=40), cell(progress_text(progress)))
    return [grid]


def _event_document(event: _News) -> dict[str, Any]:
    if isinstance(event, Progress):
        return {"progress": progress_dict(event)}
    return {"value": value_dict(event)} if isinstance(event, EmittedValue) else {"event": event_dict(event)}


def _line(event: _News) -> Text:
    if isinstance(event, JobEvent):
        return event_line(event)
    text = cell(f"{moment(at(event.at_ns))}  ", "dim")
    if isinstance(event, Progress):
        return text.append_text(cell(f"progress  {progress_text(event)}", "blue"))
    text.append_text(cell(f"value {event.number}", "cyan"))
    text.append_text(cell(f"  attempt {event.attempt}", "dim"))
    return text.append_text(cell(f"  {short(as_json(event.value))}"))


def _document(job: Job) -> dict[str, Any]:
    return {"job": job_dict(job)}


def _unfinished(job: Job) -> str:
    return f"{job.id} is {job.state} and has not finished yet"


def verdict(job: Job) -> Text:
    """The outcome on one line."""
    if job.state is JobState.SUCCEEDED:
        told = "" if job.result is None else f": {short(as_json(job.result))}"
        return cell(f"{job.id} succeeded at attempt {job.attempt}{told}", "bold green")
    return cell(f"{job.id} ended {job.state}: {job.reason or 'no reason was given'}", "bold red")
