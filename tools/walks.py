"""The files that a lock, a job and a run pass through, recorded from real calls and compared with docs/architecture.md.

    python tools/walks.py               print the files of each walk, in the order of their first call, and the counts
    python tools/walks.py --calls job   print each Python call of one walk
    python tools/walks.py --write       add missing files to the page, and remove files that are not called any more

Promises: a walk is recorded a number of times. A file belongs to it if every recording contains it; a file that only
some recordings contain (a timer was due, two results shared a batch) may be in the page or not. The order of the page
is kept. Does not promise the same order of calls in every recording: threads run side by side.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import sqlite3
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any, Final, NamedTuple, Self

import httpx

import holdfast
from holdfast.drills.env.redis_server import redis_server, running
from holdfast.plane import App, Flow
from holdfast.plane.process.plane import Plane
from holdfast.plane.settings.settings import Settings
from holdfast.web.app import create_app
from holdfast.web.middleware.auth import Access, Role, TokenEntry, digest_of
from pages import ROOT

PAGE: Final = ROOT / "docs" / "architecture.md"
WALKS: Final = ("lock", "job", "run")
RECORDINGS: Final = 15
LIMIT_S: Final = 60.0
BACKGROUND: Final = frozenset({"runtime/stalls.py", "core/rolling_max.py", "flows/renew.py"})
"""Files of periodic tasks, which belong to no walk. On a slow machine they may be in every recording."""

API: Final = "http://localhost/api/v1"

_SOURCE: Final = f"{Path(holdfast.__file__).parent}/"
_LIST: Final = re.compile(r"<!-- walk: (?P<name>\w+) -->\n(?P<lines>.*?)<!-- end of walk -->\n", re.DOTALL)
_LINE: Final = re.compile(r"\d+\. `(?P<file>[^`]+)`: (?P<text>.+)")


class Walk(NamedTuple):
    """What the recordings of one walk have in common, and what one of them contains."""

    always: tuple[str, ...]  # files in every recording, in the order of the first one
    sometimes: frozenset[str]  # files in some
    calls: tuple[str, ...]  # the shortest recording: each call as file:function


class Recorder:
    """Records calls of functions of Holdfast, in all threads that are started after it."""

    def __init__(self) -> None:
        self._calls: list[str] | None = None
        self._done: list[list[str]] = []

    def __enter__(self) -> Self:
        threading.setprofile(self._called)
        sys.setprofile(self._called)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)
        threading.setprofile(None)

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Record while the block runs."""
        calls = self._calls = []
        try:
            yield
        finally:
            self._calls = None
            self._done.append(calls)

    def walk(self) -> Walk:
        """Compare all recordings."""
        files = [list(dict.fromkeys(call.partition(":")[0] for call in calls)) for calls in self._done]
        always = set(files[0]).intersection(*files) - BACKGROUND
        shortest = min(self._done, key=len)
        return Walk(
            tuple(each for each in files[0] if each in always),
            frozenset().union(*files) - always,
            tuple(shortest),
        )

    def _called(self, frame: FrameType, event: str, _: Any) -> None:
        calls = self._calls
        if calls is None or event != "call":
            return
        code = frame.f_code
        if code.co_filename.startswith(_SOURCE) and code.co_name != "<module>":
            calls.append(f"{code.co_filename.removeprefix(_SOURCE)}:{code.co_qualname}")


def lock_on_redis(url: str) -> Walk:
    """Acquire an uncontended lock and release it."""
    with Recorder() as recorder, holdfast.connect(url) as locks:
        for number in range(RECORDINGS + 1):
            with recorder.recording() if number else _warming_up():
                lease = locks.lock(f"walk:{number}", ttl=30).acquire()
                lease.release()
    return recorder.walk()


def job_on_sqlite(folder: Path) -> Walk:
    """Submit a job over HTTP, and wait until its result is stored."""

    async def submit(client: httpx.AsyncClient, database: Path) -> None:
        answer = await client.post("/jobs", json={"topic": "walk", "payload": {"n": 1}})
        await _until(database, f"SELECT 1 FROM plane_job WHERE id = '{answer.json()['id']}' AND state = 'SUCCEEDED'")

    return asyncio.run(_on_a_plane(folder, {"scheduler", "worker"}, submit))


def run_with_approval(folder: Path) -> Walk:
    """Start a run whose first step waits for an approval, approve it, and wait until the run has succeeded."""

    async def approve(client: httpx.AsyncClient, database: Path) -> None:
        run = (await client.post("/runs", json={"workflow": "walk", "input": 1})).json()["id"]
        await _until(database, f"SELECT 1 FROM plane_approval WHERE job LIKE '{run}%'")
        waiting = (await client.get("/approvals")).json()["items"]
        decider = {
            "authorization": "Bearer token-of-the-decider"
        }  # an approval needs another person than the one who started the run
        answer = await client.post(f"/approvals/{waiting[0]['job']}/approve", json={}, headers=decider)
        answer.raise_for_status()
        await _until(database, f"SELECT 1 FROM plane_run WHERE id = '{run}' AND status = 'succeeded'")

    return asyncio.run(_on_a_plane(folder, {"scheduler", "worker", "engine"}, approve))


def sample_app() -> App:
    """One job, and one workflow that runs it after an approval."""
    app = App("walks")

    @app.job("walk")
    async def walk(payload: object) -> object:
        return payload

    @app.workflow("walk")
    def approved(flow: Flow) -> None:
        agreed = flow.approval("agreed", message="Go?")
        flow.job("work", topic="walk", input=1, after=[agreed])

    return app


