"""Wake-ups come from processes of the same user: what another user sends wakes no waiter and starts no work."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterable

import pytest

from holdfast.plane.db.sqlite.notify import SocketListener
from holdfast.stores.sqlite.notify import SharedLoopListener, SocketNotifier, ThreadListener
from holdfast.types import NS
from support.fixtures.databases import until

pytestmark = [
    pytest.mark.threat("X21"),
    pytest.mark.skipif(sys.platform != "linux", reason="abstract sockets and their credentials are Linux's"),
    pytest.mark.skipif(
        sys.platform == "linux" and os.getuid() != 0, reason="only root can start a process of another user"
    ),
]

NOBODY = 65534

# It sends as fast as the queue takes it, and says how many datagrams were taken.
SENDING = """
import os, socket, sys
os.setgid(int(sys.argv[1])), os.setuid(int(sys.argv[1]))
out = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
out.setblocking(False)
taken = 0
for _ in range(int(sys.argv[4])):
    try:
        out.sendto(sys.argv[3].encode(), "\\0" + sys.argv[2])
    except BlockingIOError:
        continue
    taken += 1
print(taken)
"""


def send_as_another_user(name: str, text: str, times: int = 1) -> int:
    """How many of the datagrams a process of another user got into the queue."""
    words = [sys.executable, "-c", SENDING, str(NOBODY), name, text, str(times)]
    return int(subprocess.run(words, check=True, capture_output=True, text=True, timeout=60).stdout)


def test_a_blocking_waiter_of_leases_is_not_woken_by_another_user() -> None:
    socket_listener, listener = ThreadListener(), SocketNotifier()
    name, _, label = socket_listener.address.partition("#")
    try:
        assert send_as_another_user(name, label) == 1
        assert socket_listener.wait(0) is False
        assert listener.notify([socket_listener.address]) == []
        assert socket_listener.wait(0) is True
        assert send_as_another_user(name, label) == 1
        woken: list[bool] = []
        waiting = threading.Thread(target=lambda: woken.append(socket_listener.wait(60 * NS)))
        waiting.start()
        listener.notify([socket_listener.address])
        waiting.join(60)
        assert woken == [True]
    finally:
        listener.close()
        socket_listener.close()


@pytest.mark.asyncio
async def test_waiters_of_leases_on_an_event_loop_are_not_woken_by_another_user() -> None:
    loop = asyncio.get_running_loop()
    socket_listener, listener = SharedLoopListener(loop), SocketNotifier()
    try:
        (attacked, foreign), (address, ours) = socket_listener.take(), socket_listener.take()
        name, _, label = attacked.partition("#")
        assert await asyncio.to_thread(send_as_another_user, name, label) == 1
        listener.notify([address])
        await until(ours.is_set)
        assert not foreign.is_set()
    finally:
        listener.close()
        socket_listener.close()


@pytest.mark.asyncio
async def test_processes_of_a_plane_are_not_woken_by_another_user_that_fills_the_queue() -> None:
    heard: list[str] = []
    everybody: list[bool] = []

    def notify(channels: Iterable[str]) -> None:
        heard.extend(channels)

    socket_listener = SocketListener(asyncio.get_running_loop(), notify, lambda: everybody.append(True))
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as out:
        out.setblocking(False)
        try:
            assert send_as_another_user(socket_listener.address, "jobs", 10_000) > 1  # the loop cannot read meanwhile

            def sent() -> bool:
                with contextlib.suppress(BlockingIOError):
                    return out.sendto(b"mine", f"\0{socket_listener.address}") > 0
                return False

            await until(sent)  # as soon as there is room in the queue
            await until(lambda: heard)
            assert (heard, everybody) == (["mine"], [])
        finally:
            socket_listener.close()
