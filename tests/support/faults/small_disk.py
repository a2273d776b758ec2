"""A disk that is really full: a small file system of its own, made for one test and taken away after it.

Mounting needs root, and not every container lets it. Where it cannot be done, the test is left out with the reason;
what does not need it (a limit on the size of files) is tested everywhere.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

_STEP: Final = 1_000_000


class SmallDisk:
    """The file system. `fill` and `free` change how much room there is."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self._filling = place / "filling"

    def fill(self, *, leave: int = 0) -> None:
        """Take all room but so many bytes."""
        found = os.statvfs(self.place)
        left = found.f_bavail * found.f_frsize - leave
        with contextlib.suppress(OSError), self._filling.open("ab", buffering=0) as file:
            while left > 0:
                left -= file.write(b"\0" * min(left, _STEP))

    def free(self) -> None:
        """Give the room back."""
        self._filling.unlink()


@contextlib.contextmanager
def small_disk(place: Path, megabytes: int = 48) -> Iterator[SmallDisk]:
    """Mount one there for the length of the block."""
    place.mkdir(parents=True, exist_ok=True)
    try:
        _mount("-t", "tmpfs", "-o", f"size={megabytes}m,mode=0777", "tmpfs", str(place))
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no file system can be mounted here ({error})")
    try:
        yield SmallDisk(place)
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True, capture_output=True)


def _mount(*words: str) -> None:
    subprocess.run(["mount", *words], check=True, capture_output=True)
