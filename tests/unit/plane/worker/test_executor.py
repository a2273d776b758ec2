"""One call of one function that is asked to stop, on virtual time."""

from __future__ import annotations

import asyncio
import contextlib
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.plane import App
from holdfast.plane.worker.executor import Execution, Interruption, JobThreads, Unfinished
from holdfast.testing.sim.environment.loop import run_virtual
from holdfast.types import NS


@pytest.mark.parametrize(
    ("hastened", "waited"), [(None, 5), (4, 4), (0, 0), (60, 5)], ids=["not", "sooner", "at once", "later"]
)
def test_a_function_that_does_not_stop_is_waited_for_as_long_as_it_may_or_less(
    hastened: int | None, waited: int
) -> None:
    app = App("billing")

    @app.job("deaf")
    async def deaf(payload: Any) -> None:
        until = asyncio.get_running_loop().time() + 100
        while (left := until - asyncio.get_running_loop().time()) > 0:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(left)

    async def main() -> float:
        loop = asyncio.get_running_loop()
        context: Any = SimpleNamespace(job="j1", cancelled=SimpleNamespace(set=lambda _: None))
        execution = Execution(JobThreads("test"), context, 5 * NS)
        running = asyncio.create_task(execution.run(app.functions["deaf"], None))
        await asyncio.sleep(10)
        execution.interrupt(Interruption.DRAINED, "its worker is ending")
        if hastened is not None:
            execution.limit_wait(hastened * NS)
        assert isinstance(await running, Unfinished)
        return loop.time() - 10

    assert run_virtual(main()) == pytest.approx(waited)
