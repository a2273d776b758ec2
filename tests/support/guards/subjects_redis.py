"""Guarded Redis keys, as the guard kit and the demonstrations see them. Importable from child processes.

A string key and a field of a hash, in both colors; one kind through a client that decodes, the other through one that
does not.
"""

from __future__ import annotations

from contextlib import AsyncExitStack, ExitStack
from typing import Any

import redis

from holdfast.guards import Fenced, GuardStatistics
from holdfast.guards.aio import redis as awaited
from holdfast.guards.redis import GuardedEntry, GuardedKeys


def text(value: Any) -> str | None:
    """A value as the kit compares it, whatever the client returns."""
    return value.decode() if isinstance(value, bytes) else value


class StringSubject:
    """One string key. Sections stay open until the subject is closed: the kit writes later."""

    decodes = False

    def __init__(self, url: str, resource: str) -> None:
        self.client = redis.Redis.from_url(url, decode_responses=self.decodes)
        self.keys = GuardedKeys(self.client)
        self.resource = resource
        self._sections = ExitStack()
        self._entries: dict[object, GuardedEntry] = {}

    def enter(self, lease: Fenced) -> str | None:
        entry = self._sections.enter_context(self.keys.section(lease, self.resource))
        self._entries[lease.fence] = entry
        return self._shown(entry)

    def write(self, lease: Fenced, value: str) -> None:
        self._entries[lease.fence].set(value)

    def overwrite(self, lease: Fenced, value: str) -> None:
        self.keys.set(lease, self.resource, value)

    def delete(self, lease: Fenced) -> None:
        assert self.keys.delete(lease, self.resource)

    def look(self) -> tuple[str | None, int | None]:
        return text(self.client.get(self.resource)), self.keys.seen(self.resource)

    def close(self) -> None:
        self._sections.close()
        self.client.close()

    def statistics(self) -> GuardStatistics:
        return self.keys.statistics()

    def _shown(self, entry: GuardedEntry) -> str | None:
        return text(entry.value)


class HashSubject(StringSubject):
    """The field `value` of one hash."""

    decodes = True

    def write(self, lease: Fenced, value: str) -> None:
        self._entries[lease.fence].hset({"value": value})

    def overwrite(self, lease: Fenced, value: str) -> None:
        self.keys.hset(lease, self.resource, {"value": value})

    def look(self) -> tuple[str | None, int | None]:
        return text(self.client.hget(self.resource, "value")), self.keys.seen(self.resource)

    def _shown(self, entry: GuardedEntry) -> str | None:
        return text(entry.fields.get("value"))


class AsyncStringSubject:
    """One string key, awaited."""

    decodes = True

    def __init__(self, url: str, resource: str) -> None:
        self.client = redis.asyncio.Redis.from_url(url, decode_responses=self.decodes)
        self.keys = awaited.GuardedKeys(self.client)
        self.resource = resource
        self._sections = AsyncExitStack()
        self._entries: dict[object, awaited.GuardedEntry] = {}

    async def enter(self, lease: Fenced) -> str | None:
        entry = await self._sections.enter_async_context(self.keys.section(lease, self.resource))
        self._entries[lease.fence] = entry
        return self._shown(entry)

    async def write(self, lease: Fenced, value: str) -> None:
        await self._entries[lease.fence].set(value)

    async def overwrite(self, lease: Fenced, value: str) -> None:
        await self.keys.set(lease, self.resource, value)

    async def delete(self, lease: Fenced) -> None:
        assert await self.keys.delete(lease, self.resource)

    async def look(self) -> tuple[str | None, int | None]:
        return text(await self.client.get(self.resource)), await self.keys.seen(self.resource)

    async def close(self) -> None:
        await self._sections.aclose()
        await self.client.aclose()

    def statistics(self) -> GuardStatistics:
        return self.keys.statistics()

    def _shown(self, entry: awaited.GuardedEntry) -> str | None:
        return text(entry.value)


class AsyncHashSubject(AsyncStringSubject):
    """The field `value` of one hash, awaited."""

    decodes = False

    async def write(self, lease: Fenced, value: str) -> None:
        await self._entries[lease.fence].hset({"value": value})

    async def overwrite(self, lease: Fenced, value: str) -> None:
        await self.keys.hset(lease, self.resource, {"value": value})

    async def look(self) -> tuple[str | None, int | None]:
        found: Any = self.client.hget(self.resource, "value")  # typed for sync and asyncio
        return text(await found), await self.keys.seen(self.resource)

    def _shown(self, entry: awaited.GuardedEntry) -> str | None:
        return text(entry.fields.get(b"value"))
