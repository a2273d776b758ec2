"""What following a job and following a run have in common: how a view is used, and how long is looked."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Final, Protocol, Self, TypeVar

from holdfast.errors import BackendError, Misconfigured

T = TypeVar("T")
S_contra = TypeVar("S_contra", contravariant=True)
E = TypeVar("E")

LOOK_S: Final = 0.2


class View(Protocol[S_contra, E]):
    """How something is shown while it goes on."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def show(self, thing: S_contra, news: list[E], /) -> None:
        """It is like this now, and this has happened since."""
        ...

    def failed(self, error: str) -> None:
        """It cannot be looked at now."""
        ...

    def over(self, thing: S_contra, /) -> None:
        """It has ended."""
        ...

    def unfinished(self, thing: S_contra, /) -> None:
        """The time for looking is over, and it is not."""
        ...


class Plain:
    """A view that needs no ending."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None


async def looked_at(look: Callable[[], Awaitable[T | None]], failed: Callable[[str], None]) -> T:
    """Look again and again until there is an answer. Whoever looks through an outage wants to see its end."""
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
