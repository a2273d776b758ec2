"""Runs a command under a lease: only while the lease is held.

Promises: when the lease is lost, every process of the command's group gets TERM, and KILL after the grace period. The
lease can be released when this returns, because the whole group is gone then. If this process itself is stopped or
killed, the guardian ends the group no later than the lease ends. Signals to us are passed on to the command, which
decides about them.

Clock: the lease's own (`lease.held`, judged at the moment of asking); the monotonic clock for the grace period.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping, Sequence

from holdfast.cli.exit_codes import Exit
from holdfast.cli.supervise.process_group import ProcessGroup, ended_by
from holdfast.cli.supervise.reporter import Reporter
from holdfast.cli.supervise.signals import LOST, PASSED_ON, Signals
from holdfast.cli.supervise.terminal import Terminal
from holdfast.leases.sync.lease import DegradedLease, Lease

_LOOK_MIN_S, _LOOK_MAX_S = 0.02, 1.0
_POLL_S = 0.05  # for the end of the group, where orphans do not become our children
_KILL_LIMIT_S = 10.0  # a process that survives KILL hangs in the kernel (a dead disk, say); waiting longer is useless
_WANTS_TERMINAL = (signal.SIGTTIN, signal.SIGTTOU)


class Supervisor:
    """Runs one command under one lease and reports how it ended."""

    def __init__(self, lease: Lease | DegradedLease, grace: float, signals: Signals, report: Reporter) -> None:
        self._lease = lease
        self._grace = grace
        self._signals = signals
        self._report = report
        self._terminal = Terminal()
        self._term_until: float | None = None  # monotonic; set once the lease is lost
        self._kill_until: float | None = None
        self._lingering = False
        self._had_terminal = False
        self._look_s = min(max(lease.ttl / 6, _LOOK_MIN_S), _LOOK_MAX_S)

    def run(self, command: Sequence[str], environment: Mapping[str, str]) -> int:
        """Run the command to its end and return the exit code. Does not release the lease."""
        group = ProcessGroup(command, environment)
        try:
            group.allow(self._lease.remaining())
            while not group.gone():
                self._step(group)
                if self._kill_until is not None and time.monotonic() >= self._kill_until:
                    self._report("stuck", "some processes could not be ended even with KILL; they may still run")
                    break
        except BaseException:
            group.destroy()  # after any failure, nothing may run without a lease
            raise
        finally:
            self._had_terminal = self._terminal.lent
            self._terminal.take_back(restore=group.status is None or os.WIFSIGNALED(group.status))
            self._terminal.close()
            group.dismiss()
        if not self.lost and not self._lease.held:
            self._note_loss("the command had ended by then")
        return self._verdict(group)

    @property
    def had_terminal(self) -> bool:
        """Whether the command had the terminal, and with it Ctrl-C, at its end."""
        return self._had_terminal

    @property
    def lost(self) -> bool:
        """Whether the lease was lost before the command was gone."""
        return self._term_until is not None

    def _step(self, group: ProcessGroup) -> None:
        """Wait for events, and handle them. The lease is checked before anything else may continue."""
        news = self._signals.next(self._patience(group))
        if self._lease.held:
            group.allow(self._lease.remaining())
        elif self._term_until is None:
            self._end(group)
        if news == signal.SIGTSTP:
            self._stop_with(group)
        elif news == signal.SIGCONT and not self.lost:
            self._go_on(group)
        elif news in PASSED_ON:
            group.signal(int(news or LOST))
        group.reap()
        if group.stopped_by is not None:
            self._on_stop(group, group.stopped_by)
        if self._term_until is not None and self._kill_until is None and time.monotonic() >= self._term_until:
            self._kill_until = time.monotonic() + _KILL_LIMIT_S
            group.signal(signal.SIGKILL)
        if group.status is not None and not self._lingering and not group.gone():
            self._lingering = True
            self._report(
                "lingering", f"the command {ended_by(group.status)[1]}; the lease is kept until its children have ended"
            )

    def _patience(self, group: ProcessGroup) -> float:
        waits = [self._look_s]
        if group.status is not None or self._kill_until is not None:
            waits.append(_POLL_S)
        elif self._term_until is not None:
            waits.append(self._term_until - time.monotonic())
        return min(waits)

    def _end(self, group: ProcessGroup) -> None:
        """The lease is lost: ask every process of the group to end."""
        self._note_loss("ending the command")
        group.allow(self._grace + _KILL_LIMIT_S)  # the guardian leaves the grace period to us while we live
        group.signal(signal.SIGTERM)
        group.signal(signal.SIGCONT)  # a stopped process cannot even die of TERM

    def _note_loss(self, then: str) -> None:
        reason = self._lease.lost.reason or "unknown"
        key, fence = self._lease.key, self._lease.fence
        self._report("lost", f"lease lost ({reason}): {key}; {then}", key=key, reason=reason, fence=fence)
        self._term_until = time.monotonic() + self._grace

    def _on_stop(self, group: ProcessGroup, number: int) -> None:
        """The command was stopped: because it wants the terminal, or by Ctrl-Z while it had it."""
        if number in _WANTS_TERMINAL and self._terminal.lend(group.id):
            group.signal(signal.SIGCONT)
        elif self._terminal.lent and number in (signal.SIGTSTP, *_WANTS_TERMINAL):
            self._terminal.take_back(restore=False)
            os.kill(os.getpid(), signal.SIGSTOP)

    def _stop_with(self, group: ProcessGroup) -> None:
        """Ctrl-Z came to us: stop the command first. The lease is not renewed now, and may be lost meanwhile."""
        group.signal(signal.SIGTSTP)
        os.kill(os.getpid(), signal.SIGSTOP)

    def _go_on(self, group: ProcessGroup) -> None:
        """We were stopped and continue, and so does the command; in the foreground if it was there before."""
        group.signal(signal.SIGCONT)

    def _verdict(self, group: ProcessGroup) -> int:
        code, how = (Exit.LOST, "could not be ended") if group.status is None else ended_by(group.status)
        self._report("ended", f"the command {how}", quiet=not self.lost, code=int(code))
        return Exit.LOST if self.lost else code
