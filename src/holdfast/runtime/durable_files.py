"""Durable and private files: content and names that survive a loss of power, readable by their owner only.

Promises: when a function here returns, a loss of power does not undo its work. The directory of a file keeps the file's
name, so a new or renamed file is safe only when its directory was synced too. Otherwise a file with synced content may
come back under its old name, or under none. A file that Holdfast makes has mode 0600, whatever the umask, because
payloads of jobs, tokens and lease history are in these files, and a user who may open a SQLite file for reading can
block its writers. SQLite gives `-wal` and `-shm` the mode of the database. An existing file keeps its mode, so an
operator can share it by creating it first. A process warns once about a file that every user of the host can open.

Does not promise more than the disk does: a disk that reports cached data as written loses it. Some network file systems
cannot sync directories. Systems without such modes (Windows) are not covered.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import tempfile
import warnings
from pathlib import Path
from typing import Final

try:
    import fcntl
except ImportError:  # Windows
    _FULL_SYNC: int | None = None
else:
    _FULL_SYNC = getattr(fcntl, "F_FULLFSYNC", None)  # macOS: fsync stops at the drive's own cache

PRIVATE: Final = 0o600
PRIVATE_DIRECTORY: Final = 0o700

_NO_FULL_SYNC: Final = {errno.ENOTSUP, errno.EINVAL, errno.ENOTTY}
_NO_DIRECTORY_SYNC: Final = {errno.EINVAL, errno.ENOTSUP, errno.EBADF}


def sync(descriptor: int) -> None:
    """Return when the file, or the directory, is on stable storage."""
    if _FULL_SYNC is not None:
        try:
            fcntl.fcntl(descriptor, _FULL_SYNC)
        except OSError as error:
            if error.errno not in _NO_FULL_SYNC:
                raise
        else:
            return
    os.fsync(descriptor)


def sync_directory(path: Path) -> None:
    """Return when the names in a directory are on stable storage, as far as its file system can do that."""
    if os.name == "nt":
        return  # a directory cannot be opened there, and its names are kept with the files
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        sync(descriptor)
    except OSError as error:
        if error.errno not in _NO_DIRECTORY_SYNC:
            raise
    finally:
        os.close(descriptor)


def make_directory(path: Path, mode: int = PRIVATE_DIRECTORY, *, parents: bool = False) -> None:
    """Make a directory if it is not there, with its parents if wanted, for good.

    An existing one is synced too: its creator may have been killed before it was safe.
    """
    missing = [path]
    while parents and not missing[-1].parent.is_dir() and missing[-1].parent != missing[-1]:
        missing.append(missing[-1].parent)
    path.mkdir(mode=mode, parents=parents, exist_ok=True)
    for each in missing:
        with contextlib.suppress(PermissionError):  # it may be used and not be read: then its name is not ours to keep
            sync_directory(each.parent)


def replace_file(place: Path, data: bytes, mode: int) -> None:
    """Give a file its content, whole: written beside it, synced, and then put under its name, for good.

    When this raises, what was there is there still; unless it is the directory that could not be synced: then the new
    content is there, and may not survive a loss of power.
    """
    number, draft = tempfile.mkstemp(prefix=f".{place.name}.", dir=place.parent)
    try:
        with os.fdopen(number, "wb") as file:
            Path(draft).chmod(mode)
            file.write(data)
            file.flush()
            sync(number)
        Path(draft).replace(place)
    except BaseException:
        with contextlib.suppress(OSError):
            Path(draft).unlink()
        raise
    sync_directory(place.parent)


_warned: set[Path] = set()


def create_private(path: str | os.PathLike[str]) -> None:
    """Make an empty file if there is none, and warn about one that every user of the host can reach.

    An error is left to the caller, who opens the file next and reports it in its own words.
    """
    with contextlib.suppress(OSError, ValueError):
        place = Path(path).resolve()  # a link may point to a file that is not there yet
        try:
            descriptor = os.open(place, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, PRIVATE)
        except FileExistsError:
            _warn_if_exposed(place)
            return
        try:
            set_mode(descriptor, PRIVATE)
        finally:
            os.close(descriptor)


def set_mode(descriptor: int, mode: int) -> None:
    """Give a file that was just made its mode, which the umask may have narrowed."""
    if hasattr(os, "fchmod"):
        os.fchmod(descriptor, mode)


def _warn_if_exposed(place: Path) -> None:
    mode = stat.S_IMODE(place.stat().st_mode)
    reachable = place.parent.stat().st_mode & stat.S_IXOTH
    if os.name != "posix" or not mode & stat.S_IRWXO or not reachable or place in _warned:
        return
    if not os.access(place, os.W_OK):
        return  # opening it fails, which says more
    _warned.add(place)
    warnings.warn(
        f"{place} can be opened by every user of this host (mode {mode:04o}), who can read it or block its writers: "
        f"use chmod 600 on it and on the files beside it, or 660 to share it with its group",
        RuntimeWarning,
        stacklevel=2,
    )
