"""A TCP proxy on a loopback port that injects network faults: delay, silence and unreachability.

Bounded: at most `LINES_MAX` connections at a time, 64 KiB in flight in each direction of each, and no wait without a
limit or an end. While it is unreachable, open connections are reset and new ones refused. `close` ends everything that
it has started.

Clock: monotonic, for delays. Each chunk is delayed separately, so a delay costs throughput as on a slow network.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from types import TracebackType
from typing import Any, Final, Self, TypeAlias

Pair: TypeAlias = tuple[socket.socket, socket.socket]
"""A connection: to the client, and to the server."""

LINES_MAX: Final = 512
_PIECE: Final = 65_536
_CONNECT_S: Final = 5.0
_JOIN_S: Final = 5.0


class Proxy:
    """Forwards a loopback port to a server."""

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._changed = threading.Condition()
        self._away = False
        self._hushed = False
        self._delay_s = 0.0
        self._closed = False
        self._pairs: set[Pair] = set()
        self._threads: list[threading.Thread] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._start(self._accept)

    def cut(self) -> None:
        """Become unreachable: reset open connections and refuse new ones."""
        with self._changed:
            self._away = True
        self._reset()

    def hush(self) -> None:
        """Forward nothing, not even closed connections: open ones stay open, without any notice to their ends."""
        with self._changed:
            self._hushed = True

    def mend(self) -> None:
        """Work again."""
        with self._changed:
            self._away = self._hushed = False
            self._changed.notify_all()

    def aim(self, host: str, port: int) -> None:
        """Forward to another server from now on, and reset connections to the old one."""
        with self._changed:
            self._target = (host, port)
        self._reset()

    def delay(self, seconds: float) -> None:
        """Delay each chunk by so much, in both directions, from now on."""
        with self._changed:
            self._delay_s = seconds
            self._changed.notify_all()

    def close(self) -> None:
        """End everything."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._reset()
        for thread in self._threads:
            thread.join(_JOIN_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _start(self, target: Any, *args: Any) -> None:
        thread = threading.Thread(target=target, args=args, daemon=True)
        self._threads = [each for each in self._threads if each.is_alive()]
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while not self._closed:  # ends when the listener is closed
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            with self._changed:
                refused = self._away or self._hushed or len(self._pairs) >= LINES_MAX
                target = self._target
            far = None if refused else self._reached(target)
            if far is None:
                _cut(near)
                continue
            for end in (near, far):
                end.settimeout(None)
                if end.family != socket.AF_UNIX:
                    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            pair = (near, far)
            with self._changed:
                if not self._away and target == self._target:
                    self._pairs.add(pair)
            if pair not in self._pairs:  # it was cut, or redirected, while the server was being reached
                _cut(near)
                _cut(far)
                continue
            self._start(self._pump, near, far, pair)
            self._start(self._pump, far, near, pair)

    def _reached(self, target: tuple[str, int]) -> socket.socket | None:
        """A connection to the server. None: it is unreachable."""
        try:
            return socket.create_connection(target, _CONNECT_S)
        except OSError:
            return None

    def _hold(self, pair: Pair, source: socket.socket, data: bytes) -> None:
        """Delay a chunk of `source`; no data: its end. Called with the mutex held."""
        self._changed.wait_for(lambda: not self._hushed or self._closed or pair not in self._pairs)
        if data and self._delay_s:
            self._changed.wait_for(lambda: self._closed or pair not in self._pairs, self._delay_s)

    def _pump(self, source: socket.socket, sink: socket.socket, pair: Pair) -> None:
        try:
            while True:  # ends when an end has closed, or when it is cut
                data = source.recv(_PIECE)
                with self._changed:
                    self._hold(pair, source, data)
                    if not data or pair not in self._pairs:
                        return  # data in flight on a cut connection is lost
                sink.sendall(data)
        except OSError:
            pass  # one end has closed; the other one is closed now
        finally:
            with self._changed:
                self._pairs.discard(pair)
            for end in pair:
                _cut(end)

    def _reset(self) -> None:
        with self._changed:
            pairs, self._pairs = self._pairs, set()
            self._changed.notify_all()
        for pair in pairs:
            for end in pair:
                _cut(end)


def _cut(end: socket.socket) -> None:
    """Close with a reset, as a crashed host or a firewall does."""
    with contextlib.suppress(OSError):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RD)  # wakes the pump that reads from it; a plain close would not
    end.close()
