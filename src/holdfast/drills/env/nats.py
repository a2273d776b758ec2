"""The NATS server of a deployment: a drill has its own stream on it. See `backends`.

The mark is a message in a separate stream (`HOLDFAST_DRILL_ALLOWED`). The stream deletes the message at its expiry, by
the clock of the server. Both belong to the account of the URL.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final, TypeVar

from holdfast.drills.env.backends import Backend, with_option
from holdfast.drills.permission import check_length
from holdfast.errors import BadInput
from holdfast.plane.bus.open import nats_connection
from holdfast.types import NS

if TYPE_CHECKING:
    from nats.js import JetStreamContext

T = TypeVar("T")

MARKS: Final = "HOLDFAST_DRILL_ALLOWED"
_SUBJECT: Final = f"{MARKS}.mark"
_OWN: Final = re.compile(r"HOLDFAST_DRILL_([0-9A-F]{8})")


class StreamBackend(Backend):
    """See the module."""

    def is_marked(self) -> bool:
        """See `Backend`."""

        async def look(context: JetStreamContext) -> bool:
            from nats.js.errors import NotFoundError

            try:
                found = await context.stream_info(MARKS)
            except NotFoundError:
                return False
            if found.config.subjects != [_SUBJECT]:
                raise BadInput("bus", f"has a stream {MARKS} that is no mark of Holdfast", "ask its owner")
            return found.state.messages > 0

        return self._asked(look)

    def mark(self, seconds: float) -> None:
        """See `Backend`."""
        length_ns = check_length(seconds)

        async def set_mark(context: JetStreamContext) -> None:
            await _delete(context, MARKS)
            await context.add_stream(name=MARKS, subjects=[_SUBJECT], max_age=length_ns / NS, max_msgs=1)
            await context.publish(_SUBJECT, b"drills may run here")

        self.is_marked()  # raises if it is not ours to replace
        self._asked(set_mark)

    def unmark(self) -> bool:
        """See `Backend`."""
        there = self.is_marked()
        self._asked(lambda context: _delete(context, MARKS))
        return there

    def quarter(self, name: str) -> str:
        """See `Backend`."""
        return with_option(self._url, "stream", _stream(name))

    def called(self, name: str) -> str:
        """See `Backend`."""
        return f"stream {_stream(name)}"

    def prepare(self, name: str) -> None:
        """See `Backend`."""

        async def made() -> None:
            connection = nats_connection(self.quarter(name))
            try:
                await connection.stream()
            finally:
                await connection.close()

        asyncio.run(made())

    def clear(self, name: str) -> None:
        """See `Backend`."""
        self._asked(lambda context: _delete(context, _stream(name)))

    def sweep(self) -> list[str]:
        """See `Backend`."""

        async def look(context: JetStreamContext) -> list[str]:
            names: list[str] = []
            while page := await context.streams_info(offset=len(names)):
                names += [each.config.name or "" for each in page]
            return sorted(found[1].lower() for name in names if (found := _OWN.fullmatch(name)))

        names = self._asked(look)
        for name in names:
            self.clear(name)
        return [self.called(name) for name in names]

    def _asked(self, work: Callable[[JetStreamContext], Awaitable[T]]) -> T:
        async def run() -> T:
            connection = nats_connection(self._url)
            try:
                client = await connection.client()
                with connection.errors():
                    return await work(client.jetstream())
            finally:
                await connection.close()

        return asyncio.run(run())


async def _delete(context: JetStreamContext, stream: str) -> None:
    from nats.js.errors import NotFoundError

    try:
        await context.delete_stream(stream)
    except NotFoundError:
        return


def _stream(name: str) -> str:
    return f"HOLDFAST_DRILL_{name.upper()}"
