"""`holdfast watch`: live view of locks. On a terminal a live table; in a pipe a line for each change."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Annotated, NamedTuple

import typer
from rich.console import Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from holdfast.cli.lease_stores import LeaseStore, reading, url_of
from holdfast.cli.options import Json, Url
from holdfast.cli.output.screen import cell, fence, out, plain_table, put_json, seconds, since
from holdfast.cli.parse_time import duration_option
from holdfast.cli.plane_options import Config, Database
from holdfast.errors import BackendError, Misconfigured
from holdfast.leases.inspection import Inspection
from holdfast.leases.sync.client import Locks
from holdfast.types import MS, NS, duration_ns

_RECENT = 6
_BAR = 14
_NEEDS_WIDTH = {"": 130, "FAMILY": 115, "SINCE": 95}  # columns that a narrow terminal omits


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    app.command("watch")(watch)


class LockChange(NamedTuple):
    """One change between two polls."""

    event: str  # taken, taken over, free
    key: str
    owner: str | None
    fence: int | None

    def __str__(self) -> str:
        by = f" by {self.owner}, fence {self.fence}" if self.event != "free" else ""
        return f"{self.key} {self.event}{by}"


def watch(
    context: typer.Context,
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="PREFIX", help="Only keys with one of these prefixes.", show_default=False),
    ] = None,
    interval: Annotated[float, duration_option(help="Polling interval.")] = 1.0,
    count: Annotated[int | None, typer.Option(metavar="N", help="Stop after so many polls.", min=1)] = None,
    url: Url = None,
    config: Config = None,
    database: Database = None,
    json: Json = False,
) -> None:
    """Watch locks live until Ctrl-C: holders, remaining time, takeovers.

    With --json one object per poll: the locks, and the changes since the previous poll.
    """
    interval_s = duration_ns("interval", interval, low_ns=50 * MS, high_ns=3600 * NS) / NS
    with reading(url_of(context, url), config, database) as (leases, store):
        view = _JsonWatchView(store) if json else _TableView() if out().is_terminal else _LineWatchView()
        try:
            with view:
                _follow(leases, names or [""], interval_s, count, view, store)
        except KeyboardInterrupt:
            return


def _follow(
    leases: Locks, prefixes: Sequence[str], interval_s: float, count: int | None, view: _WatchView, store: LeaseStore
) -> None:
    before: dict[str, Inspection] | None = None
    looks = 0
    while count is None or looks < count:
        looks += 1
        try:
            found = {each.key: each for prefix in prefixes for each in leases.list(prefix)}
        except BackendError as error:
            if before is None or isinstance(error, Misconfigured):
                raise
            view.failed(str(error))  # an operator who watches through an outage wants to see its end
        else:
            if before is None and not isinstance(view, _JsonWatchView):
                store.print()
            view.show([found[key] for key in sorted(found)], changes(before, found))
            before = found
        if count is None or looks < count:
            time.sleep(interval_s)


def changes(before: Mapping[str, Inspection] | None, now: Mapping[str, Inspection]) -> list[LockChange]:
    """The changes between two polls. A grant is identified by its fence, or else by its fingerprint."""
    if before is None:
        return []
    found = []
    for key in sorted(before.keys() | now.keys()):
        old, new = before.get(key), now.get(key)
        if new is None:
            found.append(LockChange("free", key, None, None))
        elif old is None:
            found.append(LockChange("taken", key, new.owner, new.fence))
        elif (old.fence, old.fingerprint) != (new.fence, new.fingerprint):
            found.append(LockChange("taken over", key, new.owner, new.fence))
    return found


class _WatchView:
    """How a poll is shown."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, *_: object) -> None:
        return None

    def show(self, locks: Sequence[Inspection], changed: Sequence[LockChange]) -> None:
        raise NotImplementedError

    def failed(self, error: str) -> None:
        raise NotImplementedError


def _now() -> datetime:
    return datetime.now(UTC)


