"""The clocks and random numbers of this host. The only module that reads them."""

from __future__ import annotations

import os
import random
import secrets
import socket
import time
import weakref
from collections import deque
from time import monotonic_ns, time_ns

from holdfast.types import Instant, Owner, check_label

_TOKEN_BYTES = 16
_TOKENS = 64  # drawn together
_BOOT_CLOCK: int | None = getattr(time, "CLOCK_BOOTTIME", None)
_gettime_ns = getattr(time, "clock_gettime_ns", None) or (lambda _: monotonic_ns())  # not on Windows
_instant = tuple.__new__


_ENTROPIES: weakref.WeakSet[SystemEntropy] = weakref.WeakSet()


class SystemClock:
    """Real time. Where the host has no boot-time clock (macOS, Windows), the monotonic clock stands in for it."""

    __slots__ = ()

    def now(self) -> Instant:
        """Read all three clocks."""
        mono = monotonic_ns()
        boot = mono if _BOOT_CLOCK is None else _gettime_ns(_BOOT_CLOCK)
        return _instant(Instant, (mono, boot, time_ns()))  # this is read several times in every acquisition


class SystemEntropy:
    """Secrets from the operating system; jitter from a private generator.

    Many secrets are drawn together: each call to the system releases the interpreter's lock, and in a busy program it
    takes a hundred times longer to get the lock back than to draw the bytes. Stored secrets belong to one process.
    """

    __slots__ = ("__weakref__", "_pid", "_random", "_randrange", "_tokens")

    def __init__(self) -> None:
        self._tokens: deque[str] = deque()
        self._pid = os.getpid()
        self._random = random.Random(secrets.randbits(128))  # noqa: S311 - jitter, not a secret
        self._randrange = self._random.randrange
        _ENTROPIES.add(self)

    def token(self) -> str:
        """128 fresh bits as hexadecimal text. Each is used once, by one process: a fork cannot repeat one."""
        if self._pid != os.getpid():  # a fork that did not come through Python
            self.forked()
        try:
            return self._tokens.popleft()  # in one step, also among threads
        except IndexError:
            text = os.urandom(_TOKEN_BYTES * _TOKENS).hex()
            first, *rest = (text[at : at + 2 * _TOKEN_BYTES] for at in range(0, len(text), 2 * _TOKEN_BYTES))
            self._tokens.extend(rest)
            return first

    def below(self, n: int) -> int:
        """A uniform integer in [0, n)."""
        return self._randrange(n)

    def forked(self) -> None:
        """In a child process: draw differently from the parent, or a pool of workers would retry in phase."""
        self._tokens = deque()
        self._pid = os.getpid()
        self._random.seed(secrets.randbits(128))


def this_owner(service: str | None = None, instance: str | None = None) -> Owner:
    """The owner to show to people: service, host, process, and a short random instance if none was given."""
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
