"""Guarded files as the conformance kit sees them, in both colors. Importable from any process."""

from __future__ import annotations

from contextlib import AsyncExitStack, ExitStack
from pathlib import Path

from holdfast.guards import Fenced
from holdfast.guards.aio import files as aio
from holdfast.guards.files import GuardedFile, GuardedFiles


class FileSubject:
    """One guarded file, opened like any other user of the folder does."""

    def __init__(self, folder: str, name: str) -> None:
        self._path = Path(folder) / name
        self._files = GuardedFiles(folder, timeout=30)
        self._name = name
        self._sections: dict[int, GuardedFile] = {}
        self._stack = ExitStack()

    def enter(self, lease: Fenced) -> str | None:
        file = self._stack.enter_context(self._files.section(lease, self._name))
        self._sections[lease.fence] = file
        return file.text() if file.exists else None

    def write(self, lease: Fenced, value: str) -> None:
        self._sections[lease.fence].replace(value)

    def overwrite(self, lease: Fenced, value: str) -> None:
        self._files.write(lease, self._name, value)

    def delete(self, lease: Fenced) -> None:
        self._files.delete(lease, self._name)

    def look(self) -> tuple[str | None, int | None]:
        value = self._path.read_bytes().decode() if self._path.exists() else None
        return value, self._files.seen(self._name)

    def close(self) -> None:
        self._stack.close()


class AwaitedFileSubject:
    """The same through `holdfast.guards.aio.files`."""

    def __init__(self, folder: str, name: str) -> None:
        self._path = Path(folder) / name
        self._files = aio.GuardedFiles(folder, timeout=30)
        self._name = name
        self._sections: dict[int, aio.GuardedFile] = {}
        self._stack = AsyncExitStack()

    async def enter(self, lease: Fenced) -> str | None:
        file = await self._stack.enter_async_context(self._files.section(lease, self._name))
        self._sections[lease.fence] = file
        return file.text() if file.exists else None

    async def write(self, lease: Fenced, value: str) -> None:
        await self._sections[lease.fence].replace(value)

    async def overwrite(self, lease: Fenced, value: str) -> None:
        await self._files.write(lease, self._name, value)

    async def delete(self, lease: Fenced) -> None:
        await self._files.delete(lease, self._name)

    async def look(self) -> tuple[str | None, int | None]:
        value = self._path.read_bytes().decode() if self._path.exists() else None
        return value, await self._files.seen(self._name)

    async def close(self) -> None:
        await self._stack.aclose()


def open_file(folder: str, resource: str) -> FileSubject:
    return FileSubject(folder, resource)


def open_awaited_file(folder: str, resource: str) -> AwaitedFileSubject:
    return AwaitedFileSubject(folder, resource)
