"""Files that only their owner may read and write, whatever the umask.

Payloads of jobs, tokens and the history of leases are in these files, and another user who may open a SQLite file for
reading can block its writers.

Promises: a file that Holdfast makes has mode 0600. SQLite gives `-wal` and `-shm` the mode of the database. A file that
exists keeps its mode: an operator who wants to share it creates it first, with the mode that it should have. A process
warns once about a file that every user of the host can open.

Does not promise anything where the system has no such modes (Windows).
"""

from __future__ import annotations

import contextlib
import os
import stat
import warnings
from pathlib import Path
from typing import Final

PRIVATE: Final = 0o600
PRIVATE_DIRECTORY: Final = 0o700

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
