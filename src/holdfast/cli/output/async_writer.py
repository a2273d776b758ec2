"""A thread that writes to standard output or standard error, so that no other thread waits for a slow reader.

Promises: `put` and `line` return immediately and never raise, even with a slow, stalled or gone reader, or a full disk.
Writes happen in order. At most `ROOM` writes are queued; further ones are dropped, and the next line contains their
number. A failing standard output is logged once, not for every line. A stalled reader does not keep the process from
ending.

Does not promise that the output is read: after `CLOSE_S` the end of the process waits no longer.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from types import TracebackType
from typing import Final, Literal, Self, TextIO, TypeAlias

from holdfast.flows.log import OutageLog
from holdfast.runtime.background_writer import BackgroundWriter

ROOM: Final = 10_000
CLOSE_S: Final = 2.0

Stream: TypeAlias = Literal["stdout", "stderr"]
Act: TypeAlias = Callable[[], None]


class OutputWriter:
    """One standard stream, and the thread that writes to it."""

    def __init__(self, stream: Stream, gap: Callable[[int], str]) -> None:
        """`gap` makes the line with the number of dropped writes."""
        self._stream: Stream = stream
        self._gap = gap
        self._background_writer: BackgroundWriter[Act] = BackgroundWriter(
            f"holdfast-{stream}", self._written, lambda: None, room=ROOM, tick_s=60.0
        )
        self._trouble = OutageLog(
            logging.getLogger("holdfast"),
            "standard output cannot be written; events are not shown there",
            "standard output can be written again",
            once=True,
        )

    def line(self, text: str, *, rare: bool = False) -> None:
        """Queue a line. `rare` lines have reserved room."""
        self.put(partial(self._write, text), rare=rare)

    def put(self, act: Act, *, rare: bool = False) -> None:
        """Queue a write to the stream."""
        self._background_writer.put(act, rare=rare)

    def close(self) -> None:
        """Write the queue, waiting at most `CLOSE_S`."""
        self._background_writer.close(CLOSE_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _written(self, acts: Sequence[Act], dropped: int) -> None:
        if dropped:
            self._guarded(partial(self._write, self._gap(dropped)))
        for act in acts:
            self._guarded(act)

    def _guarded(self, act: Act) -> None:
        try:
            act()
        except (OSError, ValueError) as error:
            if self._stream == "stdout":  # a failing standard error cannot be reported
                self._trouble.met(error)
        else:
            self._trouble.ended()

    def _write(self, text: str) -> None:
        write_past(sys.stdout if self._stream == "stdout" else sys.stderr, f"{text}\n")


def write_past(stream: TextIO | None, text: str) -> None:
    """Write past the buffer of a stream: a thread that waits in it for a reader holds the lock that an exit needs."""
    if stream is None:
        return
    number = None
    if not hasattr(stream, "rich_proxied_file"):  # a live line is on the screen, and ours has to go above it
        with contextlib.suppress(OSError, ValueError):  # there is no file behind it
            number = stream.fileno()
    if number is None:
        print(text, end="", file=stream, flush=True)
        return
    stream.flush()  # earlier buffered output comes first
    left = text.encode(stream.encoding, stream.errors or "backslashreplace")
    while left:
        left = left[os.write(number, left) :]
