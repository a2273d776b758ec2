"""Which processes are alive: leases and tickets, judged by the clock and the process under which they were written.

Expiry is read on the boot-time clock of this machine. It counts suspend, steps of the wall clock do not change it, and
all processes read the same one. Each row names the clock and the process under which it was written:

- A row of an earlier boot of this machine is dead, because no process survives a reboot.
- A row of another machine is judged by the wall clock, so as well as the two wall clocks agree. So is every row on
  hosts that cannot tell one boot from another (macOS).
- A row whose process is proven dead is dead immediately.

Promises: `Host.gone` is True only on proof. A process is proven dead when it ran under our boot, our pid namespace
and our time namespace, and its pid is now free, a zombie, or another process's (another start time). The start time is
what the kernel reports on the boot-time clock of its reader, so another time namespace reads another one of the
very same process. Whatever cannot be read, or comes from elsewhere, counts as alive. `Host.rebooted` is True only for
an earlier boot of this very machine.

Clock: a `Host.clock` names the boot-time clock that other readings belong to. Linux only in this much detail: where
there is no `/proc`, the clock's name is made up for each process, so that no other process trusts its readings and
everything is judged by the wall clock, and no process is ever proven dead.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from holdfast.core.ports import Clock
from holdfast.stores.sqlite.connection import SqliteFile
from holdfast.stores.sqlite.errors import damaged
from holdfast.types import Instant

_DEAD_STATES = "ZXx"  # zombie, dead: it runs no instruction any more, only its parent has not reaped it yet


@dataclass(frozen=True, slots=True)
class Host:
    """This process, its boot and its namespaces. Created again in a forked child."""

    machine: str  # '': not known, so no other row can be said to come from this machine
    boot: str  # '': not known
    clock: str  # the name of the boot-time clock: machine, boot and time namespace
    place: str  # where socket addresses mean the same: boot and network namespace; '': nowhere
    pids: str  # where pids and start times mean the same: boot, pid and time namespace; '': not known
    process: str  # '': not known

    def rebooted(self, clock: str) -> bool:
        """Whether a reading was taken by this machine under another boot: its process cannot have survived."""
        machine, _, rest = clock.partition(".")
        boot, dot, _ = rest.partition(".")
        return bool(dot and self.machine and self.boot and machine == self.machine and boot != self.boot)

    def gone(self, process: str) -> bool:
        """Whether the process is proven dead."""
        if not process or process == self.process or not self.pids:
            return False
        pids, _, rest = process.partition("/")
        pid, slash, started = rest.partition("/")
        if pids != self.pids or not slash or not pid.isdecimal() or not started.isdecimal():
            return False
        return _gone(int(pid), started)


def this_host() -> Host:
    """Read who we are. Cheap enough for once per process, not for once per call."""
    boot = _short(_read("/proc/sys/kernel/random/boot_id"))
    identity = _read("/etc/machine-id") or _read("/var/lib/dbus/machine-id")
    # Cloned machines share a machine id; that they share the host name as well is what we bet on, and the caller does
    # not use `rebooted` for files that several machines can reach.
    machine = _short(f"{identity}/{socket.gethostname()}") if identity else ""
    net, pid, time = (_namespace(name) for name in ("net", "pid", "time"))
    # A container may see the `/proc` of another pid namespace; then its pids are not those that we see in ourselves.
    pids = f"{boot}:{pid}:{time}" if boot and pid and _link("/proc/self") == str(os.getpid()) else ""
    stat = _stat(os.getpid())
    return Host(
        machine=machine,
        boot=boot,
        clock=f"{machine or '-'}.{boot}.{time or '0'}" if boot else f"-.-{secrets.token_hex(8)}",
        place=f"{boot}:{net}" if boot and net else "",
        pids=pids,
        process=f"{pids}/{os.getpid()}/{stat[1]}" if pids and stat else "",
    )


def _gone(pid: int, started: str) -> bool:
    stat = _stat(pid)
    if stat is not None:
        return stat[1] != started or (stat[0] in _DEAD_STATES and _threads(pid) <= 1)
    try:
        os.kill(pid, 0)  # signal 0 is only a question: is there such a process?
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):
        return False
    return False  # there is one, but `/proc` hides it: not known, so not dead


def _stat(pid: int) -> tuple[str, str] | None:
    """State and start time of a process (fields 3 and 22), or None. The name before them may hold even a ')'."""
    fields = _read(f"/proc/{pid}/stat").rpartition(")")[2].split()
    return (fields[0], fields[19]) if len(fields) > 19 else None


def _threads(pid: int) -> int:
    """How many threads a process has. The first of them may be a zombie while others continue."""
    try:
        return len(os.listdir(f"/proc/{pid}/task"))  # noqa: PTH208 - a Path has nothing to add
    except OSError:
        return 0


def _link(path: str) -> str:
    try:
        return str(Path(path).readlink())
    except OSError:
        return ""


def _namespace(kind: str) -> str:
    try:
        return str(Path(f"/proc/self/ns/{kind}").stat().st_ino)
    except OSError:
        return ""


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def _short(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16] if text else ""


_TIME_MAX: Final = 2**63 - 1


def at(now_ns: int, later_ns: int) -> int:
    """When that will be, within the range that a row can hold."""
    return min(now_ns + later_ns, _TIME_MAX)


class LivenessJudge:
    """Judges rows by the clock and the identity of this process."""

    def __init__(self, file: SqliteFile, clock: Clock) -> None:
        self._file = file
        self._host: Host | None = None
        self._host_pid = -1
        self.now = clock.now

    @property
    def host(self) -> Host:
        """This process, read once, and again in a forked child."""
        if self._host is None or self._host_pid != os.getpid():
            self._host, self._host_pid = this_host(), os.getpid()
        return self._host

    def left_ns(self, row: Sequence[Any], now: Instant) -> int:
        """How long a row may still count: (clock, process, expires_ns, expires_wall_ns). Zero or less: it is dead."""
        clock, process, expires_ns, expires_wall_ns = row
        if [type(each) for each in row] != [str, str, int, int]:
            raise damaged(self._file.path)  # whose lease this is cannot be told, so it is not given to another
        host = self.host
        if clock == host.clock:
            left: int = expires_ns - now.boot
        elif host.rebooted(clock) and not self._file.shared:
            return 0
        else:
            left = expires_wall_ns - now.wall
        return 0 if left > 0 and host.gone(process) else left
