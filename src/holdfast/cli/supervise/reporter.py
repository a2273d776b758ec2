"""The output of `holdfast run` on stderr: text lines, or JSON lines.

Standard output belongs to the command. An unremarkable run prints nothing, so that it fits into a crontab; with
`--json` every step is printed.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from holdfast.cli.output.screen import note_line, put_line
from holdfast.core.history.events import EventKind, Record

AGAIN_S = 60.0

_NOTED = {
    EventKind.UNCONFIRMED: "a renewal was not confirmed; trying again",
    EventKind.WARNED: "the lease is close to being lost",
    EventKind.RELEASE_FAILED: "the lock could not be released; it will expire",
    EventKind.PROMOTED: "the store is back, and the lease is a full one now",
}


class Reporter:
    """Prints events, and observes the lease."""

    def __init__(self, *, as_json: bool) -> None:
        self._json = as_json
        self._put: Callable[[str], None] = put_line
        self._waiting = False
        self._said: dict[EventKind, float] = {}
        self.refused = False  # the store reported at the release that the lock had another owner

    def __call__(self, event: str, text: str, *, quiet: bool = False, **fields: Any) -> None:
        """Report an event; `quiet` ones are printed as JSON only."""
        if self._json:
            self._put(json.dumps({"event": event, "text": text, **fields}, ensure_ascii=False))
        elif not quiet:
            self._put(note_line(text))

    @contextmanager
    def through(self, put: Callable[[str], None]) -> Iterator[None]:
        """Print through another function while the block runs, such as one that never blocks."""
        self._put = put
        try:
            yield
        finally:
            self._put = put_line

    def note(self, record: Record) -> None:
        """Handle an event of the library."""
        if record.kind is EventKind.BUSY and not self._waiting:
            self._waiting = True
            # A crontab should not mail this; a person at a terminal wants to know the reason for the wait.
            self(
                "busy",
                f"{record.key} is held by {record.detail or 'another owner'}",
                quiet=not sys.stderr.isatty(),
                key=record.key,
                holder=record.detail or None,
            )
        elif record.kind is EventKind.RELEASE_REFUSED:
            self.refused = True
        elif record.kind in _NOTED:
            why = f" ({record.detail})" if record.detail else ""
            text = _NOTED[record.kind] + why
            self(str(record.kind), text, quiet=self._said_lately(record.kind), key=record.key, fence=record.fence)

    def _said_lately(self, kind: EventKind) -> bool:
        """In an outage every retry is unconfirmed; a person needs to read that only occasionally."""
        now = time.monotonic()
        lately = now - self._said.get(kind, -AGAIN_S) < AGAIN_S
        if not lately:
            self._said[kind] = now
        return lately
