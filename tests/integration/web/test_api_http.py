"""HTTP as its own documents have it: HEAD, targets, caches, numbers in addresses, and requests that are none."""

from __future__ import annotations

import asyncio
import json
import re
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from fastapi import FastAPI

from holdfast.cli.server.http_server import HttpServer
from holdfast.plane.model.job_states import JobState
from holdfast.web.app import create_app, description
from holdfast.web.middleware.auth import Access
from holdfast.web.middleware.rate_limit import Rates
from support.fixtures.buses import ScriptedClock
from support.harness.web import TOKENS, Stage, service_at

READ = [path for path, methods in description()["paths"].items() if "get" in methods]
NUMBERS = [
    (path, each["name"])
    for path, methods in description()["paths"].items()
    for each in methods.get("get", {}).get("parameters", ())
    if each["in"] == "query" and "integer" in str(each["schema"])
]


@pytest.mark.asyncio
@pytest.mark.parametrize("path", [*READ, "/", "/openapi.json"])
async def test_whatever_can_be_got_can_be_asked_for_its_head(web: Stage, path: str) -> None:
    url = "http://localhost" + re.sub(r"\{\w+\}", "none", path)
    async with web.client("admin") as client:
        whole, head = await client.get(url), await client.head(url)
    assert (head.status_code, head.content) == (whole.status_code, b"")
    assert head.headers["content-type"] == whole.headers["content-type"]
    assert head.status_code in (200, 404)


@pytest.mark.asyncio
async def test_the_head_of_what_cannot_be_got_is_refused_and_needs_a_token_where_that_does(web: Stage) -> None:
    async with web.client("admin") as client:
        refused = await client.head("/runs/none/cancel")
        assert (refused.status_code, refused.headers["allow"]) == (405, "POST")
    async with web.client() as anonymous:
        assert (await anonymous.head("/jobs")).status_code == 401


@pytest.mark.asyncio
async def test_answers_are_kept_by_nobody_unless_they_say_so(web: Stage) -> None:
    async with web.client("operator") as client:
        lock = await client.post("/resource-locks/acquire", json={"resource": "r", "owner": "me"})
        assert (lock.status_code, lock.headers["cache-control"]) == (200, "no-store")
        for url in ("/jobs", "/status", "http://localhost/healthz", "http://localhost/metrics"):
            assert (await client.get(url)).headers["cache-control"] == "no-store"
        assert (await client.get("http://localhost/")).headers["cache-control"] == "no-cache"


@pytest.mark.asyncio
async def test_an_answer_without_content_has_no_type_of_it(web: Stage) -> None:
    job = await web.end(await web.submit())
    async with web.client("operator") as client:
        gone = await client.delete(f"/dead-letters/{job.id}")
    assert (gone.status_code, gone.content) == (204, b"")
    assert not {"content-type", "content-length"} & set(gone.headers)


@pytest.mark.asyncio
@pytest.mark.parametrize(("path", "name"), NUMBERS)
async def test_a_number_in_an_address_is_digits(web: Stage, path: str, name: str) -> None:
    url = "http://localhost" + re.sub(r"\{\w+\}", "none", path)
    async with web.client("viewer") as client:
        for text in ("1_0", "+1", " 1", "1.0", "1e1", "\u0663", "0x1", ""):
            answer = await client.get(url, params={name: text})
            assert (answer.status_code, answer.json()["errors"][0]["field"]) == (422, name), text
        assert (await client.get(url, params={name: "1"})).status_code in (200, 404)


@pytest.mark.asyncio
async def test_a_job_that_cannot_be_tried_again_is_told_why_and_what_to_do(web: Stage) -> None:
    waiting, failed = await web.submit(), await web.end(await web.submit(), JobState.FAILED, dead=False)
    async with web.client("operator") as client:
        said = [(await client.post(f"/jobs/{each.id}/retry")).json()["detail"] for each in (waiting, failed)]
    assert "it is not finished" in said[0]
    assert "it has no dead letter, and only that can be tried again; submit it as a new job" in said[1]


# On a socket, as `holdfast up` serves it.


@asynccontextmanager
async def served(app: FastAPI) -> AsyncIterator[int]:
    ours = socket.create_server(("127.0.0.1", 0))
    http = HttpServer(app, ours)
    await http.start()
    try:
        yield ours.getsockname()[1]
    finally:
        await http.stop(5)


async def said(port: int, request: bytes) -> tuple[bytes, bytes]:
    """The head and the body of an answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    return head.lower(), body


def asking(target: str, host: str = "localhost", *headers: str) -> bytes:
    lines = [f"GET {target} HTTP/1.1", f"host: {host}", "connection: close", *headers]
    return "\r\n".join([*lines, "", ""]).encode()


@pytest.mark.threat("X15")
@pytest.mark.asyncio
async def test_nobody_escapes_the_rate_by_naming_another_address(tmp_path: Path) -> None:
    async with service_at(tmp_path) as service:
        app = create_app(service, Access(open_to_all=True), rates=Rates(1, ScriptedClock()))
        async with served(app) as port, asyncio.timeout(60):
            asked = [asking("/api/v1/jobs", "localhost", f"x-forwarded-for: 10.0.0.{each}") for each in range(3)]
            heads = [(await said(port, each))[0].split(b" ")[1] for each in asked]
    assert heads == [b"200", b"200", b"429"]


@pytest.mark.asyncio
async def test_a_whole_address_as_the_target_is_the_path_in_it(web: Stage) -> None:
    token = f"authorization: Bearer {TOKENS['viewer']}"
    async with served(web.app) as port, asyncio.timeout(60):
        head, body = await said(port, asking("http://plane.example/api/v1/jobs?limit=1", "x", token))
        assert (head.split(b" ")[1], json.loads(body)["items"]) == (b"200", [])
        assert (await said(port, asking("http://plane.example/healthz")))[0].split(b" ")[1] == b"200"
        assert (await said(port, asking("http://plane.example")))[0].split(b" ")[1] == b"200"


@pytest.mark.threat("X10")
@pytest.mark.asyncio
async def test_the_host_of_a_whole_address_counts_and_not_that_of_the_header(tmp_path: Path) -> None:
    async with service_at(tmp_path) as service, served(create_app(service, Access.bound_to("127.0.0.1"))) as port:
        async with asyncio.timeout(60):
            assert (await said(port, asking("http://evil.example/api/v1/jobs")))[0].split(b" ")[1] == b"403"
            assert (await said(port, asking("http://localhost/api/v1/jobs", "evil.example")))[0].split(b" ")[
                1
            ] == b"200"


@pytest.mark.asyncio
@pytest.mark.parametrize("request_", [b"\x16\x03\x01\r\n\r\n", b"GET / HTTP/9\r\n\r\n", b"GET / HTTP/1.1\r\n\r\n"])
async def test_what_is_no_request_of_http_is_a_problem_too(web: Stage, request_: bytes) -> None:
    async with served(web.app) as port, asyncio.timeout(60):
        head, body = await said(port, request_)
    assert head.startswith(b"http/1.1 400 ")
    assert b"content-type: application/problem+json" in head
    assert (json.loads(body)["status"], json.loads(body)["code"]) == (400, "unreadable")
