"""Windows with replicas that are processes: each is taken once, also when its taker is killed in the middle of it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast
from holdfast.core import time_windows
from support.servers.redis import redis_executables, start_redis

LIMIT_S = 90
WINDOW_S = 1.5
WINDOWS = 3

REPLICA = """
import asyncio, json, sys, time
import holdfast
from holdfast.core import time_windows as windows
from holdfast import aio

url, colour, window, windows, role = sys.argv[1], sys.argv[2], float(sys.argv[3]), int(sys.argv[4]), sys.argv[5]
taken, sure = [], set()

def number():
    return int(time.time() // window)

async def blocking():
    with holdfast.connect(url) as locks:
        await loop(lambda: done(locks.once("work", window=window)))

async def asynchronous():
    async with aio.connect(url) as locks:
        await loop(lambda: locks.once("work", window=window))

async def done(value):
    return value

async def loop(once):
    end = number() + windows
    while number() < end:
        before = number()
        lease = await once()
        if number() == before:
            sure.add(before)  # the whole call was in this window, so a process holds it now
        if lease is not None:
            taken.append(lease.key)
            if role == "victim":
                print(json.dumps(taken), flush=True)
                sys.stdin.read()
        await asyncio.sleep(0.02)

asyncio.run(asynchronous() if colour == "asyncio" else blocking())
print(json.dumps([taken, sorted(sure)]), flush=True)
"""


def start(url: str, colour: str, window_s: float, role: str = "replica") -> subprocess.Popen[str]:
    arguments = [url, colour, str(window_s), str(WINDOWS), role]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    return subprocess.Popen([sys.executable, "-c", REPLICA, *arguments], text=True, **pipes)  # type: ignore[call-overload, no-any-return]


@pytest.fixture(params=["sqlite", pytest.param("redis", marks=pytest.mark.server)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/leases.db"
        return
    if not redis_executables():
        pytest.skip("no redis-server")
    with start_redis(redis_executables()[-1]) as server:
        yield f"{server.url}?prefix={uuid.uuid4().hex[:8]}:"


@pytest.mark.requires("R46", "R54")
def test_every_window_is_taken_once_by_any_number_of_processes(url: str) -> None:
    replicas = [start(url, colour, WINDOW_S) for colour in ("blocking", "asyncio", "blocking")]
    said = [json.loads(replica.communicate(timeout=LIMIT_S)[0]) for replica in replicas]
    taken = Counter(key for keys, _ in said for key in keys)
    assert set(taken.values()) == {1}
    sure = {number for _, numbers in said for number in numbers}
    assert len(sure) >= 1

    assert {
        time_windows.key("work", round(number * WINDOW_S * 10**9), round(WINDOW_S * 10**9)) for number in sure
    } <= set(taken)


@pytest.mark.parametrize("colour", ["blocking", "asyncio"])
def test_a_window_whose_taker_was_killed_is_not_taken_again(url: str, colour: str) -> None:
    days_s = 5 * 86_400
    victim = start(url, colour, days_s, "victim")
    assert victim.stdout is not None
    (key,) = json.loads(victim.stdout.readline())
    victim.send_signal(signal.SIGKILL)
    victim.communicate(timeout=LIMIT_S)
    for _ in range(2):  # a process that is started again, and again
        with holdfast.connect(url) as locks:
            assert locks.once("work", window=days_s) is None
            assert locks.inspect(key).held
