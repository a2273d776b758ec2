"""Asking the server through a driver of sync or asyncio: scripts by hash, and what may be asked twice.

When a connection breaks after a request was sent, the client does not know whether it took effect. Asking again is
allowed once,
within the same deadline, because every request of a lease names its token: a repeated acquire gets the same grant, a
repeated renewal sets the same expiry, a repeated release deletes nothing that is not ours. What must not happen is that
the second try hides the doubt of the first: if it is refused or cannot be sent, the outcome is still unknown, and the
error of the first try is raised, not one that says "certainly no effect".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from holdfast.errors import Misconfigured, Unavailable
from holdfast.stores.redis.protocol import (
    ConnectionBroken,
    RedisScript,
    Reply,
    ReplyError,
    Word,
    is_demoted,
    is_noscript,
    pack,
)
from holdfast.types import MS


class Driver(Protocol):
    """A sync or asyncio connection. Raises `Unavailable`, `Timeout` or `ConnectionBroken`; error replies are values."""

    def deadline(self, timeout_ns: int) -> int:
        """When a call that may take so long has to be over, on the driver's clock."""
        ...

    async def call(self, packed: bytes, deadline_ns: int) -> Reply:
        """Send one command and return its reply."""
        ...

    async def call_all(self, packed: bytes, count: int, deadline_ns: int) -> list[Reply]:
        """Send `count` commands in one write and return their replies: at least one, fewer if the answers broke off."""
        ...

    async def distrust(self) -> None:
        """Give up connections that are there: the server was demoted, and the next call looks for its successor."""
        ...

    async def close(self) -> None:
        """Close idle connections."""
        ...


class CommandRetrier:
    """Asks, and asks again where that is harmless."""

    __slots__ = ("_driver",)

    def __init__(self, driver: Driver) -> None:
        self._driver = driver

    def deadline(self, timeout_ns: int) -> int:
        """When a call that may take so long has to be over."""
        return self._driver.deadline(timeout_ns)

    async def run(self, script: RedisScript, keys: int, words: Sequence[Word], deadline_ns: int) -> Reply:
        """Run a script; once more after a broken connection."""
        try:
            reply = await self._driver.call(script.by_hash(keys, words), deadline_ns)
        except ConnectionBroken as severed:
            return await self.once_more(severed, script, keys, words, deadline_ns)
        if is_demoted(reply):
            await self._driver.distrust()
            reply = await self._driver.call(script.by_hash(keys, words), deadline_ns)
        if is_noscript(reply):
            return await self.call(script.whole(keys, words), deadline_ns)
        return reply

    async def run_acknowledged(
        self, script: RedisScript, keys: int, words: Sequence[Word], replicas: int, wait_ns: int, deadline_ns: int
    ) -> tuple[Reply, Reply]:
        """Run a script, and wait until so many replicas have its writes. Returns both replies; None: no answer.

        The body of the script comes along: for a server that lacks it, the wait would pass in vain.
        """
        packed = script.whole(keys, words) + pack(("WAIT", str(replicas), str(max(1, wait_ns // MS))))
        replies = await self.call_all(packed, 2, deadline_ns)
        if is_demoted(replies[0]):
            await self._driver.distrust()
            replies = await self.call_all(packed, 2, deadline_ns)
        return replies[0], replies[1] if len(replies) > 1 else None

    async def run_once(self, script: RedisScript, keys: int, words: Sequence[Word], deadline_ns: int) -> Reply:
        """Run a script that must not be asked for twice. A server that does not know it has not run it."""
        reply = await self._driver.call(script.by_hash(keys, words), deadline_ns)
        if is_demoted(reply):
            await self._driver.distrust()
            reply = await self._driver.call(script.by_hash(keys, words), deadline_ns)
        if is_noscript(reply):
            return await self._driver.call(script.whole(keys, words), deadline_ns)
        return reply

    async def call(self, packed: bytes, deadline_ns: int) -> Reply:
        """Send one harmless command; once more after a broken connection."""
        try:
            return await self._driver.call(packed, deadline_ns)
        except ConnectionBroken as severed:
            try:
                reply = await self._driver.call(packed, deadline_ns)
            except (Unavailable, Misconfigured):
                raise severed from None
            if isinstance(reply, ReplyError):
                raise severed from None
            return reply

    async def call_all(self, packed: bytes, count: int, deadline_ns: int) -> list[Reply]:
        """Send harmless commands; once more after a broken connection that answered none of them."""
        try:
            return await self._driver.call_all(packed, count, deadline_ns)
        except ConnectionBroken as severed:
            try:
                return await self._driver.call_all(packed, count, deadline_ns)
            except (Unavailable, Misconfigured):
                raise severed from None

    async def once_more(
        self, severed: ConnectionBroken, script: RedisScript, keys: int, words: Sequence[Word], deadline_ns: int
    ) -> Reply:
        """Run a script for the second time. Anything but an answer leaves the doubt of the first time."""
        try:
            reply = await self.run_once(script, keys, words, deadline_ns)
        except (Unavailable, Misconfigured):
            raise severed from None
        if isinstance(reply, ReplyError):
            raise severed from None
        return reply
