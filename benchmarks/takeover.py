"""Takeover after `kill -9` of leaders: how long nothing is led, on any store.

    python -m benchmarks.takeover redis://127.0.0.1:6379 postgresql://app@/app?host=/tmp --leaders 200

On each store, some processes lead all names between them, and another one campaigns for all of them. When every name is
led and renewed, the leaders are killed, and the time from the kill to each new leader is measured. It is compared
with the lease length and half a second. Prints a table, or JSON with `--json`. Exit code 1: a name got no new leader.

Clock: monotonic, which all processes of a host share.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from holdfast import aio
from holdfast.errors import BackendError
from holdfast.stores.registry import redacted

ROOT: Final = Path(__file__).resolve().parents[1]
ALLOWANCE_S: Final = 0.5
LIMIT_S: Final = 120.0
_STARTS: Final = 10  # acquires at the same time while leaders start
READY: Final = "leading"


@dataclass(frozen=True, slots=True)
class Election:
    """How leaders are elected: as `Locks.leader` takes it, in seconds."""

    lease: float = 15.0
    renew_deadline: float = 10.0
    retry: float = 2.0


@dataclass(frozen=True, slots=True)
class Takeovers:
    """The takeovers on one store, in seconds from the kill."""

    store: str
    leaders: int
    lease: float
    times: tuple[float, ...]  # of those that were taken over, sorted
    early: int = 0  # got a new leader before the kill: the first one was too slow to renew

    def at(self, percent: int) -> float:
        """A percentile."""
        return self.times[min(len(self.times) - 1, len(self.times) * percent // 100)] if self.times else float("nan")

    @property
    def within(self) -> int:
        """How many took no longer than the lease and half a second."""
        return sum(each <= self.lease + ALLOWANCE_S for each in self.times)

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {**asdict(self), "p50": self.at(50), "p99": self.at(99), "max": self.at(100), "within": self.within}


@asynccontextmanager
async def leading(url: str, names: Sequence[str], how: Election) -> AsyncIterator[None]:
    """Lead all of these names."""
    async with AsyncExitStack() as stack:
        locks = await stack.enter_async_context(aio.connect(url, request_timeout=min(2.0, how.lease / 3)))
        leaders = [locks.leader(name, **asdict(how)) for name in names]
        few = asyncio.Semaphore(_STARTS)
        for lease in await asyncio.gather(*(_elected(each, few) for each in leaders)):
            stack.push_async_callback(_released, lease)
        yield


async def _elected(leader: aio.Leader, few: asyncio.Semaphore | None = None) -> aio.Lease:
    """Campaign until elected. A store that is too busy for so many candidates is asked again."""
    async with asyncio.timeout(LIMIT_S):
        while True:  # ends with a lease, or with the time
            try:
                async with few or contextlib.nullcontext():
                    return await leader.campaign(LIMIT_S)
            except BackendError:
                continue


async def _released(lease: aio.Lease) -> None:
    with contextlib.suppress(Exception):
        await lease.release()


async def takeovers(url: str, *, leaders: int, processes: int, how: Election) -> Takeovers:
    """Measure one store."""
    names = [f"takeover-{uuid.uuid4().hex[:8]}-{number}" for number in range(leaders)]
    times: list[float] = []
    killed = asyncio.Event()
    began = 0.0
    parts = [part for at in range(processes) if (part := names[at::processes])]
    children = [_child(url, part, how) for part in parts]
    async with AsyncExitStack() as stack:
        try:
            await asyncio.gather(*(asyncio.to_thread(_await_ready, each) for each in children))
            locks = await stack.enter_async_context(aio.connect(url, request_timeout=min(2.0, how.lease / 3)))

            async def succeed(name: str) -> None:
                lease = await _elected(locks.leader(name, **asdict(how)))
                stack.push_async_callback(_released, lease)
                times.append(time.monotonic() - began if killed.is_set() else -1.0)

            tasks = [asyncio.create_task(succeed(name)) for name in names]
            await asyncio.sleep(how.lease)  # every waiter has asked, and every lease was renewed
            began = time.monotonic()
            killed.set()
        finally:
            for each in children:
                each.send_signal(signal.SIGKILL)
            for each in children:
                await asyncio.to_thread(each.wait)
        await asyncio.gather(*tasks, return_exceptions=True)
    found = tuple(sorted(each for each in times if each >= 0))
    return Takeovers(redacted(url).partition("?")[0], leaders, how.lease, found, early=len(times) - len(found))


def _child(url: str, names: Sequence[str], how: Election) -> subprocess.Popen[str]:
    ask = json.dumps({"url": url, "names": list(names), "how": asdict(how)})
    child = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.takeover", "--lead"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdin is not None
    child.stdin.write(f"{ask}\n")
    child.stdin.flush()
    return child


def _await_ready(child: subprocess.Popen[str]) -> None:
    assert child.stdout is not None
    said = child.stdout.readline().strip()
    if said != READY:
        raise RuntimeError(f"a leader did not start: {said!r}")


async def _lead() -> None:
    """The process that is killed. It ends with the process that started it, too."""
    ask = json.loads(sys.stdin.readline())
    async with leading(ask["url"], ask["names"], Election(**ask["how"])):
        print(READY, flush=True)
        await asyncio.to_thread(sys.stdin.read)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.takeover", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("urls", nargs="*", metavar="URL", help="lease stores")
    parser.add_argument("--leaders", type=int, default=200, help="names that are led, on each store (200)")
    parser.add_argument("--processes", type=int, default=4, help="processes that lead them (4)")
    parser.add_argument("--lease", type=float, default=15.0, help="seconds (15)")
    parser.add_argument("--renew-deadline", type=float, default=10.0, help="seconds (10)")
    parser.add_argument("--retry", type=float, default=2.0, help="seconds between two attempts (2)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--lead", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.lead:
        asyncio.run(_lead())
        return 0
    if not given.urls or given.leaders < 1 or given.processes < 1:
        parser.error("give at least one URL, leader and process")
    how = Election(given.lease, given.renew_deadline, given.retry)
    found = [
        asyncio.run(takeovers(url, leaders=given.leaders, processes=given.processes, how=how)) for url in given.urls
    ]
    if given.json:
        print(json.dumps([each.as_dict() for each in found]))
    else:
        print(f"{'store':40} {'leaders':>7} {'p50':>7} {'p99':>7} {'max':>7}  within lease + {ALLOWANCE_S:g} s")
        for each in found:
            figures = " ".join(f"{each.at(percent):7.2f}" for percent in (50, 99, 100))
            print(f"{each.store[:40]:40} {each.leaders:7} {figures}  {each.within} of {len(each.times)}")
    return 0 if all(len(each.times) + each.early == each.leaders for each in found) else 1


if __name__ == "__main__":
    sys.exit(main())
