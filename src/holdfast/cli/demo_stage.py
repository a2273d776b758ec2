"""The stage of the demonstration: worker processes, what they say, and how it is shown.

Everything that the director needs to know arrives as an event, so nothing is timed: it waits for what must happen, with
a limit that only a broken promise (or a broken machine) reaches.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

from rich.console import Console
from rich.text import Text

import holdfast
from holdfast.cli.screen import out, put_json

LIMIT_S = 60.0
_STYLES = ("cyan", "magenta", "yellow", "blue", "green", "red")


class Stalled(Exception):
    """Something that must happen did not."""


class Event(NamedTuple):
    """What a worker said, and when we heard it."""

    worker: str
    pid: int
    name: str
    fields: Mapping[str, Any]
    at: float


class Show:
    """Prints the story: aligned and coloured for people, or one JSON object per line."""

    def __init__(self, *, as_json: bool, fast: bool) -> None:
        self.json = as_json
        self.console: Console = out()
        self._paced = self.console.is_terminal and not fast and not as_json
        self._began = time.monotonic()
        self._styles: dict[str, str] = {}

    def act(self, number: int, title: str, words: str) -> None:
        """A new act, explained in one line."""
        if self.json:
            put_json({"event": "act", "number": number, "title": title, "text": words})
            return
        self.console.print()
        self.console.print(Text(f"{number}  {title}", style="bold"))
        self.console.print(Text(f"   {words}", style="italic"))
        self.console.print()
        self.beat(1.5)

    def line(self, who: str, what: str, words: str, *, good: bool | None = None, **fields: Any) -> None:
        """One thing that happened."""
        at = time.monotonic() - self._began
        if self.json:
            put_json({"event": what, "who": who, "at": round(at, 3), "text": words, **fields})
            return
        colour = {None: "", True: "green", False: "bold red"}[good]
        who_style = "dim" if who == "-" else self._styles.setdefault(who, _STYLES[len(self._styles) % len(_STYLES)])
        line = Text.assemble(
            (f"   {at:6.2f} s  ", "dim"), (f"{who:<6}", who_style), (f"{what:<10}", colour or "bold"), (words, colour)
        )
        self.console.print(line, soft_wrap=True)

    def beat(self, seconds: float) -> None:
        """Give a person the time to read. Programs and impatient people do not need it, and nothing depends on it."""
        if self._paced:
            time.sleep(seconds)


class Actor:
    """One worker process."""

    def __init__(self, name: str, url: str, account: Path, events: queue.SimpleQueue[Event]) -> None:
        self.name = name
        self._process = subprocess.Popen(  # noqa: S603 - our own interpreter and module
            [sys.executable, "-m", "holdfast.cli.demo_worker", name, url, str(account)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=_environment(),
            text=True,
            start_new_session=True,  # Ctrl-C is for the director, who ends everybody
        )
        self._events = events
        threading.Thread(target=self._listen, daemon=True).start()

    @property
    def pid(self) -> int:
        """The process."""
        return self._process.pid

    def order(self, do: str, **fields: Any) -> None:
        """Tell it to do something. Does not wait for it."""
        if self._process.stdin is not None:
            self._process.stdin.write(json.dumps({"do": do, **fields}) + "\n")
            self._process.stdin.flush()

    def freeze(self) -> None:
        """Stop it, and return when it is stopped."""
        os.kill(self.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def thaw(self) -> None:
        """Let it go on."""
        os.kill(self.pid, signal.SIGCONT)

    def kill(self) -> None:
        """End it at once, whatever it is doing, and return when it is dead."""
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        """Make sure that it is gone."""
        self.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with _quiet():
                    pipe.close()

    def _listen(self) -> None:
        if self._process.stdout is None:
            return
        with _quiet():
            for line in self._process.stdout:
                fields = json.loads(line)
                self._events.put(Event(self.name, self.pid, fields.pop("event"), fields, time.monotonic()))
        self._events.put(Event(self.name, self.pid, "gone", {}, time.monotonic()))


class _quiet:  # noqa: N801 - reads as a statement
    """A pipe to a process that we killed may break, and may be closed while its reader waits."""

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        return kind is not None and issubclass(kind, (OSError, ValueError))


class Cast:
    """All workers, and the one queue of what they say."""

    def __init__(self, url: str, account: Path) -> None:
        self._url = url
        self._account = account
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._actors: dict[int, Actor] = {}

    def enter(self, *names: str) -> list[Actor]:
        """Start workers, all at once, and return when each of them is ready."""
        new = [Actor(name, self._url, self._account, self._events) for name in names]
        self._actors.update((actor.pid, actor) for actor in new)
        waiting = set(names)
        while waiting:
            waiting.discard(self.next("ready").worker)
        return new

    def next(self, *wanted: str, worker: str | None = None, seen: Callable[[Event], None] | None = None) -> Event:
        """Wait for one of these events; others are shown to `seen`. `Stalled` when it does not come."""
        limit = time.monotonic() + LIMIT_S
        while True:  # ends with the event, with a death that nobody ordered, or with the limit
            try:
                event = self._events.get(timeout=max(0.0, limit - time.monotonic()))
            except queue.Empty:
                raise Stalled(f"nobody said {' or '.join(wanted)} for {LIMIT_S:g} s") from None
            if event.name in wanted and worker in (None, event.worker):
                return event
            if event.name == "gone" and event.pid in self._actors:
                raise Stalled(f"{event.worker} died unexpectedly")
            if seen is not None:
                seen(event)

    def dismiss(self, *actors: Actor) -> None:
        """Let workers go."""
        for actor in actors:
            self._actors.pop(actor.pid, None)
            actor.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.dismiss(*list(self._actors.values()))


def _environment() -> dict[str, str]:
    """Ours, and the place this package was imported from, wherever that is."""
    here = str(Path(holdfast.__file__).resolve().parent.parent)
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [here, os.environ.get("PYTHONPATH", "")]))}
