"""The events of a job as server-sent events: states, emitted values and progress, until the job has ended.

Promises: a stream that continues with `Last-Event-ID` contains each later state and value once and in order, however
late it comes. The next page is read when the client has taken the last one, so a slow reader costs no memory; one that
takes nothing is disconnected by the server. A quiet stream has a comment every `HEARTBEAT_NS`. It ends after the last
state of the job, when the process shuts down, or when the database does not answer; then the client comes again. A
process has at most `STREAMS_MAX` streams.

Clock: the event loop's.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Final

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from holdfast.errors import BackendError, RetryLater, RowMissing, Unavailable
from holdfast.plane.jobs.progress import Progress
from holdfast.plane.model.caller import Caller
from holdfast.plane.process.health import ProcessHealth
from holdfast.plane.resources.client_wait import ClientWait
from holdfast.plane.service.service import Service
from holdfast.plane.service.timelines import TimelinePage, TimelineReader
from holdfast.types import NS
from holdfast.web.middleware.intake import HEAD
from holdfast.web.middleware.long_poll import client_wait
from holdfast.web.schemas.jobs import UpdateShown

STREAMS_MAX: Final = 100
HEARTBEAT_NS: Final = 15 * NS
RETRY_MS: Final = 2_000
"""How long a client waits before it comes again."""
MEDIA_TYPE: Final = "text/event-stream"

_ALIVE: Final = b": alive\n\n"


class OpenStreams:
    """The streams of a process."""

    def __init__(self) -> None:
        self.count = 0

    def admit(self) -> None:
        """`RetryLater`: there are as many as there may be."""
        if self.count >= STREAMS_MAX:
            raise RetryLater(5.0, Unavailable(f"this process serves {STREAMS_MAX} streams of events already"))


class JobStream(Response):
    """A response that streams the events of a job after its first page."""

    media_type = MEDIA_TYPE

    def __init__(self, streams: OpenStreams, service: Service, health: ProcessHealth, caller: Caller) -> None:
        super().__init__()
        del MutableHeaders(raw=self.raw_headers)["content-length"]
        self.headers["x-accel-buffering"] = "no"  # proxies must not collect it
        self._streams = streams
        self._service = service
        self._health = health
        self._caller = caller
        self._first: TimelinePage | None = None

    def starting(self, page: TimelinePage) -> JobStream:
        """The same, with the page to begin with."""
        self._first = page
        return self

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        assert self._first is not None  # noqa: S101 - `starting` comes first
        self._streams.count += 1
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            if scope["state"].get(HEAD):
                await send({"type": "http.response.body", "body": b"", "more_body": False})
                return
            async with (
                client_wait(Request(scope, receive), self._health) as client,
                aclosing(self._chunks(self._first, client)) as chunks,
            ):
                async for chunk in chunks:
                    await send({"type": "http.response.body", "body": chunk, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            self._streams.count -= 1

    async def _chunks(self, page: TimelinePage, client: ClientWait) -> AsyncGenerator[bytes, None]:
        job, mark, reader = page.job.id, "", TimelineReader()
        yield f"retry: {RETRY_MS}\n\n".encode()
        while True:
            for each in reader.read(page):
                yield _event(UpdateShown.about(each) if isinstance(each, Progress) else UpdateShown.of(each))
            if page.ended:
                return
            try:
                while not page.more:
                    waiting = self._service.job_changes.wait(self._caller, {job: mark}, HEARTBEAT_NS)
                    found = await client.unless_ended(waiting)
                    if client.ended is not None:
                        return
                    if found:
                        mark = seen.mark if (seen := found[job]) is not None else ""
                        break
                    yield _ALIVE
                page = await self._service.timeline(self._caller, job, page.place.text)
            except (BackendError, RowMissing):
                return


def _event(shown: UpdateShown) -> bytes:
    place = "" if shown.id is None else f"id: {shown.id}\n"
    return f"{place}event: {shown.kind}\ndata: {shown.model_dump_json()}\n\n".encode()
