r"""The standard streams as whoever starts us has left them, made fit to print to.

Promises: afterwards there are three. One that was closed reads nothing and drops what it is told, so that no database
ends up under its number; a character that a stream has no bytes for is written as `\uXXXX`, which is also how JSON
says it, so that JSON stays JSON in every encoding.
"""

from __future__ import annotations

import codecs
import contextlib
import io
import json
import os
import sys
from typing import Final

ERRORS: Final = "holdfast.escaped"
"""The name under which Python's codecs know how we write what cannot be encoded."""


def make_fit() -> None:
    """Do so, for this process."""
    codecs.register_error(ERRORS, _escaped)
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(
                os.open(os.devnull, os.O_RDWR), True
            )  # the lowest number that is free, which is this one
    if sys.stdout is None:
        sys.stdout = os.fdopen(1, "w", encoding="utf-8", closefd=False)
    if sys.stderr is None:
        sys.stderr = os.fdopen(2, "w", encoding="utf-8", closefd=False)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            with contextlib.suppress(OSError):  # it cannot say where it stands, which only matters to files
                stream.reconfigure(errors=ERRORS)


def let_go(number: int) -> None:
    """What is still buffered for a standard stream has nowhere to go, and the interpreter would stumble over it."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, number)
    os.close(nowhere)


def _escaped(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return json.dumps(error.object[error.start : error.end])[1:-1], error.end
