"""What jobs log, for the lines of the process that runs them: each with the job that it is about.

Promises: whatever is in a line, and whatever becomes of it, the job that logged it goes on. However an attempt failed,
its traceback is of bounded length. Does not write anything: whoever takes the lines hands them to a `Writer`, so that
no job waits for a reader either.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeAlias

from holdfast.observe.logs import JOBS, OURS, event_of, traced


class JobLine(NamedTuple):
    """One thing that a job said."""

    level: str
    text: str
    about: dict[str, Any]  # its job, attempt, tenant, topic and fence
    error: BaseException | None
    rare: bool

    @property
    def trace(self) -> list[str]:
        """The traceback of the error, in lines; of one that is very long, the first and the last of them."""
        return [] if self.error is None else traced(self.error).splitlines()


Tell: TypeAlias = Callable[[JobLine], None]


@contextmanager
def job_lines(tell: Tell, *, shown: bool, level: int = logging.INFO) -> Iterator[None]:
    """Tell what jobs log while the block runs. Not `shown` here: it stays among all other log lines."""
    log, lines = logging.getLogger(JOBS), _JobLines(tell)
    before = log.level, log.propagate
    log.setLevel(level)
    if shown:
        log.addHandler(lines)
        log.propagate = False
    try:
        yield
    finally:
        log.removeHandler(lines)
        log.setLevel(before[0])
        log.propagate = before[1]


class _JobLines(logging.Handler):
    def __init__(self, tell: Tell) -> None:
        super().__init__()
        self._tell = tell

    def emit(self, record: logging.LogRecord) -> None:
        """See `logging.Handler`."""
        about = {name: record.__dict__.get(name) for name in OURS}
        error = record.exc_info[1] if record.exc_info else None
        try:
            self._tell(JobLine(record.levelname, event_of(record), about, error, record.levelno >= logging.ERROR))
        except Exception:  # noqa: BLE001 - whatever is wrong with a line, the job that logged it goes on
            self.handleError(record)
