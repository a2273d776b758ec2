"""The renewer's and the alarm's ticker on virtual time: one thing after the other, as on the thread that it stands for.

Due times are on the monotonic clock of the host; they are looked at again when a timer fires, because that clock may
have stood still meanwhile.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from holdfast.core.timer_wheel import TimerWheel
from holdfast.runtime.timer_thread import AGAIN_NS, BATCH_MAX
from holdfast.testing.sim.environment.clock import SimClock
from holdfast.testing.sim.environment.loop import SimLoop


class SimTicks:
    """A simulated `runtime.timer_thread.TimerThread`. Everything it starts runs in the given context (a domain)."""

    def __init__(
        self,
        loop: SimLoop,
        clock: SimClock,
        context: contextvars.Context,
        act: Callable[[list[Any]], Coroutine[Any, Any, None]],
        on_crash: Callable[[Exception], None],
    ) -> None:
        self._loop = loop
        self._clock = clock
        self._context = context
        self._act = act
        self._on_crash = on_crash
        self._timer_wheel: TimerWheel[Any] = TimerWheel()
        self._timer: asyncio.TimerHandle | None = None
        self._armed_ns = 0
        self._acting: asyncio.Task[None] | None = None
        self._stopping = False

    def put(self, item: Any, due_ns: int) -> None:
        """Enter an item, or move it."""
        if not self._stopping:
            self._timer_wheel.put(item, due_ns)
            self._arm()

    def put_all(self, items: Sequence[Any], due_ns: int) -> None:
        """Enter many items that are due together."""
        if not self._stopping:
            self._timer_wheel.put_all(items, due_ns)
            self._arm()

    def drop(self, item: Any) -> None:
        """Withdraw an item."""
        self._timer_wheel.drop(item)

    def items(self) -> list[Any]:
        """Everything that is entered."""
        return list(self._timer_wheel)

    def lag_ns(self) -> int:
        """How far behind it is."""
        due = self._timer_wheel.next_due_ns()
        return 0 if due is None else max(0, self._clock.now().mono - due)

    def late_ns(self, since_ns: int) -> int:
        """See `Ticks`. Pauses of virtual time are in the history itself."""
        return 0

    def abandon(self) -> list[Any]:
        """There is no fork in the simulation."""
        raise NotImplementedError("simulated hosts do not fork")

    def stop(self, timeout_ns: int) -> None:
        """Do nothing from now on. What is being done is finished."""
        self._stopping = True
        self._timer_wheel = TimerWheel()
        if self._timer is not None:
            self._timer.cancel()

    def _arm(self) -> None:
        """Set the timer for the next slot, unless something is being done: then that looks again when it is done."""
        due = self._timer_wheel.next_due_ns()
        if due is None or self._acting is not None or self._stopping:
            return
        if self._timer is not None:
            if self._armed_ns <= due:
                return
            self._timer.cancel()
        self._armed_ns = due
        delay = self._clock.true_ns(max(0, due - self._clock.now().mono))
        self._timer = self._loop.call_after_ns(delay, self._fire, context=self._context)

    def _fire(self) -> None:
        self._timer = None
        items = self._timer_wheel.pop_due(self._clock.now().mono, BATCH_MAX)
        if items and not self._stopping:
            self._acting = self._loop.create_task(self._do(items), context=self._context)
        else:
            self._arm()

    async def _do(self, items: list[Any]) -> None:
        try:
            await self._act(items)
        except Exception as error:  # noqa: BLE001 - as on the thread: it survives, and the same comes due again
            self._on_crash(error)
            again = self._clock.now().mono + AGAIN_NS
            for item in items:
                self._timer_wheel.put(item, again)
        finally:
            self._acting = None
            self._arm()
