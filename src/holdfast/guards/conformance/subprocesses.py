"""Other processes of the guard kit: writers that work, and writers that are killed while they do.

Children are spawned, so that nothing of this process is in them: no connection, no thread, no lock. Those that are to
be killed are forked from a spawned *nursery*, which never opens anything itself; that makes a death cost milliseconds.
Every child is waited for with a limit, and ended by its own process id.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import select
import signal
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any, TypeVar

from holdfast.errors import BadInput
from holdfast.guards.conformance.checks import Violation, expect

T = TypeVar("T")

START_S = 60.0  # for a new interpreter and its imports; says nothing about the guard, so it is no one's to shorten
START_FIX = (
    "the factory must be importable from another process, and a script that runs the kit needs "
    '`if __name__ == "__main__":`'
)
_SPAWN = multiprocessing.get_context("spawn")


@dataclass(frozen=True, slots=True)
class _Failed:
    """What went wrong in a child, as text: not every exception can travel."""

    text: str


class ChildProcess:
    """One spawned process that answers over a pipe."""

    def __init__(self, main: Callable[..., None], *arguments: object) -> None:
        ours, theirs = _SPAWN.Pipe()
        self.connection: Connection[Any, Any] = ours
        self._process: BaseProcess = _SPAWN.Process(target=main, args=(theirs, *arguments), daemon=True)
        try:
            self._process.start()
        finally:
            theirs.close()

    def answer(self, patience_s: float) -> Any:
        """Its next answer; `Violation` if it failed, died or kept silent."""
        if not self.connection.poll(patience_s):
            raise Violation(f"another process did not answer within {patience_s:g} s")
        try:
            answer = self.connection.recv()
        except EOFError:
            self._process.join(patience_s)
            raise Violation(f"another process died ({self._process.exitcode}); {START_FIX}") from None
        if isinstance(answer, _Failed):
            raise Violation(f"another process failed: {answer.text}")
        return answer

    def end(self) -> None:
        """End it, whatever it is doing."""
        self.connection.close()
        self._process.join(1.0)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        self._process.close()


def children_at_work(tasks: Sequence[Callable[[], T]], patience_s: float) -> list[T]:
    """Run each task in a process of its own, all concurrently, and return what they return."""
    check_picklable(tasks)
    children: list[ChildProcess] = []
    try:
        children.extend(ChildProcess(_child, task) for task in tasks)
        for child in children:
            child.answer(START_S)  # it has imported everything
        for child in children:
            child.connection.send("go")
        return [child.answer(patience_s) for child in children]
    finally:
        for child in children:
            child.end()


def _child(connection: Connection[Any, Any], task: Callable[[], object]) -> None:
    with suppress(EOFError, BrokenPipeError):  # the parent has given up, and said why
        connection.send("ready")
        connection.recv()
        connection.send(_attempted(task))


def _attempted(task: Callable[[], object]) -> object:
    try:
        return task()
    except BaseException:  # noqa: BLE001 - it is told to the parent, which raises it
        return _Failed(traceback.format_exc(limit=-4))


def check_picklable(thing: object) -> None:
    """Something that can be sent to another process, or `BadInput`."""
    try:
        pickle.dumps(thing)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise BadInput(
            "factory",
            f"cannot be sent to another process ({error})",
            "give a function of a module, or functools.partial of one; or leave these checks out with processes=False",
        ) from error


class ParentProcess:
    """A process that has children and lets them die."""

    def __init__(self, factory: Callable[[str], object], patience_s: float) -> None:
        """The factory is sent ahead, so that its imports are done once, and before a wait begins."""
        check_picklable(factory)
        self._patience_s = patience_s
        self._child = ChildProcess(_nurse, factory)

    def wait_until_ready(self) -> None:
        """Return when it can have children."""
        self._child.answer(START_S)

    def raise_one(self, task: Callable[[Callable[[str], None]], None], kill_after_s: float | None = None) -> ProcessEnd:
        """Run a task in a child; with a limit, kill it so long after the first thing it said."""
        check_picklable(task)
        self._child.connection.send((task, kill_after_s, self._patience_s))
        life: ProcessEnd = self._child.answer(self._patience_s * 2)
        expect(not life.hung, f"another process did nothing for {self._patience_s:g} s")
        expect(life.trouble is None, f"another process failed: {life.trouble}")
        return life

    def end(self) -> None:
        """End it. It has no children between two tasks."""
        self._child.end()


@dataclass(frozen=True, slots=True)
class ProcessEnd:
    """The outcome of a child: what it said, and whether it was killed before its end."""

    said: tuple[str, ...]
    killed: bool
    hung: bool = False
    trouble: str | None = None


@contextmanager
def nursery(factory: Callable[[str], object], patience_s: float) -> Iterator[ParentProcess]:
    """A nursery for the length of the block."""
    opened = ParentProcess(factory, patience_s)
    try:
        opened.wait_until_ready()
        yield opened
    finally:
        opened.end()


def _nurse(connection: Connection[Any, Any], _factory: object) -> None:
    with suppress(EOFError, BrokenPipeError):
        connection.send("ready")
        while True:
            task, kill_after_s, patience_s = connection.recv()
            connection.send(_lived(task, kill_after_s, patience_s))


def _lived(task: Callable[[Callable[[str], None]], None], kill_after_s: float | None, patience_s: float) -> ProcessEnd:
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        _live(task, writing)
    os.close(writing)
    with open(reading, "rb", buffering=0) as pipe:  # noqa: PTH123 - a descriptor, not a path
        text, hung = _heard(pipe.fileno(), pid, kill_after_s, patience_s)
    _, status = os.waitpid(pid, 0)
    lines = text.decode().split("\n")[:-1]  # what was cut off by death was never said
    trouble = [line.removeprefix("!").replace("\0", "\n") for line in lines if line.startswith("!")]
    said = tuple(line for line in lines if not line.startswith("!"))
    return ProcessEnd(said, os.WIFSIGNALED(status), hung, trouble[0] if trouble else None)


def _heard(pipe: int, pid: int, kill_after_s: float | None, patience_s: float) -> tuple[bytes, bool]:
    """All that a child says until its end; after `patience_s` of silence, or when it is time, it is killed."""
    text, hung = b"", False
    deadline: float | None = None
    while True:
        left_s = patience_s if deadline is None else deadline - time.monotonic()
        ready = select.select([pipe], [], [], left_s)[0] if left_s > 0 else []
        if not ready:
            hung = deadline is None
            os.kill(pid, signal.SIGKILL)
            deadline = kill_after_s = None
            continue
        piece = os.read(pipe, 65536)
        if not piece:
            return text, hung
        text += piece
        if kill_after_s is not None and deadline is None:
            deadline = time.monotonic() + kill_after_s


def _live(task: Callable[[Callable[[str], None]], None], pipe: int) -> None:
    """Be the child: do the task, say what it says, and end without any of the parent's cleaning up."""

    def say(line: str) -> None:
        os.write(pipe, f"{line}\n".encode())

    try:
        task(say)
    except BaseException:  # noqa: BLE001 - it is told to the parent, which raises it
        say("!" + traceback.format_exc(limit=-4).replace("\n", "\0"))
    finally:
        os._exit(0)
