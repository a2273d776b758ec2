"""Logs of `holdfast up` and `holdfast worker` on standard error: text lines, or JSON.

Promises: every log line of the process has the chosen format, even those of drivers and Python's warnings. No thread
waits for a reader of standard error, because all lines go through one `OutputWriter`: a log line of the renewer must
not cost a lease.

It also has the log lines of jobs, each with its job.

Promises: whatever a line contains, and whatever happens to it, the job that logged it continues. The traceback of a
failed attempt has a bounded length. Does not write anything: the caller passes the lines to a `OutputWriter`, so that
no job waits for a reader either.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeAlias

from holdfast.cli.output.async_writer import OutputWriter
from holdfast.observe.logs import JOBS, OURS, JsonFormatter, RateLimitedLog, TextFormatter, event_of, traced
from holdfast.plane.settings.sections import JSON
from holdfast.plane.settings.settings import Settings

__all__ = ["JOBS", "chosen_format", "log_lines"]


def chosen_format(settings: Settings, *, as_json: bool) -> str:
    """The format of log lines: from the settings, else that of the other output."""
    said = settings.origin("log.format").kind != "default"
    return JSON if as_json and not said else settings.log.format


@contextmanager
def log_lines(settings: Settings, process: str, *, as_json: bool) -> Iterator[OutputWriter]:
    """Write log lines while the block runs, instead of the few lines of other commands.

    The block gets the writer, for all other output on standard error.
    """
    chosen = chosen_format(settings, as_json=as_json)
    level = logging.getLevelName(settings.log.level.upper())
    handler = _LogLineHandler(JsonFormatter(process=process) if chosen == JSON else TextFormatter())
    root, ours = logging.getLogger(), logging.getLogger("holdfast")
    before = root.level, ours.level, ours.propagate, list(ours.handlers)
    root.addHandler(handler)
    root.setLevel(logging.DEBUG if level == logging.DEBUG else max(level, logging.WARNING))
    ours.setLevel(level)
    ours.propagate = True
    for each in before[3]:
        ours.removeHandler(each)
    try:
        with warnings.catch_warnings():
            logging.captureWarnings(capture=True)
            yield handler.writer
    finally:
        logging.captureWarnings(capture=False)
        for each in before[3]:
            ours.addHandler(each)
        root.removeHandler(handler)
        root.setLevel(before[0])
        ours.setLevel(before[1])
        ours.propagate = before[2]
        handler.close()


class _LogLineHandler(logging.Handler):
    """Passes lines to a writer thread."""

    def __init__(self, form: logging.Formatter) -> None:
        super().__init__()
        self.setFormatter(form)
        self.addFilter(RateLimitedLog())
        self._form = form
        self.writer = OutputWriter("stderr", self._gap)

    def emit(self, record: logging.LogRecord) -> None:
        """See `logging.Handler`."""
        self.writer.line(self.format(record), rare=record.levelno >= logging.ERROR)

    def close(self) -> None:
        """Write the queue."""
        self.writer.close()
        super().close()

    def _gap(self, dropped: int) -> str:
        text = "%d log lines were dropped, because standard error was not read"
        record = logging.getLogger("holdfast").makeRecord("holdfast", logging.WARNING, "", 0, text, (dropped,), None)
        return self._form.format(record)


class JobLogLine(NamedTuple):
    """One log line of a job."""

    level: str
    text: str
    about: dict[str, Any]  # its job, attempt, tenant, topic and fence
    error: BaseException | None
    rare: bool

    @property
    def trace(self) -> list[str]:
        """The traceback of the error in lines; of a long one, the first and the last of them."""
        return [] if self.error is None else traced(self.error).splitlines()


Tell: TypeAlias = Callable[[JobLogLine], None]


@contextmanager
def job_lines(tell: Tell, *, shown: bool, level: int = logging.INFO) -> Iterator[None]:
    """Pass on the log lines of jobs while the block runs. Not `shown`: they stay among all other log lines."""
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
            self._tell(JobLogLine(record.levelname, event_of(record), about, error, record.levelno >= logging.ERROR))
        except Exception:  # noqa: BLE001 - whatever is wrong with a line, the job that logged it goes on
            self.handleError(record)
