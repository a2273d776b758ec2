"""The asyncio driver: one connection shared by all tasks of a loop, commands of one tick written together.

Promises: replies go to requests in the order of sending, and a caller that stops waiting (a cancellation, its deadline)
leaves its place in that order, so its reply is dropped and never given to another. A call ends at its deadline. When
the connection breaks, calls that were written get `ConnectionBroken` (they may have taken effect), calls that were not
get `Unavailable`. A connection that lets a deadline pass in silence is given up. Clock: the loop's.

Cost: no timer per call. One timer per connection wakes at the earliest deadline and checks all of them. No buffer per
read either: what arrives is received into room that the connection keeps.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections import deque
from collections.abc import Callable
from typing import Any

from holdfast.core.failpoints import ARMED, areach
from holdfast.errors import BackendError, Timeout, Unavailable
from holdfast.stores.redis.protocol import (
    ConnectionBroken,
    ProtocolError,
    Reply,
    ReplyReader,
    check_handshake,
    garbled,
    handshake,
    keep_alive,
    own_account_async,
    ungreeted,
    unreachable,
)
from holdfast.stores.redis.url import RedisAddress, ServerSource
from holdfast.types import NS

CONNECT_NS = 5 * NS  # a new connection may take so long
TOGETHER_MAX = 128  # so many commands are written in one call: the server begins with them while we pack the next
ROOM_BYTES = 16 * 1024  # received in one call: 128 short replies, or one record of TLS; more takes several turns
SILENCE_NS = NS  # a connection past a deadline that was silent for so long is closed

# Transports inherited by a forked child. Closing them would unregister them from the parent's selector, and to forget
# them would make their destructors complain; so they are kept, and never touched.
_inherited: list[Any] = []


class _Slot:
    """A place in the order of replies."""

    __slots__ = ("count", "deadline_ns", "future", "replies")

    def __init__(self, future: asyncio.Future[Any], count: int, deadline_ns: int) -> None:
        self.future = future
        self.count = count
        self.replies: list[Reply] = []
        self.deadline_ns = deadline_ns


class MuxConnection(asyncio.BufferedProtocol):
    """One connection of one loop.

    It brings the room for what arrives. To a plain `asyncio.Protocol` each read is a new buffer of 256 KiB, which is
    then cut down to the few bytes that came: such pieces scatter over the heap, and a process that is up for weeks has
    more and more holes between them, none of which is wide enough for the next buffer.
    """

    def __init__(self, address: RedisAddress, loop: asyncio.AbstractEventLoop) -> None:
        self.closed = False
        self.on_push: Callable[[Reply], None] | None = None  # takes replies that no request waits for
        self.on_lost: Callable[[], None] | None = None
        self.address = address
        self._loop = loop
        self._reader = ReplyReader()
        self._room = memoryview(bytearray(ROOM_BYTES))
        self._transport: asyncio.Transport | None = None
        self._slots: deque[_Slot] = deque()
        self._out: list[bytes] = []
        self._unsent = 0  # how many of the newest slots are still in `_out`
        self._heard_ns = 0
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ns = 0
        self._gone = loop.create_future()

    def now_ns(self) -> int:
        """The loop's clock."""
        return int(self._loop.time() * NS)

    # What callers do.

    def submit(self, packed: bytes, count: int, deadline_ns: int) -> asyncio.Future[Any]:
        """Queue a request of `count` commands. The future gets its reply, or the list of them if there are several."""
        future = self._loop.create_future()
        if not self._slots:
            self._heard_ns = self.now_ns()  # silence is counted from when there is something to answer
        self._slots.append(_Slot(future, count, deadline_ns))
        self._unsent += 1
        self.write(packed)
        if self._timer is None or deadline_ns < self._timer_ns:
            self._wake_at(deadline_ns)
        return future

    def write(self, packed: bytes) -> None:
        """Send now if nothing is under way, else together with all else of this tick."""
        if self._out:
            self._out.append(packed)
            if len(self._out) >= TOGETHER_MAX:
                self._flush()
        elif len(self._slots) > 1:
            self._out.append(packed)
            self._loop.call_soon(self._flush)
        elif self._transport is not None:
            self._unsent = 0
            self._transport.write(packed)

    def _flush(self) -> None:
        out, self._out = self._out, []
        self._unsent = 0
        if out and self._transport is not None and not self.closed:
            self._transport.write(b"".join(out))

    def sever(self, why: str) -> None:
        """Give the connection up. No caller is left waiting."""
        if self.closed:
            return
        self.closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._transport is not None:
            self._transport.abort()
        sent = len(self._slots) - self._unsent
        for place, slot in enumerate(self._slots):
            if slot.future.done():
                continue
            if slot.replies:
                slot.future.set_result(slot.replies)
            elif place < sent:
                slot.future.set_exception(ConnectionBroken(f"redis at {self.address}: {why}; it may have taken effect"))
            else:
                slot.future.set_exception(Unavailable(f"redis at {self.address}: {why} before the request was sent"))
        self._slots.clear()
        self._out.clear()
        if self.on_lost is not None:
            self.on_lost()

    async def close(self) -> None:
        """Give the connection up and wait until the loop has let go of it."""
        self.sever("closed")
        await asyncio.wait([self._gone], timeout=1)

    # What the loop calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.BaseProtocol`."""
        if self.address.path is None:
            keep_alive(transport.get_extra_info("socket"))
        self._transport = transport  # type: ignore[assignment]  # a stream protocol is given a stream transport

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.BaseProtocol`."""
        self.sever("connection lost")
        if not self._gone.done():
            self._gone.set_result(None)

    def get_buffer(self, sizehint: int) -> memoryview:
        """See `asyncio.BufferedProtocol`."""
        return self._room

    def buffer_updated(self, nbytes: int) -> None:
        """See `asyncio.BufferedProtocol`."""
        self.data_received(bytes(self._room[:nbytes]))

    def data_received(self, data: bytes) -> None:
        """Give replies to those who wait for them."""
        if self.closed:
            return
        reader, slots = self._reader, self._slots
        self._heard_ns = self.now_ns()
        try:
            reader.feed(data)
            while (reply := reader.gets()) is not False:
                if not slots:
                    if self.on_push is None:
                        self.sever("an answer without a request")
                        return
                    self.on_push(reply)
                    continue
                slot = slots[0]
                if slot.count > 1:
                    slot.replies.append(reply)
                    if len(slot.replies) < slot.count:
                        continue
                    reply = slot.replies
                slots.popleft()
                if not slot.future.done():
                    slot.future.set_result(reply)
        except ProtocolError:
            if slots and not slots[0].future.done():
                slots[0].future.set_exception(garbled(self.address, "a request"))
            self.sever("an answer that makes no sense")

    # Deadlines.

    def _wake_at(self, when_ns: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_ns = when_ns
        self._timer = self._loop.call_at(when_ns / NS, self._look)

    def _look(self) -> None:
        """End the calls whose deadline has passed, and find out whether the other end is still alive."""
        self._timer = None
        if not self._slots or self.closed:
            return
        now = self.now_ns()
        next_ns = now + SILENCE_NS
        for slot in self._slots:
            if slot.deadline_ns <= now:
                if not slot.future.done():
                    slot.future.set_exception(
                        Timeout(f"redis at {self.address} did not answer in time; it may have taken effect")
                    )
            elif slot.deadline_ns < next_ns:
                next_ns = slot.deadline_ns
        oldest = self._slots[0]
        if oldest.deadline_ns <= now and now - self._heard_ns >= SILENCE_NS:
            self.sever("no answer any more")
        else:
            self._wake_at(next_ns)


async def open_link(address: RedisAddress) -> MuxConnection:
    """Connect and greet, within `CONNECT_NS`."""
    loop = asyncio.get_running_loop()
    link = MuxConnection(address, loop)
    try:
        async with asyncio.timeout(CONNECT_NS / NS):
            if address.path is not None:
                await loop.create_unix_connection(lambda: link, address.path)
            else:
                name = None if address.tls is None else address.host
                await loop.create_connection(
                    lambda: link, address.host, address.port, ssl=address.tls, server_hostname=name
                )
            packed, count = handshake(address, await own_account_async(address))
            replies = await link.submit(packed, count, link.now_ns() + CONNECT_NS)
        check_handshake(address, replies if count > 1 else [replies])
    except Timeout as error:
        link.sever("not greeted")
        raise ungreeted(address, error) from error
    except BackendError:
        link.sever("refused")
        raise
    except (OSError, UnicodeError) as error:
        link.sever("not reached")
        raise unreachable(address, error) from error
    except BaseException:
        link.sever("given up")
        raise
    return link


async def _watched(link: MuxConnection, packed: bytes, count: int, deadline_ns: int) -> Any:
    """A request that faults may meet. A caller that does not come back for its reply leaves its place in the order."""
    await areach("store.redis.asyncio.send")
    future = link.submit(packed, count, deadline_ns)
    try:
        await areach("store.redis.asyncio.sent")
        reply = await future
    except BaseException:
        future.cancel()
        raise
    await areach("store.redis.asyncio.replied")
    return reply


class Mux:
    """The shared connection of one loop: the driver of an asyncio store. Connects when it is first used."""

    def __init__(self, source: RedisAddress | ServerSource, shown: RedisAddress | None = None) -> None:
        """`shown`: the address of errors before the source has found one."""
        self._source = source
        self._address = source if isinstance(source, RedisAddress) else shown
        self._link: MuxConnection | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._opening: asyncio.Task[MuxConnection | BackendError] | None = None
        self._pid = os.getpid()
        source.follow(self._moved)

    def _moved(self, address: RedisAddress) -> None:
        """From any thread: the leases are at another server now."""
        self._address = address
        if self._loop is not None and self._pid == os.getpid():
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._leave_old)

    def _leave_old(self) -> None:
        if self._link is not None and self._link.address is not self._address:
            self._link.sever("the primary has changed")

    async def distrust(self) -> None:
        """See `Driver.distrust`."""
        if self._link is not None:
            self._link.sever("the server is a replica now")

    def deadline(self, timeout_ns: int) -> int:
        """When a call that may take so long has to be over."""
        return int(asyncio.get_running_loop().time() * NS) + timeout_ns

    async def call(self, packed: bytes, deadline_ns: int) -> Reply:
        """Send one command and return its reply, which may be a `ReplyError`."""
        link = self._link
        if link is None or link.closed or self._pid != os.getpid() or self._loop is not asyncio.get_running_loop():
            link = await self.link(deadline_ns)
        if ARMED:
            return await _watched(link, packed, 1, deadline_ns)
        return await link.submit(packed, 1, deadline_ns)

    async def call_all(self, packed: bytes, count: int, deadline_ns: int) -> list[Reply]:
        """Send `count` commands in one write and return their replies: at least one, fewer if the answers broke off."""
        link = await self.link(deadline_ns)
        replies = await (_watched if ARMED else MuxConnection.submit)(link, packed, count, deadline_ns)
        return replies if count > 1 else [replies]

    async def link(self, deadline_ns: int) -> MuxConnection:
        """The living connection, or a new one; all who come meanwhile wait for the same, each until its deadline."""
        self._check_home()
        while self._link is None or self._link.closed:
            if self._opening is None:
                self._opening = asyncio.get_running_loop().create_task(self._open())
            left = (deadline_ns - self.deadline(0)) / NS
            done, _ = await asyncio.wait([self._opening], timeout=max(0.0, left))
            if not done:
                raise Unavailable(f"redis at {self._address} could not be reached in time")
            task = done.pop()
            if task.cancelled():
                raise Unavailable(f"redis at {self._address}: the store was closed before it was reached")
            outcome = task.result()
            if isinstance(outcome, BackendError):
                raise type(outcome)(str(outcome)) from outcome  # each caller gets its own, with its own traceback
        return self._link

    async def _open(self) -> MuxConnection | BackendError:
        """Connect for all callers: no caller's cancellation ends it, and its error waits for no caller."""
        try:
            self._link = await open_link(await self._source.find_async())
        except BackendError as error:
            return error
        finally:
            self._opening = None
        if not isinstance(self._source, RedisAddress):
            self._leave_old()
        return self._link

    async def close(self) -> None:
        """Close the connection. Calls under way get an error that reports what is known about them."""
        self._check_home()
        opening, link = self._opening, self._link
        self._link = None
        if opening is not None:
            opening.cancel()
            await asyncio.wait([opening])
        if link is not None:
            await link.close()

    def _check_home(self) -> None:
        """Make sure that process and loop are still those the connection belongs to; else start again."""
        loop = asyncio.get_running_loop()
        if self._pid == os.getpid():
            if self._loop is loop:
                return
            if self._loop is not None and not self._loop.is_closed():
                raise RuntimeError("this store belongs to another event loop: make one for each loop")
        else:
            _inherited.append((self._link, self._opening))
        self._link = self._opening = None
        self._loop = loop
        self._pid = os.getpid()  # last: an interrupt before it repeats the others
