"""Names of guarded files: one plain name in one folder, and the names of the files that the guard keeps beside it.

What could lead out of the folder, or to the guard's own files, is refused rather than cleaned. The guard's names are
made from the name itself and not from a digest of it, so that on a file system which takes `A` and `a` for the same
file, the two have the same memory as well.
"""

from __future__ import annotations

import os
from typing import Final

from holdfast.errors import BadInput

OWN_PREFIX: Final = ".holdfast."
NAME_BYTES_MAX: Final = 200  # most file systems end at 255, and the guard's own names are longer than the name


def check_file_name(name: object) -> str:
    """A name that stays in its folder, or `BadInput`."""
    if not isinstance(name, str):
        raise BadInput("name", f"{type(name).__name__} is not a file name", "give text such as 'report.json'")
    if name in {"", ".", ".."}:
        raise BadInput("name", f"{name!r} is not a file name", "give the name of a file in the folder")
    if "/" in name or os.sep in name or (os.altsep and os.altsep in name):
        raise BadInput("name", f"{_shown(name)} leads to another folder", "guard that folder, and give a plain name")
    if any(ord(character) < 32 or ord(character) == 127 for character in name):
        raise BadInput("name", f"{_shown(name)} contains control characters", "use printable text")
    if name.casefold().startswith(OWN_PREFIX):
        raise BadInput("name", f"{_shown(name)} is a name of the guard's own", f"do not begin with {OWN_PREFIX}")
    try:
        size = len(os.fsencode(name))
    except UnicodeEncodeError as error:
        raise BadInput("name", f"{_shown(name)} cannot be a file name here ({error.reason})", "use text") from None
    if size > NAME_BYTES_MAX:
        raise BadInput("name", f"is {size} bytes long", f"use at most {NAME_BYTES_MAX} bytes")
    return name


def generation_name(name: str) -> str:
    """The file that remembers the fence."""
    return f"{OWN_PREFIX}{name}.fence"


def draft_name(name: str) -> str:
    """The file that new content is written to before it takes the place of the old one.

    Always the same: only who holds the lock of the name writes it, so one that is found there was left by a crash.
    """
    return f"{OWN_PREFIX}{name}.new"


def _shown(name: str) -> str:
    text = repr(name)
    return text if len(text) <= 60 else text[:57] + "…"
