"""The HTTP guard lets no stale request through to the application, and says why in the way HTTP says it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from holdfast.core import failpoints
from holdfast.core.history.events import EventKind, Record
from holdfast.errors import BadInput, FencedOut, Timeout, Unavailable, Unfenced
from holdfast.guards import CarriedFence
from holdfast.guards.http import FenceMiddleware, HttpStatistics, fence_of, problem_of, writes
from holdfast.guards.http.headers import request_headers
from holdfast.guards.httpx import AsyncFencedTransport
from holdfast.guards.records import SqliteRecord

pytestmark = pytest.mark.asyncio

URL = "http://service.test"
KEY = "invoice:42"


class Service:
    """An application that remembers what reached it, behind the guard."""

    def __init__(self, record: Any, **settings: Any) -> None:
        self.reached: list[tuple[str, object]] = []
        app = Starlette(routes=[Route("/{path:path}", self._answer, methods=["GET", "PUT", "POST", "DELETE"])])
        self.guard = FenceMiddleware(app, record, **settings)
        self.client = httpx.AsyncClient(transport=httpx.ASGITransport(app=self.guard), base_url=URL)

    async def ask(
        self, method: str, fence: int | str | None = None, key: str = KEY, path: str = "/42"
    ) -> httpx.Response:
        headers = {} if fence is None else request_headers(key, 0) | {"Holdfast-Fence": str(fence)}
        return await self.client.request(method, path, headers=headers)

    async def _answer(self, request: Request) -> Response:
        self.reached.append((request.method, request.scope.get("holdfast.fence")))
        return PlainTextResponse("done", headers={"vary": "Accept"})


@pytest.fixture
def record(tmp_path: Path) -> SqliteRecord:
    return SqliteRecord(tmp_path / "fences.db")


@pytest_asyncio.fixture
async def make(record: SqliteRecord) -> AsyncIterator[Callable[..., Service]]:
    """Makes services over one record, and closes them."""
    made: list[Service] = []

    def service(found: Any = None, **settings: Any) -> Service:
        made.append(Service(record if found is None else found, **settings))
        return made[-1]

    yield service
    for each in made:
        await each.client.aclose()
        if hasattr(each.guard._record, "close"):
            await asyncio.to_thread(each.guard._record.close)


@pytest.mark.requires("R28", "R34")
async def test_a_stale_request_is_answered_412_and_reaches_nothing(make: Callable[..., Service]) -> None:
    service = make()
    assert (await service.ask("PUT", 7)).status_code == 200
    for method in ("PUT", "POST", "DELETE", "GET"):
        refused = await service.ask(method, 6)
        assert refused.status_code == 412
        assert refused.headers["content-type"] == "application/problem+json"
        assert refused.headers["holdfast-seen"] == "7"
        body = refused.json()
        assert (body["type"], body["status"]) == ("urn:holdfast:problem:fenced-out", 412)
        assert (body["key"], body["fence"], body["seen"], body["instance"]) == (KEY, 6, 7, "/42")
    assert service.reached == [("PUT", CarriedFence(KEY, 7))]
    assert service.guard.statistics() == HttpStatistics(accepted=1, refused=4)


@pytest.mark.requires("R34", "R47")
@pytest.mark.parametrize("method", ["GET", "HEAD"])
async def test_a_read_registers_its_fence_so_a_late_write_cannot_spoil_what_was_read(
    make: Callable[..., Service], method: str
) -> None:
    service = make()
    assert (await service.ask("PUT", 1)).status_code == 200
    assert (await service.ask(method, 2)).status_code == 200
    assert (await service.ask("PUT", 1)).status_code == 412
    assert (await service.ask("PUT", 2)).status_code == 200
    assert service.guard.statistics() == HttpStatistics(entered=1, accepted=2, refused=1)


async def test_equal_and_greater_fences_pass_from_zero_to_the_highest(make: Callable[..., Service]) -> None:
    service = make()
    for fence in (0, 0, 1, 2**53, 2**53 + 1, 2**63 - 1, 2**63 - 1):
        answer = await service.ask("PUT", fence)
        assert (answer.status_code, answer.headers["holdfast-fence"]) == (200, str(fence))
    assert (await service.ask("PUT", 2**63)).status_code == 400
    assert (await service.ask("PUT", 2**63 - 2)).status_code == 412


@pytest.mark.requires("R34")
async def test_what_was_seen_outlives_the_process_that_saw_it(make: Callable[..., Service]) -> None:
    before, after = make(), make()
    await before.ask("PUT", 7)
    assert (await after.ask("PUT", 6)).status_code == 412
    assert after.reached == []


async def test_locks_and_places_do_not_mix(make: Callable[..., Service]) -> None:
    service, elsewhere = make(), make(place="other")
    await service.ask("PUT", 7)
    assert (await service.ask("PUT", 1, key="invoice:43")).status_code == 200
    assert (await elsewhere.ask("PUT", 1)).status_code == 200


async def test_a_head_request_is_refused_without_a_body(make: Callable[..., Service]) -> None:
    service = make()
    await service.ask("PUT", 7)
    refused = await service.ask("HEAD", 6)
    assert (refused.status_code, refused.content, refused.headers["holdfast-seen"]) == (412, b"", "7")
    assert int(refused.headers["content-length"]) > 0


async def test_a_request_without_a_fence_is_answered_428_where_one_is_required(make: Callable[..., Service]) -> None:
    service = make()
    refused = await service.ask("PUT")
    assert (refused.status_code, refused.json()["type"]) == (428, "urn:holdfast:problem:fence-required")
    assert refused.headers["cache-control"] == "no-store"
    assert service.reached == []
    assert service.guard.statistics() == HttpStatistics(required=1)


async def test_where_a_fence_is_required_can_be_said_by_method_or_path(make: Callable[..., Service]) -> None:
    by_method = make(required=writes)
    assert (await by_method.ask("GET")).status_code == 200
    assert (await by_method.ask("PUT")).status_code == 428
    by_path = make(required=lambda scope: scope["path"].startswith("/guarded"))
    assert (await by_path.ask("PUT", path="/open")).status_code == 200
    assert (await by_path.ask("PUT", path="/guarded/1")).status_code == 428
    nowhere = make(required=False)
    assert (await nowhere.ask("PUT")).status_code == 200
    assert nowhere.reached == [("PUT", None)]
    assert nowhere.guard.statistics() == HttpStatistics(passed=1)


async def test_a_fence_is_checked_also_where_none_is_required(make: Callable[..., Service]) -> None:
    service = make(required=False)
    await service.ask("PUT", 7)
    assert (await service.ask("PUT", 6)).status_code == 412
    assert (await service.ask("PUT", "x")).status_code == 400


@pytest.mark.parametrize("fence", ["-1", "1.5", "", "one", "1, 1", str(2**63)])
async def test_a_header_that_makes_no_sense_is_answered_400_and_named(make: Callable[..., Service], fence: str) -> None:
    service = make(required=False)
    refused = await service.ask("PUT", fence)
    assert (refused.status_code, refused.json()["header"]) == (400, "Holdfast-Fence")
    assert "Holdfast-Fence" in refused.json()["detail"]
    assert service.reached == []
    assert service.guard.statistics() == HttpStatistics(malformed=1)


async def test_half_of_the_headers_is_answered_400_and_the_missing_one_is_named(make: Callable[..., Service]) -> None:
    service = make(required=False)
    refused = await service.client.put("/42", headers={"Holdfast-Key": KEY})
    assert (refused.status_code, refused.json()["header"]) == (400, "Holdfast-Fence")
    refused = await service.client.put("/42", headers={"Holdfast-Fence": "1"})
    assert (refused.status_code, refused.json()["header"]) == (400, "Holdfast-Key")


async def test_a_lease_of_another_lock_is_answered_403_and_not_registered(
    make: Callable[..., Service], record: SqliteRecord
) -> None:
    service = make(key=lambda scope: "invoice:" + scope["path"].removeprefix("/"))
    refused = await service.ask("PUT", 9, key="invoice:43")
    assert (refused.status_code, refused.json()["expected"]) == (403, KEY)
    assert service.reached == []
    assert await record.seen("http", "invoice:43") is None
    record.close()
    assert (await service.ask("PUT", 1)).status_code == 200
    assert service.guard.statistics() == HttpStatistics(accepted=1, other_lock=1)


@pytest.mark.parametrize("trouble", [Unavailable("down"), Timeout("slow")])
async def test_while_the_record_does_not_answer_nothing_gets_through(
    make: Callable[..., Service], trouble: Exception
) -> None:
    class Broken:
        async def note(self, place: str, resource: str, fence: int) -> int:
            raise trouble

        async def seen(self, place: str, resource: str) -> int | None:
            raise trouble

    service = make(Broken())
    refused = await service.ask("PUT", 7)
    assert (refused.status_code, refused.json()["type"]) == (503, "urn:holdfast:problem:record-unavailable")
    assert int(refused.headers["retry-after"]) >= 1
    assert "down" not in refused.text
    assert service.reached == []
    assert service.guard.statistics() == HttpStatistics(unavailable=1)


async def test_a_record_that_was_lost_on_disk_is_trouble_and_not_an_empty_record(
    make: Callable[..., Service], tmp_path: Path
) -> None:
    (tmp_path / "broken.db").write_bytes(b"this is no database, whatever its name says" * 100)
    service = make(SqliteRecord(tmp_path / "broken.db"))
    assert (await service.ask("PUT", 7)).status_code == 503
    assert service.reached == []


async def test_a_handler_gets_the_fence_to_hand_it_on(make: Callable[..., Service]) -> None:
    service = make()
    await service.ask("PUT", 7)
    [(_, carried)] = service.reached
    assert carried == CarriedFence(KEY, 7)
    assert fence_of({"holdfast.fence": carried}) is carried
    assert fence_of(Request({"type": "http", "holdfast.fence": carried})) is carried
    with pytest.raises(Unfenced):
        fence_of({"type": "http"})
    with pytest.raises(BadInput):
        fence_of(7)


async def test_a_cache_between_is_told_that_answers_depend_on_the_fence(make: Callable[..., Service]) -> None:
    service = make(required=False)
    for answer in (await service.ask("GET", 7), await service.ask("GET"), await service.ask("GET", 6)):
        varied = {each.strip() for each in answer.headers["vary"].split(",")}
        assert {"Holdfast-Key", "Holdfast-Fence"} <= varied
    assert "Accept" in (await service.ask("GET", 7)).headers["vary"]


async def test_refusals_are_logged_and_told_to_the_observer(
    make: Callable[..., Service], caplog: pytest.LogCaptureFixture
) -> None:
    class Observer:
        def __init__(self) -> None:
            self.records: list[Record] = []

        def note(self, record: Record) -> None:
            self.records.append(record)

    observer = Observer()
    service = make(observer=observer)
    await service.ask("GET", 7)
    await service.ask("PUT", 7)
    with caplog.at_level(logging.WARNING, "holdfast.guards"):
        await service.ask("PUT", 6, path="/42%0Aforged line")
    told = [(each.kind, each.key, each.fence, each.ok) for each in observer.records]
    assert told == [(EventKind.READ, KEY, 7, True), (EventKind.WRITE, KEY, 7, True), (EventKind.WRITE, KEY, 6, False)]
    [line] = caplog.messages
    assert "PUT /42%0Aforged%20line" in line
    assert "\n" not in line


async def test_the_fence_is_registered_before_the_handler_begins(
    make: Callable[..., Service], record: SqliteRecord
) -> None:
    service = make()
    noted: list[object] = []

    def look() -> None:
        import sqlite3

        with sqlite3.connect(record.path) as connection:
            noted.extend(connection.execute("SELECT place, resource, fence FROM holdfast_guard_fence"))
        connection.close()
        assert service.reached == []

    with failpoints.armed("guard.noted", look):
        await service.ask("GET", 7)
    assert noted == [("http", KEY, 7)]
    assert service.reached == [("GET", CarriedFence(KEY, 7))]


async def test_a_failure_of_the_application_is_its_own_and_leaves_nothing_behind(record: SqliteRecord) -> None:
    async def broken(request: Request) -> Response:
        raise ZeroDivisionError

    guard = FenceMiddleware(Starlette(routes=[Route("/", broken, methods=["PUT"])]), record)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=guard), base_url=URL) as client:
        with pytest.raises(ZeroDivisionError):
            await client.put("/", headers=request_headers(KEY, 1))
    assert guard.statistics() == HttpStatistics(accepted=1)
    guard._record.close()  # type: ignore[attr-defined]  # made by the guard for the blocking record


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"app": None}, "app"),
        ({"record": None}, "record"),
        ({"record": SqliteRecord}, "record"),
        ({"place": "two words"}, "place"),
        ({"required": "yes"}, "required"),
        ({"key": "invoice:{id}"}, "key"),
        ({"drain_timeout": -1}, "drain_timeout"),
        ({"drain_timeout": "1"}, "drain_timeout"),
    ],
)
async def test_settings_that_cannot_be_right_are_refused(
    record: SqliteRecord, arguments: dict[str, Any], field: str
) -> None:
    with pytest.raises(BadInput) as refused:
        FenceMiddleware(**{"app": Starlette(), "record": record, **arguments})
    assert refused.value.field == field


async def test_a_client_in_the_same_process_is_told_by_the_same_error_when_the_storage_refuses(
    record: SqliteRecord,
) -> None:
    """The door let the request in; the guard of the table behind it did not, and the framework asks `problem_of`."""

    async def slow(request: Request) -> Response:
        raise FencedOut("too late", fence=fence_of(request).fence, seen=9, key=fence_of(request).key)

    async def refused(request: Request, error: Exception) -> Response:
        assert isinstance(error, FencedOut)
        status, headers, body = problem_of(error, request)
        return Response(body, status, headers)

    app = Starlette(routes=[Route("/row", slow, methods=["PUT"])], exception_handlers={FencedOut: refused})
    guard = FenceMiddleware(app, record)
    transport = AsyncFencedTransport(CarriedFence(KEY, 7), httpx.ASGITransport(app=guard))
    async with httpx.AsyncClient(transport=transport, base_url=URL) as client:
        with pytest.raises(FencedOut) as caught:
            await client.put("/row")
    assert (caught.value.fence, caught.value.seen, caught.value.key) == (7, 9, KEY)
    guard._record.close()  # type: ignore[attr-defined]  # made by the guard for the blocking record
