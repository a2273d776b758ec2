"""The controlling terminal: lent to the command on demand, and taken back with its modes restored.

The command runs in its own process group, so that all of it can be ended. The kernel stops a background group (TTIN,
TTOU) that uses the terminal; only then is it lent. Until then Ctrl-C comes to us, and to a calling script, and is
passed on. Without a terminal nothing here does anything.
"""

from __future__ import annotations

import contextlib
import os
import signal
import termios
from typing import Any


class Terminal:
    """The terminal that this process may lend to another group."""

    def __init__(self) -> None:
        self._lent = False
        self._modes: list[Any] | None = None
        try:
            self._fd: int | None = os.open("/dev/tty", os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            self._fd = None

    @property
    def lent(self) -> bool:
        """Whether the command has it."""
        return self._lent

    def lend(self, group: int) -> bool:
        """Make the group the foreground group, if we have the terminal."""
        if self._fd is None:
            return False
        try:
            if os.tcgetpgrp(self._fd) != os.getpgrp():
                return False
            self._modes = termios.tcgetattr(self._fd)
            self._foreground(group)
        except (OSError, termios.error):
            return False
        self._lent = True
        return True

    def take_back(self, *, restore: bool) -> None:
        """Return to the foreground; `restore` also the modes, if the command could not do so."""
        if not self._lent or self._fd is None:
            return
        self._lent = False
        with contextlib.suppress(OSError, termios.error):
            self._foreground(os.getpgrp())
            if restore and self._modes is not None:
                termios.tcsetattr(self._fd, termios.TCSADRAIN, self._modes)

    def close(self) -> None:
        """Take it back if it is lent, and close it."""
        self.take_back(restore=False)
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _foreground(self, group: int) -> None:
        if self._fd is None:
            return
        # A background process that changes the foreground group is stopped by TTOU, unless it ignores that signal.
        before = signal.signal(signal.SIGTTOU, signal.SIG_IGN)
        try:
            os.tcsetpgrp(self._fd, group)
        finally:
            signal.signal(signal.SIGTTOU, before)
