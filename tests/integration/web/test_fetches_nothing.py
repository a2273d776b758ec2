"""The server sends no requests of its own: every field of every request contains an address, and none is contacted.

Two checks: a listener at that address, which must get no connection; and the process itself, in which nothing
may look a name up or connect while the requests are handled. What stands in a field is kept, passed on and shown. The
parts behind the API (scheduler, engine, workers) are told the same, and go nowhere either.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import pytest

from holdfast.plane.app import App
from holdfast.plane.model.caller import Caller
from holdfast.plane.model.job_states import JobState
from holdfast.plane.model.records import Submission
from holdfast.plane.process.plane import PARTS, Plane
from holdfast.plane.settings.settings import Settings
from support.fixtures.databases import until
from support.fixtures.workflows import holds
from support.harness.web import Stage

pytestmark = pytest.mark.threat("X13")

AWAY: Final = (
    *("http://169.254.169.254/latest/meta-data", "file:///etc/passwd", "gopher://{here}/", "//{here}/x", "{here}"),
    *("redis://{here}/0", "nats://{here}", "postgresql://{here}/x", "http://[::ffff:127.0.0.1]:80/", "ldap://{here}"),
)
HEADERS: Final = ("x-forwarded-host", "x-forwarded-for", "forwarded", "referer", "traceparent", "x-callback-url")


class Recorder:
    """Who was called, and what was looked up."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self.here = f"127.0.0.1:{listener.getsockname()[1]}"
        self.gone: list[object] = []

    def addresses(self) -> list[str]:
        return [f"http://{self.here}/x", *(each.format(here=self.here) for each in AWAY)]

    def expect_nothing(self) -> None:
        assert self.gone == []
        with pytest.raises(BlockingIOError):
            self._listener.accept()


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Recorder]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        made = Recorder(listener)

        def gone(*about: object, **_: object) -> None:
            made.gone.append(about)
            raise OSError("no connections in this test")

        for name in ("connect", "connect_ex", "sendto"):
            monkeypatch.setattr(socket.socket, name, gone)
        for name in ("getaddrinfo", "gethostbyname", "gethostbyname_ex", "create_connection"):
            monkeypatch.setattr(socket, name, gone)
        yield made


def filled(schema: dict[str, Any], whole: dict[str, Any], text: str, depth: int = 0) -> Any:
    """A value of a schema in which every text is this one."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return filled(whole["components"]["schemas"][name], whole, text, depth + 1) if depth < 6 else text
    for each in ("anyOf", "oneOf", "allOf"):
        if each in schema:
            return filled(schema[each][0], whole, text, depth + 1)
    if "enum" in schema:
        return schema["enum"][0]
    kind = schema.get("type")
    if kind == "object":
        named = {name: filled(each, whole, text, depth + 1) for name, each in schema.get("properties", {}).items()}
        return named or {text: text}
    if kind == "array":
        return [filled(schema.get("items", {}), whole, text, depth + 1)] if depth < 6 else []
    return {"integer": 1, "number": 1, "boolean": True, "null": None}.get(str(kind), text)


async def told(web: Stage, description: dict[str, Any], path: str, method: str, text: str) -> int:
    """One request, made of an address. Returns what was answered."""
    about = description["paths"][path][method]
    query = {}
    for each in about.get("parameters", []):
        if each["in"] == "path":
            path = path.replace(f"{{{each['name']}}}", quote(text, safe=""))
        elif each["in"] == "query" and each["schema"].get("type") == "string":
            query[each["name"]] = text
    body = about.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema")
    more = {} if body is None else {"json": filled(body, description, text)}
    async with web.client("admin") as client:
        address = path.removeprefix("/api/v1")
        said = await client.request(method, address, params=query, headers=dict.fromkeys(HEADERS, text), **more)
    return said.status_code


@pytest.mark.asyncio
async def test_no_field_of_any_request_is_fetched(web: Stage, recorder: Recorder) -> None:
    description = web.app.openapi()
    seen: set[int] = set()
    for path, methods in description["paths"].items():
        for method in set(methods) & {"get", "post", "put", "patch", "delete"}:
            for text in recorder.addresses()[:3] if method == "get" else recorder.addresses():
                seen.add(await told(web, description, path, method, text))
    assert seen & {200, 201}
    assert not [status for status in seen if status >= 500]
    recorder.expect_nothing()


@pytest.mark.asyncio
async def test_no_part_of_a_plane_fetches_what_a_job_or_a_run_is_made_of(tmp_path: Path, recorder: Recorder) -> None:
    app, seen = App("works"), list[Any]()

    @app.job("echo")
    async def echo(payload: Any) -> Any:
        seen.append(payload)
        return payload

    settings = Settings(database=f"sqlite:///{tmp_path}/plane.db?synchronous=normal")
    async with Plane(settings, set(PARTS) - {"api"}, app=app) as plane:
        service = plane.components.service
        for text in recorder.addresses():
            wanted = Submission("echo", {"url": text, "$ref": text}, labels={"callback": text})
            await service.submit(Caller("ada"), wanted)
        await until(lambda: len(seen) == len(recorder.addresses()))

        async def all_over() -> bool:
            counts = await service.counts(Caller("ada"))
            return counts[JobState.SUCCEEDED] == len(seen)

        await holds(all_over, "the end of all jobs")
    recorder.expect_nothing()
