"""A file that a command writes for others to read: whole under its name, or not at all."""

from __future__ import annotations

from pathlib import Path

from holdfast.errors import BadInput
from holdfast.runtime.durable_files import replace_file

_MODE = 0o644


def write_whole(option: str, path: Path, data: bytes) -> None:
    """Write beside it, to the disk, and then under its name; what was there keeps its rights.

    What is no file (a pipe, a terminal, a device) is written to, and never replaced by one. What cannot be written is a
    `BadInput` of the option, and then what was there before is there still.
    """
    place = path.resolve()  # a link stays a link
    if place.is_dir():
        raise BadInput(option, f"{path} is a directory", "name a file")
    try:
        if path.exists() and not path.is_file():
            path.write_bytes(data)
        else:
            replace_file(place, data, place.stat().st_mode & 0o7777 if place.exists() else _MODE)
    except OSError as error:
        raise BadInput(
            option, f"{path} cannot be written: {error.strerror}", "check its folder and its rights"
        ) from None
