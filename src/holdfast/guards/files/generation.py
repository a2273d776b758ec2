"""The generation file: the memory of one guarded file, and the lock that its steps are taken under.

Promises: `seen` is the highest fence that was ever raised to, also after a crash or a power failure in the middle of
raising it; `raise_to` returns when the new one is on stable storage. Only one process can have a `Generation` open.

The file is made once, never renamed and never deleted, so the lock lives as long as what it protects: there is no lock
file that a cleaner of old files could take away from under its holder. It is written in place. Two records lie in
blocks of their own, and a step overwrites the one that is not the highest: if that is torn, the other one still counts.

    block 0   holdfast-fence 1 none 6b6e0c1f     in a new file, so that a file that was never used is told from damage
    block 1   holdfast-fence 1 17 d2a4e1b0       the fence, and a checksum of the line so far
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
import time
import zlib
from collections.abc import Iterator
from typing import Final

from holdfast.core.lease.fencing import FENCE_MAX
from holdfast.errors import Misconfigured, Unavailable
from holdfast.guards.files.flock import locked, opened
from holdfast.guards.files.names import generation_name
from holdfast.runtime.durable_files import sync

_BLOCK: Final = 4096  # what a drive writes in one step, at most; the two records never share one
_RECORD: Final = 64
_LINE: Final = re.compile(rb"(holdfast-fence 1 (none|0|[1-9][0-9]{0,18})) ([0-9a-f]{8}) *\n\Z")
_FLAGS: Final = os.O_RDWR | os.O_NOFOLLOW


class Generation:
    """An open generation file whose lock is held."""

    def __init__(self, descriptor: int, folder: int, name: str) -> None:
        self._descriptor = descriptor
        self._folder = folder
        self._name = name
        if _unfinished(descriptor):
            os.pwrite(descriptor, _record(None), 0)
            sync(descriptor)
        self._blocks = _blocks(descriptor, name)

    @property
    def seen(self) -> int | None:
        """The highest fence; None: there was none yet."""
        return _highest(self._blocks)

    def raise_to(self, fence: int) -> None:
        """Remember the fence, and return when that is safe. It is written even if it is the highest already.

        For it may have been written a moment ago, by a process that was killed before it was on stable storage. For the
        same reason the highest record is synced before the other one is written: never are both at risk together.
        """
        sync(self._descriptor)
        block = 0 if _rank(self._blocks[0]) < _rank(self._blocks[1]) else 1
        os.pwrite(self._descriptor, _record(fence), block * _BLOCK)
        sync(self._descriptor)
        sync(self._folder)  # the entry of this file in its folder, and whatever a killed process had done there
        self._blocks = _blocks(self._descriptor, self._name)

    def ensure_in_place(self) -> None:
        """Raise `Misconfigured` if the file was deleted or replaced: others would not see the lock then."""
        if not _same(self._descriptor, self._folder, self._name):
            raise Misconfigured(
                f"{generation_name(self._name)} was deleted or replaced while it was in use; nothing was changed. "
                "Keep other programs, and restores, away from it while the folder is used"
            )


@contextlib.contextmanager
def open_generation(folder: int, name: str, deadline_ns: int) -> Iterator[Generation]:
    """Open the generation file of a name in an open folder, making it if need be, and hold its lock in the block."""
    while True:
        with (
            opened(generation_name(name), _FLAGS | os.O_CREAT, folder=folder) as descriptor,
            locked(descriptor, deadline_ns, name),
        ):
            # A process that waited for the lock of a file that was deleted meanwhile holds a lock that no other can
            # see.
            if _same(descriptor, folder, name):
                yield Generation(descriptor, folder, name)
                return
        if time.monotonic_ns() > deadline_ns:
            raise Unavailable(f"{generation_name(name)} is deleted again and again; nothing was done")


def look_at_generation(folder: int, name: str, deadline_ns: int) -> int | None:
    """The highest fence, as it is now or was a moment ago: without the lock, unless both records are being written."""
    try:
        with opened(generation_name(name), os.O_RDONLY | os.O_NOFOLLOW, folder=folder) as descriptor:
            found = _fence_at(descriptor, 0), _fence_at(descriptor, _BLOCK)
            if found != ((), ()):
                return _highest(found)
            with locked(descriptor, deadline_ns, name):
                return None if _unfinished(descriptor) else _highest(_blocks(descriptor, name))
    except FileNotFoundError:
        return None


_Block = tuple[int | None] | tuple[()]  # the fence, which may be none; or nothing that can be read


def _record(fence: int | None) -> bytes:
    line = f"holdfast-fence 1 {'none' if fence is None else fence}"
    return f"{line} {zlib.crc32(line.encode()):08x}".ljust(_RECORD - 1).encode() + b"\n"


def _fence_at(descriptor: int, offset: int) -> _Block:
    found = _LINE.match(os.pread(descriptor, _RECORD, offset))
    if found is None or zlib.crc32(found[1]) != int(found[3], 16):
        return ()
    fence = None if found[2] == b"none" else int(found[2])
    return () if fence is not None and fence > FENCE_MAX else (fence,)


def _blocks(descriptor: int, name: str) -> tuple[_Block, _Block]:
    found = _fence_at(descriptor, 0), _fence_at(descriptor, _BLOCK)
    if found == ((), ()):
        raise Misconfigured(
            f"{generation_name(name)} is damaged: the last fence is unknown, so no write is admitted. Put it back "
            "from a copy, or delete it when no holder of an older lease is left"
        )
    return found


def _rank(block: _Block) -> int:
    return -2 if not block else -1 if block[0] is None else block[0]


def _highest(blocks: tuple[_Block, _Block]) -> int | None:
    best = max(blocks, key=_rank)
    return best[0] if best else None


def _unfinished(descriptor: int) -> bool:
    """Whether its maker was killed before it was ready. The second block is only written when the first one is safe."""
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        raise Misconfigured("the generation file is not a regular file")
    return status.st_size <= _BLOCK and _fence_at(descriptor, 0) == ()


def _same(descriptor: int, folder: int, name: str) -> bool:
    try:
        there = os.stat(generation_name(name), dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return os.path.samestat(os.fstat(descriptor), there)
