"""Who is still alive in the file: leases and tickets, judged by the clock and the process they were written under.

Clock: expiry is read on the boot-time clock of this machine: it counts suspend, no step of the wall clock touches it,
and all processes read the same one. Each row names the clock under which it was written (see `host_identity.Host`). A
row of an earlier boot of this machine is dead, for no process survives a reboot. A row of another machine is judged by
the wall clock, as well as the two wall clocks agree; so is everything on hosts that cannot tell one boot from another
(macOS). A row whose process is proven dead is dead immediately.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, Final

from holdfast.core.ports import Clock
from holdfast.stores.sqlite.connection import SqliteFile
from holdfast.stores.sqlite.errors import damaged
from holdfast.stores.sqlite.host_identity import Host, this_host
from holdfast.types import Instant

_TIME_MAX: Final = 2**63 - 1


def at(now_ns: int, later_ns: int) -> int:
    """When that will be, within the range that a row can hold."""
    return min(now_ns + later_ns, _TIME_MAX)


class LivenessJudge:
    """Reads the clocks, and knows on what ground this process stands."""

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
