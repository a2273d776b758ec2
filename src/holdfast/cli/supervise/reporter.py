"""What `holdfast run` says about itself, on stderr: lines for people, or JSON lines for programs.

Standard output belongs to the command. A run in which nothing is remarkable says nothing, so that it can stand in a
crontab; with `--json` every step is said.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from holdfast.cli.output.screen import put_line, said
from holdfast.core.history.events import EventKind, Record

AGAIN_S = 60.0

_NOTED = {
    EventKind.UNCONFIRMED: "a renewal was not confirmed; trying again",
    EventKind.WARNED: "the lease is close to being lost",
    EventKind.RELEASE_FAILED: "the lock could not be given back; it will expire by itself",
    EventKind.PROMOTED: "the store is back, and the lease is a full one now",
}


class Reporter:
    """Says things, and observes the lease."""

    def __init__(self, *, as_json: bool) -> None:
        self._json = as_json
        self._put: Callable[[str], None] = put_line
        self._waiting = False
        self._said: dict[EventKind, float] = {}
        self.refused = False  # the store said at the release that the lock was not ours any more

    def __call__(self, event: str, text: str, *, quiet: bool = False, **fields: Any) -> None:
        """Something happened; `quiet` things are for programs only."""
        if self._json:
            self._put(json.dumps({"event": event, "text": text, **fields}, ensure_ascii=False))
        elif not quiet:
            self._put(said(text))

    @contextmanager
    def through(self, put: Callable[[str], None]) -> Iterator[None]:
        """Have lines written by somebody else while the block runs, such as one who does not wait for readers."""
        self._put = put
        try:
            yield
        finally:
            self._put = put_line

    def note(self, record: Record) -> None:
        """What the library observed."""
        if record.kind is EventKind.BUSY and not self._waiting:
            self._waiting = True
            # A crontab should not mail this; a person at a terminal wonders why nothing happens.
            self(
                "busy",
                f"{record.key} is held by {record.detail or 'somebody'}",
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
        """In an outage every retry is unconfirmed; a person needs to read that once, and now and then again."""
        now = time.monotonic()
        lately = now - self._said.get(kind, -AGAIN_S) < AGAIN_S
        if not lately:
            self._said[kind] = now
        return lately
