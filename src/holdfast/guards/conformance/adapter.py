"""What the guard kit is pointed at: one guarded resource, in sync or asyncio."""

from __future__ import annotations

from collections.abc import Callable
from inspect import isawaitable
from typing import Any, Protocol, TypeAlias

from holdfast.guards.bearer import CarriedFence, Fenced
from holdfast.guards.conformance.checks import expect, shown


class Subject(Protocol):
    """One guarded resource through one connection, as the kit sees it. Used by one thread at a time.

    A refusal is `FencedOut` with the fence that was presented and the one that was seen, and has changed nothing.
    """

    def enter(self, lease: Fenced) -> str | None:
        """Register the fence and read, in one step; None if there is nothing yet, which is registered all the same."""
        ...

    def write(self, lease: Fenced, value: str) -> None:
        """Write what depends on what `enter` has read under this lease. Makes the resource if there is none."""
        ...

    def overwrite(self, lease: Fenced, value: str) -> None:
        """Write what depends on nothing read before, without `enter`. Makes the resource if there is none."""
        ...

    def delete(self, lease: Fenced) -> None:
        """Delete the resource, which exists. Called only if the guard can delete."""
        ...

    def look(self) -> tuple[str | None, int | None]:
        """The value and the highest fence that was seen, unchecked; None for what is not there."""
        ...

    def close(self) -> None:
        """Close what was opened."""
        ...


class AsyncSubject(Protocol):
    """`Subject`, awaited. All calls to one come from the loop on which it was opened."""

    async def enter(self, lease: Fenced) -> str | None:
        """See `Subject`."""
        ...

    async def write(self, lease: Fenced, value: str) -> None:
        """See `Subject`."""
        ...

    async def overwrite(self, lease: Fenced, value: str) -> None:
        """See `Subject`."""
        ...

    async def delete(self, lease: Fenced) -> None:
        """See `Subject`."""
        ...

    async def look(self) -> tuple[str | None, int | None]:
        """See `Subject`."""
        ...

    async def close(self) -> None:
        """See `Subject`."""
        ...


Factory: TypeAlias = Callable[[str], Any]
"""Opens the named resource over the same storage, again at each call, from any thread or process: `Subject`,
`AsyncSubject`, or an awaitable of one. The name is also the key of the leases that will be presented. It is picklable,
for the other processes."""


class OpenedSubject:
    """A subject in the kit's hands: color-free, and given fences where the subject is given leases."""

    def __init__(self, resource: str, subject: Any) -> None:
        self.resource = resource
        self._subject = subject

    def lease(self, fence: int) -> CarriedFence:
        """What the subject is given for a fence."""
        return CarriedFence(self.resource, fence)

    async def enter(self, fence: int) -> str | None:
        """Register and read."""
        found: str | None = await self.step("enter", self.lease(fence))
        return found

    async def write(self, fence: int, value: str) -> None:
        """Write after `enter`."""
        await self.step("write", self.lease(fence), value)

    async def overwrite(self, fence: int, value: str) -> None:
        """Write without `enter`."""
        await self.step("overwrite", self.lease(fence), value)

    async def delete(self, fence: int) -> None:
        """Delete."""
        await self.step("delete", self.lease(fence))

    async def look(self) -> tuple[str | None, int | None]:
        """The value and the fence, unchecked."""
        value, fence = await self.step("look")
        expect(value is None or type(value) is str, f"a value came back as {type(value).__name__}: {shown(value)}")
        expect(fence is None or type(fence) is int, f"a fence came back as {type(fence).__name__}: {shown(fence)}")
        return value, fence

    async def close(self) -> None:
        """Close the subject."""
        await self.step("close")

    async def step(self, name: str, *arguments: Any) -> Any:
        """Take a step by its name, with whatever is given."""
        return await settled(getattr(self._subject, name)(*arguments))


async def settled(answer: Any) -> Any:
    """The answer of a call in sync or asyncio."""
    return await answer if isawaitable(answer) else answer
