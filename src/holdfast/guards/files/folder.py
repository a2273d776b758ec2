"""The steps on guarded files in one folder: each is taken under the lock of its file, and survives a kill anywhere.

Promises, for each name, whatever is killed or loses power in between:

    F1  the file is the whole old content or the whole new one; readers that know nothing of guards see either, too
    F2  new content is never there under an old fence: the fence is on stable storage before the content takes its place
    F3  the remembered fence never goes down; deleting a file leaves it
    F4  what `enter` returns, and the registration before it, is on stable storage
    F5  a step that raises `Unavailable` or `Misconfigured` has left the content as it was; the fence may have risen

The order of a write is therefore: check, write the new content under another name and sync it (a full disk is found
here, with nothing changed), raise the fence and sync it, rename, sync the folder. A draft that a killed process left
is overwritten or removed by the next step on the same name; only the holder of the lock ever has one.

Kept when a file is replaced: its mode, owner, group and extended attributes (which hold ACLs and labels). Not kept: its
inode, so other hard links continue showing the old content. Blocking: no method here suspends.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from holdfast.core.failpoints import reach
from holdfast.core.lease.fencing import Absent, Accepted, Outcome, Rule, judge
from holdfast.errors import BackendError, BadInput, Misconfigured, Unavailable
from holdfast.guards.files.flock import opened
from holdfast.guards.files.generation import Generation, look_at_generation, open_generation
from holdfast.guards.files.names import draft_name
from holdfast.runtime.durable_files import sync

_READ: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK  # a named pipe must not hold us up before it is refused
_DRAFT: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
_SETTINGS: Final = {
    *(errno.EACCES, errno.EPERM, errno.EROFS),  # who may write here
    *(errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EISDIR),  # what lies here
    *(errno.ENOTSUP, errno.ENOSYS),  # what the file system can do
}
_NO_ATTRIBUTE: Final = {errno.ENOTSUP, errno.EPERM, errno.EACCES, errno.ENODATA, errno.EINVAL}


class Folder:
    """One folder of guarded files. Safe from any thread; other processes may use the same folder."""

    def __init__(self, path: Path, timeout_ns: int) -> None:
        self.path = path
        self._timeout_ns = timeout_ns

    def seen(self, name: str) -> int | None:
        """The highest fence that the file has met."""
        with self._translated(name), opened(str(self.path), os.O_RDONLY | os.O_DIRECTORY) as folder:
            return look_at_generation(folder, name, time.monotonic_ns() + self._timeout_ns)

    def enter(self, name: str, fence: int | None, rule: Rule) -> Outcome[bytes]:
        """Register the fence and read, in one step. `Absent` is registered too."""
        with self._translated(name):
            if fence is None:
                with opened(str(self.path), os.O_RDONLY | os.O_DIRECTORY) as folder:
                    return _read(folder, name)
            with self._step(name) as (folder, generation):
                _status(folder, name)
                if refusal := judge(rule, generation.seen, fence):
                    return refusal
                _discard(folder, name)
                generation.raise_to(fence)
                reach("guard.reserved")
                return _read(folder, name)

    def write(self, name: str, fence: int | None, rule: Rule, data: bytes) -> Outcome[None]:
        """Replace the content, or make the file."""
        with self._translated(name), self._step(name) as (folder, generation):
            before = _status(folder, name)
            if fence is not None and (refusal := judge(rule, generation.seen, fence)):
                return refusal
            with _draft(folder, name, before, data):
                reach("guard.generation")
                _raise(generation, fence, rule)
                generation.ensure_in_place()
                os.rename(draft_name(name), name, src_dir_fd=folder, dst_dir_fd=folder)
            self._settle(folder, name)
            return Accepted(None)

    def delete(self, name: str, fence: int | None, rule: Rule) -> Outcome[None]:
        """Delete the file. Its fence is remembered."""
        with self._translated(name), self._step(name) as (folder, generation):
            before = _status(folder, name)
            if fence is not None and (refusal := judge(rule, generation.seen, fence)):
                return refusal
            if before is None:
                return Absent()
            _discard(folder, name)
            _raise(generation, fence, rule)
            generation.ensure_in_place()
            os.unlink(name, dir_fd=folder)
            self._settle(folder, name)
            return Accepted(None)

    @contextlib.contextmanager
    def _step(self, name: str) -> Iterator[tuple[int, Generation]]:
        """The folder, open, and the generation file of the name, locked.

        Everything in the step goes through the open folder, so it stays in one place even if that is renamed meanwhile.
        """
        deadline_ns = time.monotonic_ns() + self._timeout_ns
        with (
            opened(str(self.path), os.O_RDONLY | os.O_DIRECTORY) as folder,
            open_generation(folder, name, deadline_ns) as generation,
        ):
            yield folder, generation

    def _settle(self, folder: int, name: str) -> None:
        """Make durable what other processes can see already."""
        reach("guard.replaced")
        try:
            sync(folder)
        except OSError as error:
            raise BackendError(
                f"{self.path / name} was changed, but the change may not survive a power failure: {error.strerror}"
            ) from error
        reach("guard.written")

    @contextlib.contextmanager
    def _translated(self, name: str) -> Iterator[None]:
        """Say what an error of the operating system means for the caller. All of them come before the change."""
        try:
            yield
        except OSError as error:
            if isinstance(error, BackendError):  # `Unavailable` is an OSError too
                raise
            kind = Misconfigured if error.errno in _SETTINGS else Unavailable
            raise kind(f"{self.path / name}: {error.strerror}; the file is as it was") from error


def _raise(generation: Generation, fence: int | None, rule: Rule) -> None:
    """Note the fence, unless the section that we are in has done so."""
    if fence is not None and rule is not Rule.EXACTLY:
        generation.raise_to(fence)
    reach("guard.reserved")


def _status(folder: int, name: str) -> os.stat_result | None:
    """What the name stands for now; None: nothing. Only a regular file can be guarded."""
    try:
        status = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None
    if stat.S_ISREG(status.st_mode):
        return status
    what = "a symbolic link" if stat.S_ISLNK(status.st_mode) else "not a regular file"
    raise BadInput("name", f"{name!r} is {what}", "guard the file itself, in the folder that it lies in")


def _read(folder: int, name: str) -> Outcome[bytes]:
    if _status(folder, name) is None:
        return Absent()
    with opened(name, _READ, folder=folder) as descriptor, os.fdopen(descriptor, "rb", closefd=False) as file:
        return Accepted(file.read())


def _discard(folder: int, name: str) -> None:
    """Remove what a killed process left. The caller holds the lock, so no other process writes it."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(draft_name(name), dir_fd=folder)


