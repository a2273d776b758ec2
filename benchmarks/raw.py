"""Bare clients of Redis: the limit that Python, the kernel and the server set, with nothing in between.

They send what Holdfast sends (the same two scripts by hash, a fresh token each time) and believe every answer. No
deadlines, no retries, no checks: do not use them. Nothing can be expected to be faster.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections import deque
from importlib import resources
from typing import Any

from benchmarks.contender import TTL_S, Place, module

_HEAD = "bench@raw:1/0 hf1 default"
_FENCE_KEY = "raw:fence"
_CHUNK = 1 << 16


class Scripts:
    """The scripts of Holdfast's own store, loaded into the server, and their calls as bytes."""

    def __init__(self, client: Bare) -> None:
        lua = resources.files("holdfast") / "stores" / "redis" / "lua"
        self._acquire, self._release = (
            client.ask(client.pack(("SCRIPT", "LOAD", (lua / name).read_bytes())))
            for name in ("acquire.lua", "release.lua")
        )
        self._pack = client.pack
        key = "raw:check:" + os.urandom(8).hex()
        granted = client.ask(self.acquire(key))
        if not isinstance(granted, bytes) or client.ask(self.release(key, granted)) != 1:
            raise RuntimeError(f"the scripts of the store are not called as they used to be: {granted!r}")

    def acquire(self, key: str) -> bytes:
        """Ask for a key with a new token."""
        token = os.urandom(16).hex()
        packed: bytes = self._pack(
            (b"EVALSHA", self._acquire, b"2", key, _FENCE_KEY, _HEAD, token, b"%d" % (TTL_S * 1000))
        )
        return packed

    def release(self, key: str, value: Any) -> bytes:
        """Give a key back that was granted with this value."""
        packed: bytes = self._pack((b"EVALSHA", self._release, b"2", key, f"raw:ears:{{{key}}}", value, "", b"0"))
        return packed


class Bare:
    """A socket, a packer and a reader."""

    def __init__(self, place: Place) -> None:
        hiredis = module("hiredis")
        self.pack: Any = hiredis.pack_command
        self._reader: Any = hiredis.Reader()
        self._socket = socket.create_connection((place.host, place.port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def ask(self, packed: bytes) -> Any:
        """One command, one answer."""
        self._socket.sendall(packed)
        return self._next()

    def ask_all(self, packed: list[bytes]) -> list[Any]:
        """Many commands in one write."""
        self._socket.sendall(b"".join(packed))
        return [self._next() for _ in packed]

    def _next(self) -> Any:
        while (reply := self._reader.gets()) is False:
            self._reader.feed(self._socket.recv(_CHUNK))
        return reply

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()


class RawCycle:
    """One key over a bare socket."""

    def __init__(self, client: Bare, scripts: Scripts, key: str) -> None:
        self._client = client
        self._scripts = scripts
        self._key = key
        self._value: Any = None

    def acquire(self) -> object:
        """One round trip."""
        self._value = self._client.ask(self._scripts.acquire(self._key))
        return self._value

    def release(self) -> object:
        """One round trip."""
        return self._client.ask(self._scripts.release(self._key, self._value))


class BareProtocol(asyncio.Protocol):
    """The same on an event loop: futures in the order of sending."""

    def __init__(self) -> None:
        self._reader: Any = module("hiredis").Reader()
        self._waiting: deque[asyncio.Future[Any]] = deque()
        self._loop = asyncio.get_running_loop()
        self.transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.Protocol`."""
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        self._reader.feed(data)
        while (reply := self._reader.gets()) is not False:
            self._waiting.popleft().set_result(reply)

    def ask(self, packed: bytes) -> asyncio.Future[Any]:
        """One command, one answer."""
        answer = self._loop.create_future()
        self._waiting.append(answer)
        self.transport.write(packed)
        return answer


class RawAsyncCycle:
    """One key over a bare protocol."""

    def __init__(self, protocol: BareProtocol, scripts: Scripts, key: str) -> None:
        self._protocol = protocol
        self._scripts = scripts
        self._key = key
        self._value: Any = None

    async def acquire(self) -> object:
        """One round trip."""
        self._value = await self._protocol.ask(self._scripts.acquire(self._key))
        return self._value

    async def release(self) -> object:
        """One round trip."""
        return await self._protocol.ask(self._scripts.release(self._key, self._value))
