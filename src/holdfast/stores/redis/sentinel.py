"""The primary that Redis Sentinels name: found for each new connection, and followed through failovers.

Promises: a new connection goes to the server that a Sentinel names at that moment, and is used only if that server says
that it is a primary. A thread listens to `+switch-master`, so connections to the former primary are given up, and
subscribers are notified, without a request having to fail first. A Sentinel that does not answer costs at most a part
of the caller's time. Does not promise that there is one primary only: after a failover the former one may accept writes
until a Sentinel reaches it.

The protocol is that of redis.io/docs/reference/sentinel-clients. It is spoken by the drivers of this store and not by
the Sentinel client of redis-py, whose time limits are those of sockets: a call here must end at its own deadline.

Clock: monotonic.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import time
import weakref
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Final

from holdfast.errors import BackendError, Misconfigured, Timeout, Unavailable
from holdfast.runtime.run_sync import run_now
from holdfast.runtime.thread_runtime import Mutex, Wakeup
from holdfast.stores.redis.asyncio_driver import open_link
from holdfast.stores.redis.protocol import ConnectionBroken, Reply, ReplyError, pack, refusal
from holdfast.stores.redis.sync_driver import Connection
from holdfast.stores.redis.url import RedisAddress, SentinelAddress
from holdfast.types import MS, NS

ASK_NS: Final = 500 * MS  # one Sentinel may take so long, or less if the caller has less time for each
_LISTEN_NS: Final = 10 * NS  # then the Sentinel is asked whether it is still there
_PAUSE_S: Final = 0.2  # before the next Sentinel, where none answers
_SWITCH: Final = b"+switch-master"

Ask = Callable[[RedisAddress, bytes], Awaitable[Reply]]


class PrimarySource:
    """The primary of one service. One for each engine; used from any thread and event loop."""

    def __init__(self, address: SentinelAddress) -> None:
        self.sentinels = list(address.sentinels)
        self.service = address.primary.service
        self._template = address.primary
        self._pid = os.getpid()
        self._current: RedisAddress | None = None
        self._followers: list[weakref.WeakMethod[Callable[[RedisAddress], None]]] = []
        self._mutex = Mutex()
        self._listener: SwitchListener | None = None

    def find(self, deadline_ns: int) -> RedisAddress:
        """See `ServerSource`."""
        self._listen()
        return self.ask(deadline_ns)

    def ask(self, deadline_ns: int) -> RedisAddress:
        """Ask the Sentinels. Starts no thread."""
        each_ns = max(MS, (deadline_ns - time.monotonic_ns()) // (len(self.sentinels) + 1))

        async def ask(sentinel: RedisAddress, packed: bytes) -> Reply:
            limit_ns = min(deadline_ns, time.monotonic_ns() + min(ASK_NS, each_ns))
            connection = Connection(sentinel, limit_ns)
            try:
                return connection.ask(packed, limit_ns)
            finally:
                connection.close()

        return run_now(self._find(ask))

    async def find_async(self) -> RedisAddress:
        """See `ServerSource`."""
        self._listen()

        async def ask(sentinel: RedisAddress, packed: bytes) -> Reply:
            try:
                async with asyncio.timeout(ASK_NS / NS):
                    link = await open_link(sentinel)
                    try:
                        return await link.submit(packed, 1, link.now_ns() + ASK_NS)
                    finally:
                        await link.close()
            except TimeoutError as error:
                raise Unavailable(f"the Sentinel at {sentinel} did not answer in time") from error

        return await self._find(ask)

    async def _find(self, ask: Ask) -> RedisAddress:
        """Ask one Sentinel after the other. The one that answers is asked first the next time."""
        question = pack(("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self.service))
        refused: BackendError | None = None
        unknown = False
        for sentinel in list(self.sentinels):
            try:
                reply = await ask(sentinel, question)
                if isinstance(reply, ReplyError):
                    raise refusal(reply, sentinel)
            except Misconfigured as error:
                refused = error
                continue
            except BackendError:
                continue
            match reply:
                case [bytes(host), bytes(port)] if port.isdigit():
                    with contextlib.suppress(ValueError):
                        self.sentinels.remove(sentinel)
                        self.sentinels.insert(0, sentinel)
                    return self.moved_to(host.decode(errors="replace"), int(port))
            unknown = True
        if refused is not None:
            raise refused
        names = ", ".join(map(str, self.sentinels))
        if unknown:
            raise Unavailable(
                f"no Sentinel knows a primary {self.service!r} now (asked {names}); "
                "url: give the name that `sentinel monitor` has"
            )
        raise Unavailable(f"no Sentinel of {self.service!r} answered ({names})")

    def moved_to(self, host: str, port: int) -> RedisAddress:
        """Remember where the primary is. If it has changed, its followers give up their connections."""
        with self._mutex:
            current = self._current
            if current is not None and (current.host, current.port) == (host, port):
                return current
            current = self._current = replace(self._template, host=host, port=port)
            followers = [follower() for follower in self._followers]
            self._followers = [
                each for each, alive in zip(self._followers, followers, strict=True) if alive is not None
            ]
        for moved in followers:
            if moved is not None:
                moved(current)
        return current

    def follow(self, moved: Callable[[RedisAddress], None]) -> None:
        """See `ServerSource`."""
        with self._mutex:
            self._followers.append(weakref.WeakMethod(moved))
            current = self._current
        if current is not None:
            moved(current)

    def close(self) -> None:
        """See `ServerSource`."""
        listener, self._listener = self._listener, None
        if listener is not None and self._pid == os.getpid():
            listener.stop()

    def _listen(self) -> None:
        if self._pid != os.getpid():  # a forked child: the thread is the parent's, and so is the mutex
            self._mutex, self._listener = Mutex(), None
            self._pid = os.getpid()
        if self._listener is None:
            with self._mutex:
                if self._listener is None:
                    self._listener = SwitchListener(self)


class SwitchListener:
    """A thread that hears of failovers from one Sentinel, or from the next when that is gone."""

    def __init__(self, source: PrimarySource) -> None:
        self._source = weakref.ref(source)
        self._service = source.service
        self._connection: Connection | None = None
        self._stopped = False
        self._wakeup = Wakeup()
        self._thread = threading.Thread(target=self._run, name="holdfast-sentinel", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread, without waiting for the Sentinel."""
        self._stopped = True
        self._wakeup.notify()
        connection = self._connection
        if connection is not None:
            connection.interrupt()
        if self._thread is not threading.current_thread():
            self._thread.join(1.0)

    def _wanted(self) -> bool:
        return not self._stopped and self._source() is not None  # an engine that is forgotten ends its thread

    def _run(self) -> None:
        while self._wanted():
            source = self._source()
            if source is None:
                return
            sentinels: Sequence[RedisAddress] = list(source.sentinels)
            del source  # an engine that is forgotten ends its thread
            for sentinel in sentinels:
                with contextlib.suppress(BackendError):
                    self._listen_to(sentinel)
                if not self._wanted():
                    return
            self._wakeup.wait(_PAUSE_S)

    def _listen_to(self, sentinel: RedisAddress) -> None:
        """Listen until the connection breaks."""
        connection = Connection(sentinel, time.monotonic_ns() + ASK_NS)
        self._connection = connection
        try:
            connection.send(pack(("SUBSCRIBE", _SWITCH)), time.monotonic_ns() + ASK_NS)
            connection.next_reply(time.monotonic_ns() + ASK_NS)
            self._catch_up()
            while self._wanted():
                try:
                    self._on_switch(connection.next_reply(time.monotonic_ns() + _LISTEN_NS))
                except ConnectionBroken:
                    raise
                except Timeout:  # it may be gone without a word
                    connection.send(pack(("PING",)), time.monotonic_ns() + ASK_NS)
                    self._on_switch(connection.next_reply(time.monotonic_ns() + ASK_NS))
        finally:
            self._connection = None
            connection.close()

    def _catch_up(self) -> None:
        """A failover may have happened while this did not listen."""
        source = self._source()
        if source is not None:
            source.ask(time.monotonic_ns() + 2 * NS)

    def _on_switch(self, reply: Reply) -> None:
        match reply:
            case [b"message", _, bytes(text)]:
                words = text.decode(errors="replace").split(" ")
                source = self._source()
                if source is not None and len(words) == 5 and words[0] == self._service and words[4].isdigit():
                    source.moved_to(words[3], int(words[4]))
