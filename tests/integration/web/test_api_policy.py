"""The error policy over HTTP: who may look and switch, what is answered, and that a switch counts everywhere."""

from __future__ import annotations

from typing import Any

import pytest

from support.harness.web import Stage

pytestmark = pytest.mark.asyncio

WANTED = {"risk": "high", "mode": "fail_closed", "reason": "duplicates"}


async def put(web: Stage, who: str | None = "operator", **wanted: Any) -> tuple[int, dict[str, Any]]:
    async with web.client(who) as client:
        answer = await client.put("/policy", json={**WANTED, **wanted})
    return answer.status_code, answer.json()


async def get(web: Stage, path: str, who: str | None = "viewer") -> tuple[int, dict[str, Any]]:
    async with web.client(who) as client:
        answer = await client.get(path)
    return answer.status_code, answer.json()


@pytest.mark.requires("R104")
async def test_a_switch_is_made_shown_and_in_the_history_with_its_caller(web: Stage) -> None:
    assert await get(web, "/policy/history") == (200, {"items": []})
    status, made = await put(web, mode="fail_open")
    assert (status, made["mode"], made["revision"], made["changed"]) == (200, "fail_open", 1, True)
    assert (made["actor"], made["source"], made["reason"]) == ("operator", "api", "duplicates")
    assert (await put(web, mode="fail_open"))[1]["changed"] is False
    status, shown = await get(web, "/policy")
    assert status == 200
    (high,) = shown["classes"]
    assert (high["risk"], high["mode"], high["fallbacks"], high["rate"]) == ("high", "fail_open", 0, 0)
    assert (shown["window"], shown["exercises"], shown["hints"]) == (300.0, [], [])
    assert {each["kind"] for each in shown["duplicates"]} == {"step", "publish", "end"}
    await put(web)
    found = (await get(web, "/policy/history?limit=1&risk=high"))[1]["items"]
    assert [(each["before"], each["after"], each["revision"]) for each in found] == [("fail_open", "fail_closed", 2)]
    assert len((await get(web, "/policy/history?below=2"))[1]["items"]) == 1


async def test_a_look_that_is_outdated_is_a_conflict(web: Stage) -> None:
    assert (await put(web, expect=0))[0] == 200
    status, problem = await put(web, mode="wait", expect=0)
    assert (status, problem["code"]) == (409, "policy-moved")
    assert "read it again" in problem["detail"]
    assert (await put(web, mode="wait", expect=1))[0] == 200


@pytest.mark.parametrize("who", ["viewer", "approver", "blue", "blue-viewer", None])
async def test_who_is_no_operator_of_the_whole_plane_cannot_switch(web: Stage, who: str | None) -> None:
    assert (await put(web, who))[0] == (401 if who is None else 403)
    assert await get(web, "/policy/history") == (200, {"items": []})


async def test_who_is_bound_to_a_tenant_does_not_see_it(web: Stage) -> None:
    for path in ("/policy", "/policy/history"):
        assert (await get(web, path, "blue"))[0] == 403


@pytest.mark.parametrize(
    "wrong",
    [
        {"mode": "open"},
        {"risk": "two words"},
        {"reason": ""},
        {"reason": "   "},
        {"reason": "two\nlines"},
        {"expect": -1},
        {"other": 1},
    ],
)
async def test_what_cannot_be_right_is_refused_by_field(web: Stage, wrong: dict[str, Any]) -> None:
    status, problem = await put(web, **wrong)
    assert (status, problem["code"]) == (422, "invalid")
    assert {each["field"] for each in problem["errors"]} == set(wrong)


@pytest.mark.requires("R168")
async def test_the_jitter_of_busy_retries_is_switched_shown_and_in_the_history(web: Stage) -> None:
    async def jitter(who: str = "operator", **wanted: Any) -> tuple[int, dict[str, Any]]:
        async with web.client(who) as client:
            answer = await client.put("/policy/busy_jitter", json={"seconds": 0.2, "reason": "waves", **wanted})
        return answer.status_code, answer.json()

    assert (await get(web, "/policy"))[1]["busy_jitter"] is None
    status, made = await jitter(expect=0)
    assert (status, made["seconds"], made["revision"], made["changed"]) == (200, 0.2, 1, True)
    assert (made["actor"], made["source"], made["reason"]) == ("operator", "api", "waves")
    assert (await get(web, "/policy"))[1]["busy_jitter"]["seconds"] == 0.2
    status, problem = await jitter(seconds=0, expect=0)
    assert (status, problem["code"]) == (409, "policy-moved")
    assert (await jitter(seconds=0, expect=1))[1]["seconds"] == 0
    found = (await get(web, "/policy/history?risk=busy_jitter"))[1]["items"]
    assert [(each["before"], each["after"]) for each in found] == [("0.2", "0"), ("0", "0.2")]
    status, problem = await jitter(seconds=0.5)  # not below the delay
    assert (status, "not below the delay" in problem["detail"]) == (422, True)
    assert (await jitter(seconds=-1))[0] == 422
    assert (await jitter("viewer"))[0] == 403
