"""A worker of a drill: an ordinary process that takes locks, reads and writes under them, and keeps an audit ledger.

It reads one command per line (JSON) and answers with one event per line, so that the director waits for events and
never guesses durations. Run with `python -m holdfast.drills.worker PARENT`; its first line is its configuration instead
of a command.

Promises: it dies with its parent, even if the parent is killed and even while the worker is stopped (by the kernel on
Linux; elsewhere it ends when its input ends, as soon as it runs).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import queue
import sys
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import holdfast
from holdfast import aio
from holdfast.core import failpoints
from holdfast.drills.env.clocks import Offsets
from holdfast.drills.env.processes import tie_to
from holdfast.drills.model import Guard
from holdfast.drills.scenarios.retry_waves import contend
from holdfast.drills.scenarios.soak_worker import Resident
from holdfast.drills.scenarios.storm_worker import hold_leases, queue_waiters
from holdfast.drills.verdict.account import Account, Balance
from holdfast.drills.verdict.effects import Effects
from holdfast.errors import BackendError, LeaseLost, LockBusy, NotOwner, PolicyDenied
from holdfast.leases.sync.lease import DegradedLease, Lease
from holdfast.observe.ledger.writer import Ledger

POLICY = {"closed": "fail_closed", "open": "fail_open", "wait": "wait"}
_BREATH_S = 0.02

T = TypeVar("T")


class DrillWorker:
    """Runs commands, and reports the results."""

    def __init__(
        self,
        *,
        name: str,
        url: str,
        scene: str,
        prefix: str,
        guard: str,
        ttl: float,
        request_timeout: float,
        moved: str | None = None,
    ) -> None:
        """`moved`: the file with the offsets of our clocks, so that our reports have true times."""
        place = Path(scene)
        self._now_ns = time.time_ns if moved is None else Offsets(Path(moved)).true_now_ns
        self._name = name
        self._prefix = prefix
        self._ttl = ttl
        self._ledger = Ledger(place / "ledger", everything=True, sync=None)
        self._locks = holdfast.connect(
            url, service=name, policy=POLICY, observers=[self._ledger], request_timeout=request_timeout
        )
        self._aio = partial(aio.connect, url, service=name, observers=[self._ledger], request_timeout=request_timeout)
        self._account = Account(place / "account.db", Guard(guard), self._ledger, self._now_ns)
        self._effects = Effects(place / "effects.db", name)
        self._lease: Lease | None = None
        self._seen = Balance(0, 0)
        self._lines: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._stop = threading.Event()
        self._orders: Mapping[str, Callable[..., None]] = {
            "take": self.take,
            "read": self.read,
            "write": self.write,
            "insist": self.insist,
            "standing": self.standing,
            "release": self.release,
            "add": self.add,
            "serve": self.serve_items,
            "contend": self.contend,
            "queue_waiters": self.queue_waiters,
            "hold_leases": self.hold_leases,
            "run_resident": self.run_resident,
        }

    def serve(self) -> None:
        """Run commands until there are no more."""
        threading.Thread(target=self._listen, daemon=True).start()
        self.tell("ready")
        while (order := self._lines.get()).get("do") != "end":
            do = order.pop("do")
            if do not in ("go", "stop"):  # one that came when no command waited for it any more
                self._orders[do](**order)
        self._locks.close()
        self._ledger.close()
        self._account.close()
        self._effects.close()

    def tell(self, event: str, **fields: Any) -> None:
        """Report an event."""
        sys.stdout.write(json.dumps({"event": event, "at_ns": self._now_ns(), **fields}) + "\n")
        sys.stdout.flush()

    def take(self, key: str) -> None:
        """Acquire a lock, however long that takes, and keep it."""
        self.tell("asking", key=key)
        lock = self._locks.lock(key, ttl=self._ttl, family="drill")
        lease = self._lease = _insisting(lock.acquire)
        self.tell("granted", fence=lease.fence)

    def read(self) -> None:
        """Read the balance under the lease; a full guard registers the fence first."""
        found = self._account.read(self._held())
        self._seen = self._seen if found is None else found
        self.tell("read", accepted=found is not None, balance=self._seen.balance, version=self._seen.version)

    def write(self, version: int, *, held_up: bool = False, deaf: bool = False) -> None:
        """Add 1 to the read balance. `held_up`: report between the check of the lease and the write, and wait there."""
        lease, based_on = self._held(), self._seen.version
        new = Balance(self._seen.balance + 1, version)
        point = failpoints.armed("guard.admitted", self._wait_for_go) if held_up else contextlib.nullcontext()
        with point:
            accepted = self._account.write(lease, new, based_on, self._name, deaf=deaf)
        self.tell("wrote", fence=lease.fence, version=version, accepted=accepted)

    def insist(self) -> None:
        """Continue as an owner that does not check its lease: renew, then release. The store is asked each time."""
        lease = self._held()
        lease_record = lease._lease_record  # noqa: SLF001 - the lease would refuse; the drill asks the store
        token = f"{lease_record.token}.{lease_record.renewal.claim}"
        renew, release = partial(self._locks.renew_token, lease.key, token, lease.ttl), self._locks.release_token
        self.tell("renewal", accepted=not _refused(renew))
        self.tell("release", accepted=not _refused(partial(release, lease.key, token)))

    def standing(self) -> None:
        """Report the state of the lease."""
        lease = self._held()
        self.tell("standing", held=lease.held, reason=lease.lost.reason)

    def release(self) -> None:
        """Release the lease."""
        self.tell("released", confirmed=self._held().release())

    def add(self, key: str, first: int, step: int, think: float) -> None:
        """Take the lock, read, think, write and release repeatedly until told to stop. Its versions are unique."""
        version, added, refused, lost, failed = first, 0, 0, 0, 0
        lock = self._locks.lock(key, ttl=self._ttl, family="drill", timeout=1.0)
        while not self._stop.is_set():
            try:
                with lock as lease:
                    self._lease = lease
                    found = self._account.read(lease)
                    time.sleep(think)
                    if found is None or not self._account.write(
                        lease, Balance(found.balance + 1, version), found.version, self._name
                    ):
                        refused += 1
                    else:
                        added += 1
                        version += step
            except LeaseLost:
                lost += 1
            except (LockBusy, BackendError):
                failed += 1
            time.sleep(_BREATH_S)
        self.tell("added", added=added, refused=refused, lost=lost, failed=failed)

    def serve_items(self, risk: str, items: int, each: float, ttl: float) -> None:
        """Process numbered items once each, as a replica does: under a lock of the class, until told to stop."""
        counts = {"done": 0, "degraded": 0, "denied": 0, "failed": 0}
        for item in range(items):
            if self._stop.is_set():
                break
            self._one(risk, item, each, ttl, counts)
        self.tell("served", **counts)

    def _one(self, risk: str, item: int, each: float, ttl: float, counts: dict[str, int]) -> None:
        """Try one item until a replica has done it, or the time has ended."""
        key = f"{self._prefix}{risk}:{item}"
        while not self._stop.is_set() and not self._effects.done(risk, item):
            try:
                with self._locks.lock(key, risk=risk, ttl=ttl, family=f"drill.{risk}", timeout=1.0) as lease:
                    degraded = isinstance(lease, DegradedLease)
                    if not self._effects.done(risk, item):
                        self._effects.attempt(risk, item, lease.fence)
                        time.sleep(each)
                        self._effects.effect(risk, item)
                        counts["degraded" if degraded else "done"] += 1
            except LeaseLost:
                continue
            except PolicyDenied:
                counts["denied"] += 1
            except (LockBusy, BackendError):
                counts["failed"] += 1
            self._stop.wait(_BREATH_S)

    def contend(self, key: str, delay: str, threads: int, holds: int, hold: float, seed: int) -> None:
        """Run many contenders in this process; each retries after the delay when the lock is busy."""
        found = contend(self._locks, key, delay, threads, holds, hold, seed, self._stop, ttl=self._ttl)
        self.tell("contended", **found)

    def queue_waiters(self, **wanted: Any) -> None:
        """Run thousands of waiters for one lock in this process. See `drills.scenarios.storm_worker`."""
        found = asyncio.run(queue_waiters(self._aio(), self._account, self._name, self.tell, **wanted))
        self.tell("waiters_done", **found)

    def hold_leases(self, **wanted: Any) -> None:
        """Keep thousands of leases in this process. See `drills.scenarios.storm_worker`."""
        self.tell("leases_done", **asyncio.run(hold_leases(self._aio(), self.tell, prefix=self._prefix, **wanted)))

    def run_resident(self, **wanted: Any) -> None:
        """Use leases until told to stop. See `drills.scenarios.soak_worker`."""
        resident = Resident(self._aio(), self._locks, self._account, self._name, self._stop, **wanted)
        self.tell("resident_done", **asyncio.run(resident.live()))

    def _wait_for_go(self) -> None:
        self.tell("held_up")
        while self._lines.get().get("do") != "go":
            continue

    def _listen(self) -> None:
        for line in sys.stdin:
            order = json.loads(line)
            if order["do"] == "stop":
                self._stop.set()
            elif order["do"] == "start":
                self._stop.clear()
            else:
                self._lines.put(order)
        os._exit(1)  # the director is gone

    def _held(self) -> Lease:
        if self._lease is None:
            raise RuntimeError("got a command to use a lease before one to take it")
        return self._lease


def _insisting(act: Callable[[], T]) -> T:
    """Retry what a slow or unreachable store does not answer; the director has a time limit."""
    while True:  # ends with an answer, or with this process
        try:
            return act()
        except BackendError:
            time.sleep(_BREATH_S)


def _refused(act: Callable[[], None]) -> bool:
    try:
        _insisting(act)
    except NotOwner:
        return True
    return False


def main() -> None:
    """Serve."""
    tie_to(int(sys.argv[1]))
    log = logging.getLogger("holdfast")
    log.addHandler(logging.NullHandler())
    log.propagate = False
    DrillWorker(**json.loads(sys.stdin.readline())).serve()


if __name__ == "__main__":
    main()
