"""Failpoints: named places in the code where a test or a drill can stop, kill, delay or fail it.

A random fault hardly ever hits the few microseconds that matter, so faults are injected by name. Two calls mark them:

    reach("store.sqlite.written")                     in ordinary code
    if ARMED: await areach("flow.acquire.granted")    in asynchronous code, where a fault may wait as well

Promises: while nothing is armed, a point costs one check of an empty dictionary, and nothing is remembered. Whatever
the fault raises comes out of the point, as if the line there had raised it. An act is called in whatever thread or task
arrives, and arming is for the whole process.

Only tests and drills should arm failpoints. The faults are in `holdfast.testing.faults`.

The tables below declare every failpoint of the package: its name, what is true there, and whether the code there is
asynchronous. A name is `room.what.moment`. They come in pairs around a possible failure: before a request or write, and
after it, when the other side has done it and this side has not reported it yet. A test compares the tables with the
calls in the source, and another test checks that each failpoint is reached.
"""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any, Final, NamedTuple, TypeAlias

from holdfast.errors import BadInput


class Failpoint(NamedTuple):
    """One failpoint."""

    name: str
    meaning: str  # what has happened there, and what has not
    awaited: bool  # whether a fault may wait there without holding up its thread: the code is asynchronous

    @property
    def room(self) -> str:
        """The part of the package that it is in."""
        return self.name.partition(".")[0]


def _here(name: str, meaning: str) -> Failpoint:
    return Failpoint(name, meaning, awaited=False)


def _awaited(name: str, meaning: str) -> Failpoint:
    return Failpoint(name, meaning, awaited=True)


_FLOWS: Final = (
    _awaited("flow.acquire.ask", "the store is about to be asked for a grant"),
    _awaited("flow.acquire.answered", "the store has answered, and the answer has not been read"),
    _awaited("flow.acquire.listen", "the key is busy, and the waiter is about to make an ear for its release"),
    _awaited("flow.acquire.sleep", "the waiter is about to sleep until a hint or its next attempt"),
    _awaited("flow.acquire.granted", "the grant is certain, and the caller has not got it yet"),
    _awaited("flow.undo.send", "an acquisition of unknown outcome is about to be taken back"),
    _awaited("flow.undo.answered", "the store has answered whether there was a lease to release"),
    _awaited("flow.renew.send", "a renewal is about to be sent"),
    _awaited("flow.renew.answered", "a renewal was answered, and no lease has been updated"),
    _awaited("flow.promote.send", "a degraded lease is about to ask for a grant after all"),
    _awaited("flow.promote.answered", "it was answered, and the lease has not been updated"),
    _awaited("flow.release.send", "a release is about to be sent; the lease is already no longer held here"),
    _awaited("flow.release.answered", "a release was answered, and the caller has not been told"),
)

_RUNTIME: Final = (
    _here("runtime.lost", "a lease was found to be lost, and its holder has not been notified"),
    _here("runtime.loop.asked", "blocking code has handed a call to the event loop of another thread"),
    _here("runtime.loop.answered", "the call has ended there, and blocking code has not read its result"),
)

_STORES: Final = (
    _here("store.sqlite.begin", "a step on the lease file is about to begin"),
    _here("store.sqlite.written", "inside the step: everything is written, nothing is committed"),
    _here("store.sqlite.committed", "the step is committed, and its answer has not been given"),
    _here("store.redis.send", "a request is about to be written to the socket, in a thread of the caller"),
    _here("store.redis.sent", "it is written, and no reply has been read"),
    _here("store.redis.replied", "the reply is read, and has not been given to the caller"),
    _awaited("store.redis.asyncio.send", "a request is about to be queued for the shared connection"),
    _awaited("store.redis.asyncio.sent", "it is queued or written, and its reply has not been awaited"),
    _awaited("store.redis.asyncio.replied", "the reply has come, and has not been given to the caller"),
    _here("store.etcd.send", "a request is about to be sent to a member, in a thread of the caller"),
    _here("store.etcd.sent", "it is sent, and no answer has been read"),
    _here("store.etcd.replied", "the answer is read, and has not been given to the caller"),
    _awaited("store.etcd.asyncio.send", "a request is about to be sent to a member, in a task of the caller"),
    _awaited("store.etcd.asyncio.sent", "it is sent, and its answer has not been awaited"),
    _awaited("store.etcd.asyncio.replied", "the answer has come, and has not been given to the caller"),
    _awaited("store.nats.send", "requests are about to be queued for the shared connection"),
    _awaited("store.nats.replied", "their replies have come, and have not been read"),
    _here("store.postgres.send", "a statement is about to be sent, in a thread of the caller"),
    _here("store.postgres.replied", "its answer is read, and has not been given to the caller"),
    _awaited("store.postgres.asyncio.send", "a statement is about to be sent, by a task"),
    _awaited("store.postgres.asyncio.replied", "its answer is read, and has not been given to the caller"),
)

