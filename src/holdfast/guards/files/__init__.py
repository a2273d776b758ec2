"""Guarded files: write under a fence, by atomic replacement.

    reports = GuardedFiles("/var/lib/billing", key="report:{name}")

    with reports.section(lease, "2026-07.json") as report:   # registers the fence and reads, in one step
        report.replace(recalculated(report.data))            # refused unless the file still carries exactly this fence

Promises: what `folder` says, between all threads and processes of one machine. Beside each guarded file lies a small
hidden one (`.holdfast.<name>.fence`) that remembers the highest fence, and stays when the file is deleted: it must be
backed up and restored together with the file, and must not be deleted while a holder of an older lease can be left.

Does not promise anything about programs that write the files directly: there is no trigger in a file system. They can
read at any time, and see whole contents only. Contents are handled as a whole, in memory.

Clock: none, but for the wait for the lock (`timeout`, monotonic). A process that is stopped inside a step keeps others
from that file until it continues or dies, and they get `Unavailable` after `timeout`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Generic, Literal, TypeVar, Unpack, overload

from holdfast.core.failpoints import reach
from holdfast.core.lease.fencing import Rule
from holdfast.guards.admission import GuardStatistics
from holdfast.guards.bearer import Bearer, Fenced
from holdfast.guards.files.flow import FileFlow, FileSettings, FileView, guarded_folder
from holdfast.runtime.run_sync import run_now

__all__ = ["FileSettings", "GuardedFile", "GuardedFiles"]

B_contra = TypeVar("B_contra", bound=Bearer, contravariant=True)
V = TypeVar("V")


class GuardedFile(FileView):
    """One file inside a section: its content as it was read, and the writes that only this fence may do."""

    def __init__(self, flow: FileFlow, lease: Bearer, name: str, data: bytes | None) -> None:
        super().__init__(flow.resource(name), name, data)
        self._flow = flow
        self._lease = lease

    def replace(self, data: bytes | str) -> None:
        """Replace the content, or make the file. `FencedOut` for a stale holder, `NotEntered` if memory was lost."""
        self._ensure_open()
        self._data = run_now(self._flow.write(self._lease, self.name, data, Rule.EXACTLY))

    def delete(self) -> None:
        """Delete the file. Its fence is remembered, so that no older holder can bring it back."""
        self._ensure_open()
        run_now(self._flow.delete(self._lease, self.name, Rule.EXACTLY))
        self._data = None


class GuardedFiles(Generic[B_contra]):
    """The files of one folder behind a guard. Safe from any thread."""

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
        self._flow = guarded_folder(folder, _here, settings, allow_degraded)

    @contextmanager
    def section(self, lease: B_contra, name: str) -> Iterator[GuardedFile]:
        """Register the fence and read the file, before anything else; what is written in the block needs that fence.

        `FencedOut` when the file has met a newer holder. A file that does not exist has `exists` False, and can be
        made with `replace`.
        """
        file = GuardedFile(self._flow, lease, name, self.enter(lease, name))
        reach("guard.entered")
        try:
            yield file
        finally:
            file.end()

    def enter(self, lease: B_contra, name: str) -> bytes | None:
        """Register the fence, and return the content as it is now; None if there is no file. `FencedOut` if stale."""
        return run_now(self._flow.enter(lease, name))

    def write(self, lease: B_contra, name: str, data: bytes | str) -> None:
        """Replace the content, or make the file, whatever it was before; `FencedOut` if a newer holder was here."""
        run_now(self._flow.write(lease, name, data, Rule.AT_LEAST))

    def delete(self, lease: B_contra, name: str) -> None:
        """Delete the file; its fence is remembered. `RowMissing` if there is none, `FencedOut` if it is stale."""
        run_now(self._flow.delete(lease, name, Rule.AT_LEAST))

    def seen(self, name: str) -> int | None:
        """The highest fence that the file has met; None: it has never met one. For people and tests."""
        return run_now(self._flow.seen(name))

    def statistics(self) -> GuardStatistics:
        """What this guard has decided since it was made."""
        return self._flow.admission.statistics()


async def _here(step: Callable[[], V]) -> V:
    return step()
