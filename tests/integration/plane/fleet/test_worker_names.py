"""A name is for one worker: who may use it while its worker lives, and after it has left or died."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from holdfast.errors import BadInput
from holdfast.plane.fleet.registry import check_free
from holdfast.types import Owner
from support.fixtures.scheduling import Replica

ME = Owner("s", "here", os.getpid(), "i")

pytestmark = pytest.mark.asyncio


def dead() -> int:
    """The id of a process that is no more."""
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    return ended.pid


async def test_a_name_that_a_living_worker_has_is_refused_with_when_it_will_be_free(plane: Replica) -> None:
    await plane.beat("ada", host="elsewhere", pid=7)
    plane.clock.push(10)
    with pytest.raises(BadInput, match=r"on elsewhere, process 7, heard of 10 s ago; .* free in (19|20) s"):
        await check_free(plane.workers, "ada", ME, plane.now_ns)
    await check_free(plane.workers, "ad", ME, plane.now_ns)
    plane.clock.push(30)
    await check_free(plane.workers, "ada", ME, plane.now_ns)


async def test_a_worker_of_several_pools_has_one_name(plane: Replica) -> None:
    await plane.beat("ada:money", host="elsewhere", pid=7)
    with pytest.raises(BadInput):
        await check_free(plane.workers, "ada", ME, plane.now_ns)


@pytest.mark.parametrize("whose", ["it has left", "its process is gone", "it is this process"])
async def test_a_name_is_free_at_once_when_nobody_can_be_using_it(plane: Replica, whose: str) -> None:
    pid = os.getpid() if whose == "it is this process" else dead()
    await plane.beat("ada", host="elsewhere" if whose == "it has left" else "here", pid=pid)
    if whose == "it has left":
        await plane.workers.leave("ada")
    await check_free(plane.workers, "ada", ME, plane.now_ns)


async def test_a_name_is_taken_by_a_process_of_this_host_that_runs(plane: Replica) -> None:
    await plane.beat("ada", host="here", pid=os.getppid())
    with pytest.raises(BadInput):
        await check_free(plane.workers, "ada", ME, plane.now_ns)