_GUARDS: Final = (
    _here("guard.admitted", "the lease was held, and the step has not been sent to the storage yet"),
    _here("guard.entered", "a section has registered its fence, and has returned nothing to the caller yet"),
    _here("guard.reserved", "inside a transaction: the fence is noted, the row is not written yet"),
    _here("guard.written", "inside a transaction: everything is written, nothing is committed"),
    _here("guard.generation", "files: the new content is safe on disk under another name, the old one still stands"),
    _here("guard.replaced", "files: it has replaced the old one, and the folder has not been made durable yet"),
    _here("guard.noted", "a fence record has been raised, and the work behind it has not begun"),
)

_PLANE: Final = (
    _here("plane.sqlite.begin", "a group of works has the write lock of the file, and none of them has run"),
    _here("plane.sqlite.written", "a group of works has run, and nothing is committed"),
    _here("plane.sqlite.committed", "a group of works is committed, and neither synced nor reported"),
    _here("plane.sqlite.synced", "some groups of works are on the disk, and their callers have not been told"),
    _awaited("plane.postgres.begin", "a work is about to run on a connection"),
    _awaited("plane.postgres.written", "a work has run, and COMMIT has not been sent"),
    _awaited("plane.postgres.committed", "the server has committed, and the caller has not been told"),
    _awaited("plane.job.submit", "jobs are about to be kept, each with the messages that it needs"),
    _awaited("plane.job.submitted", "jobs are kept, and the client does not know it"),
    _awaited("plane.job.change", "changes of jobs are about to be written, each under its fence"),
    _awaited("plane.job.changed", "changes of jobs are written with their messages, and no handler knows it"),
    _awaited("plane.run.start", "a workflow run is about to be kept"),
    _awaited("plane.run.started", "a workflow run is kept, and the client does not know it"),
    _awaited("plane.run.change", "a run is about to be moved, under its fence"),
    _awaited("plane.run.changed", "a run was moved with all that follows from it, and the engine does not know it"),
    _awaited("plane.heartbeat.record", "the heartbeat of a worker is about to be written"),
    _awaited("plane.heartbeat.recorded", "it is written"),
    _awaited("plane.worker.leased", "a worker has the execution lease of a job, and has reported nothing"),
    _awaited("plane.worker.started", "it has reported the start, and the function has not been called"),
    _awaited("plane.worker.ran", "the function has ended, and its result has not been reported"),
    _awaited("plane.worker.said", "the result is reported, the lease is held, and the message is not acknowledged"),
    _awaited("plane.worker.released", "the lease is released, and the message is not acknowledged"),
    _awaited("plane.bus.publish", "messages are about to be published alone, outside a transaction"),
    _awaited("plane.bus.published", "they are published, and the publisher does not know it"),
    _awaited("plane.bus.claim", "a consumer is about to settle what is done and to claim what there is"),
    _awaited("plane.bus.claimed", "that is committed, and no claimed message is in flight yet"),
    _awaited("plane.bus.settle", "it is decided whether to ack or nack a message, and the consumer was not told"),
    _awaited("plane.nats.publish", "a message is about to be sent to the server"),
    _awaited("plane.nats.published", "the server has stored a message, and this process does not know it"),
    _awaited("plane.nats.ack", "an ack or a nack is about to be sent to the server"),
    _awaited("plane.nats.acked", "it was sent; the server never confirms it"),
    _awaited("plane.outbox.publish", "rows of the outbox are about to be published"),
    _awaited("plane.outbox.published", "they are published, and still in the outbox"),
    _awaited("plane.outbox.forget", "rows that were published are about to be deleted"),
    _awaited("plane.outbox.forgotten", "they are deleted"),
    _awaited("plane.schedule.fire", "the due times of a schedule are about to be decided"),
    _awaited("plane.schedule.fired", "they are decided, with the jobs that follow, and the loop does not know it"),
    _awaited("plane.loop.lead", "a replica has become the leader of a loop, and has not ticked"),
    _awaited("plane.loop.tick", "a tick is about to run, under the lease of its loop"),
    _awaited("plane.loop.ticked", "a tick has ended, and has not been counted"),
)

