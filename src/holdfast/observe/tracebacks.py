"""Tracebacks for a log, of bounded length: how an error began and how it ended, and how much lies between.

Promises: at most `LINES_MAX` lines and `CHARS_MAX` characters, and one line more that says what was left out, whatever
was raised: a message of a megabyte, a recursion that went too deep, a long chain of errors. The first and the last are
kept, for the first say where it came from and the last what it was. The time that it takes does not grow with the
depth beyond `DEPTH_MAX` frames of each error. Never raises.
"""

from __future__ import annotations

import re
import traceback
from types import TracebackType
from typing import Final

LINES_MAX: Final = 120
CHARS_MAX: Final = 16_000
MESSAGE_CHARS_MAX: Final = 500
"""Of an error on one line."""

DEPTH_MAX: Final = 2_000
_FRAME: Final = re.compile(r'^[ |+-]*File ".*", line \d+', re.MULTILINE)


def traced(error: BaseException) -> str:
    """The traceback of an error and of those that led to it."""
    try:
        trace, skipped = _without_its_middle(error.__traceback__)
        found = traceback.TracebackException(type(error), error, trace, limit=-DEPTH_MAX, compact=True)
        text = "".join(found.format())
    except Exception as trouble:  # noqa: BLE001 - the error of somebody may be unable to describe itself
        return f"{type(error).__qualname__} (its traceback cannot be shown: {type(trouble).__name__})"
    return bounded(text.rstrip("\n"), skipped)


def bounded(text: str, frames: int = 0) -> str:
    """A text of several lines with its middle left out, if it is too long. `frames`: as many were left out before."""
    lines, half = text.split("\n"), LINES_MAX // 2
    if len(lines) <= LINES_MAX and len(text) <= CHARS_MAX:
        return "\n".join((*lines[:-1], _left_out("", frames), lines[-1])) if frames else text
    beginning, end = "\n".join(lines[:half])[: CHARS_MAX // 2], "\n".join(lines[-half:])[-(CHARS_MAX // 2) :]
    middle = text[len(beginning) : len(text) - len(end)].strip("\n")
    return f"{beginning}\n{_left_out(middle, frames)}\n{end}"


def _left_out(middle: str, frames: int) -> str:
    frames += len(_FRAME.findall(middle))
    found = {"characters": len(middle), "line ends": middle.count("\n"), "frames": frames}
    return f"  … left out: {', '.join(f'{number:,} {name}' for name, number in found.items() if number)} …"


def message_of(error: BaseException) -> str:
    """The type and the message of an error, on one line of bounded length."""
    try:
        text = f"{type(error).__name__}: {error}"
    except Exception:  # noqa: BLE001 - as above
        text = type(error).__name__
    if len(text) > MESSAGE_CHARS_MAX:
        text = f"{text[: MESSAGE_CHARS_MAX - 1]}…"
    return text


def _without_its_middle(trace: TracebackType | None) -> tuple[TracebackType | None, int]:
    """The same traceback, but of one that is very deep only the first and last frames, and how many these are not."""
    frames: list[TracebackType] = []
    each = trace
    while each is not None:
        frames.append(each)
        each = each.tb_next
    if len(frames) <= DEPTH_MAX:
        return trace, 0
    half = DEPTH_MAX // 2
    made: TracebackType | None = None
    for kept in reversed((*frames[:half], *frames[-half:])):
        made = TracebackType(made, kept.tb_frame, kept.tb_lasti, kept.tb_lineno)
    return made, len(frames) - 2 * half
