"""A real primary with replicas and Sentinels, each a process of its own on loopback."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from redis import RedisError

from support.load.processes import until
from support.servers.redis import RedisExecutable, RedisServer, start_redis

SERVICE: Final = "leases"
READY_S: Final = 60.0


class SentinelDeployment:
    """One primary, two replicas and three Sentinels."""

    def __init__(self, data: list[RedisServer], sentinels: list[RedisServer]) -> None:
        self.data = data
        self.sentinels = sentinels

    @property
    def url(self) -> str:
        """How Holdfast reaches the primary."""
        hosts = ",".join(f"127.0.0.1:{each.port}" for each in self.sentinels)
        return f"redis+sentinel://{hosts}/{SERVICE}"

    def primary(self) -> RedisServer:
        """The primary that the first Sentinel names."""
        _host, port = self.sentinels[0].cli("SENTINEL", "GET-MASTER-ADDR-BY-NAME", SERVICE)
        return next(each for each in self.data if each.port == int(port))

    def replicas(self) -> list[RedisServer]:
        """The others."""
        primary = self.primary()
        return [each for each in self.data if each is not primary]

    def wait_for_primary_after(self, former: RedisServer) -> RedisServer:
        """Wait until every Sentinel names another primary, and that serves as one."""

        def moved() -> bool:
            question = ("SENTINEL", "GET-MASTER-ADDR-BY-NAME", SERVICE)
            ports = {int(each.cli(*question)[1]) for each in self.sentinels}
            return len(ports) == 1 and former.port not in ports and role(self.primary()) == "master"

        until(moved, "a failover", READY_S)
        return self.primary()

    def wait_until_ready(self) -> None:
        """Wait until the Sentinels know each other and both replicas, which are in sync."""
        until(self._ready, "the Sentinels know each other", READY_S)

    def _ready(self) -> bool:
        states = [_named(each.cli("SENTINEL", "MASTER", SERVICE)) for each in self.sentinels]
        known = [state["num-slaves"] == "2" and state["num-other-sentinels"] == "2" for state in states]
        return all(known) and in_sync(self.data[0]) == 2


def role(server: RedisServer) -> str:
    """What a server says that it is; nothing while it closes the connections of its clients."""
    try:
        return str(server.cli("ROLE")[0])
    except RedisError:
        return ""


def in_sync(primary: RedisServer) -> int:
    """How many replicas have everything that the primary has."""
    with primary.client() as client:
        client.publish("in sync?", "")  # WAIT is for what this connection has sent to the replicas: so far, nothing
        return int(client.wait(2, 100))


def _named(state: object) -> dict[str, str]:
    """A reply of RESP2 is a list of names and values; redis-py may have made it a dict."""
    if isinstance(state, dict):
        return {str(name): str(value) for name, value in state.items()}
    words = [str(each) for each in state] if isinstance(state, list) else []
    return dict(zip(words[::2], words[1::2], strict=True))


class _Sentinel(RedisServer):
    """A Sentinel: it rewrites its configuration, so it has a file."""

    def __init__(self, executable: RedisExecutable, directory: Path, primary_port: int, agree: int) -> None:
        path = directory / "sentinel.conf"
        path.write_text(
            f"sentinel monitor {SERVICE} 127.0.0.1 {primary_port} {agree}\n"
            f"sentinel down-after-milliseconds {SERVICE} 800\n"
            f"sentinel failover-timeout {SERVICE} 4000\n"
        )
        super().__init__(executable, directory, first=[str(path)], args=["--sentinel"])
        self._save = []


@contextlib.contextmanager
def start_sentinel(executable: RedisExecutable, primary_port: int, *, agree: int = 1) -> Iterator[RedisServer]:
    """One Sentinel for the length of the block. `agree`: how many of them declare a primary down."""
    with tempfile.TemporaryDirectory(prefix="hf-") as directory:
        sentinel = _Sentinel(executable, Path(directory), primary_port, agree)
        try:
            sentinel.start()
            yield sentinel
        finally:
            sentinel.kill()


@contextlib.contextmanager
def start_sentinels(executable: RedisExecutable) -> Iterator[SentinelDeployment]:
    """A deployment for the length of the block."""
    with ExitStack() as stack:
        quick = ["--repl-diskless-sync-delay", "0", "--repl-ping-replica-period", "1"]
        primary = stack.enter_context(start_redis(executable, args=quick))
        follow = ["--replicaof", "127.0.0.1", str(primary.port), *quick]
        replicas = [stack.enter_context(start_redis(executable, args=follow)) for _ in range(2)]
        sentinels = [stack.enter_context(start_sentinel(executable, primary.port, agree=2)) for _ in range(3)]
        deployment = SentinelDeployment([primary, *replicas], sentinels)
        deployment.wait_until_ready()
        yield deployment
