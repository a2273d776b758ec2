"""Inside one process, the handlers of one lock run in the order of their fences, and no request waits forever."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from holdfast.guards import CarriedFence
from holdfast.guards.http import FenceMiddleware, HttpStatistics, fence_of
from holdfast.guards.http.headers import request_headers
from holdfast.guards.records import FenceRecord, SqliteRecord, ThreadedRecord

pytestmark = pytest.mark.asyncio

KEY = "invoice:42"
LIMIT_S = 30.0


class Stage:
    """A service whose handlers stay inside until they are told to go; every move is in `story`."""

    def __init__(self, record: FenceRecord, **settings: Any) -> None:
        self.story: list[str] = []
        self.inside: dict[str, asyncio.Event] = {}
        self.go: dict[str, asyncio.Event] = {}
        self.guard = FenceMiddleware(self._handle, record, **{"drain_timeout": LIMIT_S} | settings)

    def ask(self, name: str, fence: int, method: str = "PUT", key: str = KEY, body: list[Any] | None = None) -> Asked:
        self.inside[name], self.go[name] = asyncio.Event(), asyncio.Event()
        return Asked(self.guard, name, fence, method, key, body)

    async def enters(self, name: str) -> None:
        await asyncio.wait_for(self.inside[name].wait(), LIMIT_S)

    async def waits(self, requests: int) -> None:
        """Until so many requests are registered and the loop has nothing left to do for them."""
        async with asyncio.timeout(LIMIT_S):
            while self.guard.statistics().requests < requests:  # noqa: ASYNC110 - the guard has no event for this
                await asyncio.sleep(0)
        await self._settled()

    async def _settled(self) -> None:
        # Every question to the record passes one thread in order, so when ours is answered the earlier ones are too.
        await self.guard._record.seen("http", "nothing")
        for _ in range(10):
            await asyncio.sleep(0)

    async def _handle(self, scope: Any, receive: Any, send: Any) -> None:
        name = scope["path"].removeprefix("/")
        self.story.append(f"{name} begins")
        self.inside[name].set()
        try:
            if scope["query_string"] == b"body":
                while (message := await receive()).get("more_body"):
                    pass
                if message["type"] == "http.disconnect":
                    self.story.append(f"{name} is left by its client")
                    return
            await asyncio.wait_for(self.go[name].wait(), LIMIT_S)
            assert fence_of(scope).key
            await send({"type": "http.response.start", "status": 204, "headers": []})
            await send({"type": "http.response.body", "body": b""})
        finally:
            self.story.append(f"{name} ends")


class Asked:
    """One request, spoken in plain ASGI, so that a test decides when its client is gone."""

    def __init__(
        self, guard: FenceMiddleware, name: str, fence: int, method: str, key: str, body: list[Any] | None
    ) -> None:
        headers = [(k.lower().encode(), v.encode()) for k, v in request_headers(key, fence).items()]
        query = b"" if body is None else b"body"
        scope = {"type": "http", "method": method, "path": f"/{name}", "headers": headers, "query_string": query}
        self._incoming: asyncio.Queue[Any] = asyncio.Queue()
        for message in body or ():
            self._incoming.put_nowait(message)
        self._sent: list[Any] = []
        self.task = asyncio.ensure_future(guard(scope, self._incoming.get, self._send))

    async def status(self) -> int:
        await asyncio.wait_for(self.task, LIMIT_S)
        return int(self._sent[0]["status"])

    def header(self, name: bytes) -> bytes:
        found: bytes = dict(self._sent[0]["headers"])[name]
        return found

    async def _send(self, message: Any) -> None:
        self._sent.append(message)


@pytest_asyncio.fixture
async def record(tmp_path: Path) -> AsyncIterator[ThreadedRecord]:
    made = ThreadedRecord(SqliteRecord(tmp_path / "fences.db"))
    yield made
    await asyncio.to_thread(made.close)


@pytest_asyncio.fixture
async def stage(record: ThreadedRecord) -> Stage:
    return Stage(record)


async def test_a_newer_holder_waits_for_the_handler_of_an_older_one(stage: Stage) -> None:
    older = stage.ask("older", 1)
    await stage.enters("older")
    newer = stage.ask("newer", 2, "GET")
    await stage.waits(2)
    assert stage.story == ["older begins"]
    assert await stage.ask("late", 1).status() == 412
    stage.go["older"].set()
    await stage.enters("newer")
    assert stage.story == ["older begins", "older ends", "newer begins"]
    stage.go["newer"].set()
    assert (await older.status(), await newer.status()) == (204, 204)
    assert stage.guard.statistics() == HttpStatistics(entered=1, accepted=1, refused=1)


async def test_equal_fences_run_side_by_side_and_other_locks_do_not_wait(stage: Stage) -> None:
    asked = [stage.ask("one", 1), stage.ask("two", 1), stage.ask("three", 9, key="invoice:43")]
    for name in ("one", "two", "three"):
        await stage.enters(name)
    assert stage.guard.statistics().in_flight == 3
    for each in stage.go.values():
        each.set()
    assert [await each.status() for each in asked] == [204, 204, 204]


async def test_no_request_waits_for_the_handler_of_a_read(stage: Stage) -> None:
    older = stage.ask("older", 1, "GET")
    await stage.enters("older")
    newer = stage.ask("newer", 2)
    await stage.enters("newer")
    for each in stage.go.values():
        each.set()
    assert (await older.status(), await newer.status()) == (204, 204)


@pytest.mark.requires("R34", "R47")
async def test_a_request_that_is_overtaken_while_waiting_is_refused_and_does_not_run(stage: Stage) -> None:
    first = stage.ask("first", 1)
    await stage.enters("first")
    second = stage.ask("second", 2)
    await stage.waits(2)
    third = stage.ask("third", 3)
    assert await second.status() == 412
    assert second.header(b"holdfast-seen") == b"3"
    stage.go["first"].set()
    await stage.enters("third")
    stage.go["third"].set()
    assert (await first.status(), await third.status()) == (204, 204)
    assert stage.story == ["first begins", "first ends", "third begins", "third ends"]


@pytest.mark.requires("R34", "R47")
async def test_a_request_that_is_overtaken_in_another_process_while_waiting_is_refused(
    stage: Stage, record: ThreadedRecord
) -> None:
    first = stage.ask("first", 1)
    await stage.enters("first")
    second = stage.ask("second", 2)
    await stage.waits(2)
    assert await record.note("http", KEY, 3) == 3
    stage.go["first"].set()
    assert (await first.status(), await second.status()) == (204, 412)
    assert stage.story == ["first begins", "first ends"]


async def test_a_request_that_comes_back_late_from_the_record_finds_out_what_happened_meanwhile() -> None:
    """Its registration was in time, and its answer was not: the newer holder has come and gone."""

    class Slow:
        """Answers each question when it is told to."""

        def __init__(self) -> None:
            self.highest = 0
            self.answer: dict[int, asyncio.Event] = {}

        async def note(self, place: str, resource: str, fence: int) -> int:
            self.highest = found = max(self.highest, fence)
            await self.answer.setdefault(fence, asyncio.Event()).wait()
            return found

        async def seen(self, place: str, resource: str) -> int | None:
            return self.highest

    slow = Slow()
    stage = Stage(slow)
    older = stage.ask("older", 1)
    await stage.waits(1)
    newer = stage.ask("newer", 2)
    await stage.waits(2)
    slow.answer[2].set()
    await stage.enters("newer")
    stage.go["newer"].set()
    assert await newer.status() == 204
    slow.answer[1].set()
    assert await older.status() == 412
    assert stage.story == ["newer begins", "newer ends"]
    assert stage.guard.statistics().requests == 0


async def test_a_request_that_waits_too_long_gets_503_and_may_come_again(record: ThreadedRecord) -> None:
    stage = Stage(record, drain_timeout=0.01)
    older = stage.ask("older", 1)
    await stage.enters("older")
    newer = stage.ask("newer", 2)
    assert await newer.status() == 503
    assert int(newer.header(b"retry-after")) >= 1
    assert await stage.ask("late", 1).status() == 412, "the newer fence is registered all the same"
    stage.go["older"].set()
    assert await older.status() == 204
    again = stage.ask("again", 2)
    await stage.enters("again")
    stage.go["again"].set()
    assert await again.status() == 204
    assert stage.guard.statistics() == HttpStatistics(accepted=2, refused=1, overdue=1)


@pytest.mark.parametrize("victim", ["waiting", "running"])
async def test_a_request_that_is_cancelled_leaves_no_trace_and_frees_the_way(stage: Stage, victim: str) -> None:
    older = stage.ask("older", 1)
    await stage.enters("older")
    newer = stage.ask("newer", 2)
    await stage.waits(2)
    gone = newer if victim == "waiting" else older
    gone.task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await gone.task
    if victim == "waiting":
        stage.go["older"].set()
        assert await older.status() == 204
    else:
        await stage.enters("newer")
        stage.go["newer"].set()
        assert await newer.status() == 204
    assert (stage.guard.statistics().requests, stage.guard.statistics().in_flight) == (0, 0)
    assert stage.guard._lanes._lanes == {}


@pytest.mark.requires("R34", "R47")
async def test_an_older_holder_that_stops_in_the_middle_of_its_body_does_not_hold_up_the_newer_one(
    stage: Stage,
) -> None:
    older = stage.ask("older", 1, body=[{"type": "http.request", "body": b"half", "more_body": True}])
    await stage.enters("older")
    newer = stage.ask("newer", 2)
    await stage.enters("newer")
    assert stage.story == ["older begins", "older is left by its client", "older ends", "newer begins"]
    stage.go["newer"].set()
    assert await newer.status() == 204
    await older.task


async def test_a_body_arrives_whole_while_no_newer_holder_comes(stage: Stage) -> None:
    body = [{"type": "http.request", "body": b"x", "more_body": more} for more in (True, True, False)]
    asked = stage.ask("only", 1, body=body)
    stage.go["only"].set()
    assert await asked.status() == 204
    assert stage.story == ["only begins", "only ends"]


@pytest.mark.parametrize("ordered", [True, False], ids=["ordered", "unordered"])
@pytest.mark.requires("R34", "R47")
async def test_an_update_is_lost_without_the_order_and_kept_with_it(
    record: ThreadedRecord, ordered: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A is admitted and about to write; B enters and reads; A writes; B writes from what it read."""
    if not ordered:
        monkeypatch.setattr("holdfast.guards.http.request_order.LockLane.clear_for", lambda lane, fence: True)
    document, admitted, write = ["start"], asyncio.Event(), asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        fence = fence_of(scope)
        if scope["method"] == "PUT":
            written = (await receive())["body"].decode()
            if fence == CarriedFence(KEY, 1):
                admitted.set()
                await asyncio.wait_for(write.wait(), LIMIT_S)
            document[0] = written
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": document[0].encode()})

    guard = FenceMiddleware(app, record)

    async def ask(method: str, fence: int, body: str = "") -> str:
        headers = [(k.lower().encode(), v.encode()) for k, v in request_headers(KEY, fence).items()]
        answer: list[Any] = []

        async def receive() -> Any:
            return {"type": "http.request", "body": body.encode()}

        async def send(message: Any) -> None:
            answer.append(message)

        await guard({"type": "http", "method": method, "path": "/", "headers": headers}, receive, send)
        assert answer[0]["status"] == 200
        return str(answer[1]["body"].decode())

    first = asyncio.ensure_future(ask("PUT", 1, "start A"))
    await asyncio.wait_for(admitted.wait(), LIMIT_S)
    reading = asyncio.ensure_future(ask("GET", 2))
    while await record.seen("http", KEY) != 2:
        pass
    if not ordered:
        await reading
    write.set()
    assert await first == "start A"
    await ask("PUT", 2, await reading + " B")
    assert document[0] == ("start A B" if ordered else "start B")
