"""The line between a client and a handler, which a newer holder can cut.

Promises: a handler that waits for more of its request when a newer holder registers hears that its client is gone, and
so stops waiting; if it had not got its whole request yet, what it answers is kept back, for it was refused half-way and
the middleware answers in its place. A handler that has got everything may have written already: its answer is its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final, TypeAlias

from holdfast.guards.http.request_order import LockLane

Scope: TypeAlias = MutableMapping[str, Any]
Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]

POLICY_VIOLATION: Final = 1008  # the closing code of a refused WebSocket


class CutOff:
    """One request on its way to a handler."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, lane: LockLane, fence: int) -> None:
        self._receive = receive
        self._send = send
        self._lane = lane
        self._fence = fence
        self._gone: Message = {"type": "http.disconnect"}
        if scope["type"] == "websocket":
            self._gone = {"type": "websocket.disconnect", "code": POLICY_VIOLATION, "reason": "a newer holder is here"}
        self._whole = scope["type"] != "http"  # a conversation has no end that one could wait for
        self._started = False
        self._cut = False

    @property
    def unanswered(self) -> bool:
        """Whether the handler was cut off before it had its whole request, and the client has no answer yet."""
        return self._cut and not self._started

    async def receive(self) -> Message:
        """What the client sends, until a newer holder registers: from then on, that the client is gone."""
        if self._lane.superseded(self._fence):
            return self._cut_off()
        message = asyncio.ensure_future(self._receive())
        overtaken = asyncio.ensure_future(self._lane.overtaken(self._fence))
        try:
            await asyncio.wait((message, overtaken), return_when=asyncio.FIRST_COMPLETED)
            if not message.done():
                return self._cut_off()
            received = message.result()
        finally:
            for each in (message, overtaken):
                each.cancel()
        if received["type"] == "http.request" and not received.get("more_body", False):
            self._whole = True
        return received

    async def send(self, message: Message) -> None:
        """What the handler answers, unless it was cut off."""
        if self.unanswered:
            return
        self._started = True
        await self._send(message)

    def _cut_off(self) -> Message:
        if not self._whole:
            self._cut = True
        return dict(self._gone)
