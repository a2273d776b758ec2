"""A real Redis Cluster: primaries and replicas on loopback, each a process of its own."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Final

from redis import RedisError

from holdfast.stores.redis.slots import SLOTS
from support.load.processes import until
from support.servers.redis import RedisExecutable, RedisServer, free_port, start_redis

READY_S: Final = 60.0
_BUS: Final = 10_000  # the port of a node's bus is that much higher


def cluster_port() -> int:
    """A free port whose bus port is free too."""
    while True:
        port = free_port()
        with contextlib.suppress(OSError, OverflowError), socket.socket() as bus:
            bus.bind(("127.0.0.1", port + _BUS))
            return port


class RedisClusterServers:
    """Three primaries, and a replica of each if wanted."""

    def __init__(self, primaries: Sequence[RedisServer], replicas: Sequence[RedisServer]) -> None:
        self.primaries = list(primaries)
        self.replicas = list(replicas)

    @property
    def url(self) -> str:
        """How Holdfast reaches it: two of the nodes are named."""
        return "redis+cluster://" + ",".join(f"127.0.0.1:{each.port}" for each in self.primaries[:2])

    def form(self) -> None:
        """Make one cluster of the servers."""
        nodes = [*self.primaries, *self.replicas]
        share = -(-SLOTS // len(self.primaries))
        for at, node in enumerate(self.primaries):
            node.cli("CLUSTER", "ADDSLOTS", *range(at * share, min((at + 1) * share, SLOTS)))
            node.cli("CLUSTER", "SET-CONFIG-EPOCH", at + 1)
        for node in nodes[1:]:
            node.cli("CLUSTER", "MEET", "127.0.0.1", nodes[0].port)
        until(lambda: all(len(self.known(node)) == len(nodes) for node in nodes), "the nodes meet", READY_S)
        for replica, primary in zip(self.replicas, self.primaries, strict=False):
            until(partial(done, replica, "CLUSTER", "REPLICATE", self.id_of(primary)), "it follows")
        until(lambda: all(_state(node) == "ok" for node in nodes), "the cluster serves", READY_S)

    def known(self, node: RedisServer) -> list[str]:
        """The lines of CLUSTER NODES, of one node."""
        return [line for line in _nodes(node).splitlines() if line and "handshake" not in line]

    def id_of(self, node: RedisServer) -> str:
        """The name of a node in the cluster."""
        return str(node.cli("CLUSTER", "MYID"))

    def owner(self, slot: int) -> RedisServer:
        """The primary that serves a slot, as the first living node says."""
        for node in [*self.primaries, *self.replicas]:
            if node.process is None:
                continue
            for line in _nodes(node).splitlines():
                words = line.split()
                ranges = [each.partition("-") for each in words[8:] if not each.startswith("[")]
                if "master" in words[2] and any(int(a) <= slot <= int(b or a) for a, _, b in ranges):
                    return next(each for each in [*self.primaries, *self.replicas] if f":{each.port}@" in words[1])
        raise AssertionError(f"no node serves slot {slot}")

    def begin_to_move(self, slot: int, target: RedisServer) -> RedisServer:
        """Mark a slot as moving. No key has moved yet. Returns the node it leaves."""
        source = self.owner(slot)
        target.cli("CLUSTER", "SETSLOT", slot, "IMPORTING", self.id_of(source))
        source.cli("CLUSTER", "SETSLOT", slot, "MIGRATING", self.id_of(target))
        return source

    def move_keys(self, slot: int, source: RedisServer, target: RedisServer, only: str = "") -> None:
        """Move the keys of a slot that is moving; with `only`, that one."""
        keys = [only] if only else source.cli("CLUSTER", "GETKEYSINSLOT", slot, 1000)
        if keys:
            source.cli("MIGRATE", "127.0.0.1", target.port, "", 0, 5000, "KEYS", *keys)

    def end_move(self, slot: int, source: RedisServer, target: RedisServer) -> None:
        """The target serves the slot from now on."""
        name = self.id_of(target)
        for node in (target, source, *(each for each in self.primaries if each not in (source, target))):
            node.cli("CLUSTER", "SETSLOT", slot, "NODE", name)

    def move(self, slot: int, target: RedisServer) -> None:
        """Move a slot with its keys, as `redis-cli --cluster reshard` does."""
        source = self.begin_to_move(slot, target)
        self.move_keys(slot, source, target)
        self.end_move(slot, source, target)

    def other(self, node: RedisServer) -> RedisServer:
        """A primary that is not this one."""
        return next(each for each in self.primaries if each is not node)


def _nodes(node: RedisServer) -> str:
    with socket.create_connection(("127.0.0.1", node.port), timeout=10) as end:
        end.sendall(b"CLUSTER NODES\r\n")
        file = end.makefile("rb")
        return file.read(int(file.readline()[1:])).decode()


def _state(node: RedisServer) -> str:
    info = node.cli("CLUSTER", "INFO")
    return str(info["cluster_state"] if isinstance(info, dict) else dict(_pairs(info)).get("cluster_state", ""))


def _pairs(text: str) -> Iterator[tuple[str, str]]:
    for line in text.splitlines():
        name, _, value = line.partition(":")
        yield name, value.strip()


def done(node: RedisServer, *words: str) -> bool:
    try:
        node.cli(*words)
    except RedisError:
        return False
    return True


@contextlib.contextmanager
def start_cluster(executable: RedisExecutable, *, replicas: bool = False) -> Iterator[RedisClusterServers]:
    """A cluster for the length of the block."""
    options = ("--cluster-enabled", "yes", "--cluster-node-timeout", "2000", "--repl-diskless-sync-delay", "0")
    with ExitStack() as stack:
        servers = [
            stack.enter_context(start_redis(executable, args=options, port=cluster_port()))
            for _ in range(6 if replicas else 3)
        ]
        cluster = RedisClusterServers(servers[:3], servers[3:])
        cluster.form()
        yield cluster
