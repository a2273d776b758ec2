"""The end of the traceback of a job function, for those who read about a failed job.

Promises: at most `CHARS_MAX` characters and the last `FRAMES_MAX` frames of each error, whatever was raised. Files are
named relative to the search path of Python, so that the text contains no directories of the worker's host. Frames of
the worker itself are left out. The text contains messages of errors, and neither source lines nor values of variables:
readers of a job may be other people than those who may read the code.

Does not promise the whole traceback: the log of the worker has that, with source lines.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterator
from pathlib import PurePath
from types import TracebackType
from typing import Final

FRAMES_MAX: Final = 12
CHARS_MAX: Final = 4_000
ERRORS_MAX: Final = 20
"""Errors of one chain or group whose files are named; those beyond it are cut off anyway."""

_WORKER: Final = "holdfast.plane."


def failure_trace(error: BaseException) -> str | None:
    """The end of the traceback; None: the error was not raised in the function."""
    trace = _of_function(error.__traceback__)
    if trace is None:
        return None
    try:
        found = traceback.TracebackException(
            type(error), error, trace, limit=-FRAMES_MAX, lookup_lines=False, compact=True
        )
        for each in _chain(found):
            each.stack = traceback.StackSummary.from_list([_relative(frame) for frame in each.stack])
        text = "".join(found.format())
    except Exception as trouble:  # noqa: BLE001 - an application's error may be unable to describe itself
        return f"{type(error).__qualname__} (its traceback cannot be shown: {type(trouble).__name__})"
    return clean_trace(text)


def clean_trace(text: str) -> str:
    """The end of a text of several lines, of bounded length and without characters that a terminal would obey."""
    end = text[-2 * CHARS_MAX :].rstrip()
    cleaned = "\n".join("".join(each if each.isprintable() else " " for each in line) for line in end.split("\n"))
    if len(text) <= 2 * CHARS_MAX and len(cleaned) <= CHARS_MAX:
        return cleaned
    return f"…{cleaned[-CHARS_MAX + 1 :]}"


def _of_function(trace: TracebackType | None) -> TracebackType | None:
    """The traceback from the first frame that is not the worker's."""
    while trace is not None and str(trace.tb_frame.f_globals.get("__name__", "")).startswith(_WORKER):
        trace = trace.tb_next
    return trace


def _chain(first: traceback.TracebackException) -> Iterator[traceback.TracebackException]:
    """The errors that will be shown: causes, contexts and members of groups."""
    waiting = [first]
    for _ in range(ERRORS_MAX):
        if not waiting:
            return
        each = waiting.pop(0)
        yield each
        before = each.__cause__ or (None if each.__suppress_context__ else each.__context__)
        waiting += [*([before] if before is not None else []), *(each.exceptions or [])]
    for each in waiting:  # not shown: their files would have their directories
        each.stack = traceback.StackSummary()


def _relative(frame: traceback.FrameSummary) -> traceback.FrameSummary:
    return traceback.FrameSummary(_short(frame.filename), frame.lineno, frame.name, lookup_line=False, line="")


def _short(filename: str) -> str:
    if filename.startswith("<"):
        return filename
    path = PurePath(filename)
    above = [PurePath(each) for each in sys.path if each and PurePath(each) in path.parents]
    if not above:
        return path.name
    return path.relative_to(max(above, key=lambda each: len(each.parts))).as_posix()
