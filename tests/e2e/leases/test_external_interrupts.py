"""Another process sends SIGINT every few milliseconds to a loop of `with lock`: real signals, wherever they strike."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.servers.redis import redis_executables, start_redis

INTERRUPTS = int(os.environ.get("HOLDFAST_INTERRUPTS", "150"))
LIMIT_S = 110  # beyond what the program needs on a busy machine, and before the limit of the test

PROGRAM = """
import json, signal, sys, threading, time, warnings
import holdfast

warnings.simplefilter("ignore")
url, wanted = sys.argv[1], int(sys.argv[2])
struck, armed, blocks = 0, False, 0
pause = threading.Event()

def handler(*_):
    global struck, armed
    struck += 1
    if armed:
        armed = False
        raise KeyboardInterrupt

def until(what, holds):
    end = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < end, what
        pause.wait(0.005)

with holdfast.connect(url, request_timeout=1) as locks:
    lock = locks.lock("k", ttl=300)  # one object, and a TTL that does not hide a lease that is left behind
    lock.acquire().release()
    signal.signal(signal.SIGINT, handler)
    print("ready", flush=True)
    while struck < wanted:
        try:
            armed = True
            while struck < wanted:
                with lock as lease:
                    blocks += 1
        except KeyboardInterrupt:
            pass
    armed = False
    print("enough", flush=True)
    sys.stdin.readline()
    until("the key is free at the store", lambda: not locks.inspect("k").held)
    until("the local queue is empty", lambda: not locks.ports.runtime.mutexes.queues)
    lease = locks.lock("renewed", ttl=0.6).acquire()
    before = locks.statistics().renewed
    spent, since = time.process_time(), time.monotonic()
    until("the lease is renewed", lambda: locks.statistics().renewed >= before + 3)
    busy = (time.process_time() - spent) / (time.monotonic() - since)
    held, left = lease.held, len(locks.manager.renewer.lease_records())
    lease.release()
    again = lock.try_acquire()
print(json.dumps({"struck": struck, "blocks": blocks, "held": held, "left": left, "busy": busy, "free": bool(again)}))
"""


@pytest.fixture(params=["memory", "sqlite", pytest.param("redis", marks=pytest.mark.server)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "redis":
        if not redis_executables():
            pytest.skip("no redis-server")
        with start_redis(redis_executables()[-1]) as server:
            yield f"{server.url}?prefix={uuid.uuid4().hex[:8]}:"
    else:
        yield "memory://" if request.param == "memory" else f"sqlite:///{tmp_path}/leases.db"


@pytest.mark.requires("R48", "R81")
def test_signals_from_another_process_leave_nothing_behind(url: str) -> None:
    program = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, url, str(INTERRUPTS)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert program.stdout is not None
    assert program.stdin is not None
    assert program.stdout.readline() == "ready\n"
    enough, pause, chance = threading.Event(), threading.Event(), random.Random(4)

    def strike() -> None:
        while not enough.is_set() and program.poll() is None:
            program.send_signal(signal.SIGINT)
            pause.wait(chance.uniform(0.002, 0.006))

    striker = threading.Thread(target=strike, daemon=True)
    striker.start()
    said = program.stdout.readline()
    enough.set()
    striker.join()
    rest, errors = program.communicate("go on\n", timeout=LIMIT_S)
    assert program.returncode == 0, errors
    assert said == "enough\n", errors
    found = json.loads(rest)
    assert found["struck"] >= INTERRUPTS
    assert found["blocks"] > 0
    assert found["held"]
    assert found["free"]
    assert found["left"] == 1  # the lease that was renewed, and nothing that an interrupt has left
    assert found["busy"] < 0.8, "a thread spins"
