"""Requests to the API and to a guarded application, called in the process as a server would call them.

What a server itself refuses is left to it: the address and the headers have only characters that one lets through.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import shutil
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

from fuzzing.target import Target
from holdfast.guards.http import FenceMiddleware
from holdfast.plane.workflows.core.definition_codec import from_document
from support.harness.web import TOKENS, UNBOUND, Stage, stage_at

PATIENCE_S: Final = 30.0  # for one answer; who is slower than this on any machine hangs
BRIEFLY_S: Final = 0.01  # no wait for a resource that is never released
_NAME: Final = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+\Z")
_UNFIT: Final = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")
_UNSEEN: Final = re.compile(rb"[^\x21-\x7e]")

Message = MutableMapping[str, Any]
App = Callable[[Any, Callable[[], Awaitable[Message]], Callable[[Message], Awaitable[None]]], Awaitable[None]]


@dataclass
class Asked:
    """A request: a line with method and address, lines of headers, an empty line, the body."""

    method: str
    target: bytes
    headers: list[tuple[bytes, bytes]]
    body: bytes

    @classmethod
    def of(cls, data: bytes) -> Asked:
        head, _, body = data.partition(b"\n\n")
        first, *lines = head.split(b"\n")
        method, _, target = first.partition(b" ")
        pairs = [each.partition(b":") for each in lines]
        headers = [
            (name.lower(), _UNFIT.sub(b"", value).strip()) for name, mark, value in pairs if mark and _NAME.match(name)
        ]
        known = method.decode("ascii", "replace").upper()
        return cls(known if known.isalpha() and known.isascii() else "GET", _UNSEEN.sub(b"", target), headers, body)

    def scope(self) -> dict[str, Any]:
        raw, _, query = (self.target if self.target.startswith(b"/") else b"/" + self.target).partition(b"?")
        names = {name for name, _ in self.headers}
        own = {
            b"host": b"localhost",
            b"authorization": f"Bearer {TOKENS['admin']}".encode(),
            **({b"content-type": b"application/json", b"content-length": b"%d" % len(self.body)} if self.body else {}),
        }
        return {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": self.method,
            "scheme": "http",
            "path": unquote(raw.decode("ascii")),
            "raw_path": raw,
            "query_string": query,
            "root_path": "",
            "client": ("127.0.0.1", 5),
            "server": ("127.0.0.1", 80),
            "state": {},
            "headers": [*((name, value) for name, value in own.items() if name not in names), *self.headers],
        }


@dataclass
class Answer:
    """What was answered, as a server sees it."""

    status: int = 0
    headers: list[tuple[bytes, bytes]] = field(default_factory=list)
    body: bytes = b""
    whole: bool = False

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            assert not self.status, "answered twice"
            self.status, self.headers = message["status"], list(message["headers"])
        elif message["type"] == "http.response.body":
            assert self.status, "a body without a beginning"
            assert not self.whole, "more after the end"
            self.body += message.get("body", b"")
            self.whole = not message.get("more_body", False)


async def answer(app: App, asked: Asked) -> Answer:
    said, pieces = Answer(), [asked.body[: len(asked.body) // 2], asked.body[len(asked.body) // 2 :]]

    async def receive() -> Message:
        if pieces:
            return {"type": "http.request", "body": pieces.pop(0), "more_body": bool(pieces)}
        return {"type": "http.disconnect"}

    async with asyncio.timeout(PATIENCE_S):
        await app(asked.scope(), receive, said.send)
    assert said.whole, "not answered to the end"
    assert not any(b"\n" in value or b"\r" in value for _, value in said.headers)
    return said


class _Running:
    """One plane and one guarded application for all requests, on a loop that only runs while one is answered."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="hf-fuzz-http-"))
        self.loop = asyncio.new_event_loop()
        self.stack = contextlib.AsyncExitStack()
        self.stage = self.loop.run_until_complete(self._open())
        self.guarded: App = FenceMiddleware(_note, _Memory(), key=_lock_of, drain_timeout=0)

    async def _open(self) -> Stage:
        stage = await self.stack.enter_async_context(_stage(self.folder))
        await stage.submit(job="known")
        await stage.end(await stage.submit(job="dead"))
        flows = stage.service.flows
        await flows.define(UNBOUND, from_document({"name": "known", "steps": {"ask": {"kind": "approval"}}}))
        await flows.start(UNBOUND, "known", run_id="known")
        return stage

    def close(self) -> None:
        self.loop.run_until_complete(self.stack.aclose())
        self.loop.close()
        shutil.rmtree(self.folder, ignore_errors=True)


