"""How a connection to NATS is closed while it is made or after it broke. Without a server."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from holdfast.errors import BackendError
from holdfast.stores.nats import link
from holdfast.stores.nats.url import parse_nats_url
from holdfast.types import NS


class Connecting:
    """A client that connects although it is cancelled, as `asyncio.wait_for` lets it if the answer is there."""

    made: list[Connecting]
    is_connected = True

    def __init__(self) -> None:
        self.is_closed = False
        self.closes = 0
        self.made.append(self)

    async def connect(self, servers: list[str], **options: Any) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return

    async def flush(self) -> None:
        """Nothing to send."""

    async def close(self) -> None:
        self.is_closed = True
        self.closes += 1


class Connected(Connecting):
    """A client that connects."""

    async def connect(self, servers: list[str], **options: Any) -> None:
        """Done."""


@pytest.mark.asyncio
async def test_a_connection_that_is_made_while_the_link_is_closed_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Connecting, "made", [], raising=False)
    monkeypatch.setattr(link, "Client", Connecting)
    made = link.NatsLink(parse_nats_url("nats://127.0.0.1:1"))
    with pytest.raises(BackendError, match="could not be reached in time"):
        await made.session(made.deadline(NS // 100))
    await made.close()
    assert [each.closes for each in Connecting.made] == [1]


@pytest.mark.asyncio
async def test_a_broken_connection_is_closed_when_another_takes_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Connecting, "made", [], raising=False)
    monkeypatch.setattr(link, "Client", Connected)
    made = link.NatsLink(parse_nats_url("nats://127.0.0.1:1"))
    first = await made.session(made.deadline(NS))
    Connecting.made[0].is_closed = True  # the client's own close has begun
    assert await made.session(made.deadline(NS)) is not first
    await made.close()
    assert [each.closes for each in Connecting.made] == [1, 1]
