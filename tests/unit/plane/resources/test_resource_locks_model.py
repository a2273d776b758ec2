"""Resource locks against a model of them, in virtual time: whatever is done in whatever order, both say the same."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from holdfast.errors import LockBusy, NotOwner
from holdfast.plane.db.sqlite.database import SqliteDatabase
from holdfast.plane.resources.client_wait import ClientWait, WaitEnd
from holdfast.plane.resources.forced_release import ResourceBreaks
from holdfast.plane.resources.locks import ResourceLocks
from holdfast.plane.resources.model import READER_BLOCK_NS, ResourceGrant, ResourceHolder, ResourceMode, slot_of
from holdfast.runtime.system import SystemEntropy
from holdfast.types import MS, NS, Instant

T = TypeVar("T")

RESOURCES = st.sampled_from(["one", "two"])
OWNERS = st.sampled_from(["ann", "bob", "cyd"])
MODES = st.sampled_from(list(ResourceMode))
TTLS = st.sampled_from([1, 5, 30])


class VirtualClock:
    def __init__(self) -> None:
        self.now_ns = 1_700_000_000 * NS

    def now(self) -> Instant:
        return Instant(self.now_ns, self.now_ns, self.now_ns)


@dataclass
class Held:
    resource: str
    mode: ResourceMode
    owner: str
    token: str
    fence: int
    until_ns: int

    def extend(self, until_ns: int) -> None:
        self.until_ns = until_ns + (until_ns == self.until_ns)  # never to the same moment


@dataclass
class Model:
    """What should be the case."""

    known: list[Held] = field(default_factory=list)  # everything that was ever granted
    held: list[Held] = field(default_factory=list)  # what is stored: also what is over, until the next ask sweeps it
    reader_blocks: dict[tuple[str, str], int] = field(default_factory=dict)
    highest: dict[str, int] = field(default_factory=dict)

    def holders(self, resource: str, now_ns: int) -> list[Held]:
        return [each for each in self.held if each.resource == resource and each.until_ns > now_ns]

    def sweep(self, resource: str, now_ns: int) -> None:
        self.held = [each for each in self.held if each.resource != resource or each.until_ns > now_ns]
        self.reader_blocks = {
            key: until for key, until in self.reader_blocks.items() if key[0] != resource or until > now_ns
        }

    def alive(self, held: Held, now_ns: int) -> bool:
        return any(each is held for each in self.held) and held.until_ns > now_ns

    def free(self, resource: str, mode: ResourceMode, now_ns: int) -> bool:
        holders = self.holders(resource, now_ns)
        if mode is ResourceMode.EXCLUSIVE:
            return not holders
        waited = any(name == resource and until > now_ns for (name, _), until in self.reader_blocks.items())
        return not waited and all(each.mode is ResourceMode.SHARED for each in holders)


class ResourceLocksMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.runner = asyncio.Runner()
        self.clock = VirtualClock()
        self.model = Model()
        assert slot_of("t", "one") != slot_of("t", "two")  # one ask sweeps a slot; the model sweeps a resource
        self.run(self.open())

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.runner.run(work)

    async def open(self) -> None:
        path = str(Path(self.folder.name) / "plane.db")
        self.database = SqliteDatabase(path, synchronous="normal", hints="polling")
        self.locks = ResourceLocks(self.database, self.clock, SystemEntropy())
        await self.locks.prepare()

    def teardown(self) -> None:
        self.run(self.database.close())
        self.runner.close()
        self.folder.cleanup()

    @rule(resource=RESOURCES, mode=MODES, owner=OWNERS, ttl=TTLS)
    def acquire(self, resource: str, mode: ResourceMode, owner: str, ttl: int) -> None:
        now_ns = self.clock.now_ns
        self.model.sweep(resource, now_ns)
        expected = self.model.free(resource, mode, now_ns)
        grant: ResourceGrant | None
        try:
            grant = self.run(self.locks.acquire("t", resource, owner=owner, mode=mode, ttl=ttl))
        except LockBusy:
            grant = None
        assert (grant is not None) == expected
        if grant is None:
            if mode is ResourceMode.EXCLUSIVE:
                self.model.reader_blocks[resource, owner] = now_ns + READER_BLOCK_NS
            return
        fence = grant.holder.fence
        assert fence > self.model.highest.get(resource, 0)
        self.model.highest[resource] = fence
        if mode is ResourceMode.EXCLUSIVE:
            self.model.reader_blocks.pop((resource, owner), None)
        held = Held(resource, mode, owner, grant.token, fence, now_ns + ttl * NS)
        self.model.held.append(held)
        self.model.known.append(held)

    @rule(resource=RESOURCES, mode=MODES, owner=OWNERS)
    def ask_and_leave(self, resource: str, mode: ResourceMode, owner: str) -> None:
        """Whatever it would have been told, nothing of it stays but that fences may have risen."""
        gone = ClientWait()
        gone.end(WaitEnd.LEFT)
        self.model.sweep(resource, self.clock.now_ns)
        try:
            self.run(self.locks.acquire("t", resource, owner=owner, mode=mode, ttl=30, client=gone))
        except LockBusy:
            self.model.reader_blocks.pop((resource, owner), None)
            return
        raise AssertionError("a grant to a client that has disconnected")

    @rule(resource=RESOURCES)
    def take_away(self, resource: str) -> None:
        expected = [each.fence for each in self.model.holders(resource, self.clock.now_ns)]
        breaks = ResourceBreaks(self.database, self.locks)
        broken = self.run(breaks.force_release("t", resource, actor="ann", reason="a test"))
        assert [each.fence for each in broken] == sorted(expected)
        self.model.held = [each for each in self.model.held if each.resource != resource or each.fence not in expected]
        self.model.reader_blocks = {key: until for key, until in self.model.reader_blocks.items() if key[0] != resource}

    @precondition(lambda self: self.model.known)
    @rule(data=st.data(), ttl=TTLS)
    def ask_again_with_the_same_token(self, data: st.DataObject, ttl: int) -> None:
        held = data.draw(st.sampled_from(self.model.known))
        if not self.model.alive(held, self.clock.now_ns):
            return
        self.model.sweep(held.resource, self.clock.now_ns)
        same: Any = {"owner": held.owner, "mode": held.mode, "token": held.token}
        again = self.run(self.locks.acquire("t", held.resource, ttl=ttl, **same))
        assert again.holder.fence == held.fence
        held.extend(self.clock.now_ns + ttl * NS)

    @precondition(lambda self: self.model.known)
    @rule(data=st.data(), ttl=TTLS)
    def renew(self, data: st.DataObject, ttl: int) -> None:
        held = data.draw(st.sampled_from(self.model.known))
        self.by_the_owner(held, self.locks.renew("t", held.resource, held.token, ttl=ttl))
        if self.model.alive(held, self.clock.now_ns):
            held.extend(self.clock.now_ns + ttl * NS)

    @precondition(lambda self: self.model.known)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        held = data.draw(st.sampled_from(self.model.known))
        self.by_the_owner(held, self.locks.release("t", held.resource, held.token))
        if self.model.alive(held, self.clock.now_ns):
            self.model.held = [each for each in self.model.held if each is not held]

    def by_the_owner(self, held: Held, work: Coroutine[Any, Any, ResourceHolder]) -> None:
        try:
            answer = self.run(work)
        except NotOwner:
            assert not self.model.alive(held, self.clock.now_ns)
        else:
            assert self.model.alive(held, self.clock.now_ns)
            assert (answer.fence, answer.owner, answer.mode) == (held.fence, held.owner, held.mode)

    @precondition(lambda self: self.model.known)
    @rule(data=st.data())
    def a_stranger_releases_nothing(self, data: st.DataObject) -> None:
        held = data.draw(st.sampled_from(self.model.known))
        for resource, token in ((held.resource, held.owner), ("three", held.token)):
            try:
                self.run(self.locks.release("t", resource, token))
            except NotOwner:
                continue
            raise AssertionError("a stranger released a lock")

    @rule(by_ms=st.sampled_from([1, 999, 1000, 4000, 10_000, 40_000]))
    def time_passes(self, by_ms: int) -> None:
        self.clock.now_ns += by_ms * MS

    @rule(by_ms=st.sampled_from([1, 5000]))
    def the_clock_is_set_back(self, by_ms: int) -> None:
        """Holders keep what they have for longer, what is over and not swept counts again, fences rise."""
        self.clock.now_ns -= by_ms * MS

    @invariant()
    def both_say_the_same(self) -> None:
        for resource in ("one", "two"):
            shown = self.run(self.locks.holders("t", resource))
            expected = sorted(self.model.holders(resource, self.clock.now_ns), key=lambda each: each.fence)
            assert [(each.fence, each.owner, each.mode, each.remaining_ns) for each in shown] == [
                (each.fence, each.owner, each.mode, each.until_ns - self.clock.now_ns) for each in expected
            ]
            assert len(shown) <= 1 or all(each.mode is ResourceMode.SHARED for each in shown)


TestResourceLocks = ResourceLocksMachine.TestCase
TestResourceLocks.settings = settings(max_examples=40, stateful_step_count=30)