@contextlib.asynccontextmanager
async def _stage(folder: Path) -> AsyncIterator[Stage]:
    async with stage_at(folder) as stage:
        yield stage


class _Memory:
    """A record of fences for one process."""

    blocking = False

    def __init__(self) -> None:
        self.fences: dict[tuple[str, str], int] = {}

    async def note(self, place: str, resource: str, fence: int) -> int:
        highest = self.fences[place, resource] = max(fence, self.fences.get((place, resource), -1))
        return highest

    async def seen(self, place: str, resource: str) -> int | None:
        return self.fences.get((place, resource))


_admitted: list[int] = []


async def _note(
    scope: Any, _receive: Callable[[], Awaitable[Message]], send: Callable[[Message], Awaitable[None]]
) -> None:
    fences = [value for name, value in scope["headers"] if name == b"holdfast-fence"]
    _admitted.append(int(fences[0]))
    await send({"type": "http.response.start", "status": 204, "headers": []})
    await send({"type": "http.response.body", "body": b""})


def _lock_of(scope: Any) -> str:
    return "job"


_running: list[_Running] = []


def _here() -> _Running:
    if not _running:
        _running.append(_Running())
    return _running[0]


def ended() -> None:
    """Close what the targets have opened. For drivers, when they end."""
    while _running:
        _running.pop().close()
    _admitted.clear()


def api(data: bytes) -> None:
    """Any request gets a whole answer that is not our fault, and a refusal is a problem that programs can read."""
    asked = Asked.of(data)
    with contextlib.suppress(ValueError, RecursionError):
        found = json.loads(asked.body)
        if isinstance(found, dict) and "timeout" in found:
            asked.body = json.dumps({**found, "timeout": BRIEFLY_S}).encode()
    here = _here()
    said = here.loop.run_until_complete(answer(here.stage.app, asked))
    assert said.status not in (500, 501, 502), f"{said.status}: {said.body[:300]!r}"
    if said.status >= 400:
        assert dict(said.headers)[b"content-type"] == b"application/problem+json"
        problem = json.loads(said.body) if asked.method != "HEAD" else {"status": said.status, "code": "x"}
        assert problem["status"] == said.status
        assert problem["code"]


def guarded(data: bytes) -> None:
    """Requests to one lock, one after the other: what gets in never goes back, and carries exactly one fence."""
    here = _here()
    here.guarded = FenceMiddleware(_note, _Memory(), key=_lock_of, drain_timeout=0)
    _admitted.clear()
    for each in data.split(b"\n==\n")[:5]:
        before = len(_admitted)
        said = here.loop.run_until_complete(answer(here.guarded, Asked.of(each)))
        assert said.status in (204, 400, 403, 412, 428)
        assert (said.status == 204) == (len(_admitted) > before)
    assert _admitted == sorted(_admitted), "an older fence got in after a newer one"


_PATHS: Final = (b"/api/v1/jobs", b"/api/v1/runs", b"/api/v1/workflows", b"/api/v1/resources", b"/api/v1/approvals")
_MORE: Final = (b"?limit=", b"&cursor=", b"?tenant=", b"/known", b"/dead", b"%2F", b"%00", b"/cancel", b"/openapi.json")
_HEADS: Final = (
    b"\ncontent-length: ",
    b"\ncontent-type: ",
    b"\nauthorization: Bearer ",
    b"\nidempotency-key: ",
    b"\n\n",
)
_BODY: Final = (
    b'{"topic":"sum","payload":{}}',
    b'"definition":{',
    b"1e400",
    b"\\ud800",
    b"\\u0000",
    b"[" * 80,
    b"9" * 40,
)
_FENCES: Final = (
    b"POST /x\nHoldfast-Key: job\nHoldfast-Fence: 7",
    b"\n==\n",
    b"POST /x",
    b"Holdfast-Fence: 8",
    b",",
    b"%6A",
)

TARGETS: Final = (
    Target("api", api, "a whole answer that is not our fault", (b"GET ", b"POST ", *_PATHS, *_MORE, *_HEADS, *_BODY)),
    Target("guarded-http", guarded, "what gets in never goes back", _FENCES),
)
