"""Running a script through the caller's own redis-py client, in sync or asyncio. About as much color as there is.

Promises: one script is one request, two when the server does not know it (a restart, a failover, SCRIPT FLUSH: it has
run nothing then). Errors are Holdfast's. Never closes the client, and never changes a setting of it. Passes text and
bytes only: redis-py packs with hiredis, which may crash when a signal handler raises while it converts an int.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, TypeAlias

from holdfast.errors import BadInput
from holdfast.guards.redis.driver import PIPELINES, TROUBLE, Redis, RedisCluster, awaited
from holdfast.guards.redis.driver import trouble as theirs
from holdfast.guards.redis.replies import explained
from holdfast.guards.redis.scripts import GuardScript

Word: TypeAlias = bytes | str

_WANTED = {
    True: "redis.Redis or redis.RedisCluster; holdfast.guards.aio.redis is for those of redis.asyncio",
    False: "redis.asyncio.Redis or redis.asyncio.RedisCluster; holdfast.guards.redis is for blocking ones",
    None: "client of redis-py",
}


class ScriptRunner(Protocol):
    """One color of running scripts."""

    async def run(self, script: GuardScript, keys: Sequence[bytes], words: Sequence[Word]) -> Any:
        """Run a script and return its reply."""
        ...

    def encoded(self, field: str, value: object) -> bytes:
        """The value as the client sends it, or `BadInput`."""
        ...

    def decoded(self, value: bytes) -> Any:
        """The value as the client returns it: bytes, or text if it was made with `decode_responses`."""
        ...


class _Coded:
    """Values on their way to and from the server, as the client at hand treats them."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._encoder = client.get_encoder()

    def encoded(self, field: str, value: object) -> bytes:
        """See `ScriptRunner`."""
        try:
            return bytes(self._encoder.encode(value))
        except theirs.DataError:
            raise BadInput(
                field, f"{type(value).__name__} cannot be stored", "give text, bytes or a number; serialise the rest"
            ) from None
        except UnicodeEncodeError:
            raise BadInput(field, "has characters that cannot be encoded", "remove them, or give bytes") from None

    def decoded(self, value: bytes) -> Any:
        """See `ScriptRunner`."""
        return self._encoder.decode(value)


class SyncScriptRunner(_Coded):
    """`ScriptRunner` of a blocking client. Its methods never suspend."""

    async def run(self, script: GuardScript, keys: Sequence[bytes], words: Sequence[Word]) -> Any:
        """See `ScriptRunner`."""
        execute = self._client.execute_command
        try:
            try:
                return execute("EVALSHA", script.sha, str(len(keys)), *keys, *words)
            except theirs.NoScriptError:
                return execute("EVAL", script.body, str(len(keys)), *keys, *words)
        except TROUBLE as error:
            raise explained(error, self._client) from error


class AsyncScriptRunner(_Coded):
    """`ScriptRunner` of an asyncio client."""

    async def run(self, script: GuardScript, keys: Sequence[bytes], words: Sequence[Word]) -> Any:
        """See `ScriptRunner`."""
        execute = self._client.execute_command
        try:
            try:
                return await execute("EVALSHA", script.sha, str(len(keys)), *keys, *words)
            except theirs.NoScriptError:
                return await execute("EVAL", script.body, str(len(keys)), *keys, *words)
        except TROUBLE as error:
            raise explained(error, self._client) from error


def calls_of(client: object, *, blocking: bool | None = None) -> ScriptRunner:
    """The calls of a client, or `BadInput` if it is not one, or not of the color that is requested."""
    if isinstance(client, PIPELINES):
        raise BadInput("client", "a pipeline collects commands", "give the client: a step is decided by its answer")
    if isinstance(client, Redis | RedisCluster) and blocking is not False:
        return SyncScriptRunner(client)
    if isinstance(client, awaited.Redis | awaited.RedisCluster) and blocking is not True:
        return AsyncScriptRunner(client)
    kind = f"{type(client).__module__}.{type(client).__qualname__}"
    raise BadInput("client", f"{kind} is not a client that can be used here", f"give a {_WANTED[blocking]}")
