"""A definition that takes long to read is read outside of the event loop."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from support.harness.web import Stage

pytestmark = [pytest.mark.asyncio, pytest.mark.threat("X20")]

STEPS = 200
TURNS = 500  # of the loop; a request that is answered on it takes a few dozen


def long_definition() -> dict[str, Any]:
    numbers = ",".join("1" for _ in range(490))
    steps = {f"s{number}": {"kind": "transform", "input": f"${{ [{numbers},{number}] }}"} for number in range(STEPS)}
    return {"name": "long", "steps": steps}


async def test_a_definition_is_read_outside_of_the_event_loop(web: Stage) -> None:
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    async with web.client("operator") as client:
        await client.get("/workflows")
        counting = asyncio.create_task(count())
        turns = 0
        answer = await client.post("/workflows", json={"definition": long_definition()})
        counted = turns
        counting.cancel()
    assert answer.status_code == 201, answer.text
    assert len(answer.json()["definition"]["steps"]) == STEPS
    assert counted >= TURNS, "the event loop stood still while the definition was read"