class _JsonWatchView(_WatchView):
    """One object per poll."""

    def __init__(self, store: LeaseStore) -> None:
        self._store = store

    def show(self, locks: Sequence[Inspection], changed: Sequence[LockChange]) -> None:
        put_json(
            {
                "at": _now().isoformat(),
                **self._store.fields(),
                "locks": [each.as_dict() for each in locks],
                "changes": [each._asdict() for each in changed],
            }
        )

    def failed(self, error: str) -> None:
        put_json({"at": _now().isoformat(), **self._store.fields(), "error": error})


class _LineWatchView(_WatchView):
    """For pipes and files: the locks once, then a line for each change."""

    def __init__(self) -> None:
        self._started = False

    def show(self, locks: Sequence[Inspection], changed: Sequence[LockChange]) -> None:
        lines = list(map(str, changed))
        if not self._started:
            self._started = True
            lines = [str(LockChange("held", each.key, each.owner, each.fence)) for each in locks] or ["No locks found."]
        for line in lines:
            self._line(line)

    def failed(self, error: str) -> None:
        self._line(error)

    def _line(self, text: str) -> None:
        out().print(cell(f"{_now().astimezone():%H:%M:%S}  {text}"), soft_wrap=True)


class _TableView(_WatchView):
    """For terminals: a live table, with the last changes below it."""

    def __init__(self) -> None:
        self._live = Live(console=out(), auto_refresh=False)
        self._longest: dict[str, float] = {}
        self._recent: list[Text] = []
        self._locks: Sequence[Inspection] = ()

    def __enter__(self) -> None:
        self._live.__enter__()

    def __exit__(self, *_: object) -> None:
        self._live.__exit__(None, None, None)

    def show(self, locks: Sequence[Inspection], changed: Sequence[LockChange]) -> None:
        self._locks = locks
        colors = {"taken": "green", "taken over": "yellow", "free": "cyan"}
        self._remember(*(cell(f"{_now().astimezone():%H:%M:%S}  {each}", colors[each.event]) for each in changed))
        self._draw()

    def failed(self, error: str) -> None:
        self._remember(cell(f"{_now().astimezone():%H:%M:%S}  {error}", "red"))
        self._draw()

    def _remember(self, *lines: Text) -> None:
        self._recent = [*self._recent, *lines][-_RECENT:]

    def _draw(self) -> None:
        head = cell(f"{len(self._locks)} held at {_now().astimezone():%H:%M:%S}   (Ctrl-C ends)", "dim")
        body = self._table() if self._locks else Text("No locks found.")
        self._live.update(Group(head, Text(), body, *([Text()] if self._recent else []), *self._recent), refresh=True)

    def _table(self) -> Table:
        """As many columns as fit; the most important ones in an incident go last."""
        width = self._live.console.width
        columns: dict[str, tuple[str, Callable[[Inspection], RenderableType]]] = {
            "KEY": ("left", lambda each: cell(each.key, "bold")),
            "OWNER": ("left", lambda each: cell(each.owner or "?")),
            "SINCE": ("right", since),
            "REMAINING": ("right", lambda each: seconds(each.remaining)),
            "": ("left", self._bar),
            "FENCE": ("right", fence),
            "FAMILY": ("left", lambda each: cell(each.family or "?")),
            "WAITERS": ("right", lambda each: cell(str(each.waiters), "yellow" if each.waiters else "dim")),
        }
        shown = {heading: columns[heading] for heading in columns if width >= _NEEDS_WIDTH.get(heading, 0)}
        table = plain_table(*((heading, justify) for heading, (justify, _) in shown.items()))
        for each in self._locks:
            table.add_row(*(show(each) for _, show in shown.values()))
        return table

    def _bar(self, each: Inspection) -> ProgressBar:
        """The remaining time, relative to the maximum seen so far: the store does not keep the TTL."""
        left = each.remaining or 0.0
        longest = self._longest[each.key] = max(left, self._longest.get(each.key, 0.0), 0.001)
        style = "green" if left > longest / 3 else "yellow" if left > longest / 6 else "red"
        return ProgressBar(longest, left, width=_BAR, complete_style=style, finished_style="green")
