"""What is sent means one thing: nothing that is given twice is read as one of the two, and nothing is bent to fit."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from holdfast.web.app import description
from holdfast.web.middleware.auth import Access
from support.harness.web import TOKENS, Stage, stage_at

JSON = {"content-type": "application/json"}
WITH_A_BODY = [
    (method, path)
    for path, methods in description()["paths"].items()
    for method, operation in methods.items()
    if "requestBody" in operation
]


def refused(told: dict[str, Any], field: str, problem: str) -> None:
    assert (told["status"], told["code"]) == (422, "invalid")
    assert [(each["field"], each["problem"]) for each in told["errors"]] == [(field, problem)]


@pytest.mark.asyncio
@pytest.mark.parametrize(("method", "path"), WITH_A_BODY)
async def test_no_operation_takes_a_member_that_is_there_twice(web: Stage, method: str, path: str) -> None:
    async with web.client("admin") as client:
        url = "http://localhost" + re.sub(r"\{\w+\}", "none", path)
        answer = await client.request(method, url, content=b'{"tenant": "a", "tenant": "b"}', headers=JSON)
    refused(answer.json(), "tenant", "is given 2 times")


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("body", "field", "problem"),
    [
        (b'{"topic": "ok", "topic": "none"}', "topic", "is given 2 times"),
        (b'{"topic": "a", "labels": {"team": "x", "team": "y"}}', "labels.team", "is given 2 times"),
        # A payload is the caller's own, and one of its two values would be lost without a word.
        (b'{"topic": "a", "payload": [{"n": 1, "n": 2}]}', "payload.0.n", "is given 2 times"),
        (b'{"topic": "a", "' + b"x" * 1000 + b'": 1, "' + b"x" * 1000 + b'": 2}', "x" * 200, "is given 2 times"),
        (b'{"topic": "a", "delay": NaN}', "delay", "is NaN, which is not a number in JSON"),
        (b'{"topic": "a", "payload": [Infinity]}', "payload.0", "is Infinity, which is not a number in JSON"),
    ],
)
async def test_what_could_mean_two_things_is_named(web: Stage, body: bytes, field: str, problem: str) -> None:
    async with web.client("operator") as client:
        refused((await client.post("/jobs", content=body, headers=JSON)).json(), field, problem)
        assert (await client.get("/jobs")).json()["items"] == []


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("body", "detail"),
    [
        (b'{"topic": ', "the body is not JSON (Expecting value: line 1 column 11 (char 10)); "),
        (b'{"topic": "\xff"}', "the body is not UTF-8"),
        ('{"topic": "a"}'.encode("utf-16"), "the body is not UTF-8"),
        (b'{"topic": "a", "payload": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "the body is nested too deeply; "),
        (b'{"topic": "a", "payload": ' + b"9" * 5000 + b"}", "the body has a number of too many digits; "),
    ],
)
async def test_a_body_that_cannot_be_read_is_told_why(web: Stage, body: bytes, detail: str) -> None:
    async with web.client("operator") as client:
        told = (await client.post("/jobs", content=body, headers=JSON)).json()
    assert (told["status"], told["code"]) == (400, "unreadable")
    assert told["detail"].startswith(detail)


@pytest.mark.asyncio
async def test_a_mark_of_utf_8_in_front_of_a_body_is_no_harm(web: Stage) -> None:
    async with web.client("operator") as client:
        body = b'\xef\xbb\xbf{"topic": "a"}'
        assert (await client.post("/jobs", content=body, headers=JSON)).status_code == 201


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("Authorization", [f"Bearer {TOKENS['operator']}", f"Bearer {TOKENS['viewer']}"]),
        ("Authorization", [f"Bearer {TOKENS['operator']}"] * 2),
        ("Idempotency-Key", ["one", "two"]),
        ("Content-Type", ["application/json", "text/plain"]),
    ],
)
async def test_a_header_that_counts_is_given_once(web: Stage, name: str, values: list[str]) -> None:
    mine = {"authorization": f"Bearer {TOKENS['operator']}", **JSON}
    mine.pop(name.lower(), None)
    async with web.client() as client:
        headers = [*mine.items(), *((name, value) for value in values)]
        refused(
            (await client.post("/jobs", content=b'{"topic": "a"}', headers=headers)).json(), name, "it is given 2 times"
        )


@pytest.mark.threat("X10")
@pytest.mark.asyncio
async def test_two_origins_are_not_the_first_of_them(tmp_path: Path) -> None:
    async with stage_at(tmp_path, Access.bound_to("127.0.0.1")) as web, web.client() as client:
        headers = [("origin", "http://localhost"), ("origin", "https://evil.example")]
        assert (await client.get("/jobs", headers=headers)).status_code == 403
