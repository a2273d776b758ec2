"""The events of a job as server-sent events, on real sockets of the server that `holdfast up` uses."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
import pytest_asyncio

from holdfast.cli.server.http_server import HttpServer
from holdfast.guards.bearer import CarriedFence
from holdfast.plane.jobs.progress import EmitReport, Progress, ProgressReport, ProgressStore
from holdfast.plane.jobs.store import Writing
from holdfast.plane.locks.registry import SCHEDULER_JOB
from holdfast.plane.model.job_states import JobState as S
from holdfast.plane.model.records import Change, Job, Submission
from holdfast.plane.process.health import ProcessHealth
from holdfast.plane.service.service import Service
from holdfast.web.app import create_app
from holdfast.web.routes import job_stream
from support.harness.web import TOKENS, UNBOUND, service_at, tokens
from support.polling import pauses

pytestmark = pytest.mark.asyncio

LIMIT_S = 30
WORKER_FENCE = 77


class Event(NamedTuple):
    id: str | None
    kind: str
    data: dict[str, Any]


class Serving:
    """A plane behind its server; the test is scheduler and worker."""

    def __init__(self, service: Service, health: ProcessHealth, port: int) -> None:
        self.service = service
        self.health = health
        self.port = port
        self.streams: job_stream.OpenStreams
        self._fence = 1_000

    async def job(self, tenant: str = "blue") -> Job:
        made, _ = await self.service.submit(UNBOUND, Submission("sum", 1, tenant))
        return await self.move(made, S.SCHEDULED, S.DISPATCHED, S.RUNNING)

    async def move(self, job: Job, *states: S) -> Job:
        self._fence += 1
        lease = CarriedFence(SCHEDULER_JOB.key(job=job.id), self._fence)
        changes = [Change(state, run_fence=WORKER_FENCE, worker="w", actor="w") for state in states]
        changed = await self.service.parts.store.change(lease, job.id, lambda _: Writing(changes))
        assert changed.after is not None
        return changed.after

    async def emit(self, job: Job, *numbers: int, fence: int = WORKER_FENCE) -> None:
        now_ns = self.service.parts.store.clock.now().wall
        where = (job.id, job.created_ns, 1, fence)
        reports = [EmitReport(*where, number, now_ns, json.dumps(f"value {number}")) for number in numbers]
        progress = ProgressReport(job.id, job.created_ns, Progress(1, fence, now_ns))
        await ProgressStore(self.service.parts.database).record([progress], reports)

    async def until_streams(self, count: int) -> None:
        async with asyncio.timeout(LIMIT_S):
            for pause in pauses():
                if self.streams.count == count:
                    return
                await asyncio.sleep(pause)

    @asynccontextmanager
    async def stream(
        self, job: str, last: str = "", token: str = "blue-viewer", method: str = "GET"
    ) -> AsyncIterator[httpx.Response]:
        headers = {"accept": "text/event-stream", "authorization": f"Bearer {TOKENS[token]}"}
        if last:
            headers["last-event-id"] = last
        url = f"http://127.0.0.1:{self.port}/api/v1/jobs/{job}/events"
        async with (
            httpx.AsyncClient(trust_env=False, timeout=LIMIT_S) as client,
            client.stream(method, url, headers=headers) as answer,
        ):
            yield answer


@pytest_asyncio.fixture
async def serving(tmp_path: Path) -> AsyncIterator[Serving]:
    ours = socket.create_server(("127.0.0.1", 0))
    async with service_at(tmp_path) as service:
        health = ProcessHealth(service)
        app = create_app(service, tokens(), process_health=health)
        http = HttpServer(app, ours)
        await http.start()
        try:
            plane = Serving(service, health, ours.getsockname()[1])
            plane.streams = app.state.streams
            yield plane
        finally:
            await http.stop(5)


async def events_of(answer: httpx.Response) -> AsyncIterator[Event]:
    fields: dict[str, str] = {}
    async for line in answer.aiter_lines():
        if line:
            name, _, text = line.partition(": ")
            fields[name] = text
        elif "data" in fields:
            yield Event(fields.get("id"), fields["event"], json.loads(fields["data"]))
            fields = {}


def said(event: Event) -> Any:
    return event.data["value"] if event.kind == "value" else event.data["state"]


async def test_a_stream_has_states_and_values_as_they_happen_and_ends_with_the_job(serving: Serving) -> None:
    job = await serving.job()
    await serving.emit(job, 1, 2)
    async with serving.stream(job.id) as answer, asyncio.timeout(LIMIT_S):
        assert (answer.status_code, answer.headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
        events = events_of(answer)
        shown = [await anext(events) for _ in range(6)]
        assert [said(each) for each in shown] == ["PENDING", "SCHEDULED", "DISPATCHED", "RUNNING", "value 1", "value 2"]
        await serving.emit(job, 3)
        assert said(await anext(events)) == "value 3"
        await serving.move(job, S.SUCCEEDED)
        rest = [each async for each in events]
    assert [said(each) for each in rest] == ["SUCCEEDED"]
    assert rest[0].data["id"] == rest[0].id
    await serving.until_streams(0)


async def test_a_stream_continues_after_the_last_event_that_was_seen(serving: Serving) -> None:
    job = await serving.job()
    await serving.emit(job, 1, 2, 3)
    async with serving.stream(job.id) as answer, asyncio.timeout(LIMIT_S):
        events = events_of(answer)
        seen = [await anext(events) for _ in range(6)]  # the client disconnects in the middle of the values
    await serving.until_streams(0)
    await serving.emit(job, 4)
    await serving.move(job, S.SUCCEEDED)
    async with serving.stream(job.id, seen[-1].id or "") as answer, asyncio.timeout(LIMIT_S):
        rest = [each async for each in events_of(answer)]
    assert [said(each) for each in seen[-2:] + rest] == ["value 1", "value 2", "value 3", "value 4", "SUCCEEDED"]
    async with serving.stream(job.id, rest[-1].id or "") as answer:
        assert answer.status_code == 204, "nothing follows: a browser must not connect again"


async def test_a_quiet_stream_has_a_heartbeat(serving: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_stream, "HEARTBEAT_NS", 20_000_000)
    job = await serving.job()
    async with serving.stream(job.id) as answer, asyncio.timeout(LIMIT_S):
        lines = answer.aiter_lines()
        beats = 0
        while beats < 3:
            beats += await anext(lines) == ": alive"


async def test_the_head_of_a_stream_is_not_a_stream(serving: Serving) -> None:
    job = await serving.job()
    async with serving.stream(job.id, method="HEAD") as answer, asyncio.timeout(LIMIT_S):
        assert (answer.status_code, await answer.aread()) == (200, b"")
    await serving.until_streams(0)


async def test_a_process_that_shuts_down_ends_its_streams(serving: Serving) -> None:
    job = await serving.job()
    async with serving.stream(job.id) as answer, asyncio.timeout(LIMIT_S):
        events = events_of(answer)
        await anext(events)
        serving.health.drain()
        assert [said(each) async for each in events] == ["SCHEDULED", "DISPATCHED", "RUNNING"]


async def test_streams_are_bounded_and_given_free(serving: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_stream, "STREAMS_MAX", 1)
    job = await serving.job()
    async with serving.stream(job.id) as first, asyncio.timeout(LIMIT_S):
        events = events_of(first)
        await anext(events)
        async with serving.stream(job.id) as second:
            problem = json.loads(await second.aread())
            assert (second.status_code, problem["code"], second.headers["retry-after"]) == (503, "retry-later", "5")
    await serving.until_streams(0)
    async with serving.stream(job.id) as third:
        assert third.status_code == 200


async def test_a_slow_reader_gets_everything_and_is_read_for_page_by_page(serving: Serving) -> None:
    job = await serving.job()
    numbers = range(1, 1_001)
    await serving.emit(job, *numbers)
    await serving.move(job, S.SUCCEEDED)
    async with serving.stream(job.id) as answer, asyncio.timeout(LIMIT_S):
        shown = []
        async for event in events_of(answer):
            shown.append(said(event))
            if len(shown) % 100 == 0:
                await asyncio.sleep(0.001)
    assert shown[4:] == [*(f"value {number}" for number in numbers), "SUCCEEDED"]


async def test_a_value_of_an_overtaken_attempt_and_a_repeated_one_change_nothing(serving: Serving) -> None:
    job = await serving.job()
    await serving.emit(job, 1)
    await serving.emit(job, 1, 2)
    await serving.emit(job, 3, fence=WORKER_FENCE - 1)
    page = await serving.service.timeline(UNBOUND, job.id, "4.0.0")
    assert [each.entry.value for each in page.entries] == ["value 1", "value 2"]  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("job", "last", "token", "status", "code"),
    [
        ("ghost", "", "blue-viewer", 404, "not-found"),
        ("theirs", "", "red", 404, "not-found"),
        ("theirs", "yesterday", "blue", 422, "invalid"),
        ("theirs", "1.2", "blue", 422, "invalid"),
    ],
)
async def test_what_cannot_be_streamed_is_a_problem(
    serving: Serving, job: str, last: str, token: str, status: int, code: str
) -> None:
    made = await serving.job()
    async with serving.stream(made.id if job == "theirs" else job, last, token) as answer:
        problem = json.loads(await answer.aread())
        assert (answer.status_code, problem["code"]) == (status, code)
        if code == "invalid":
            assert problem["errors"][0]["field"].lower() == "last-event-id"
            assert problem["errors"][0]["fix"]
