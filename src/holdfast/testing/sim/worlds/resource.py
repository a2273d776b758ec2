"""What the leases of a simulated world protect: one number for each key, behind a fence, at the far end of the network.

A holder registers its fence with its first read, and every write is checked: accepted if no higher fence was seen. The
same rule as for a real guard, so what the checkers say of it holds for real resources that follow it.
"""

from __future__ import annotations

from collections.abc import Callable

from holdfast.core.history.events import EventKind, Record
from holdfast.errors import FencedOut
from holdfast.testing.sim.environment.network import Network, Server
from holdfast.testing.sim.environment.store import Note, answered
from holdfast.types import NS

PATIENCE_NS = 2 * NS


class FencedResource(Server):
    """One guarded number."""

    def __init__(self, key: str, network: Network, note: Note) -> None:
        super().__init__(f"resource:{key}")
        self.key = key
        self._network = network
        self._note = note
        self._seen = 0
        self._version = 0

    async def read(self, host: str, owner: str, fence: int) -> int:
        """Register the fence, and read. `FencedOut` when a newer one was here; `Timeout` without an answer."""
        return await self._ask(host, "read", fence, lambda: self._read(owner, fence))

    async def write(self, host: str, owner: str, fence: int, based_on: int, late_ns: int = 0) -> int:
        """Write a new version, made from the one that was read. It may arrive after its sender has given up."""
        return await self._ask(host, "write", fence, lambda: self._write(owner, fence, based_on), late_ns)

    def accepts(self, fence: int) -> bool:
        """The rule of a guard: not below what was seen. The same grant may come many times."""
        return fence >= self._seen

    async def _ask(self, host: str, verb: str, fence: int, act: Callable[[], int | None], late_ns: int = 0) -> int:
        what = f"{verb} {self.key}"
        answer = self._network.call(host, self, what, act, once=True, late_ns=late_ns)
        version: int | None = await answered(self._network.loop, answer, what, PATIENCE_NS)
        if version is None:
            raise FencedOut(f"{what}: a newer fence than {fence} was here", fence=fence, seen=self._seen)
        return version

    def _read(self, owner: str, fence: int) -> int | None:
        return self._version if self._admit(EventKind.READ, owner, fence, self._version, None) else None

    def _write(self, owner: str, fence: int, based_on: int) -> int | None:
        version = self._version + 1
        if not self._admit(EventKind.WRITE, owner, fence, version, based_on):
            return None
        self._version = version
        return version

    def _admit(self, kind: EventKind, owner: str, fence: int, value: int, based_on: int | None) -> bool:
        ok = self.accepts(fence)
        now = self._network.loop.now_ns
        self._note(Record(kind, now, self.key, owner=owner, fence=fence, ok=ok, value=value, based_on=based_on))
        if ok:
            self._seen = max(self._seen, fence)
        return ok
