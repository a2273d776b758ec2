"""A small, well-behaved world for tests that need to know every step: one millisecond each way, nothing goes wrong."""

from __future__ import annotations

import random
from collections.abc import Callable, Coroutine, Generator, Sequence
from typing import Any

from holdfast.core.history.events import Record
from holdfast.testing.sim.environment.clock import SimClock, SimEntropy
from holdfast.testing.sim.environment.host import SimHost
from holdfast.testing.sim.environment.loop import SimLoop, end_tasks
from holdfast.testing.sim.environment.network import Network, Weather
from holdfast.testing.sim.environment.store import LeaseServer
from holdfast.types import MS, NS


class SmallWorld:
    """A store, and hosts that reach it. `records` is what their observers and the store have seen."""

    def __init__(self, *, request_timeout_ns: int = 2 * NS) -> None:
        self.loop = SimLoop()
        self.records: list[Record] = []
        self.network = Network(self.loop, random.Random(0), lambda who, what: None)
        self.network.weather = Weather(fastest_ns=MS, usual_ns=1)
        self.server = LeaseServer(self.loop, SimClock(self.loop), self.records.append)
        self._timeout_ns = request_timeout_ns
        self.hosts: list[SimHost] = []

    def note(self, record: Record) -> None:
        self.records.append(record)

    def host(self, name: str, policy: dict[str, str] | None = None) -> SimHost:
        host = SimHost(
            name,
            self.loop,
            self.network,
            self.server,
            clock=SimClock(self.loop),
            entropy=SimEntropy(name),
            observer=self,
            policy=policy or {},
            request_timeout_ns=self._timeout_ns,
            on_crash=_raise,
        )
        self.hosts.append(host)
        return host

    def run(self, main: Coroutine[Any, Any, Any]) -> Any:
        """Run it to its end, and let nothing of it live on."""
        return played(self.loop, self.hosts, main)


def played(loop: SimLoop, hosts: Sequence[SimHost], main: Coroutine[Any, Any, Any]) -> Any:
    """Run something in a world to its end, and let nothing of it live on."""
    try:
        return loop.run_until_complete(main)
    finally:
        for host in hosts:
            host.bury()
        end_tasks(loop)
        loop.close()


def _raise(error: Exception) -> None:
    raise error


class Probe(Coroutine[Any, Any, Any]):
    """A coroutine whose suspensions are counted; at each of them `suspended` is told what it waits for."""

    def __init__(self, inner: Coroutine[Any, Any, Any], suspended: Callable[[int, Any], None]) -> None:
        self._inner = inner
        self._suspended = suspended
        self.count = 0

    def send(self, value: Any) -> Any:
        return self._seen(self._inner.send(value))

    def throw(self, *error: Any) -> Any:
        return self._seen(self._inner.throw(*error))

    def close(self) -> None:
        self._inner.close()

    def __await__(self) -> Generator[Any, Any, Any]:
        return (yield from self._inner.__await__())

    def _seen(self, awaited: Any) -> Any:
        self.count += 1
        self._suspended(self.count, awaited)
        return awaited