POINTS: Final[Mapping[str, Failpoint]] = MappingProxyType(
    {point.name: point for point in (*_FLOWS, *_RUNTIME, *_STORES, *_GUARDS, *_PLANE)}
)
"""All of them, by name."""


Act: TypeAlias = Callable[[], object]
"""What happens at a point. In asynchronous code what it returns is awaited, if it can be; an act that has a method
`awaited` is asked for that instead, and is then called only by points in ordinary code."""

ARMED: Final[dict[str, _Arm]] = {}
"""What is armed, by point. Empty is false, and that is all that a point costs; other modules only check it."""

_RECORDS: Final[list[list[str]]] = []
_RECORDING: Final = "*"  # stands in ARMED while points are recorded, so that they look


class _Arm:
    """One act at one point."""

    __slots__ = ("_act", "_count", "_hit")

    def __init__(self, act: Act, hit: int | None) -> None:
        self._act = act
        self._hit = hit
        self._count = itertools.count(1)  # `next` is one step, so that threads that arrive together count apart

    def due(self) -> Act | None:
        return self._act if self._hit is None or next(self._count) == self._hit else None


def reach(point: str) -> None:
    """Say that the process is at this point. Does nothing unless something is armed."""
    if ARMED and (act := _due(point)) is not None:
        outcome = act()
        if isinstance(outcome, Coroutine):
            outcome.close()
            raise BadInput(
                "act", f"waits, and {point} is in ordinary code", "arm an act that does not return a coroutine"
            )


async def areach(point: str) -> None:
    """Say that the task is at this point; the caller looks at `ARMED` first, and so spares a coroutine each time."""
    if (act := _due(point)) is not None:
        outcome: Any = getattr(act, "awaited", act)()
        if isinstance(outcome, Awaitable):
            await outcome


def _due(point: str) -> Act | None:
    if point not in POINTS:
        raise _unknown(point)
    for record in _RECORDS:
        record.append(point)
    arm = ARMED.get(point)
    return None if arm is None else arm.due()


@contextmanager
def armed(point: str, act: Act, *, hit: int | None = None) -> Iterator[None]:
    """Have `act` called when the point is reached inside the block: each time, or only the `hit`-th time, from 1.

    Inside another block for the same point, this one counts and the other does not.
    """
    if point not in POINTS:
        raise _unknown(point)
    if hit is not None and hit < 1:
        raise BadInput("hit", f"{hit} is no time that a point can be reached", "give 1 for the first time")
    before = ARMED.get(point)
    ARMED[point] = _Arm(act, hit)
    try:
        yield
    finally:
        if before is None:
            del ARMED[point]
        else:
            ARMED[point] = before


@contextmanager
def recorded() -> Iterator[list[str]]:
    """Write down which points are reached inside the block, in their order and as often as they are."""
    record: list[str] = []
    _RECORDS.append(record)
    ARMED[_RECORDING] = _NOTHING
    try:
        yield record
    finally:
        del _RECORDS[next(at for at, each in enumerate(_RECORDS) if each is record)]  # lists that are equal are not one
        if not _RECORDS:
            del ARMED[_RECORDING]


def points(room: str) -> Iterable[Failpoint]:
    """The points of one part of the package: flow, runtime, store, guard or plane."""
    return [point for point in POINTS.values() if point.room == room]


def _unknown(point: str) -> BadInput:
    return BadInput("point", f"{point!r} is not a failpoint", f"use one of {', '.join(POINTS)}")


_NOTHING: Final = _Arm(lambda: None, None)
