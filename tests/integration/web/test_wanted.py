"""A field that cannot be right is answered with what would be, in words, as the description has it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from holdfast.web.app import description
from holdfast.web.schemas.hints import CHARACTERS, SEE
from support.harness.web import Stage

LABEL = "1 to 120 characters: letters, digits and . _ : / -"


def fixes(answer: httpx.Response) -> dict[str, str]:
    assert answer.status_code == 422, answer.text
    return {each["field"]: each["fix"] for each in answer.json()["errors"]}


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("asked", "field", "fix"),
    [
        ({}, "topic", f"give it: {LABEL}"),
        ({"topic": "a b"}, "topic", f"give {LABEL}"),
        ({"delay": -1}, "delay", "give a number from 0 to 31622400"),
        ({"delay": 1e300}, "delay", "give a number from 0 to 31622400"),
        ({"delay": "1"}, "delay", "give a number from 0 to 31622400"),
        ({"timeout": 0}, "timeout", "give a number from 0.001 to 31622400; or null"),
        ({"priority": 1.5}, "priority", "give a whole number from -100 to 100"),
        ({"labels": {"a": 1}}, "labels.a", "give at most 200 characters: printable ASCII"),
        ({"labels": {"\n": ""}}, "labels.\n", "use a name of 1 to 200 characters: printable ASCII"),
        ({"labels": {str(each): "" for each in range(51)}}, "labels", "give an object with at most 50 members"),
        ([], "body", "give an object with topic"),
    ],
)
async def test_a_fix_says_what_would_be_right(web: Stage, asked: Any, field: str, fix: str) -> None:
    async with web.client("operator") as client:
        assert fixes(await client.post("/jobs", json=asked))[field] == fix


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("query", "fix"),
    [
        ("jobs?limit=0", "give a whole number from 1 to 500"),
        ("jobs?nonsense=1", "leave it out; known are cursor, limit, state, tenant, topic"),
        ("approvals?status=x", "give one of waiting, approved, rejected, lapsed, all"),
        ("policy/history?below=-1", "give a whole number from 0 to 9007199254740991"),
    ],
)
async def test_a_fix_of_a_parameter_says_what_would_be_right(web: Stage, query: str, fix: str) -> None:
    async with web.client("viewer") as client:
        (said,) = fixes(await client.get(f"/{query}")).values()
    assert said == fix


def operations() -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, methods in description()["paths"].items():
        for method, operation in methods.items():
            yield method, "http://localhost" + re.sub(r"\{\w+\}", "none", path), operation


def wrong_bodies(operation: dict[str, Any]) -> Iterator[object]:
    schema = json.dumps(operation["requestBody"]["content"]["application/json"]["schema"])
    (name,) = re.findall(r"schemas/(\w+)", schema)
    yield from ([], "text", {}, {"nonsense": 1})
    for field in description()["components"]["schemas"][name]["properties"]:
        yield from ({field: value} for value in (True, -1, 1e300, "", "\n", "x" * 5000, [1], {"\n": 1}))


@pytest.mark.asyncio
async def test_every_fix_says_something(web: Stage) -> None:
    said: dict[str, str] = {}
    async with web.client("admin") as client:
        for method, url, operation in operations():
            bodies = wrong_bodies(operation) if "requestBody" in operation else ()
            answers = [await client.request(method, url, json=body) for body in bodies]
            for each in operation.get("parameters", ()):
                if each["in"] == "query":
                    answers += [await client.get(url, params={each["name"]: value}) for value in ("", "\n", "x" * 5000)]
            for answer in answers:
                for field, fix in fixes(answer).items() if answer.status_code == 422 else ():
                    said[f"{method} {url} {field}"] = fix
    assert len(said) > 100
    assert {place: fix for place, fix in said.items() if SEE in fix or not fix} == {}


def test_every_pattern_has_words() -> None:
    patterns = set(re.findall(r'"pattern": ("(?:[^"\\]|\\.)*")', json.dumps(description())))
    assert {json.loads(each) for each in patterns} <= set(CHARACTERS)
