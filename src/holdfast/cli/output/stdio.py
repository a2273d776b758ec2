r"""Repairs the standard streams that the parent process has left.

Promises: afterwards all three exist. A closed one reads nothing and drops all output, so that no database gets its file
number. A character that a stream cannot encode is written as `\uXXXX`, which is also its JSON escape, so that JSON
stays valid in every encoding.
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
"""The name of our error handler for Python's codecs."""


def make_fit() -> None:
    """Repair the streams of this process."""
    codecs.register_error(ERRORS, _escaped)
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest free number, which is this one
    if sys.stdout is None:
        sys.stdout = os.fdopen(1, "w", encoding="utf-8", closefd=False)
    if sys.stderr is None:
        sys.stderr = os.fdopen(2, "w", encoding="utf-8", closefd=False)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            with contextlib.suppress(OSError):  # it has no position, which only matters for files
                stream.reconfigure(errors=ERRORS)


def let_go(number: int) -> None:
    """Drop the buffered output of a standard stream without a reader, on which the interpreter would fail."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, number)
    os.close(nowhere)


def _escaped(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return json.dumps(error.object[error.start : error.end])[1:-1], error.end