@contextlib.contextmanager
def _draft(folder: int, name: str, before: os.stat_result | None, data: bytes) -> Iterator[None]:
    """The new content, safe on stable storage under another name; gone again if the block raises."""
    _discard(folder, name)
    try:
        # No other user may read it before it has the mode of what it replaces. A new file gets the default mode.
        with opened(draft_name(name), _DRAFT, mode=0o666 if before is None else 0o600, folder=folder) as descriptor:
            left = memoryview(data)
            while left:
                left = left[os.write(descriptor, left) :]
            if before is not None:
                _liken(folder, name, descriptor, before)
            sync(descriptor)
        yield
    except BaseException:
        with contextlib.suppress(OSError):
            _discard(folder, name)
        raise


def _liken(folder: int, name: str, draft: int, before: os.stat_result) -> None:
    """Give the draft the owner, mode and attributes of the file that it will replace."""
    made = os.fstat(draft)
    if (made.st_uid, made.st_gid) != (before.st_uid, before.st_gid):
        try:
            os.chown(draft, before.st_uid, before.st_gid)
        except PermissionError as error:
            raise Misconfigured(
                f"{name} belongs to user {before.st_uid} and group {before.st_gid}, and this process may not keep it "
                "so: write as that user, or give the file to this one; nothing was changed"
            ) from error
    if hasattr(os, "listxattr"):
        with opened(name, _READ, folder=folder) as old:
            _copy_attributes(old, draft)
    os.chmod(draft, stat.S_IMODE(before.st_mode))  # last: chown clears some bits, and an ACL sets others


def _copy_attributes(old: int, new: int) -> None:
    for attribute in _attributes(old):
        try:
            os.setxattr(new, attribute, os.getxattr(old, attribute))
        except OSError as error:
            if error.errno not in _NO_ATTRIBUTE:  # labels that only the system may set
                raise


def _attributes(descriptor: int) -> list[str]:
    try:
        return os.listxattr(descriptor)
    except OSError as error:
        if error.errno not in _NO_ATTRIBUTE:
            raise
        return []
