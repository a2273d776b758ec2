"""The loss of a lease as something to wait for, in both colours."""

from __future__ import annotations

import asyncio
import threading

from holdfast.core.lease.states import State
from holdfast.runtime.asyncio_runtime import on_loop
from holdfast.runtime.lease_record import LeaseRecord
from holdfast.runtime.wakeup import Wakeup
from holdfast.types import NS


class LostView:
    """Whether and why a lease is lost. Judged at the moment of asking."""

    __slots__ = ("_lease_record",)

    def __init__(self, lease_record: LeaseRecord) -> None:
        self._lease_record = lease_record

    def is_set(self) -> bool:
        """Whether the lease is lost. A released lease is not lost."""
        return self._lease_record.standing().state is State.LOST

    @property
    def reason(self) -> str | None:
        """Why, once it is lost."""
        reason = self._lease_record.standing().reason
        return None if reason is None else str(reason)

    def __bool__(self) -> bool:
        return self.is_set()


class ThreadLost(LostView):
    """The loss of a lease, for threads."""

    __slots__ = ()

    def wait(self, timeout_ns: int | None) -> bool:
        """Block until the lease is lost (True), or released or the time is over (False)."""
        over = Wakeup()

        def told(_: LeaseRecord) -> None:
            over.ring()

        self._lease_record.tell(told)
        try:
            over.wait(None if timeout_ns is None else timeout_ns / NS)
        finally:
            self._lease_record.untell(told)
        return self.is_set()


class LoopLost(LostView):
    """The loss of a lease, for tasks."""

    __slots__ = ()

    async def wait(self, timeout_ns: int | None) -> bool:
        """Wait until the lease is lost (True), or released or the time is over (False)."""
        loop, thread_id = asyncio.get_running_loop(), threading.get_ident()
        over: asyncio.Future[None] = loop.create_future()

        def resolve() -> None:
            if not over.done():
                over.set_result(None)

        def told(_: LeaseRecord) -> None:
            on_loop(loop, thread_id, resolve)

        self._lease_record.tell(told)
        timer = None if timeout_ns is None else loop.call_later(timeout_ns / NS, resolve)
        try:
            await over
        finally:
            self._lease_record.untell(told)
            if timer is not None:
                timer.cancel()
        return self.is_set()
