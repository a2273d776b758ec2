"""One connection and one answer, without a driver: tells a server that is down from one that hangs or is slow.

Promises: ends within its limit, sends only the given bytes, and reads one byte. Clock: the event loop's.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WireAnswer:
    """What an address did."""

    connected: float | None = None  # seconds until the connection
    answered: float | None = None  # seconds from then until the first byte
    problem: str = ""
    refused: bool = False


async def probe(host: str, port: int, hello: bytes | None, limit_s: float) -> WireAnswer:
    """Connect, send `hello`, and wait for a byte. None: only connect. A host with a slash is a path of a socket."""
    clock = asyncio.get_running_loop().time
    began = clock()
    try:
        async with asyncio.timeout(limit_s):
            if host.startswith("/"):
                reader, writer = await asyncio.open_unix_connection(host)
            else:
                reader, writer = await asyncio.open_connection(host, port)
    except TimeoutError:
        return WireAnswer(problem=f"no connection within {limit_s:g} s")
    except (ConnectionRefusedError, FileNotFoundError):
        return WireAnswer(problem="the connection is refused: no process listens", refused=True)
    except OSError as error:
        return WireAnswer(problem=error.strerror or str(error))
    connected = clock() - began
    if hello is None:
        writer.close()
        return WireAnswer(connected, 0.0)
    try:
        writer.write(hello)
        asked = clock()
        async with asyncio.timeout(max(0.1, limit_s - connected)):
            said = await reader.read(1)
        if not said:
            return WireAnswer(connected, problem="closes it without an answer")
        return WireAnswer(connected, clock() - asked)
    except TimeoutError:
        return WireAnswer(connected)
    except OSError as error:
        return WireAnswer(connected, problem=f"breaks it: {error.strerror or error}")
    finally:
        writer.close()
