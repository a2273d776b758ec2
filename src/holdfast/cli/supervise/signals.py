"""The signals of `holdfast run`: they end the wait for the lock, and are passed on to the running command.

A signal that was ignored at our start (`nohup`, a background job of a script) stays ignored, for us and for the
command. Handlers run in the main thread, which also reads the queue.
"""

from __future__ import annotations

import contextlib
import queue
import signal
from types import FrameType, TracebackType
from typing import Self

ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
PASSED_ON = (*ENDING, signal.SIGUSR1, signal.SIGUSR2, signal.SIGWINCH)
HEARD = (*PASSED_ON, signal.SIGCONT, signal.SIGTSTP, signal.SIGCHLD)
LOST = 0  # no signal has this number


class Interrupted(BaseException):
    """A signal ended the wait. Not an error: only the exit code should handle it."""

    def __init__(self, number: int) -> None:
        super().__init__(f"interrupted by {signal.Signals(number).name}")
        self.number = number


class Signals:
    """Handlers for the duration of the block, and the queue that they fill after `pass_on`."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._passing_on = False
        self._before: dict[int, object] = {}
        self.seen: set[int] = set()

    def pass_on(self) -> None:
        """Queue signals from now on, instead of ending the wait."""
        self._passing_on = True

    def lost(self, _lease: object = None) -> None:
        """Wake the reader because the lease is lost. May be called from any thread."""
        self._queue.put(LOST)

    def next(self, timeout: float) -> int | None:
        """The next signal, `LOST`, or None at the timeout."""
        with contextlib.suppress(queue.Empty):
            return self._queue.get(timeout=max(0.0, timeout))
        return None

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        if self._passing_on:
            self.seen.add(number)
            self._queue.put(number)
        elif number in ENDING:
            raise Interrupted(number)

    def __enter__(self) -> Self:
        for number in HEARD:
            before = signal.getsignal(number)
            ignored = before is signal.SIG_IGN and number != signal.SIGCHLD
            # While we wait for the lock, Ctrl-Z may stop us: no command runs under a lease yet.
            if not ignored and number != signal.SIGTSTP:
                self._before[number] = signal.signal(number, self._handle)
        return self

    def take_over_stopping(self) -> None:
        """Handle Ctrl-Z as well: the command has to be stopped before us."""
        if signal.getsignal(signal.SIGTSTP) is not signal.SIG_IGN:
            self._before[signal.SIGTSTP] = signal.signal(signal.SIGTSTP, self._handle)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)  # type: ignore[arg-type]  # what `signal` returned, it also takes
