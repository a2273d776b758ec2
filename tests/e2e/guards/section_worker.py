"""Another process that holds a lease and writes to one guarded resource: told what to do over stdin, a JSON line each.

It first has to `open`: it is given the URL of the leases, the factory of a subject of the guard kit (pickled, in
base64) and the resource. After `close` it can be used again. Every answer to a step says which failpoints it has
passed, and a step can be told to stop the whole process, as a suspended machine is, at the moment at which the lease
has been checked and nothing has been sent.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import pickle
import signal
import sys
from collections import Counter
from contextlib import ExitStack
from dataclasses import asdict
from functools import partial
from inspect import isawaitable
from typing import Any

import holdfast
from holdfast.core import failpoints
from holdfast.guards.admission import Admission

COUNTED = ("accepted", "refused", "lost")
DOORS: list[Admission] = []  # of the resource that is open


class Worker:
    """One lease, one subject."""

    def __init__(self, leases: str, factory: Any, resource: str, loop: asyncio.Runner) -> None:
        DOORS.clear()
        self.loop = loop
        self.resource = resource
        self.locks = holdfast.connect(leases, service="worker", request_timeout=5.0)
        self.subject = self.settled(factory(resource))
        self.lease: Any = None

    def acquire(self, ttl: float, timeout: float | None = None) -> dict[str, Any]:
        self.lease = self.locks.lock(self.resource, ttl=ttl).acquire(timeout)
        return {"fence": self.lease.fence}

    def release(self) -> dict[str, Any]:
        return {"released": self.lease.release()}

    def ensure(self) -> dict[str, Any]:
        return self._tried(self.lease.ensure_held)

    def look(self) -> dict[str, Any]:
        value, fence = self.settled(self.subject.look())
        return {"value": value, "fence": fence}

    def step(self, what: str, value: str | None = None, stop_at: int | None = None) -> dict[str, Any]:
        """Enter, write, overwrite or delete; with `stop_at`, stop after so many checks of the lease."""
        reached: list[str] = []

        def at(point: str) -> None:
            reached.append(point)
            if point == "guard.admitted" and reached.count(point) == stop_at:
                os.kill(os.getpid(), signal.SIGSTOP)

        arguments = [self.lease] if value is None else [self.lease, value]
        with ExitStack() as armed:
            for point in failpoints.points("guard"):
                armed.enter_context(failpoints.armed(point.name, partial(at, point.name)))
            answer = self._tried(lambda: self.settled(getattr(self.subject, what)(*arguments)))
        return {**answer, "reached": reached}

    def statistics(self) -> dict[str, int]:
        """What the guards of this process have decided, all together."""
        counts: Counter[str] = Counter()
        for door in DOORS:
            counts.update(asdict(door.statistics()))
        return {name: counts[name] for name in COUNTED}

    def settled(self, answer: Any) -> Any:
        """The answer of a call in either color."""

        async def wait() -> Any:
            return await answer

        return self.loop.run(wait()) if isawaitable(answer) else answer

    def close(self) -> dict[str, Any]:
        self.settled(self.subject.close())
        self.locks.close()
        self.lease = None
        return {"closed": True}

    def _tried(self, act: Any) -> dict[str, Any]:
        try:
            value = act()
        except holdfast.HoldfastError as error:
            fence, seen = getattr(error, "fence", None), getattr(error, "seen", None)
            return {"error": type(error).__name__, "text": str(error), "fence": fence, "seen": seen}
        return {"error": None, "value": value if isinstance(value, str) else None}


def introduce() -> None:
    """Know every guard that is made in this process: some are made for one session, and one request, only."""
    made = Admission.__init__

    def known(self: Admission, *arguments: Any, **settings: Any) -> None:
        made(self, *arguments, **settings)
        DOORS.append(self)

    Admission.__init__ = known  # type: ignore[method-assign]


def main() -> None:
    """Read, do, answer, until the input ends."""
    introduce()
    with asyncio.Runner() as loop:
        worker: Worker | None = None
        for line in sys.stdin:
            command = json.loads(line)
            verb = command.pop("do")
            if verb == "open":
                factory = pickle.loads(base64.b64decode(command["factory"]))
                worker = Worker(command["leases"], factory, command["resource"], loop)
                answer: Any = {"ready": True}
            else:
                answer = getattr(worker, verb)(**command)
            print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
