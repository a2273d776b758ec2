"""An asyncio event loop on virtual time: a day passes in a second, and the same program always does the same.

Promises: callbacks run first come, first served; timers run by due time and, at one instant, in the order of their
creation; when nothing is ready, time jumps to the next timer; when no timer is set either, `Deadlock` is raised instead
of hanging. Time is integer nanoseconds inside. No timer fires before `time()` has reached it, so that a loop of the
form "sleep for what is left" ends, in spite of the floats of asyncio.

Does not promise: threads, sockets, processes, signals. The network and the file system are refused; work for an
executor runs immediately on this thread. Nothing here reads a real clock.

Code runs in a `Domain` (a host, or a part of one), which is inherited by every task and timer that it starts. A domain
can be stopped, as SIGSTOP stops a process: time continues and its code does not. One that is never resumed has crashed.
"""

from __future__ import annotations

# ruff: noqa: SLF001 - an event loop has to reach into handles, as those of the standard library do
import asyncio
import contextvars
import heapq
import math
from asyncio import events
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from typing import Any, NoReturn, TypeAlias, TypeVar

from holdfast.testing.sim.environment.domain import DOMAIN
from holdfast.types import NS

T = TypeVar("T")
Complaint: TypeAlias = dict[str, Any]

STEPS_PER_INSTANT_MAX = 200_000


class Deadlock(RuntimeError):
    """Nothing is ready, nothing is due, and what was waited for has not happened: it never will."""


class Livelock(RuntimeError):
    """The program is busy forever without letting time pass."""


def due_ns(when: float) -> int:
    """The first nanosecond at which `time()` is not before `when`."""
    due = math.ceil(when * NS)
    while due / NS < when:
        due += 1
    while (due - 1) / NS >= when:
        due -= 1
    return due


class _Timer(asyncio.TimerHandle):
    """A handle or a timer, without what those of asyncio do for debugging: a million are made for a world of hours."""

    __slots__ = ()

    def __init__(
        self,
        when: float,
        callback: Callable[..., object],
        args: tuple[Any, ...],
        loop: asyncio.AbstractEventLoop,
        context: contextvars.Context | None,
    ) -> None:
        self._context = contextvars.copy_context() if context is None else context
        self._loop = loop
        self._callback = callback
        self._args = args
        self._cancelled = False
        self._repr = None
        self._source_traceback = None
        self._when = when
        self._scheduled = False

    def cancel(self) -> None:
        """It is dropped when it surfaces. Its callback is released immediately."""
        self._cancelled = True
        self._callback = self._args = None  # type: ignore[assignment]  # as asyncio's own handles do


