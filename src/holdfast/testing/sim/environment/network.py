"""The network of a simulated world: slow, lossy, repeating, one-sided, and out of order, as its settings say.

A request and its reply are two messages with a fate each. A message can be late, lost, delivered twice (the second time
much later), swallowed by a partition of one direction, or kept back by a clog and let go in another order.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from holdfast.errors import BackendError, Unavailable
from holdfast.testing.sim.environment.clock import drawing
from holdfast.testing.sim.environment.domain import Domain
from holdfast.testing.sim.environment.loop import SimLoop
from holdfast.types import MS, NS

Act: TypeAlias = Callable[[], Any]
Trace: TypeAlias = Callable[[str, str], None]


@dataclass(slots=True)
class Weather:
    """How likely what is. Chances are in thousandths of a message; delays in nanoseconds, one way."""

    fastest_ns: int = MS // 10
    usual_ns: int = 3 * MS
    slow: int = 0
    slowest_ns: int = NS
    lost: int = 0
    repeated: int = 0
    repeat_after_ns: int = 4 * NS

    def latest_ns(self) -> int:
        """How long after it was sent a message can still arrive."""
        return self.usual_ns + self.slowest_ns + self.repeat_after_ns


CALM = Weather()


class Server:
    """The far end of a call: a domain that can be stopped, and that can refuse while it is down."""

    def __init__(self, name: str) -> None:
        self.domain = Domain(name)
        self.context = self.domain.context()
        self.down = False
        self.ailing = 0  # in how many of a thousand calls it answers that it cannot serve now

    @property
    def name(self) -> str:
        """What it is called in traces."""
        return self.domain.name


class Network:
    """Every message between hosts and servers."""

    def __init__(self, loop: SimLoop, chance: random.Random, trace: Trace) -> None:
        self.loop = loop
        self.weather = CALM
        self._chance = chance
        self._below = drawing(chance)
        self._trace = trace
        self._blocked: set[tuple[str, str]] = set()  # only asked for membership, never iterated
        self._clogged = False
        self._kept: list[tuple[Callable[[], None], Any]] = []

    def block(self, source: str, target: str) -> None:
        """Swallow everything that goes this way."""
        self._blocked.add((source, target))

    def unblock(self, source: str, target: str) -> None:
        """Let it through again."""
        self._blocked.discard((source, target))

    def clog(self) -> None:
        """Keep every message back."""
        self._clogged = True

    def unclog(self) -> None:
        """Let go of what was kept back, in another order."""
        self._clogged = False
        kept, self._kept = self._kept, []
        self._chance.shuffle(kept)
        for deliver, context in kept:
            self.loop.call_after_ns(self._below(5 * MS), deliver, context=context)

    def heal(self) -> None:
        """Good weather, no partitions, nothing kept back."""
        self.weather = CALM
        self._blocked.clear()
        self.unclog()

    def call(
        self, host: str, server: Server, what: str, act: Act, *, once: bool = False, late_ns: int = 0
    ) -> asyncio.Future[Any]:
        """Send a request. The future gets the reply, or a refusal, or nothing at all.

        `once`: never delivered twice. `late_ns`: how much longer than the weather says the request takes.
        """
        answer: asyncio.Future[Any] = self.loop.create_future()
        refused = False

        def reply(outcome: Any) -> None:
            self._send(server.name, host, lambda: _resolve(answer, outcome), _NOWHERE, f"{what} -> {_short(outcome)}")

        def arrive() -> None:
            nonlocal refused
            if refused:
                return  # the repetition of a call that was refused: refused means that it never has an effect
            if server.down:
                refused = True
                reply(Unavailable(f"{server.name} refused the connection"))
                return
            if server.ailing and self._below(1000) < server.ailing:
                refused = True
                reply(Unavailable(f"{server.name} cannot serve now"))
                return
            reply(act())

        self._send(host, server.name, arrive, server.context, what, late_ns)
        if not once and self.weather.repeated and self._below(1000) < self.weather.repeated:
            late = self._below(self.weather.repeat_after_ns)
            self.loop.call_after_ns(
                late, self._send, host, server.name, arrive, server.context, f"{what} again", context=_NOWHERE
            )
        return answer

    def tell(self, server: str, host: str, deliver: Callable[[], None]) -> None:
        """Send a message without a reply."""
        self._send(server, host, deliver, _NOWHERE, "hint")

    def delay_ns(self) -> int:
        """How long a message takes now."""
        weather = self.weather
        delay = weather.fastest_ns + self._below(weather.usual_ns)
        if weather.slow and self._below(1000) < weather.slow:
            delay += self._below(weather.slowest_ns)
        return delay

    def _send(
        self, source: str, target: str, deliver: Callable[[], None], context: Any, what: str, late_ns: int = 0
    ) -> None:
        delay = self.delay_ns() + late_ns
        if (source, target) in self._blocked or (self.weather.lost and self._below(1000) < self.weather.lost):
            self._trace(source, f"to {target}: {what} LOST")
            return
        self._trace(source, f"to {target}: {what} in {delay}")
        if self._clogged:
            self._kept.append((deliver, context))
            return
        self.loop.call_after_ns(delay, deliver, context=context)


_NOWHERE = Domain("network").context()  # packets in flight belong to no host, so no pause delays them


def _resolve(answer: asyncio.Future[Any], outcome: Any) -> None:
    if answer.done():
        return
    if isinstance(outcome, BackendError):
        answer.set_exception(outcome)
    else:
        answer.set_result(outcome)


def _short(outcome: Any) -> str:
    return type(outcome).__name__ if not isinstance(outcome, bool | int | list | None) else str(outcome)
