"""JSON bodies whose size is allowed and whose structure is not: the event loop continues serving others."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.strict_parsers import PARTS_MAX, VALUES_MAX, deeper, json_of, too_complex
from holdfast.web.middleware import json_body
from holdfast.web.middleware.intake import BODY_BYTES_MAX
from support.harness.web import Stage

pytestmark = pytest.mark.threat("X15")

BOMBS = {
    "empty lists": "[" + ",".join(["[]"] * 1_300_000) + "]",
    "small objects": "[" + ",".join(['{"":0}'] * 560_000) + "]",
    "deep lists": "[" + ",".join(["[" * 98 + "]" * 98] * 20_000) + "]",
    "members": "{" + ",".join(f'"{number}":0' for number in range(350_000)) + "}",
    "numbers": "[" + "1," * 1_900_000 + "1]",
}


@pytest.mark.asyncio
@pytest.mark.parametrize("kind", BOMBS)
async def test_a_body_that_would_take_seconds_is_refused_before_it_is_read(
    web: Stage, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    body = '{"topic":"sum","payload":' + BOMBS[kind] + "}"
    assert len(body) <= BODY_BYTES_MAX
    read: list[int] = []

    def reading(text: str) -> Any:
        read.append(len(text))
        return json_of(text)

    monkeypatch.setattr(json_body, "json_of", reading)
    async with web.client("operator") as client:
        answer = await client.post("/jobs", content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 413
    assert answer.json()["code"] == "too-large"
    assert "more than" in answer.json()["detail"]
    assert not read


@pytest.mark.asyncio
async def test_the_event_loop_runs_while_a_large_body_is_read(web: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    loop = asyncio.get_running_loop()
    ran: list[bool] = []

    def reading(text: str) -> Any:
        answered = threading.Event()
        loop.call_soon_threadsafe(answered.set)
        ran.append(answered.wait(10))  # forever, if the loop waits for us
        return json_of(text)

    monkeypatch.setattr(json_body, "json_of", reading)
    payload = [{"n": number} for number in range(40_000)]
    async with web.client("operator") as client:
        answer = await client.post("/jobs", json={"topic": "sum", "payload": payload})
    assert answer.status_code == 201
    assert answer.json()["payload"] == payload
    assert ran == [True]


@pytest.mark.asyncio
async def test_marks_inside_of_text_do_not_count(web: Stage) -> None:
    text = 'a,b:[{"\\' * 80_000
    async with web.client("operator") as client:
        answer = await client.post("/jobs", json={"topic": "sum", "payload": text})
    assert answer.status_code == 201
    assert answer.json()["payload"] == text


VALUES = st.recursive(
    st.none() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
)


def depth(value: object) -> int:
    inside = list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if inside is None else 1 + max(map(depth, inside), default=0)


@given(VALUES, st.booleans())
def test_depth_is_that_of_the_value_whatever_its_texts_hold(value: object, ascii_only: bool) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only)
    found = depth(value)
    assert not deeper(text, found)
    assert found == 0 or deeper(text, found - 1)


@pytest.mark.parametrize("text", ['"' + "\\" * 2_000_001, '"' + '\\"' * 2_000_000, '"' * 3_999_999, "\\" * 4_000_000])
def test_texts_that_are_no_json_are_scanned_in_one_pass(text: str) -> None:
    assert too_complex(text + "," * (VALUES_MAX + 1)) in (None, f"has more than {VALUES_MAX} values")
    deeper(text + "[" * (PARTS_MAX + 1))