async def _on_a_plane(folder: Path, parts: set[str], step: Callable[[httpx.AsyncClient, Path], Any]) -> Walk:
    database = folder / "plane.db"
    settings = Settings(database=f"sqlite:///{database}?synchronous=normal")
    with Recorder() as recorder:
        async with Plane(settings, parts, app=sample_app()) as plane:
            access = Access(
                TokenEntry(name, digest_of(f"token-of-the-{name}"), (Role.ADMIN,)) for name in ("starter", "decider")
            )
            transport = httpx.ASGITransport(create_app(plane.components.service, access))
            headers = {"authorization": "Bearer token-of-the-starter"}
            async with httpx.AsyncClient(transport=transport, base_url=API, headers=headers) as client:
                for number in range(RECORDINGS + 2):
                    with recorder.recording() if number > 1 else _warming_up():
                        await step(client, database)
                    await asyncio.sleep(0.1)  # what the previous round left behind ends
    return recorder.walk()


async def _until(database: Path, query: str) -> None:
    """Wait without a call of Holdfast until the query returns a row."""
    until = time.monotonic() + LIMIT_S
    with closing(sqlite3.connect(database, isolation_level=None)) as reader:
        while not reader.execute(query).fetchall():
            if time.monotonic() > until:
                raise TimeoutError(query)
            await asyncio.sleep(0.002)


@contextmanager
def _warming_up() -> Iterator[None]:
    yield


def recorded() -> dict[str, Walk]:
    """All walks, on servers and files of their own."""
    with tempfile.TemporaryDirectory(prefix="hf-") as folder:
        for name in ("job", "run"):
            (Path(folder) / name).mkdir()
        with running(redis_server(), Path(folder) / "redis") as server:
            lock = lock_on_redis(server.url)
        return {
            "lock": lock,
            "job": job_on_sqlite(Path(folder) / "job"),
            "run": run_with_approval(Path(folder) / "run"),
        }


def shown(walks: Mapping[str, Walk]) -> dict[str, Walk]:
    """The walks as the page shows them: that of a run without the files of a job."""
    job = {*walks["job"].always, *walks["job"].sometimes}
    run = walks["run"]
    rest = tuple(each for each in run.always if each not in job)
    return {**walks, "run": run._replace(always=rest, sometimes=run.sometimes.union(run.always).difference(rest))}


def joined(first: Mapping[str, Walk], second: Mapping[str, Walk]) -> dict[str, Walk]:
    """The walks of all recordings together, of two runs."""
    found: dict[str, Walk] = {}
    for name, one in first.items():
        other = second[name]
        always = tuple(each for each in one.always if each in other.always)
        either = {*one.always, *other.always, *one.sometimes, *other.sometimes}
        found[name] = Walk(always, frozenset(either.difference(always)), min(one.calls, other.calls, key=len))
    return found


def in_page(text: str) -> dict[str, dict[str, str]]:
    """The walks of the page: what it says about each file."""
    found = {each["name"]: each["lines"].splitlines() for each in _LIST.finditer(text)}
    return {name: dict(_file_and_text(line) for line in lines) for name, lines in found.items()}


def _file_and_text(line: str) -> tuple[str, str]:
    found = _LINE.fullmatch(line)
    if found is None:
        raise ValueError(f"not of the form 'NUMBER. `FILE`: TEXT': {line}")
    return found["file"], found["text"]


def renewed(text: str, walks: Mapping[str, Walk]) -> str:
    """The page with the files of these walks. Keeps the order and the texts of the files that it has."""

    def lines(name: str) -> str:
        walk, texts = walks[name], in_page(text)[name]
        files = [each for each in texts if each in walk.always or each in walk.sometimes]
        for index, file in enumerate(walk.always):
            if file not in files:
                before = [each for each in walk.always[:index] if each in files]
                files.insert(files.index(before[-1]) + 1 if before else 0, file)
        return "".join(f"1. `{file}`: {texts.get(file) or summary(file)}\n" for file in files)

    return _LIST.sub(lambda each: f"<!-- walk: {each['name']} -->\n{lines(each['name'])}<!-- end of walk -->\n", text)


def summary(file: str) -> str:
    """The first sentence of the docstring of a file."""
    text = (Path(_SOURCE) / file).read_text(encoding="utf-8").partition('"""')[2]
    return re.split(r"(?<=\.)\s|\n\n|\"\"\"", text, maxsplit=1)[0].replace("\n", " ").strip()


def main() -> None:
    """Print the walks, or renew the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--calls", choices=WALKS)
    options = parser.parse_args()
    walks = recorded()
    if options.write:
        PAGE.write_text(renewed(PAGE.read_text(encoding="utf-8"), shown(walks)), encoding="utf-8")
        return
    for name, walk in walks.items():
        functions = Counter(walk.calls)
        print(f"{name}: {len(walk.always)} files, {len(functions)} functions, {len(walk.calls)} calls")
        if options.calls == name:
            print(*walk.calls, sep="\n")
        elif options.calls is None:
            print(*(f"  {each}" for each in walk.always), sep="\n")
            print(*(f"  ({each})" for each in sorted(walk.sometimes)), sep="\n")


if __name__ == "__main__":
    with suppress(BrokenPipeError):
        main()
