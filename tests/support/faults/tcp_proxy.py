"""The proxy of the drills, which also stalls or delays one direction, counts held pieces and reaches unix sockets.

Tests wait for what the proxy has seen (`wait_held`), not for time to pass.
"""

from __future__ import annotations

import contextlib
import socket
from collections import Counter
from typing import Final, Literal

from holdfast.drills.env.proxy import Pair, Proxy

Direction = Literal["to_server", "to_client"]
LIMIT_S: Final = 20.0


class FaultProxy(Proxy):
    """Forwards one loopback port to another, or to a unix socket. The end of a stream is passed on in its direction."""

    def __init__(self, target: int | str) -> None:
        """`target`: a port of this host, or the path of a socket."""
        self._path = None if isinstance(target, int) else target
        self._stalled: set[Direction] = set()
        self._held: Counter[Direction] = Counter()
        self._delays_s: dict[Direction, float] = {"to_server": 0.0, "to_client": 0.0}
        self._mute: set[Pair] = set()
        self._ends: Counter[Pair] = Counter()
        self.accepted = 0
        super().__init__("127.0.0.1", target if isinstance(target, int) else 0)

    @property
    def url(self) -> str:
        """How Holdfast reaches the target through the proxy."""
        return f"redis://127.0.0.1:{self.port}"

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

    def slow(self, direction: Direction, seconds: float) -> None:
        """Let each piece of one direction through only after a while."""
        with self._changed:
            self._delays_s[direction] = seconds

    def wait_held(self, direction: Direction, pieces: int = 1) -> None:
        """Return when at least so many pieces are being held back."""
        with self._changed:
            assert self._changed.wait_for(lambda: self._held[direction] >= pieces, LIMIT_S), "nothing was held back"

    def refuse(self, refusing: bool = True) -> None:
        """Cut new connections immediately."""
        with self._changed:
            self._away = refusing

    def reset(self) -> None:
        """Cut every connection as a crashed host or a firewall does: with a reset, and with what was held back lost."""
        self._reset()

    def _reached(self, target: tuple[str, int]) -> socket.socket | None:
        with self._changed:
            self.accepted += 1
        if self._path is None:
            return super()._reached(target)
        made = socket.socket(socket.AF_UNIX)
        try:
            made.connect(self._path)
        except OSError:
            made.close()
            return None
        return made

    def _hold(self, pair: Pair, source: socket.socket, data: bytes) -> None:
        direction: Direction = "to_server" if source is pair[0] else "to_client"
        if not data:
            self._half_close(pair, pair[1] if source is pair[0] else pair[0])
            return
        if delay_s := self._delays_s[direction]:
            self._changed.wait_for(lambda: pair not in self._pairs, delay_s)
        self._held[direction] += 1
        self._changed.notify_all()
        self._changed.wait_for(
            lambda: not (direction in self._stalled or pair in self._mute) or pair not in self._pairs
        )
        self._held[direction] -= 1

    def _half_close(self, pair: Pair, sink: socket.socket) -> None:
        """Tell the other end, and keep the connection until that has ended too."""
        with contextlib.suppress(OSError):
            sink.shutdown(socket.SHUT_WR)
        self._ends[pair] += 1
        self._changed.notify_all()
        self._changed.wait_for(lambda: self._ends[pair] > 1 or pair not in self._pairs)
