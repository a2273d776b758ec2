"""The connection of one event loop to JetStream: shared by all of its tasks, replaced when it is lost.

Promises: a call ends at its deadline. It connects when first used; all callers that come meanwhile wait for the same
connection, each until its own deadline, and the servers of the URL share the time, so that one that hangs does not use
it up. When the connection breaks, requests that were sent get `NatsConnectionBroken` immediately (they may have taken
effect). A request that the server does not permit gets `Misconfigured` immediately. A connection that lets a deadline
pass and has answered nothing for a second is given up. The client of the library never
reconnects: a request that was not sent is not kept for a later connection.

Clock: the event loop's.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
from collections.abc import Callable, Sequence
from typing import Any, Final

import nats.errors
from nats.aio.client import Client

from holdfast.core.failpoints import ARMED, areach
from holdfast.errors import BackendError, HoldfastError, Misconfigured, Timeout, Unavailable
from holdfast.stores.nats.acks import NatsAcks, Outgoing
from holdfast.stores.nats.answers import translated
from holdfast.stores.nats.secure_client import SecureClient
from holdfast.stores.nats.url import NatsAddress
from holdfast.types import NS

CONNECT_NS: Final = 5 * NS
SILENCE_NS: Final = NS  # a connection past a deadline that was silent for so long is given up
CLOSE_S: Final = 1.0

_PING_S: Final = 5
_PINGS: Final = 2
_FORBIDDEN: Final = re.compile(r"permissions violation for (publish|subscription) to \"([^\"]+)\"", re.IGNORECASE)

# What a forked child inherits: its sockets belong to the parent, and closing them here would reach the parent's loop.
_inherited: list[object] = []


class NatsConnectionBroken(Timeout):
    """The connection broke after the request was sent and before its answer: it may have taken effect.

    Unlike a plain `Timeout` there may be time left to ask again, if asking again is harmless.
    """


class NatsSession:
    """One connection, from its first moment to its end."""

    def __init__(self, client: Client, acks: NatsAcks, address: NatsAddress) -> None:
        self.client = client
        self.acks = acks
        self.lost = False
        self.on_lost: list[Callable[[], None]] = []
        self.refused: Misconfigured | None = None
        self._address = address

    @property
    def usable(self) -> bool:
        """Whether requests can be sent on it."""
        return not self.lost and not self.client.is_closed

    @property
    def has_jetstream(self) -> bool:
        """Whether the server has said that JetStream is enabled there."""
        return bool(self._greeting.get("jetstream", True))

    @property
    def version(self) -> str:
        """The version of the server; empty: unknown."""
        return str(self._greeting.get("version", ""))

    @property
    def _greeting(self) -> dict[str, Any]:
        info = getattr(self.client, "_server_info", None)
        return info if isinstance(info, dict) else {}

    def end(self, why: str) -> None:
        """The connection must not be used again. No caller is left waiting."""
        if self.lost:
            return
        self.lost = True
        self.acks.fail(NatsConnectionBroken(f"nats at {self._address}: {why}; it may have taken effect"))
        for call in self.on_lost:
            call()

    def trouble(self, error: Exception) -> None:
        """Something that the server said about this connection."""
        found = _FORBIDDEN.search(str(error))
        if found is None:
            return
        verb, subject = found[1].lower(), self.acks.spelled(found[2])
        what = "publish" if verb == "publish" else "subscribe"
        refusal = Misconfigured(
            f"nats at {self._address} forbids this user to {what} to {subject}; "
            f"permissions: allow it there (`holdfast access nats --bucket` prints what Holdfast needs)"
        )
        if verb == "publish":
            self.acks.fail(refusal, subject)
        elif subject.lower().startswith("_inbox"):
            self.refused = refusal
            self.acks.fail(refusal)


class NatsLink:
    """See the module. Belongs to the event loop that first uses it."""

    def __init__(self, address: NatsAddress) -> None:
        self.address = address
        self._session: NatsSession | None = None
        self._opening: asyncio.Task[NatsSession | BackendError] | None = None
        self._closing: set[asyncio.Task[None]] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pid = os.getpid()
        self._first = 0  # of the servers: the one that answered last

    def deadline(self, timeout_ns: int) -> int:
        """When a call that may take so long has to be over."""
        return int(asyncio.get_running_loop().time() * NS) + timeout_ns

    def left_s(self, deadline_ns: int) -> float:
        """The rest of the time."""
        return (deadline_ns - self.deadline(0)) / NS

    async def ask(self, subject: str, request: dict[str, Any], deadline_ns: int) -> dict[str, Any]:
        """Ask JetStream's API. The answer may be a refusal: an object with the key `error`."""
        data = json.dumps(request).encode() if request else b""
        (answer,) = await self.ask_all([Outgoing(subject, data, {})], deadline_ns)
        if isinstance(answer, BackendError):
            raise answer
        return answer

    async def ask_all(self, going: Sequence[Outgoing], deadline_ns: int) -> list[dict[str, Any] | BackendError]:
        """Publish some messages together, and wait for their answers: of each, the object or the error."""
        session = await self.session(deadline_ns)
        if ARMED:
            await areach("store.nats.send")
        left_s = self.left_s(deadline_ns)
        if left_s <= 0:
            raise Unavailable(f"nats at {self.address}: no time was left to send the request")
        began_s, before = asyncio.get_running_loop().time(), session.acks.answered
        try:
            async with asyncio.timeout(left_s):
                answers = await session.acks.publish(session.client, going, left_s)
        except TimeoutError:  # what the socket does not take is kept by the client until there is no more room
            answers = [nats.errors.TimeoutError() for _ in going]
        if ARMED:
            await areach("store.nats.replied")
        silent = session.acks.answered == before
        if silent and (asyncio.get_running_loop().time() - began_s) * NS >= SILENCE_NS:
            self._give_up(session, "no answer any more")
        return [self._read(session, answer) for answer in answers]

    def _read(self, session: NatsSession, answer: bytes | Exception) -> dict[str, Any] | BackendError:
        if isinstance(answer, nats.errors.NoRespondersError) and not session.has_jetstream:
            return Misconfigured(f"nats at {self.address}: JetStream is off; server: start it with --jetstream")
        if isinstance(answer, BackendError):
            # Each caller gets its own error, with its own traceback.
            return type(answer)(str(answer))
        if isinstance(answer, Exception):
            found = translated(answer, f"nats at {self.address}")
            return found if isinstance(found, BackendError) else Misconfigured(str(found))
        try:
            said = json.loads(answer)
        except (ValueError, RecursionError):
            said = None
        if isinstance(said, dict):
            return said
        return Timeout(f"nats at {self.address} sent an answer that makes no sense; it may have taken effect")

    async def publish_hint(self, subject: str) -> None:
        """Publish a hint that nothing answers. It may be lost."""
        session = self._session
        if session is not None and session.usable:
            with contextlib.suppress(nats.errors.Error, OSError):
                await session.client.publish(subject, b"")

    async def session(self, deadline_ns: int) -> NatsSession:
        """The living connection, or a new one; all who come meanwhile wait for the same, each until its deadline."""
        self._check_home()
        while self._session is None or not self._session.usable:
            if self._opening is None:
                if self._session is not None and not self._session.lost:  # the client is still closing its socket
                    self._give_up(self._session, "connection lost")
                self._opening = asyncio.get_running_loop().create_task(self._open())
            done, _ = await asyncio.wait([self._opening], timeout=max(0.0, self.left_s(deadline_ns)))
            if not done:
                raise Unavailable(f"nats at {self.address} could not be reached in time")
            task = done.pop()
            if task.cancelled():
                raise Unavailable(f"nats at {self.address}: the store was closed before it was reached")
            outcome = task.result()
            if isinstance(outcome, BackendError):
                raise type(outcome)(str(outcome)) from outcome  # each caller gets its own, with its own traceback
        if self._session.refused is not None:
            raise Misconfigured(str(self._session.refused))
        return self._session

    async def _open(self) -> NatsSession | BackendError:
        """Connect for all callers: no caller's cancellation ends it, and its error waits for no caller."""
        failed: BackendError = Unavailable(f"nats at {self.address} could not be reached")
        until_ns = self.deadline(CONNECT_NS)
        try:
            number = len(self.address.servers)
            for tried in range(number):
                at = (self._first + tried) % number
                limit_s = self.left_s(until_ns) / (number - tried)
                try:
                    self._session = await self._connected(self.address.servers[at], limit_s)
                except BackendError as error:
                    # A server that is up and refuses says more than one that is down.
                    failed = failed if isinstance(failed, Misconfigured) else error
                else:
                    self._first = at
                    return self._session
            self._first = (self._first + 1) % number
            return failed
        finally:
            self._opening = None

    async def _connected(self, server: str, limit_s: float) -> NatsSession:
        client = SecureClient() if self.address.tls is not None else Client()
        acks = NatsAcks()
        session = NatsSession(client, acks, self.address)
        errors: list[Exception] = []  # what the client raises is often less

        async def trouble(error: Exception) -> None:
            errors.append(error)
            session.trouble(error)

        async def lost() -> None:
            session.end("connection lost")

        options: dict[str, Any] = dict(self.address.credentials)
        if self.address.tls is not None:
            options["tls"] = self.address.tls
        try:
            async with asyncio.timeout(limit_s):
                await client.connect(
                    [server],
                    name="holdfast",
                    allow_reconnect=False,
                    max_reconnect_attempts=1,  # of the first connection; the client would try 60 times otherwise
                    reconnect_time_wait=0,
                    connect_timeout=max(1, round(limit_s)),
                    ping_interval=_PING_S,
                    max_outstanding_pings=_PINGS,
                    error_cb=trouble,
                    disconnected_cb=lost,
                    closed_cb=lost,
                    **options,
                )
        except BaseException as error:
            session.lost = True
            self._close_later(client)
            if not isinstance(error, nats.errors.Error | OSError | TimeoutError | UnicodeError):
                raise
            raise self._not_reached(errors[-1] if errors and _says_less(error) else error) from error
        return session

    def _not_reached(self, error: BaseException) -> BackendError:
        """What a failed connect means. Nothing was asked for yet, so it is never a doubt."""
        if isinstance(error, UnicodeError):
            return Misconfigured(f"nats at {self.address}: no such name is possible; url host: give a valid one")
        found: HoldfastError = translated(error, f"nats at {self.address}")
        return found if isinstance(found, Misconfigured) else Unavailable(str(found))

    def _give_up(self, session: NatsSession, why: str) -> None:
        session.end(why)
        self._close_later(session.client)

    def _close_later(self, client: Client) -> None:
        """Close it without waiting: the end of a hung or half-made connection can take its time."""
        task = asyncio.get_running_loop().create_task(_closed(client))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def close(self) -> None:
        """Close the connection. Calls under way get an error that reports what is known about them."""
        self._check_home()
        opening = self._opening
        if opening is not None:
            opening.cancel()
            await asyncio.wait([opening])  # it can have connected all the same: `wait_for` prefers a result
        session, self._session = self._session, None
        if session is not None and not session.lost:
            with contextlib.suppress(nats.errors.Error, OSError, TimeoutError):
                async with asyncio.timeout(CLOSE_S):
                    await session.client.flush()  # a hint that was just sent
            self._give_up(session, "closed")
        if self._closing:
            await asyncio.wait(set(self._closing), timeout=CLOSE_S)

    def _check_home(self) -> None:
        """Make sure that process and loop are still those the connection belongs to; else start again."""
        loop = asyncio.get_running_loop()
        if self._pid == os.getpid():
            if self._loop is loop:
                return
            if self._loop is not None and not self._loop.is_closed():
                raise RuntimeError("this store belongs to another event loop: make one for each loop")
        else:
            _inherited.append((self._session, self._opening, self._loop))
        self._session = self._opening = None
        self._closing = set()
        self._loop = loop
        self._pid = os.getpid()  # last: an interrupt before it repeats the others


def _says_less(error: BaseException) -> bool:
    """Whether the client raises less than it has reported: a server that refuses us is one less to it."""
    return isinstance(error, nats.errors.NoServersError | TimeoutError | nats.errors.UnexpectedEOF)


async def _closed(client: Client) -> None:
    # A server that has just gone has closed it from its side; CPython 3.12 and 3.13 then raise a TypeError. nats-py
    # before 2.15 raises an AssertionError where there never was a connection.
    writer = getattr(getattr(client, "_transport", None), "_io_writer", None)
    if writer is not None and not client.is_connected:
        writer.transport.abort()
    with contextlib.suppress(OSError, TypeError, AssertionError, nats.errors.Error, TimeoutError):
        async with asyncio.timeout(CLOSE_S):
            await client.close()
    # A server that takes nothing any more would keep it open for as long as there is unsent data.
    if writer is not None:
        writer.transport.abort()