class SimLoop(asyncio.AbstractEventLoop):
    """The loop. Use `run_virtual`, or give it to `asyncio.Runner(loop_factory=SimLoop)`."""

    def __init__(self) -> None:
        self.now_ns = 0  # virtual nanoseconds since the loop was made; only the loop sets it
        self._ready: deque[asyncio.Handle] = deque()
        self._timers: list[tuple[int, int, asyncio.TimerHandle]] = []
        self._numbers = 0
        self._instant_steps = 0
        self._running = False
        self._closed = False
        self._stopping = False
        self._on_complaint: Callable[[asyncio.AbstractEventLoop, Complaint], object] | None = None
        # Tasks are held here until they are done: a pending task that is collected as garbage would run its clean-up
        # at an arbitrary moment.
        self.tasks: dict[asyncio.Task[Any], None] = {}
        self.steps = 0

    # Time.

    def time(self) -> float:
        """Virtual seconds since the loop was made."""
        return self.now_ns / NS

    # Calling back.

    def call_soon(  # type: ignore[override]  # the signature of typeshed is generic over the arguments
        self, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        """Call it after everything that is ready already."""
        handle = _Timer(0, callback, args, self, context)
        self._ready.append(handle)
        return handle

    call_soon_threadsafe = call_soon  # type: ignore[assignment]  # there is only one thread

    def call_later(  # type: ignore[override]  # the signature of typeshed is generic over the arguments
        self, delay: float, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        """Call it after that many virtual seconds."""
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]  # the signature of typeshed is generic over the arguments
        self, when: float, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        """Call it when `time()` has reached `when`."""
        return self._set_timer(due_ns(when), when, callback, args, context)

    def call_after_ns(
        self, delay_ns: int, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        """Call it after that many virtual nanoseconds, exactly."""
        due = self.now_ns + delay_ns if delay_ns > 0 else self.now_ns
        return self._set_timer(due, due / NS, callback, args, context)

    def _set_timer(
        self,
        due: int,
        when: float,
        callback: Callable[..., object],
        args: tuple[Any, ...],
        context: contextvars.Context | None,
    ) -> asyncio.TimerHandle:
        handle = _Timer(when, callback, args, self, context)
        self._numbers += 1
        heapq.heappush(self._timers, (due, self._numbers, handle))
        return handle

    def readmit(self, handles: deque[asyncio.Handle]) -> None:
        """Make handles ready again that were deferred while their domain was stopped."""
        self._ready.extend(handles)

    # Futures and tasks.

    def create_future(self) -> asyncio.Future[Any]:
        """A future of this loop."""
        return asyncio.Future(loop=self)

    def create_task(
        self,
        coro: Coroutine[Any, Any, T] | Generator[Any, None, T],
        *,
        name: str | None = None,
        context: contextvars.Context | None = None,
        **kwargs: Any,
    ) -> asyncio.Task[T]:
        """A task of this loop, in the domain of its creator."""
        self._numbers += 1
        task = asyncio.Task(
            coro,
            loop=self,
            name=name or f"task-{self._numbers}",
            context=context,
            **kwargs,
        )
        if not task.done():
            self.tasks[task] = None
            task.add_done_callback(self._forget, context=_WORLD)
        return task

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self.tasks.pop(task, None)

    def get_task_factory(self) -> None:
        """There is none."""
        return

    def run_in_executor(  # type: ignore[override]  # an awaitable future, as in the base class
        self, executor: object, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        """Run it here and now: there are no threads in virtual time."""
        future = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:  # noqa: BLE001 - the awaiter of the future receives it
            future.set_exception(error)
        return future

    # Running.

    def run_until_complete(self, future: Any) -> Any:
        """Run until the coroutine or future is done, and return its result."""
        self._check_can_run()
        awaited: asyncio.Future[Any] = asyncio.ensure_future(future, loop=self)
        self._run(awaited.done)
        if not awaited.done():
            raise RuntimeError("the loop was stopped before the future was done")
        return awaited.result()

    def run_forever(self) -> None:
        """Run until `stop()`."""
        self._check_can_run()
        self._run(lambda: False)

    def _check_can_run(self) -> None:
        if self._closed:
            raise RuntimeError("the loop is closed")
        if self._running or events._get_running_loop() is not None:
            raise RuntimeError("a loop is running already in this thread")

    def _run(self, done: Callable[[], bool]) -> None:
        self._running, self._stopping = True, False
        self._instant_steps = 0
        events._set_running_loop(self)
        try:
            while not done() and not self._stopping:
                self._step()
        finally:
            events._set_running_loop(None)
            self._running = False

    def _step(self) -> None:
        """Run one callback, after letting time jump if none is ready."""
        ready = self._ready
        if not ready:
            self._jump()
        handle = ready.popleft()
        if handle._cancelled:  # cancelled() is a call, and this is the hottest place of all
            return
        context = handle._context  # type: ignore[attr-defined]  # get_context() is new in 3.12
        domain = context.get(DOMAIN)
        if domain is not None and domain.defer(handle):
            return
        self.steps += 1
        self._instant_steps += 1
        if self._instant_steps > STEPS_PER_INSTANT_MAX:
            ready.appendleft(handle)  # it did not run: the clean-up can continue from here
            raise Livelock(f"{STEPS_PER_INSTANT_MAX} callbacks at {self.time():.9f} s and time does not pass")
        try:
            context.run(handle._callback, *handle._args)  # type: ignore[attr-defined]  # private, as its context is
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as error:  # noqa: BLE001 - as in the loops of asyncio: the handler receives it
            message = f"Exception in callback {handle._callback!r}"  # type: ignore[attr-defined]  # as above
            self.call_exception_handler({"message": message, "exception": error, "handle": handle})

    def _jump(self) -> None:
        timers = self._timers
        while timers and timers[0][2]._cancelled:
            heapq.heappop(timers)
        if not timers:
            waiting = ", ".join(sorted(task.get_name() for task in self.tasks)) or "no task"
            raise Deadlock(f"nothing is ready and nothing is due at {self.time():.9f} s; waiting: {waiting}")
        if timers[0][0] > self.now_ns:
            self.now_ns = timers[0][0]
            self._instant_steps = 0
        while timers and timers[0][0] <= self.now_ns:
            self._ready.append(heapq.heappop(timers)[2])

    def stop(self) -> None:
        """Return from `run_forever` after the present callback."""
        self._stopping = True

    def is_running(self) -> bool:
        """Whether it is running now."""
        return self._running

    def is_closed(self) -> bool:
        """Whether it is closed."""
        return self._closed

    def close(self) -> None:
        """Forget everything that has not run."""
        if self._running:
            raise RuntimeError("a running loop cannot be closed")
        self._closed = True
        self._ready.clear()
        self._timers.clear()

    async def shutdown_asyncgens(self) -> None:
        """Nothing to do: generators are closed by those who made them."""

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:
        """Nothing to do: there is no executor."""

    # Complaints.

    def get_debug(self) -> bool:
        """False: debug mode reads real clocks."""
        return False

    def set_debug(self, enabled: bool) -> None:
        """Not supported: debug mode reads real clocks. `asyncio.Runner` calls this with False."""
        if enabled:
            raise RuntimeError("debug mode reads real clocks; a virtual loop has none")

    def set_exception_handler(self, handler: Callable[[asyncio.AbstractEventLoop, Complaint], object] | None) -> None:
        """Report uncaught exceptions to this function."""
        self._on_complaint = handler

    def get_exception_handler(self) -> Callable[[asyncio.AbstractEventLoop, Complaint], object] | None:
        """Who is told."""
        return self._on_complaint

    def default_exception_handler(self, context: Complaint) -> None:
        """Raise it: in a test, an uncaught exception is a failure."""
        error = context.get("exception")
        raise error if isinstance(error, BaseException) else RuntimeError(str(context.get("message")))

    def call_exception_handler(self, context: Complaint) -> None:
        """Called by asyncio for uncaught exceptions."""
        if self._on_complaint is None:
            self.default_exception_handler(context)
        else:
            self._on_complaint(self, context)

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise NotImplementedError("virtual time has no sockets, processes, signals or threads: bring a simulated one")

    add_reader = add_signal_handler = add_writer = _refuse  # type: ignore[assignment]  # refused, whatever the arguments
    connect_accepted_socket = connect_read_pipe = _refuse
    connect_write_pipe = create_connection = create_datagram_endpoint = create_server = _refuse
    create_unix_connection = create_unix_server = getaddrinfo = getnameinfo = remove_reader = _refuse
    remove_signal_handler = remove_writer = sendfile = set_default_executor = set_task_factory = _refuse
    sock_accept = sock_connect = sock_recv = sock_recv_into = sock_recvfrom = sock_recvfrom_into = _refuse
    sock_sendall = sock_sendfile = sock_sendto = start_tls = subprocess_exec = subprocess_shell = _refuse


_WORLD = contextvars.Context()


def run_virtual(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine under virtual time and return its result. Sleeps and timeouts cost nothing.

        def test_the_report_is_sent_after_an_hour():
            assert run_virtual(hourly_report(sleep=asyncio.sleep)) == "sent"

    Every task that it leaves behind is cancelled and awaited, as `asyncio.run` does, in order of creation. An
    uncaught exception in a callback or a task ends the run.
    """
    loop = SimLoop()
    try:
        result: T = loop.run_until_complete(main)
        return result
    finally:
        end_tasks(loop)
        loop.close()


def running_sim_loop() -> SimLoop:
    """The virtual loop that is running; an error when the running loop is a real one."""
    loop = asyncio.get_running_loop()
    if isinstance(loop, SimLoop):
        return loop
    raise RuntimeError("this needs virtual time: call it inside run_virtual()")


def end_tasks(loop: SimLoop) -> None:
    """Cancel what still runs, oldest first, until nothing does. What has not ended after an hour of that never will."""
    while pending := [task for task in loop.tasks if not task.done()]:
        loop.run_until_complete(asyncio.sleep(0))  # those who were only just started begin: nothing is left unawaited
        for task in pending:
            task.cancel()
        loop.run_until_complete(_ended(pending))


async def _ended(tasks: list[asyncio.Task[Any]]) -> None:
    for task in tasks:
        for _ in range(60):
            if task.done():
                break
            await asyncio.wait([task], timeout=60)
            task.cancel()
        else:
            raise Livelock(f"{task.get_name()} does not end when it is cancelled")
