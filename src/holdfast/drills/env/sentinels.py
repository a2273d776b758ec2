"""A Redis primary and its replica, and three Sentinels that fail over from one to the other by themselves."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from holdfast.drills.env.redis_pair import RedisPair
from holdfast.drills.env.redis_server import RedisServer, redis_server
from holdfast.drills.env.server_process import free_port, tied, wait_until

SERVICE: Final = "drill"
_SENTINELS: Final = 3
_DOWN_MS: Final = 1000
_FAILOVER_MS: Final = 60_000  # until then no replica is told to leave the link of the drill


class SentinelPair(RedisPair):
    """See the module. A deployment fails over once: Sentinels wait for minutes before the next time."""

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        super().__init__(directory, stack, (), None)
        self._sentinels = [self._sentinel(directory / f"sentinel-{number}") for number in range(_SENTINELS)]
        self.url = f"redis+sentinel://{','.join(f'127.0.0.1:{each.port}' for each in self._sentinels)}/{SERVICE}"
        wait_until(lambda: all(map(_knows_all, self._sentinels)), "the Sentinels to know each other and the replica")

    def _sentinel(self, place: Path) -> RedisServer:
        place.mkdir()
        port = free_port()
        file = place / "sentinel.conf"
        file.write_text(
            f"port {port}\nbind 127.0.0.1\n"
            f"sentinel monitor {SERVICE} 127.0.0.1 {self.primary.port} 2\n"
            f"sentinel down-after-milliseconds {SERVICE} {_DOWN_MS}\n"
            f"sentinel failover-timeout {SERVICE} {_FAILOVER_MS}\n"
        )
        process = tied([redis_server(), str(file), "--sentinel"], place)
        self._stack.callback(process.wait)
        self._stack.callback(process.kill)
        return RedisServer(process, port)

    def fail_over(self) -> int:
        """Kill the primary, and wait until the Sentinels have promoted the replica. Returns the time of death."""
        died_ns = self.primary.kill()
        wait_until(lambda: self.replica.facts("replication")["role"] == "master", "the Sentinels to fail over")
        self.primary = self.replica
        return died_ns

    def recruit(self) -> None:
        """There is no second failover, so nothing."""


def _knows_all(sentinel: RedisServer) -> bool:
    try:
        facts = sentinel.facts("sentinel").get("master0", "")
    except OSError:  # it starts
        return False
    return "status=ok" in facts and "slaves=1" in facts and f"sentinels={_SENTINELS}" in facts


@contextmanager
def sentinel_pair(directory: Path) -> Iterator[SentinelPair]:
    """A deployment for the duration of the block."""
    with ExitStack() as stack:
        yield SentinelPair(directory, stack)
