"""A TCP proxy that does on purpose what networks do by accident: hold back, delay, or cut, in either direction.

Tests wait for what the proxy has seen (`wait_held`), not for time to pass. Everything it started ends with `close`.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections import Counter
from typing import Final, Literal, Self

Direction = Literal["to_server", "to_client"]
LIMIT_S: Final = 20.0


class FaultProxy:
    """Forwards one loopback port to another, or to a unix socket."""

    def __init__(self, target: int | str) -> None:
        """`target`: a port of this host, or the path of a socket."""
        self._target = target
        self._changed = threading.Condition()
        self._stalled: set[Direction] = set()
        self._held: Counter[Direction] = Counter()
        self._delay_s: dict[Direction, float] = {"to_server": 0.0, "to_client": 0.0}
        self._mute: set[tuple[socket.socket, socket.socket]] = set()
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._threads: list[threading.Thread] = []
        self._refusing = False
        self._closed = False
        self.accepted = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._start(self._accept)

    @property
    def url(self) -> str:
        """How Holdfast reaches the target through the proxy."""
        return f"redis://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def stall(self, direction: Direction) -> None:
        """Hold back everything in one direction."""
        with self._changed:
            self._stalled.add(direction)

    def resume(self) -> None:
        """Let everything through that was held back."""
        with self._changed:
            self._stalled.clear()
            self._changed.notify_all()

    def resume_after_reset(self) -> None:
        """Cut every connection, losing what was held back, and let new ones through."""
        self.reset()
        self.resume()

    def resume_for_new(self) -> None:
        """Let new connections through; what the old ones are held up with stays held up."""
        with self._changed:
            self._mute.update(self._pairs)
            self._stalled.clear()

    def delay(self, direction: Direction, seconds: float) -> None:
        """Let each piece through only after a while."""
        with self._changed:
            self._delay_s[direction] = seconds

    def wait_held(self, direction: Direction, pieces: int = 1) -> None:
        """Return when at least so many pieces are being held back."""
        with self._changed:
            assert self._changed.wait_for(lambda: self._held[direction] >= pieces, LIMIT_S), "nothing was held back"

    def refuse(self, refusing: bool = True) -> None:
        """Cut new connections at once."""
        with self._changed:
            self._refusing = refusing

    def reset(self) -> None:
        """Cut every connection as a crashed host or a firewall does: with a reset, and with what was held back lost."""
        with self._changed:
            pairs, self._pairs = self._pairs, []
            self._mute.clear()
            self._changed.notify_all()
        for pair in pairs:
            for end in pair:
                _cut(end)

    def close(self) -> None:
        """End everything."""
        self._closed = True
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.reset()
        for thread in self._threads:
            thread.join(LIMIT_S)

    def _start(self, target: object, *args: object) -> None:
        thread = threading.Thread(target=target, args=args, daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while not self._closed:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            with self._changed:
                refusing = self._refusing
                self.accepted += 1
            try:
                if refusing:
                    raise ConnectionRefusedError
                far = self._connected()
            except OSError:
                _cut(near)
                continue
            for end in (near, far):
                end.settimeout(None)
                if end.family != socket.AF_UNIX:
                    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self._changed:
                self._pairs.append((near, far))
            self._start(self._pump, near, far, "to_server", (near, far))
            self._start(self._pump, far, near, "to_client", (near, far))

    def _connected(self) -> socket.socket:
        if isinstance(self._target, int):
            return socket.create_connection(("127.0.0.1", self._target), LIMIT_S)
        made = socket.socket(socket.AF_UNIX)
        try:
            made.connect(self._target)
        except OSError:
            made.close()
            raise
        return made

    def _pump(
        self,
        source: socket.socket,
        sink: socket.socket,
        direction: Direction,
        pair: tuple[socket.socket, socket.socket],
    ) -> None:
        try:
            while data := source.recv(65_536):
                with self._changed:
                    delay = self._delay_s[direction]
                    if delay:
                        self._changed.wait(delay)
                    self._held[direction] += 1
                    self._changed.notify_all()
                    while (direction in self._stalled or pair in self._mute) and pair in self._pairs:
                        self._changed.wait(LIMIT_S)
                    self._held[direction] -= 1
                    if pair not in self._pairs:
                        return  # it was cut meanwhile, and what was held back is lost
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            _cut(source)
            _cut(sink)


def _cut(end: socket.socket) -> None:
    with contextlib.suppress(OSError):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RD)  # wakes the pump that reads from it; a plain close would not
    end.close()
