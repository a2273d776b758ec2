"""Shared by `jobs follow` and `runs follow`: views, polling and exit codes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any, Final, Generic, NamedTuple, Protocol, Self, TypeVar

from rich.text import Text

from holdfast.cli.output.screen import cell, out, put_json
from holdfast.errors import BackendError, Misconfigured

T = TypeVar("T")
S = TypeVar("S")
S_contra = TypeVar("S_contra", contravariant=True)
E = TypeVar("E")

LOOK_S: Final = 0.2


class FollowView(Protocol[S_contra, E]):
    """A view of a job or run."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def show(self, thing: S_contra, news: list[E], /) -> None:
        """Show the current state, and the events since the last call."""
        ...

    def failed(self, error: str) -> None:
        """Show that polling fails."""
        ...

    def over(self, thing: S_contra, /) -> None:
        """Show the end."""
        ...

    def unfinished(self, thing: S_contra, /) -> None:
        """Show that the time limit was reached before the end."""
        ...


class Shown(NamedTuple, Generic[S, E]):
    """Text and JSON of a job or a run."""

    document: Callable[[S], dict[str, Any]]  # the whole object, under its name
    event: Callable[[E], dict[str, Any]]  # the same for an event
    line: Callable[[E], Text]
    verdict: Callable[[S], Text]
    unfinished: Callable[[S], str]


class _Plain(Generic[S, E]):
    """A view without cleanup."""

    def __init__(self, shown: Shown[S, E]) -> None:
        self._shown = shown

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None


class _JsonFollowView(_Plain[S, E]):
    """One object for each event, and one for the whole at the end."""

    def show(self, thing: S, news: list[E]) -> None:
        for event in news:
            put_json(self._shown.event(event))

    def failed(self, error: str) -> None:
        put_json({"error": error})

    def over(self, thing: S) -> None:
        put_json(self._shown.document(thing))

    def unfinished(self, thing: S) -> None:
        put_json({**self._shown.document(thing), "unfinished": True})


class _LineFollowView(_Plain[S, E]):
    """A line for each event."""

    def show(self, thing: S, news: list[E]) -> None:
        for event in news:
            out().print(self._shown.line(event), soft_wrap=True)

    def failed(self, error: str) -> None:
        out().print(cell(error), soft_wrap=True)

    def over(self, thing: S) -> None:
        out().print(self._shown.verdict(thing), soft_wrap=True)

    def unfinished(self, thing: S) -> None:
        out().print(cell(self._shown.unfinished(thing)), soft_wrap=True)


def view_of(shown: Shown[S, E], live: Callable[[], FollowView[S, E]], *, json: bool) -> FollowView[S, E]:
    """The view for this output: JSON if wanted, `live` on a terminal, else lines."""
    return _JsonFollowView(shown) if json else live() if out().is_terminal else _LineFollowView(shown)


async def followed(
    view: FollowView[S, E],
    watch: Callable[[FollowView[S, E]], Awaitable[S]],
    newest: Callable[[], Awaitable[S]],
    timeout: float | None,
) -> S | None:
    """Show all events until the end. Returns the final state; None: the time limit came first."""
    with view:
        try:
            async with asyncio.timeout(timeout):
                thing = await watch(view)
        except TimeoutError:
            view.unfinished(await newest())
            return None
        view.over(thing)
    return thing


async def looked_at(look: Callable[[], Awaitable[T | None]], failed: Callable[[str], None]) -> T:
    """Poll until there is an answer: an operator who follows through an outage wants to see its end."""
    first = True
    while True:  # ends with an answer, by cancellation, or in an error
        try:
            found = await look()
        except BackendError as error:
            if first or isinstance(error, Misconfigured):
                raise
            failed(str(error))
        else:
            first = False
            if found is not None:
                return found
        await asyncio.sleep(LOOK_S)
