"""Guarded files for asyncio: what `holdfast.guards.files` is, awaited.

    async with reports.section(lease, "2026-07.json") as report:
        await report.replace(recalculated(report.data))

Each step runs in a thread of the loop's default executor, for file systems have no other way. A step cannot be
interrupted half-way: when the task is cancelled the thread is awaited, and then the cancellation continues. Whether the
step was done can be seen from the file; it was done as a whole, or not at all.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Generic, Literal, TypeVar, Unpack, overload

from holdfast.core.failpoints import reach
from holdfast.core.lease.fencing import Rule
from holdfast.guards.admission import GuardStatistics
from holdfast.guards.bearer import Bearer, Fenced
from holdfast.guards.files.flow import FileFlow, FileSettings, FileView, guarded_folder

__all__ = ["FileSettings", "GuardedFile", "GuardedFiles"]

B_contra = TypeVar("B_contra", bound=Bearer, contravariant=True)
V = TypeVar("V")


class GuardedFile(FileView):
    """One file inside a section: its content as it was read, and the writes that only this fence may do."""

    def __init__(self, flow: FileFlow, lease: Bearer, name: str, data: bytes | None) -> None:
        super().__init__(flow.resource(name), name, data)
        self._flow = flow
        self._lease = lease

    async def replace(self, data: bytes | str) -> None:
        """Replace the content, or make the file. `FencedOut` for a stale holder, `NotEntered` if memory was lost."""
        self._ensure_open()
        self._data = await self._flow.write(self._lease, self.name, data, Rule.EXACTLY)

    async def delete(self) -> None:
        """Delete the file. Its fence is remembered, so that no older holder can bring it back."""
        self._ensure_open()
        await self._flow.delete(self._lease, self.name, Rule.EXACTLY)
        self._data = None


class GuardedFiles(Generic[B_contra]):
    """The files of one folder behind a guard. Safe from any loop and any thread."""

    @overload
    def __init__(
        self: GuardedFiles[Fenced],
        folder: str | Path,
        *,
        allow_degraded: Literal[False] = False,
        **settings: Unpack[FileSettings],
    ) -> None: ...
    @overload
    def __init__(
        self: GuardedFiles[Bearer],
        folder: str | Path,
        *,
        allow_degraded: Literal[True],
        **settings: Unpack[FileSettings],
    ) -> None: ...
    def __init__(
        self,
        folder: str | Path,
        *,
        allow_degraded: bool = False,
        **settings: Unpack[FileSettings],
    ) -> None:
        """`FileSettings` lists the settings. With `allow_degraded`, leases without a fence write unchecked."""
        self._flow = guarded_folder(folder, in_thread, settings, allow_degraded)

    @asynccontextmanager
    async def section(self, lease: B_contra, name: str) -> AsyncIterator[GuardedFile]:
        """Register the fence and read the file, before anything else; what is written in the block needs that fence.

        `FencedOut` when the file has met a newer holder. A file that does not exist has `exists` False, and can be
        made with `replace`.
        """
        file = GuardedFile(self._flow, lease, name, await self.enter(lease, name))
        reach("guard.entered")
        try:
            yield file
        finally:
            file.end()

    async def enter(self, lease: B_contra, name: str) -> bytes | None:
        """Register the fence, and return the content as it is now; None if there is no file. `FencedOut` if stale."""
        return await self._flow.enter(lease, name)

    async def write(self, lease: B_contra, name: str, data: bytes | str) -> None:
        """Replace the content, or make the file, whatever it was before; `FencedOut` if a newer holder was here."""
        await self._flow.write(lease, name, data, Rule.AT_LEAST)

    async def delete(self, lease: B_contra, name: str) -> None:
        """Delete the file; its fence is remembered. `RowMissing` if there is none, `FencedOut` if it is stale."""
        await self._flow.delete(lease, name, Rule.AT_LEAST)

    async def seen(self, name: str) -> int | None:
        """The highest fence that the file has met; None: it has never met one. For people and tests."""
        return await self._flow.seen(name)

    def statistics(self) -> GuardStatistics:
        """What this guard has decided since it was made."""
        return self._flow.admission.statistics()


async def in_thread(step: Callable[[], V]) -> V:
    """Take a blocking step in a thread, and see it to its end even if the task is cancelled meanwhile."""
    working = asyncio.ensure_future(asyncio.to_thread(step))
    try:
        return await asyncio.shield(working)
    except asyncio.CancelledError:
        while not working.done():
            # Cancelled again and again, perhaps: the first time counts, and the step is bounded by its own timeout.
            try:
                await asyncio.wait([working])
            except asyncio.CancelledError:
                continue
        if not working.cancelled():
            working.exception()  # seen: the cancellation is what the caller gets
        raise
