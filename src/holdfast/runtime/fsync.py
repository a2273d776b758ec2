"""What is said to be on the disk is on the disk: files, and the names that they are found by.

Promises: when one of these returns, a loss of power does not undo it. A name (of a file that was made or renamed, of a
directory) is kept by the directory that it stands in, and is only safe when that directory was synced too: a file whose
content was synced may otherwise come back under its old name, or under none.

Does not promise more than the disk does: one that says that it has written what is still in its own cache loses it. A
file system that cannot sync directories (some network ones) keeps names in its own way.
"""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
from pathlib import Path
from typing import Final

from holdfast.runtime.private_files import PRIVATE_DIRECTORY

try:
    import fcntl
except ImportError:  # Windows
    _FULL_SYNC: int | None = None
else:
    _FULL_SYNC = getattr(fcntl, "F_FULLFSYNC", None)  # macOS: fsync stops at the drive's own cache

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

    One that is there is synced too: it may have been made a moment ago, by somebody who was killed before it was safe.
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
