"""Who sees what happens in a simulated plane: the observer of each host, and the one who reads the log."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from holdfast.core.history import Kind, Record
from holdfast.flows.saying import forget_rates

if TYPE_CHECKING:
    from holdfast.testing.simplane import PlaneWorld


class Restamper:
    """The observer of one host. Its records come with the host's own wall clock; checkers need true time."""

    def __init__(self, world: PlaneWorld, name: str) -> None:
        self._world = world
        self._name = name
        self.asked_ns: dict[tuple[str, int], int] = {}

    def note(self, record: Record) -> None:
        """See `ports.Observer`."""
        if record.kind is Kind.FORCED:
            return  # seen at the store, at the right moment
        began = None if record.fence is None else self.asked_ns.get((record.key, record.fence))
        now = self._world.loop.now_ns
        self._world.note(replace(record, at_ns=now, began_ns=began, until_ns=None, owner=self._name))


@contextlib.contextmanager
def listening(world: PlaneWorld) -> Iterator[None]:
    """What the package logs with a traceback is a finding; the rest is not printed."""

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.exc_info:
                world.complain("log", f"{record.getMessage()}: {record.exc_info[1]!r}")

    forget_rates()  # what an earlier world has said must not keep this one's findings from the log
    log, listener = logging.getLogger("holdfast"), Listener()
    propagate, log.propagate = log.propagate, False
    log.addHandler(listener)
    try:
        yield
    finally:
        log.removeHandler(listener)
        log.propagate = propagate
