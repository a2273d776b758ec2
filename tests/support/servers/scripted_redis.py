"""Not a server: it says on the wire exactly what a test wants said."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from typing import Self

import hiredis

Answer = Callable[[list[bytes]], bytes | None]


class ScriptedRedis:
    """A listener on loopback that answers each command with what `answer` returns; `None` is silence."""

    def __init__(self, answer: Answer, *, greeting: bytes = b"+OK\r\n") -> None:
        self._answer = answer
        self._greeting = greeting
        self.heard: list[list[bytes]] = []
        self._ends: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.url = f"redis://127.0.0.1:{self.port}"
        self._start(self._accept)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for end in [self._listener, *self._ends]:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
        for thread in self._threads:
            thread.join(10)

    def _start(self, target: Callable[..., None], *args: object) -> None:
        thread = threading.Thread(target=target, args=args, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                end, _ = self._listener.accept()
            except OSError:
                return
            self._ends.append(end)
            self._start(self._serve, end)

    def _serve(self, end: socket.socket) -> None:
        reader = hiredis.Reader()
        with end, contextlib.suppress(OSError, hiredis.ProtocolError):
            while data := end.recv(65_536):
                reader.feed(data)
                while (command := reader.gets()) is not False:
                    greeting = command[0] in (b"AUTH", b"SELECT", b"CLIENT")
                    if not greeting:
                        self.heard.append(command)
                    answer = self._greeting if greeting else self._answer(command)
                    if answer is not None:
                        end.sendall(answer)
