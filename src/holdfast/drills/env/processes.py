"""The worker processes of a drill: started, commanded, stopped, continued and killed by pid, with one event queue.

All information arrives as events, so a drill waits for events instead of guessing times. Only a broken promise, or a
far too busy machine, reaches the time limits. Every process is gone when the block ends; if the drill itself is killed,
the kernel ends the workers.

`tie_to` ties the life of a process to its parent.

Promises (Linux): when the parent dies, even by SIGKILL, the kernel kills this process, even while it is stopped. Does
not promise this elsewhere: there a process has to notice by other means.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any, NamedTuple, Self

import holdfast

LIMIT_S = 30.0


class Stalled(Exception):
    """A required event did not happen."""


class WorkerEvent(NamedTuple):
    """An event of a worker, and its wall-clock time."""

    worker: str
    pid: int
    name: str
    at_ns: int
    fields: Mapping[str, Any]


class StartOptions(NamedTuple):
    """Start options of a worker that differ from the default."""

    said: Mapping[str, Any] = MappingProxyType({})  # instead of the common configuration
    environment: Mapping[str, str] = MappingProxyType({})  # additional variables
    through: tuple[str, ...] = ()  # a command that starts the worker as its child


_USUAL = StartOptions()


class WorkerHandle:
    """One worker process."""

    def __init__(
        self, name: str, said: Mapping[str, Any], events: queue.SimpleQueue[WorkerEvent], start: StartOptions = _USUAL
    ) -> None:
        self.name = name
        self._events = events
        parent = "0" if start.through else str(os.getpid())
        self._process = subprocess.Popen(  # noqa: S603 - our own interpreter and module
            [*start.through, sys.executable, "-m", "holdfast.drills.worker", parent],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**environment(), **start.environment},
            text=True,
            start_new_session=True,  # Ctrl-C is for the director, which ends all workers
        )
        # Not as an argument: a URL may contain a password, and arguments are public.
        self._say({**said, **start.said, "name": name})
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    @property
    def pid(self) -> int:
        """The process."""
        return self._process.pid

    def order(self, do: str, **fields: Any) -> None:
        """Send a command to the worker, without waiting. A dead worker ignores it."""
        self._say({"do": do, **fields})

    def _say(self, words: Mapping[str, Any]) -> None:
        if self._process.stdin is not None:
            with suppress(OSError, ValueError):
                self._process.stdin.write(json.dumps(words) + "\n")
                self._process.stdin.flush()

    def freeze(self) -> int:
        """Stop it, and return when it has stopped: since when."""
        os.kill(self.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        return time.time_ns()

    def thaw(self) -> int:
        """Continue it. Returns the time."""
        at_ns = time.time_ns()
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGCONT)
        return at_ns

    def kill(self) -> int:
        """Kill it immediately, and return when it is dead. Returns the time."""
        self._process.kill()
        self._process.wait()
        return time.time_ns()

    def leave(self, limit_s: float) -> None:
        """Let it end normally, so that its ledger is complete; kill it after the limit."""
        self.thaw()
        self.order("stop")
        self.order("end")
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(limit_s)
        self.close()

    def close(self) -> None:
        """Make sure that it and all of its children are gone."""
        self.kill()
        if self._process.stdin is not None:
            with suppress(OSError, ValueError):
                self._process.stdin.close()
        self._listener.join(LIMIT_S)
        if self._process.stdout is not None:
            self._process.stdout.close()

    def _listen(self) -> None:
        if self._process.stdout is None:
            return
        for line in self._process.stdout:
            with suppress(ValueError, KeyError):  # an incomplete line of a killed process
                fields = json.loads(line)
                self._events.put(WorkerEvent(self.name, self.pid, fields.pop("event"), fields.pop("at_ns"), fields))
        self._events.put(WorkerEvent(self.name, self.pid, "gone", time.time_ns(), {}))


class DrillWorkers:
    """All workers of a scene, and their common event queue."""

    def __init__(self, said: Mapping[str, Any], end_ns: int) -> None:
        """`end_ns`: the end of the whole drill, on the monotonic clock."""
        self._said = said
        self._end_ns = end_ns
        self._events: queue.SimpleQueue[WorkerEvent] = queue.SimpleQueue()
        self._early: list[WorkerEvent] = []
        self._actors: dict[int, WorkerHandle] = {}

    def enter(self, *names: str, start: StartOptions = _USUAL) -> list[WorkerHandle]:
        """Start workers concurrently, and return when each of them is ready."""
        new: list[WorkerHandle] = []
        for name in names:
            actor = WorkerHandle(name, self._said, self._events, start)
            self._actors[actor.pid] = actor
            new.append(actor)
        for actor in new:
            self.next("ready", actor)
        return new

    def next(self, names: str | tuple[str, ...], actor: WorkerHandle, limit_s: float = LIMIT_S) -> WorkerEvent:
        """Wait for one of these events of a worker; other events are kept. `Stalled`: it is late."""
        wanted = (names,) if isinstance(names, str) else names
        for place, event in enumerate(self._early):
            if event.name in wanted and event.pid == actor.pid:
                return self._early.pop(place)
        limit = min(time.monotonic_ns() + round(limit_s * 1e9), self._end_ns)
        while True:  # ends with the event, with an unexpected death, or with the limit
            try:
                event = self._events.get(timeout=max(0.0, (limit - time.monotonic_ns()) / 1e9))
            except queue.Empty:
                raise Stalled(f"{actor.name} did not report {' or '.join(wanted)!r} in time") from None
            if event.name in wanted and event.pid == actor.pid:
                return event
            if event.name == "gone" and event.pid in self._actors:
                raise Stalled(f"{event.worker} died unexpectedly")
            if event.name != "gone":
                self._early.append(event)

    def kill(self, actor: WorkerHandle) -> int:
        """Kill a worker on purpose. Returns the time."""
        self._actors.pop(actor.pid, None)
        at_ns = actor.kill()
        actor.close()
        return at_ns

    def dismiss(self, *actors: WorkerHandle) -> None:
        """End workers normally, so that their ledgers are complete."""
        for actor in actors:
            self._actors.pop(actor.pid, None)
            actor.leave(LIMIT_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        actors, self._actors = list(self._actors.values()), {}
        for actor in actors:
            if kind is None:
                actor.leave(LIMIT_S)
            else:
                actor.close()


def environment() -> dict[str, str]:
    """Our environment, with the path that this package was imported from."""
    here = str(Path(holdfast.__file__).resolve().parent.parent)
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [here, os.environ.get("PYTHONPATH", "")]))}


_PR_SET_PDEATHSIG = 1


def tie_to(parent: int) -> None:
    """Have the kernel kill us when our parent dies; end if it is dead already. 0: any parent."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if parent and os.getppid() != parent:
        os._exit(128 + signal.SIGKILL)
