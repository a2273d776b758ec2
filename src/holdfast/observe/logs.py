"""Formatters and limits for log lines: one JSON object per record, or one line with its time and level.

    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter(service="billing"))
    logging.getLogger("holdfast").addHandler(handler)

Promises: one object on one line for every record, and no exception. `event` is the constant text, which can be searched
for; `holdfast` contains the fields. Records of other libraries work too. No record of Holdfast contains a token.

A traceback has at most `LINES_MAX` lines and `CHARS_MAX` characters, and one more line that reports what was left out:
also for a message of a megabyte, a deep recursion, or a long chain of errors. The first lines are kept because they
show where the error began, the last ones because they show what it was. The time it takes is bounded too: beyond
`DEPTH_MAX` frames of each error it does not grow.

Clock: that of the log record, written in UTC.
"""

from __future__ import annotations

import json
import logging
import math
import re
import traceback
from collections.abc import Mapping
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Final

from holdfast.core.log_rate import LogRate
from holdfast.types import NS

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
    except Exception as trouble:  # noqa: BLE001 - an application's error may be unable to describe itself
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


OURS: Final = ("job", "attempt", "tenant", "topic", "fence")
"""What a job's own log lines carry as attributes of the record."""

JOBS: Final = "holdfast.plane.job"
KINDS_MAX: Final = 1000
KIND_CHARS: Final = 200

_DEPTH_MAX: Final = 8


class JsonFormatter(logging.Formatter):
    """One JSON object for each record: time, level, logger, event, pid, thread, and what there is of the rest.

    `kind` is the event of the lease, `holdfast` has the fields, `exception` the traceback. What is given here
    by name stands in every object.
    """

    def __init__(self, **always: object) -> None:
        super().__init__()
        self._always = always

    def format(self, record: logging.LogRecord) -> str:
        """See `logging.Formatter`."""
        return json.dumps(_plain(self.document(record)), ensure_ascii=False, allow_nan=False)

    def document(self, record: logging.LogRecord) -> dict[str, Any]:
        """What `format` writes, for those who write it themselves."""
        told: dict[str, Any] = {
            "time": shown_time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": event_of(record),
            "pid": record.process,
            "thread": record.threadName,
            **self._always,
        }
        kind, fields = getattr(record, "holdfast_kind", None), fields_of(record)
        if kind is not None:
            told["kind"] = kind
        if fields:
            told["holdfast"] = fields
        if left_out := getattr(record, "left_out", 0):
            told["left_out"] = left_out
        if trace := _traced(record):
            told["exception"] = trace
        return told


class TextFormatter(logging.Formatter):
    """A line for people: time, level, text and fields; a traceback on the lines below it, set in."""

    def format(self, record: logging.LogRecord) -> str:
        """See `logging.Formatter`."""
        line = f"{shown_time(record)} {record.levelname.lower()} {_printable(_message(record))}"
        if left_out := getattr(record, "left_out", 0):
            line += f" ({left_out} more like it were not logged)"
        trace = _traced(record)
        return line if not trace else "\n  ".join((line, *map(_printable, trace.splitlines())))


class RateLimitedLog(logging.Filter):
    """Limits the lines of others, such as drivers in an outage, as ours are: by logger and text, and the rest counted.

    For handlers. Lines that are limited already, and those of jobs, pass. How many were left out before a line is said
    in it.
    """

    def __init__(self) -> None:
        super().__init__()
        self._rates: dict[tuple[str, str], LogRate] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """See `logging.Filter`."""
        if hasattr(record, "holdfast") or record.name == JOBS:
            return True
        kind = record.name, str(record.msg)[:KIND_CHARS]
        if kind not in self._rates and len(self._rates) >= KINDS_MAX:
            kind = record.name, ""
        rate = self._rates.setdefault(kind, LogRate())
        entry = rate.enter(round(record.created * NS), traced=bool(record.exc_info))
        if entry.written and record.exc_info and not entry.traced:
            record.exc_info = record.exc_text = None
        record.left_out = entry.left_out
        return entry.written


def event_of(record: logging.LogRecord) -> str:
    """The text of a record without its fields; of a record that is not ours, its message."""
    event = getattr(record, "holdfast_event", None)
    return event if isinstance(event, str) else _message(record)


def fields_of(record: logging.LogRecord) -> dict[str, Any]:
    """The fields of a record, those that are there."""
    found = getattr(record, "holdfast", None)
    fields = dict(found) if isinstance(found, Mapping) else {}
    if record.name.startswith("holdfast"):
        fields.update({name: record.__dict__[name] for name in OURS if name in record.__dict__})
    return {name: value for name, value in fields.items() if value is not None and value != ""}


def shown_time(record: logging.LogRecord) -> str:
    """When it was, as ISO 8601 in UTC."""
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").removesuffix("+00:00") + "Z"


def _message(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except Exception:  # noqa: BLE001 - wrong arguments must not lose the line
        return f"{record.msg} {record.args}"


def _traced(record: logging.LogRecord) -> str:
    error = record.exc_info[1] if record.exc_info else None
    return traced(error) if error is not None else bounded(record.exc_text or "")


def _plain(value: object, depth: int = 0) -> Any:
    """What JSON can say of it."""
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Mapping) and depth < _DEPTH_MAX:
        return {str(name): _plain(each, depth + 1) for name, each in value.items()}
    if isinstance(value, list | tuple) and depth < _DEPTH_MAX:
        return [_plain(each, depth + 1) for each in value]
    try:
        text = str(value)
    except Exception:  # noqa: BLE001 - what cannot be shown must not cost the line
        text = f"<{type(value).__name__}>"
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def _printable(text: str) -> str:
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else _escaped(each) for each in text)


def _escaped(character: str) -> str:
    return character.encode("unicode_escape", "backslashreplace").decode("ascii")
