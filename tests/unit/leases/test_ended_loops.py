"""An event loop that ends in the middle of an acquisition, without `close()`, leaves no key behind."""

from __future__ import annotations

import subprocess
import sys
import threading
import time

import pytest

import holdfast
from holdfast.testing.proxy import HELD_LIMIT_S as LIMIT_S
from holdfast.testing.proxy import FaultProxy
from support.servers.redis import RedisServer

pytestmark = pytest.mark.server

DELAY_S = 0.01  # of each piece, in each direction
ENDINGS = 40

# The TTL is far beyond the test: no key expires. The program does not close what its loops used.
PROGRAM = """
import asyncio, sys
from holdfast import aio

url, number, longest, cancel = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), sys.argv[4] == "cancel"
kept = []

async def ends_early(name, after):
    locks = aio.connect(url)
    kept.append(locks)
    await locks.ping()
    waiting = asyncio.ensure_future(locks.lock(name, ttl=600).acquire())
    await asyncio.sleep(after)
    if waiting.done():
        await waiting.result().release()
    elif cancel:
        waiting.cancel()  # else `asyncio.run` does it

for at in range(number):
    asyncio.run(ends_early(f"job:{at}", longest * at / number))
print("ended", flush=True)
sys.stdin.readline()
"""


@pytest.mark.parametrize("how", ["cancel", "return"])
def test_a_key_that_was_being_acquired_is_free_after_its_loop(
    redis_server: RedisServer, redis_url: str, how: str
) -> None:
    with FaultProxy(redis_server.port) as proxy, holdfast.connect(redis_url) as direct:
        proxy.slow("to_server", DELAY_S)
        proxy.slow("to_client", DELAY_S)
        url = f"redis://{proxy.address}?{redis_url.partition('?')[2]}"
        # From before the request is sent to after its answer.
        arguments = [url, str(ENDINGS), str(4 * DELAY_S), how]
        program = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", PROGRAM, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert program.stdout is not None
            assert program.stdout.readline() == "ended\n"
            until, pause = time.monotonic() + LIMIT_S, threading.Event()
            while left := [each.key for each in direct.list("job:")]:
                assert time.monotonic() < until, f"left behind: {left}"
                pause.wait(0.01)
        finally:
            program.communicate("\n", timeout=LIMIT_S)
