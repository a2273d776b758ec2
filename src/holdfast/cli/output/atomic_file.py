"""Writes a file atomically: completely, or not at all."""

from __future__ import annotations

from pathlib import Path

from holdfast.errors import BadInput
from holdfast.runtime.durable_files import replace_file

_MODE = 0o644


def write_whole(option: str, path: Path, data: bytes) -> None:
    """Write a temporary file beside it, sync it, and rename it; an existing file keeps its permissions.

    A pipe, a terminal or a device is written to, and never replaced. A failure raises `BadInput` of the option, and
    the old content stays.
    """
    place = path.resolve()  # a link stays a link
    if place.is_dir():
        raise BadInput(option, f"{path} is a directory", "use a file name")
    try:
        if path.exists() and not path.is_file():
            path.write_bytes(data)
        else:
            replace_file(place, data, place.stat().st_mode & 0o7777 if place.exists() else _MODE)
    except OSError as error:
        raise BadInput(
            option, f"{path} cannot be written: {error.strerror}", "check the directory and its permissions"
        ) from None
