"""A worker of the demonstration: an ordinary process that takes locks and writes under them.

Reads one order per line (JSON) and answers with one event per line, so that the director can wait for what happened
instead of guessing how long it takes. Run with `python -m holdfast.cli.demo_worker NAME URL ACCOUNT`.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

import holdfast
from holdfast.blocking.lease import Lease
from holdfast.cli.demo_account import Account
from holdfast.errors import NotOwner


class Worker:
    """Does what it is told, and says what came of it."""

    def __init__(self, name: str, url: str, account: str) -> None:
        self._locks = holdfast.connect(url, service=name, request_timeout=30)
        self._account = Account(account, name)
        self._lease: Lease | None = None
        self._read = 0
        self._orders: Mapping[str, Callable[..., None]] = {
            "add": self.add,
            "take": self.take,
            "write": self.write,
            "insist": self.insist,
            "give_back": self.give_back,
        }

    def serve(self) -> None:
        """Follow orders until there are no more."""
        self.tell("ready")
        for line in sys.stdin:
            order = json.loads(line)
            self._orders[order.pop("do")](**order)

    def tell(self, event: str, **fields: Any) -> None:
        """Say what happened."""
        print(json.dumps({"event": event, **fields}), flush=True)

    def add(self, key: str, ttl: float, times: int) -> None:
        """Add 1 to the balance, under the lock, so many times."""
        for _ in range(times):
            with self._locks.lock(key, ttl=ttl) as lease:
                entered = self._account.enter(lease.fence)
                before = self._account.balance()
                accepted = entered and self._account.write(lease.fence, before + 1)
                self._account.leave(lease.fence)
                self.tell("added", fence=lease.fence, before=before, after=before + 1, accepted=accepted)
        self.tell("done")

    def take(self, key: str, ttl: float) -> None:
        """Take the lock, however long that takes, and read the balance; keep the lock."""
        self.tell("asking", key=key)
        asked = time.monotonic()
        self._lease = self._locks.lock(key, ttl=ttl).acquire()
        self._account.enter(self._lease.fence)
        self._read = self._account.balance()
        self.tell("granted", fence=self._lease.fence, waited=time.monotonic() - asked, balance=self._read)

    def write(self, amount: int) -> None:
        """Write what was read and the amount, under the lease that is held."""
        lease = self._held()
        accepted = self._account.write(lease.fence, self._read + amount)
        self.tell("wrote", fence=lease.fence, before=self._read, after=self._read + amount, accepted=accepted)

    def insist(self, amount: int) -> None:
        """Go on as an owner that does not look at its lease: renew, release, write. The store is asked each time."""
        lease = self._held()
        tenure = lease._tenure  # noqa: SLF001 - a lease refuses by itself; here its token goes to the store all the same
        token = f"{tenure.token}.{tenure.renewal.claim}"
        self.tell("renewal", accepted=not _refused(lambda: self._locks.renew_token(lease.key, token, lease.ttl)))
        self.tell("release", accepted=not _refused(lambda: self._locks.release_token(lease.key, token)))
        self.write(amount)
        self.tell("standing", held=lease.held, reason=lease.lost.reason)

    def give_back(self) -> None:
        """Release what is held."""
        lease = self._held()
        self._account.leave(lease.fence)
        self.tell("gave_back", confirmed=lease.release(), fence=lease.fence)

    def _held(self) -> Lease:
        if self._lease is None:
            raise RuntimeError("was told to use a lease before it was told to take one")
        return self._lease


def _refused(act: Callable[[], None]) -> bool:
    try:
        act()
    except NotOwner:
        return True
    return False


if __name__ == "__main__":
    logging.getLogger("holdfast").addHandler(logging.NullHandler())
    logging.getLogger("holdfast").propagate = False
    Worker(*sys.argv[1:4]).serve()
