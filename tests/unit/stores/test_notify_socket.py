"""The socket of hints, and what a process of another user can cost."""

from __future__ import annotations

import asyncio
import os
import sys

import pytest

from holdfast.stores.sqlite import notify_socket
from holdfast.stores.sqlite.notify_socket import LoopListener
from support.fixtures.databases import until
from unit.stores.test_foreign_notifications import send_as_another_user

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or os.getuid() != 0, reason="only root can start a process of another user, on Linux"
)


@pytest.mark.asyncio
async def test_a_listener_pauses_after_it_read_from_another_user(monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[list[bytes]] = []

    class Counted(LoopListener):
        def read(self, bytes_max: int) -> list[bytes]:
            reads.append(super().read(bytes_max))
            return reads[-1]

    monkeypatch.setattr(notify_socket, "PAUSE_S", 1_000_000.0)
    ear = Counted(asyncio.get_running_loop(), "holdfast-test", 64, lambda _: None)
    try:
        await asyncio.to_thread(send_as_another_user, ear.name, "x", 10_000)
        await until(lambda: reads)
        await asyncio.to_thread(send_as_another_user, ear.name, "x", 10_000)
        assert reads == [[]], "it is not woken again, however much comes"
    finally:
        ear.close()
