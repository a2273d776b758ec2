"""The clocks and the chance of this host. The only file that reads either."""

from __future__ import annotations

import os
import random
import secrets
import socket
import time
import weakref
from time import monotonic_ns, time_ns

from holdfast.types import Instant, Owner, check_label

_BOOT_CLOCK: int | None = getattr(time, "CLOCK_BOOTTIME", None)


_ENTROPIES: weakref.WeakSet[SystemEntropy] = weakref.WeakSet()


class SystemClock:
    """Real time. Where the host has no boot-time clock (macOS, Windows), the monotonic clock stands in for it."""

    __slots__ = ()

    def now(self) -> Instant:
        """Read all three clocks."""
        mono = monotonic_ns()
        boot = mono if _BOOT_CLOCK is None else time.clock_gettime_ns(_BOOT_CLOCK)
        return tuple.__new__(Instant, (mono, boot, time_ns()))  # this is read several times in every acquisition


class SystemEntropy:
    """Secrets from the operating system; jitter from a generator of its own that nobody else seeds."""

    __slots__ = ("__weakref__", "_random", "_randrange")

    def __init__(self) -> None:
        self._random = random.Random(secrets.randbits(128))  # noqa: S311 - jitter, not a secret
        self._randrange = self._random.randrange
        _ENTROPIES.add(self)

    def token(self) -> str:
        """128 fresh bits as hexadecimal text. Read from the system each time, so a fork cannot repeat one."""
        return os.urandom(16).hex()

    def below(self, n: int) -> int:
        """A uniform integer in [0, n)."""
        return self._randrange(n)

    def forked(self) -> None:
        """In a child process: draw differently from the parent, or a pool of workers would retry in phase."""
        self._random.seed(secrets.randbits(128))


def this_owner(service: str | None = None, instance: str | None = None) -> Owner:
    """Who we are, for people: service, host, process, and a short random instance when none was given."""
    host = "".join(c if c.isalnum() or c in "._-" else "-" for c in socket.gethostname()) or "host"
    return Owner(
        service=check_label("service", service or "holdfast"),
        host=host[:64],
        pid=os.getpid(),
        instance=check_label("instance", instance or secrets.token_hex(3)),
    )


def _after_fork() -> None:
    for entropy in list(_ENTROPIES):
        entropy.forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
