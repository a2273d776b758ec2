"""A TCP proxy on a loopback port that injects network faults: between a client and its server, without either's help.

Bounded: at most `LINES_MAX` connections at a time, 64 KiB in flight in each direction of each, and no wait without a
limit or an end. `close` ends everything that it has started. It runs on threads of its own, so clients in threads, on
event loops and in other processes can use it.

Faults hold until `mend`, for all connections or for one direction. What a program waits for is what the proxy has seen
(`wait_held`, `accepted`, `dropped`), not that time has passed.

Clock: monotonic, for delays. Each chunk is delayed separately, so a delay costs throughput as on a slow network.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections import Counter
from types import TracebackType
from typing import Any, Final, Literal, Self, TypeAlias

Pair: TypeAlias = tuple[socket.socket, socket.socket]
"""A connection: to the client, and to the server."""

Direction: TypeAlias = Literal["to_server", "to_client"]
DIRECTIONS: Final[tuple[Direction, ...]] = ("to_server", "to_client")

LINES_MAX: Final = 512
HELD_LIMIT_S: Final = 20.0
_PIECE: Final = 65_536
_CONNECT_S: Final = 5.0
_JOIN_S: Final = 5.0


class FaultProxy:
    """Forwards a loopback port to a server, and injects faults on the way."""

    def __init__(self, target: int | str | tuple[str, int], *, host: str = "127.0.0.1", port: int = 0) -> None:
        """`target`: a port of this host, the path of a unix socket, or a host and a port.

        `host` and `port`: where clients find the proxy, for a server whose address changes; a free port by default.
        """
        self._target = ("127.0.0.1", target) if isinstance(target, int) else target
        self._changed = threading.Condition()
        self._away = False
        self._hushed = False
        self._silent = False
        self._stalled: set[Direction] = set()
        self._dropping: set[Direction] = set()
        self._doubling: set[Direction] = set()
        self._truncating: dict[Direction, int] = {}
        self._delays_s: dict[Direction, float] = dict.fromkeys(DIRECTIONS, 0.0)
        self._held: Counter[Direction] = Counter()
        self._mute: set[Pair] = set()
        self._mutings = 0  # a connection that was accepted before the last one is mute too, once its server is reached
        self._resets = 0  # likewise
        self._ends: Counter[Pair] = Counter()
        self._unanswered: list[socket.socket] = []
        self._closed = False
        self._pairs: set[Pair] = set()
        self._threads: list[threading.Thread] = []
        self.accepted = 0  # connections
        self.dropped = 0  # bytes
        self._listener = socket.create_server((host, port))
        self._host = host
        self.port: int = self._listener.getsockname()[1]
        self._start(self._accept)

    @property
    def address(self) -> str:
        """Host and port at which clients reach the server through the proxy."""
        return f"{self._host}:{self.port}"

    # Faults of all connections.

    def cut(self) -> None:
        """Become unreachable: reset open connections and refuse new ones."""
        with self._changed:
            self._away = True
        self._reset()

    def refuse(self, refusing: bool = True) -> None:
        """Reset new connections immediately. Open ones continue."""
        with self._changed:
            self._away = refusing

    def reset(self) -> None:
        """Reset every open connection, as a crashed host or a firewall does; what was held back is lost."""
        self._reset()

    def hush(self) -> None:
        """Forward nothing, not even closed connections: open ones stay open, without any notice to their ends."""
        with self._changed:
            self._hushed = True

    def half_open(self) -> None:
        """Forward nothing on the open connections forever, as if their other end had lost its power. New ones work."""
        with self._changed:
            self._mute.update(self._pairs)
            self._mutings += 1

    def answer_nothing(self) -> None:
        """Accept new connections, and never say or forward anything on them."""
        with self._changed:
            self._silent = True

    def aim(self, host: str, port: int) -> None:
        """Forward to another server from now on, and reset connections to the old one."""
        with self._changed:
            self._target = (host, port)
        self._reset()

    def delay(self, seconds: float) -> None:
        """Delay each chunk by so much, in both directions, from now on."""
        for direction in DIRECTIONS:
            self.slow(direction, seconds)

    def mend(self) -> None:
        """End all faults. Connections that are half open stay so; those that were never answered are reset."""
        with self._changed:
            self._away = self._hushed = self._silent = False
            self._stalled.clear()
            self._dropping.clear()
            self._doubling.clear()
            self._truncating.clear()
            self._delays_s = dict.fromkeys(DIRECTIONS, 0.0)
            unanswered, self._unanswered = self._unanswered, []
            self._changed.notify_all()
        for end in unanswered:
            _cut(end)

    # Faults of one direction.

    def slow(self, direction: Direction, seconds: float) -> None:
        """Delay each chunk of one direction."""
        with self._changed:
            self._delays_s[direction] = seconds
            self._changed.notify_all()

    def stall(self, direction: Direction) -> None:
        """Hold back everything in one direction. It is forwarded later, when the proxy resumes."""
        with self._changed:
            self._stalled.add(direction)

    def drop(self, direction: Direction) -> None:
        """Lose everything in one direction. The connection stays open."""
        with self._changed:
            self._dropping.add(direction)

    def duplicate(self, direction: Direction) -> None:
        """Forward each chunk of one direction twice."""
        with self._changed:
            self._doubling.add(direction)

    def truncate(self, direction: Direction, size: int) -> None:
        """Forward `size` more bytes of one direction, and then the end of the stream."""
        with self._changed:
            self._truncating[direction] = size

    def resume(self) -> None:
        """Forward everything that was held back."""
        with self._changed:
            self._stalled.clear()
            self._changed.notify_all()

    def resume_after_reset(self) -> None:
        """Reset every connection, losing what was held back, and forward on new ones."""
        self.reset()
        self.resume()

    def resume_for_new(self) -> None:
        """Forward on new connections; what is held back on the old ones stays held back."""
        with self._changed:
            self._mute.update(self._pairs)
            self._mutings += 1
            self._stalled.clear()

    def wait_held(self, direction: Direction, pieces: int = 1) -> None:
        """Return when at least so many chunks are being held back; `TimeoutError` if that takes too long."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._held[direction] >= pieces, HELD_LIMIT_S):
                raise TimeoutError("nothing was held back")

    # The end.

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

    # Its threads.

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
                self.accepted += 1
                refused = self._away or self._hushed or len(self._pairs) + len(self._unanswered) >= LINES_MAX
                target, mutings, resets = self._target, self._mutings, self._resets
                if self._silent and not refused:
                    self._unanswered.append(near)
                    continue
            far = None if refused else _reached(target)
            if far is None:
                _cut(near)
                continue
            for end in (near, far):
                end.settimeout(None)
                if end.family != socket.AF_UNIX:
                    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            pair = (near, far)
            with self._changed:
                alive = resets == self._resets and not self._away and not self._closed
                if alive:
                    self._pairs.add(pair)
                    if mutings != self._mutings:
                        self._mute.add(pair)
            if not alive:  # it was reset, cut or redirected while the server was being reached
                _cut(near)
                _cut(far)
                continue
            self._start(self._pump, near, far, pair, "to_server")
            self._start(self._pump, far, near, pair, "to_client")

    def _pump(self, source: socket.socket, sink: socket.socket, pair: Pair, direction: Direction) -> None:
        ended = False  # the sink was told so, whatever the source sends
        try:
            while True:  # ends when an end has closed, or when it is cut
                data = source.recv(_PIECE)
                with self._changed:
                    self._hold(pair, direction, data)
                    if not data:
                        self._half_close(pair, sink)
                        return
                    if pair not in self._pairs:
                        return  # data in flight on a cut connection is lost
                    onward = b"" if ended or direction in self._dropping else data
                    self.dropped += len(data) - len(onward)
                    if direction in self._doubling:
                        onward *= 2
                    size = self._truncating.get(direction)
                if size is not None and not ended:
                    onward, ended = onward[:size], len(onward) >= size
                    with self._changed:
                        self._truncating[direction] = size - len(onward)
                sink.sendall(onward)
                if ended:
                    sink.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # one end has closed; the other one is closed now
        finally:
            with self._changed:
                self._pairs.discard(pair)
                self._mute.discard(pair)
                self._ends.pop(pair, None)
                self._changed.notify_all()
            for end in pair:
                _cut(end)

    def _hold(self, pair: Pair, direction: Direction, data: bytes) -> None:
        """Hold back a chunk, or the end of a stream, as the faults demand. Called with the mutex held."""
        self._changed.wait_for(lambda: not self._hushed or self._closed or pair not in self._pairs)
        if not data:
            return
        if delay_s := self._delays_s[direction]:
            self._changed.wait_for(lambda: self._closed or pair not in self._pairs, delay_s)
        self._held[direction] += 1
        self._changed.notify_all()
        self._changed.wait_for(
            lambda: not (direction in self._stalled or pair in self._mute) or pair not in self._pairs
        )
        self._held[direction] -= 1

    def _half_close(self, pair: Pair, sink: socket.socket) -> None:
        """Tell the other end, and keep the connection until that has ended too. Called with the mutex held."""
        with contextlib.suppress(OSError):
            sink.shutdown(socket.SHUT_WR)
        self._ends[pair] += 1
        self._changed.notify_all()
        self._changed.wait_for(lambda: self._ends[pair] > 1 or pair not in self._pairs)

    def _reset(self) -> None:
        with self._changed:
            pairs, self._pairs = self._pairs, set()
            self._resets += 1
            unanswered, self._unanswered = self._unanswered, []
            self._changed.notify_all()
        for pair in pairs:
            for end in pair:
                _cut(end)
        for end in unanswered:
            _cut(end)


def _reached(target: str | tuple[str, int]) -> socket.socket | None:
    """A connection to the server. None: it is unreachable."""
    if not isinstance(target, str):
        try:
            return socket.create_connection(target, _CONNECT_S)
        except OSError:
            return None
    made = socket.socket(socket.AF_UNIX)
    try:
        made.connect(target)
    except OSError:
        made.close()
        return None
    return made


def _cut(end: socket.socket) -> None:
    """Close with a reset, as a crashed host or a firewall does."""
    with contextlib.suppress(OSError):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RD)  # wakes the pump that reads from it; a plain close would not
    end.close()
