"""TLS in front of a server that was built without it, as stunnel or a cloud's load balancer does.

The handshake and its certificates are real; the server behind speaks plain text. One thread runs it.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import threading
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from support.fixtures.tls import TlsFiles

T = TypeVar("T")

_POSTGRES_ASKS: Final = 8  # bytes with which a client of Postgres asks for TLS
_PIECE: Final = 65_536
_LIMIT_S: Final = 20.0


class TlsFront:
    """A loopback port with TLS that leads to a port, or to a unix socket, without."""

    def __init__(self, target: int | str, files: TlsFiles, *, postgres: bool = False) -> None:
        """`postgres`: the client asks for TLS first, in the manner of Postgres."""
        self._target = target
        self._files = files
        self._postgres = postgres
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._writers: set[asyncio.StreamWriter] = set()
        self.present("good")
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self._server = self._run(asyncio.start_server(self._serve, "127.0.0.1", 0))
        self.port: int = self._server.sockets[0].getsockname()[1]

    def present(self, name: str) -> None:
        """The certificate of the next handshakes."""
        self._context.load_cert_chain(self._files.certificate(name), self._files.key(name))

    def reset(self) -> None:
        """Cut all connections."""
        self._run(self._reset())

    def close(self) -> None:
        """End everything."""
        self._loop.call_soon_threadsafe(self._server.close)
        self.reset()
        self._run(self._finish())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_LIMIT_S)
        self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(_LIMIT_S)

    async def _reset(self) -> None:
        for writer in list(self._writers):
            writer.transport.abort()

    async def _finish(self) -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        if others:
            await asyncio.wait(others, timeout=_LIMIT_S)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        far: asyncio.StreamWriter | None = None
        try:
            if self._postgres:
                await reader.readexactly(_POSTGRES_ASKS)
                writer.write(b"S")
            await writer.start_tls(self._context, ssl_handshake_timeout=_LIMIT_S)
            if isinstance(self._target, int):
                source, far = await asyncio.open_connection("127.0.0.1", self._target)
            else:
                source, far = await asyncio.open_unix_connection(self._target)
            self._writers.add(far)
            await asyncio.gather(_copy(reader, far), _copy(source, writer))
        except (OSError, asyncio.IncompleteReadError):
            pass  # refused by the client, or cut
        finally:
            for each in (writer, far):
                if each is not None:
                    self._writers.discard(each)
                    each.transport.abort()


async def _copy(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await source.read(_PIECE):
            sink.write(data)
            await sink.drain()
    sink.transport.abort()
