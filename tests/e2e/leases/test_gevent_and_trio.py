"""Programs under gevent, eventlet and trio: refused at `connect` with a message that names the fix, or they work."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec

import pytest

GEVENT = """
from gevent import monkey
monkey.{patch}
import holdfast
for connect in (holdfast.connect, holdfast.aio.connect):
    for url in ("memory://", "redis://127.0.0.1:1", "sqlite:///never.db"):
        try:
            connect(url)
        except holdfast.Misconfigured as refused:
            print(refused)
"""

FIX_FOR_EVENTLET = "eventlet.monkey_patch(socket=False, thread=False, select=False)"

EVENTLET = """
import warnings
warnings.simplefilter("ignore")
import eventlet
eventlet.monkey_patch({patch})
import holdfast
for connect in (holdfast.connect, holdfast.aio.connect):
    for url in ("memory://", "redis://127.0.0.1:1", "sqlite:///never.db"):
        try:
            connect(url)
        except holdfast.Misconfigured as refused:
            print(refused)
"""

UNPATCHED = """
import gevent, holdfast

def work():
    with holdfast.connect("memory://") as locks, locks.lock("k", ttl=5) as lease:
        return lease.held

print(gevent.spawn(work).get(timeout=20))
"""

TRIO = """
import trio, holdfast

outside = holdfast.aio.connect("memory://")

async def main():
    lock = outside.lock("k", ttl=5)
    for attempt in (lambda: holdfast.aio.connect("memory://"), lock.try_acquire, outside.__aenter__):
        try:
            await attempt()
        except holdfast.Misconfigured as refused:
            print(refused)

    def work():
        with holdfast.connect("memory://") as locks, locks.lock("k", ttl=5) as lease:
            return lease.held

    print(await trio.to_thread.run_sync(work))

trio.run(main)
"""

ANYIO = """
import anyio, holdfast

async def main():
    async with holdfast.aio.connect("memory://") as locks, locks.lock("k", ttl=5) as lease:
        print(lease.held)

anyio.run(main, backend="asyncio")
"""


def need(*names: str) -> None:
    for name in names:
        if find_spec(name) is None:
            pytest.skip(f"{name} is not installed: pip install -r requirements/dev.txt")


def said(program: str) -> list[str]:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize(
    ("patch", "named"),
    [
        ("patch_all()", "socket, threading"),
        ("patch_all(thread=False)", "socket"),
        ("patch_thread()", "threading"),
    ],
)
def test_a_process_patched_by_gevent_is_refused_at_connect(patch: str, named: str) -> None:
    need("gevent")
    lines = said(GEVENT.format(patch=patch))
    assert len(lines) == 6
    for line in lines:
        assert line.startswith(f"gevent has replaced {named} in this process")
        assert "monkey.patch_all(socket=False, thread=False)" in line


@pytest.mark.parametrize(
    ("patch", "named"),
    [("", "socket, thread, select"), ("socket=False, thread=False", "select"), ("thread=True", "thread")],
)
def test_a_process_patched_by_eventlet_is_refused_at_connect(patch: str, named: str) -> None:
    need("eventlet")
    lines = said(EVENTLET.format(patch=patch))
    assert len(lines) == 6
    for line in lines:
        assert line.startswith(f"eventlet has replaced {named} in this process")
        assert FIX_FOR_EVENTLET in line


def test_greenlets_without_patches_can_use_locks() -> None:
    need("gevent")
    assert said(UNPATCHED) == ["True"]


def test_the_fix_that_each_message_names_is_accepted() -> None:
    need("gevent", "eventlet")
    assert said(GEVENT.format(patch="patch_all(socket=False, thread=False)")) == []
    assert said(EVENTLET.format(patch=FIX_FOR_EVENTLET.partition("(")[2].rstrip(")"))) == []


def test_a_task_of_trio_is_refused_with_the_ways_that_work() -> None:
    need("trio", "anyio")
    *refusals, worked = said(TRIO)
    assert worked == "True"
    assert len(refusals) == 3
    for line in refusals:
        assert line.startswith("holdfast.aio needs asyncio, and this task runs under trio")
        assert 'anyio.run(main, backend="asyncio")' in line
    assert said(ANYIO) == ["True"]
