"""Log lines for programs and for people: one JSON object for each record, or one line with its time and level.

    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter(service="billing"))
    logging.getLogger("holdfast").addHandler(handler)

Promises: one object on one line, whatever is in the record, and never an exception because of it. `event` is the text
that is always the same and can be searched for; what varies is under `holdfast`. Works for the records of others too.
A traceback is of bounded length (`tracebacks`). No token is in any record of ours. Clock: the record's own, written in
UTC.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from holdfast.core.log_rate import LineRate
from holdfast.observe.tracebacks import bounded, traced
from holdfast.types import NS

OURS: Final = ("job", "attempt", "tenant", "topic", "fence")
"""What a job's own log lines carry as attributes of the record."""

JOBS: Final = "holdfast.plane.job"
KINDS_MAX: Final = 1000
KIND_CHARS: Final = 200

_DEPTH_MAX: Final = 8


class JsonFormatter(logging.Formatter):
    """One JSON object for each record: time, level, logger, event, pid, thread, and what there is of the rest.

    `kind` says which event of a lease it is, `holdfast` has the fields, `exception` the traceback. What is given here
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


class Paced(logging.Filter):
    """Limits the lines of others, such as drivers in an outage, as ours are: by logger and text, and the rest counted.

    For handlers. Lines that are limited already, and those of jobs, pass. How many were left out before a line is said
    in it.
    """

    def __init__(self) -> None:
        super().__init__()
        self._rates: dict[tuple[str, str], LineRate] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """See `logging.Filter`."""
        if hasattr(record, "holdfast") or record.name == JOBS:
            return True
        kind = record.name, str(record.msg)[:KIND_CHARS]
        if kind not in self._rates and len(self._rates) >= KINDS_MAX:
            kind = record.name, ""
        rate = self._rates.setdefault(kind, LineRate())
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
    except Exception:  # noqa: BLE001 - arguments that do not fit are somebody's mistake, and not worth losing the line
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
