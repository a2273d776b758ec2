"""The log of a simulated world: what the package logs with a traceback is a finding, and the rest is not printed."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator

from holdfast.flows.log import forget_rates


class _Listener(logging.Handler):
    def __init__(self, complain: Callable[[str, str], None]) -> None:
        super().__init__()
        self._complain = complain

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info:
            self._complain("log", f"{record.getMessage()}: {record.exc_info[1]!r}")


@contextlib.contextmanager
def listening(complain: Callable[[str, str], None]) -> Iterator[None]:
    """While a world runs, report tracebacks in the log to `complain`."""
    forget_rates()  # what an earlier world has said must not keep this one's findings from the log
    log, listener = logging.getLogger("holdfast"), _Listener(complain)
    propagate, log.propagate = log.propagate, False
    log.addHandler(listener)
    try:
        yield
    finally:
        log.removeHandler(listener)
        log.propagate = propagate
