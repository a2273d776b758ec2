"""A command in its own process group, with all its children: start it, signal it, and notice its end.

Promises: `gone` is true only when no process of the group is left, so the lease can be released then. Orphans of the
group become our children (Linux), so their end is noticed immediately and no zombie keeps the group alive. Does not
promise anything about processes that leave the group, as daemons do.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from holdfast.cli.supervise import exec_child
from holdfast.cli.supervise import watchdog as guardian

_PR_SET_CHILD_SUBREAPER = 36
_DESTROY_LIMIT_S, _DESTROY_LOOK_S = 10.0, 0.01


class Guardian:
    """Our end of the pipe to the guardian process."""

    def __init__(self) -> None:
        read, self._pipe = os.pipe()
        try:
            self._process = subprocess.Popen(  # noqa: S603 - our own interpreter and script
                _script(guardian.__file__), stdin=read, stdout=subprocess.DEVNULL, start_new_session=True
            )
        except BaseException:
            os.close(self._pipe)
            raise
        finally:
            os.close(read)
        os.set_blocking(self._pipe, False)

    @property
    def pid(self) -> int:
        """The guardian process."""
        return self._process.pid

    def tell(self, line: str) -> None:
        """Send it a line. A dead guardian is no error here: its death is noticed, and it is replaced."""
        with contextlib.suppress(BrokenPipeError, BlockingIOError):
            os.write(self._pipe, line.encode() + b"\n")

    def allow(self, seconds: float) -> None:
        """The lease is valid for so long from now."""
        self.tell(f"until {guardian.now_ns() + int(seconds * 1e9)}")

    def died(self, code: int) -> None:
        """It was reaped."""
        self._process.returncode = code
        os.close(self._pipe)

    def dismiss(self) -> None:
        """The command has ended normally."""
        self.tell("done")
        os.close(self._pipe)
        with contextlib.suppress(ChildProcessError):
            self._process.wait()


class ProcessGroup:
    """The command and all its children."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        _adopt_orphans()
        self._guardian: Guardian | None = Guardian()
        self.status: int | None = None  # from `waitpid`, once the command itself has ended
        self.stopped_by: int | None = None
        self._process = subprocess.Popen(  # noqa: S603 - running what the user asked for is the purpose
            [*_script(exec_child.__file__), str(os.getpid()), *command], env=environment, process_group=0
        )
        self._guardian.tell(f"group {self.id}")

    @property
    def id(self) -> int:
        """The process group, which is also the pid of the command."""
        return self._process.pid

    def signal(self, number: int) -> None:
        """Send a signal to every process of the group."""
        if self.status is None or not self.gone():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.id, number)

    def reap(self) -> None:
        """Process the status of all children. A guardian that died before the command is replaced."""
        self.stopped_by = None
        for pid, status in _news():
            if os.WIFSTOPPED(status):
                self.stopped_by = os.WSTOPSIG(status) if pid == self.id else self.stopped_by
            elif pid == self.id:
                self.status = status
                self._process.returncode = os.waitstatus_to_exitcode(status)
            elif self._guardian is not None and pid == self._guardian.pid:
                self._guardian.died(os.waitstatus_to_exitcode(status))
                self._guardian = None
        if self._guardian is None and self.status is None:
            self._guardian = Guardian()
            self._guardian.tell(f"group {self.id}")

    def gone(self) -> bool:
        """Whether no process of the group is left."""
        if self.status is None:
            return False
        try:
            os.killpg(self.id, 0)
        except ProcessLookupError:
            return True
        except PermissionError:
            return False  # there is one, of another user
        return False

    def allow(self, seconds: float) -> None:
        """The lease is valid for so long from now; without a later call, the guardian ends the group then."""
        if self._guardian is not None:
            self._guardian.allow(seconds)

    def destroy(self) -> None:
        """Kill the group, and return when it is gone, or when it cannot be killed."""
        limit = time.monotonic() + _DESTROY_LIMIT_S
        while not self.gone() and time.monotonic() < limit:
            self.signal(signal.SIGKILL)
            self.reap()
            time.sleep(_DESTROY_LOOK_S)

    def dismiss(self) -> None:
        """The group is gone: the guardian has nothing left to guard."""
        guardian, self._guardian = self._guardian, None
        if guardian is not None:
            guardian.dismiss()


def _news() -> Iterator[tuple[int, int]]:
    """Pid and status of every child that has ended or stopped since the last time."""
    while True:  # ends when there is no more news, or no child
        try:
            pid, status = os.waitpid(-1, os.WNOHANG | os.WUNTRACED)
        except ChildProcessError:
            return
        if pid == 0:
            return
        yield pid, status


def _script(path: str) -> list[str]:
    return [sys.executable, "-I", "-S", str(Path(path).resolve())]


def _adopt_orphans() -> None:
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1)


def ended_by(status: int) -> tuple[int, str]:
    """The exit code for a status of `waitpid`, and its text."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        return 128 + number, f"was ended by {signal_name(number)}"
    code = os.WEXITSTATUS(status)
    return code, f"ended with exit code {code}"


def signal_name(number: int) -> str:
    """SIGTERM rather than 15."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
