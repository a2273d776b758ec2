"""What guarded files do, color-free: admit the holder, take the step, say what came of it.

Also `FileView`, one file inside a section as it was read, which sync and asyncio of `GuardedFile` build on.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypedDict, TypeVar

from holdfast.core.lease.fencing import Rule
from holdfast.core.ports import Observer
from holdfast.errors import BadInput, Closed, RowMissing
from holdfast.guards.admission import Admission, Presented
from holdfast.guards.bearer import Bearer
from holdfast.guards.files.folder import Folder
from holdfast.guards.files.names import check_file_name
from holdfast.stores.sqlite.mounts import file_system, is_shared
from holdfast.types import Duration, duration_ns

V = TypeVar("V")

LOCK_TIMEOUT_S = 5.0


class FileSettings(TypedDict, total=False):
    """Settings of guarded files; all have a default."""

    key: str | None
    """The name of the lock that a file belongs to, such as `"report:{name}"`. Leases of other locks are refused."""

    timeout: Duration
    """How long a step waits for another one on the same file (5 s)."""

    observer: Observer | None
    """Receives an event for every read, write and refusal."""


class Runner(Protocol):
    """Where the blocking steps of a folder are taken: here and now, or in a thread that is awaited."""

    async def __call__(self, step: Callable[[], V]) -> V:
        """Take the step and return what it returns."""
        ...


class FileFlow:
    """The steps of one guarded folder. Blocking and awaited facades drive the same one."""

    def __init__(self, folder: Folder, admission: Admission, run: Runner) -> None:
        self._folder = folder
        self._run = run
        self.admission = admission

    def resource(self, name: str) -> str:
        """How a file is called in messages and counters."""
        return f"{self._folder.path.name}/{name}"

    async def seen(self, name: str) -> int | None:
        """The highest fence that the file has met."""
        return await self._run(partial(self._folder.seen, check_file_name(name)))

    async def enter(self, lease: Bearer, name: str) -> bytes | None:
        """Register the fence, and read."""
        presented = await self._admit(lease, name, Rule.AT_LEAST)
        outcome = await self._run(partial(self._folder.enter, name, presented.fence, presented.rule))
        return self.admission.entered(presented, outcome)

    async def write(self, lease: Bearer, name: str, data: bytes | str, rule: Rule) -> bytes:
        """Replace the content, and return it as it is stored."""
        content = _content(data)
        presented = await self._admit(lease, name, rule)
        outcome = await self._run(partial(self._folder.write, name, presented.fence, presented.rule, content))
        self.admission.written(presented, outcome)
        return content

    async def delete(self, lease: Bearer, name: str, rule: Rule) -> None:
        """Delete the file."""
        presented = await self._admit(lease, name, rule)
        outcome = await self._run(partial(self._folder.delete, name, presented.fence, presented.rule))
        self.admission.written(presented, outcome)

    async def _admit(self, lease: Bearer, name: str, rule: Rule) -> Presented:
        resource = self.resource(check_file_name(name))
        return await self.admission.admit(lease, resource, rule, lambda: self.seen(name), {"name": name})


class FileView:
    """One file inside a section. After a write it shows what was written."""

    def __init__(self, resource: str, name: str, data: bytes | None) -> None:
        self.name = name
        self._resource = resource
        self._data = data
        self._closed = False

    @property
    def exists(self) -> bool:
        """Whether there is such a file."""
        return self._data is not None

    @property
    def data(self) -> bytes | None:
        """The content; None: there is no such file."""
        return self._data

    def text(self, encoding: str = "utf-8") -> str:
        """The content as text; `RowMissing` if there is no such file."""
        if self._data is None:
            raise RowMissing(f"{self._resource} does not exist")
        return self._data.decode(encoding)

    def end(self) -> None:
        """The section has ended: values that were read stay readable, and no write is possible any more."""
        self._closed = True

    def _ensure_open(self) -> None:
        if self._closed:
            raise Closed(f"the section on {self._resource} is over; enter it again")

    def __repr__(self) -> str:
        shown = "does not exist" if self._data is None else f"{len(self._data)} bytes"
        return f"<{type(self).__name__} {self._resource} {shown}>"


def guarded_folder(folder: object, run: Runner, settings: FileSettings, allow_degraded: bool) -> FileFlow:
    """The flow of one folder, or `BadInput` that names the argument."""
    if unknown := sorted(set(settings) - set(FileSettings.__annotations__)):
        known = ", ".join(FileSettings.__annotations__)
        raise BadInput(unknown[0], "is not a setting of guarded files", f"there is {known}, allow_degraded")
    path = _checked_folder(folder)
    timeout_ns = duration_ns("timeout", settings.get("timeout", LOCK_TIMEOUT_S))
    if is_shared(str(path)):
        warnings.warn(
            f"{path} is on a network file system ({file_system(str(path))}), where locks and renames are only as good "
            "as its server and mount options: guard it from one machine only, or keep the data in a database",
            RuntimeWarning,
            stacklevel=3,
        )
    admission = Admission(
        "files:" + re.sub(r"[^\w.-]", "_", path.name, flags=re.ASCII)[:100],
        key=settings.get("key"),
        names=("name",),
        allow_degraded=allow_degraded,
        observer=settings.get("observer"),
    )
    return FileFlow(Folder(path, timeout_ns), admission, run)


def _checked_folder(folder: Any) -> Path:
    if not isinstance(folder, str | Path) or not str(folder) or "\0" in str(folder):
        raise BadInput("folder", f"{folder!r} is not a folder", "give the path of a folder that exists")
    path = Path(folder).absolute()
    if not path.is_dir():
        raise BadInput("folder", f"{path} is not a folder", "make it first, or name another")
    return path


def _content(data: object) -> bytes:
    if isinstance(data, str):
        try:
            return data.encode("utf-8")
        except UnicodeEncodeError as error:
            raise BadInput("data", f"cannot be written as UTF-8 ({error.reason})", "encode it yourself") from None
    if isinstance(data, bytes | bytearray | memoryview):
        return bytes(data)
    raise BadInput("data", f"{type(data).__name__} is not content", "give bytes, or text (stored as UTF-8)")
