"""Resource locks over HTTP: acquire, renew, release and list them; and the responses for busy resources."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from support.harness.web import Stage


async def acquire(client: httpx.AsyncClient, **how: Any) -> httpx.Response:
    return await client.post("/resource-locks/acquire", json={"resource": "pack", "owner": "me", **how})


async def with_token(client: httpx.AsyncClient, verb: str, token: str, **how: Any) -> httpx.Response:
    return await client.post(f"/resource-locks/{verb}", json={"resource": "pack", "token": token, **how})


@pytest.mark.asyncio
async def test_a_resource_is_taken_kept_and_given_back(web: Stage) -> None:
    async with web.client("operator") as client:
        grant = (await acquire(client)).json()
        assert (grant["mode"], grant["remaining"]) == ("exclusive", 30.0)
        kept = await with_token(client, "renew", grant["token"], ttl=600)
        assert kept.status_code == 200
        assert kept.json()["fence"] == grant["fence"]
        assert kept.json()["remaining"] == 600
        released = await with_token(client, "release", grant["token"])
        assert released.json()["released"]["fence"] == grant["fence"]
        again = (await acquire(client)).json()
        assert again["fence"] > grant["fence"]
        assert again["token"] != grant["token"]


@pytest.mark.asyncio
async def test_release_and_renewal_by_a_non_owner_are_409_lock_not_owned(web: Stage) -> None:
    async with web.client("operator") as client:
        await acquire(client)
        for verb in ("release", "renew"):
            for wrong in ("me", "", "0" * 32):
                answer = await with_token(client, verb, wrong)
                assert answer.status_code == 409
                assert (answer.json()["code"], answer.json()["detail"]) == ("lock-not-owned", "lock not owned")
        assert len((await client.get("/resource-locks?resource=pack")).json()["items"]) == 1


@pytest.mark.asyncio
async def test_busy_is_409_with_retry_after(web: Stage) -> None:
    async with web.client("operator") as client:
        await acquire(client, owner="first")
        answer = await acquire(client, owner="second", mode="shared")
        assert answer.status_code == 409
        assert answer.headers["retry-after"] == "2"
        told = answer.json()
        assert (told["code"], told["holder"], told["retry_after"]) == ("lock-busy", "first", 2.0)


@pytest.mark.asyncio
async def test_who_waits_gets_it_when_it_is_released(web: Stage) -> None:
    async with web.client("operator") as client:
        first = (await acquire(client)).json()
        waiting = asyncio.create_task(acquire(client, owner="second", timeout=30))
        async with asyncio.timeout(30):
            await with_token(client, "release", first["token"])
            assert (await waiting).json()["owner"] == "second"


@pytest.mark.asyncio
async def test_no_list_shows_a_token(web: Stage) -> None:
    async with web.client("operator") as client:
        grants = [(await acquire(client, resource=f"r{number}", mode="shared")).json() for number in range(5)]
        seen: list[dict[str, Any]] = []
        cursor: dict[str, str] = {}
        while True:
            answer = await client.get("/resource-locks", params={"limit": 2, **cursor})
            seen += answer.json()["items"]
            assert not any(grant["token"] in answer.text for grant in grants)
            if answer.json()["next"] is None:
                break
            cursor = {"cursor": answer.json()["next"]}
    assert [each["resource"] for each in seen] == [f"r{number}" for number in range(5)]
    assert all("token" not in each for each in seen)


async def all_of(client: httpx.AsyncClient, path: str, **which: Any) -> list[dict[str, Any]]:
    """Every page of a list."""
    seen: list[dict[str, Any]] = []
    while True:
        page = (await client.get(path, params=which)).json()
        seen += page["items"]
        if page["next"] is None:
            return seen
        which["cursor"] = page["next"]


@pytest.mark.asyncio
async def test_who_sees_every_tenant_is_shown_the_holders_of_all_page_by_page(web: Stage) -> None:
    async with web.client("operator") as operator, web.client("blue") as blue:
        for tenant in ("blue", "default", "red"):
            for number in range(6):
                how = {"tenant": tenant, "resource": f"r{number % 2}", "mode": "shared"}
                assert (await acquire(operator, **how)).status_code == 200
        for limit in (1, 4, 500):
            seen = await all_of(operator, "/resource-locks", limit=limit)
            places = [(each["tenant"], each["resource"], each["fence"]) for each in seen]
            assert (len(seen), places) == (18, sorted(set(places)))
            ours = await all_of(blue, "/resource-locks", limit=limit)
            assert ours == [{**each, "remaining": mine["remaining"]} for each, mine in zip(seen[:6], ours, strict=True)]
            one = await all_of(operator, "/resource-locks", limit=limit, resource="r1")
            assert [each["tenant"] for each in one] == ["blue"] * 3 + ["default"] * 3 + ["red"] * 3
            assert {each["resource"] for each in one} == {"r1"}
            assert len(await all_of(operator, "/resource-locks", limit=limit, resource="r1", tenant="red")) == 3
        for wrong in ("zz", "W10"):
            for which in ({}, {"resource": "r1"}, {"tenant": "red"}):
                answer = await operator.get("/resource-locks", params={"cursor": wrong, **which})
                assert (answer.status_code, answer.json()["errors"][0]["field"]) == (422, "cursor")


@pytest.mark.asyncio
async def test_tenants_have_resources_of_their_own_whoever_asks_for_them(web: Stage) -> None:
    async with web.client("blue") as blue, web.client("red") as red, web.client("operator") as operator:
        grant = (await acquire(blue)).json()
        assert (await acquire(red)).status_code == 200
        # One name space: who acts for a tenant meets what the tenant's own people have taken.
        assert (await acquire(operator, tenant="blue")).status_code == 409
        assert (await acquire(blue, tenant="red")).status_code == 403
        assert (await with_token(red, "release", grant["token"])).status_code == 409
        assert [each["tenant"] for each in (await red.get("/resource-locks")).json()["items"]] == ["red"]
        assert (await red.get("/resource-locks?tenant=blue")).status_code == 403


@pytest.mark.asyncio
async def test_an_admin_takes_a_resource_away_and_what_was_taken_is_on_record(web: Stage) -> None:
    async with web.client("admin") as admin, web.client("blue") as blue, web.client("red") as red:
        stuck = (await acquire(blue, owner="stuck", ttl=3600)).json()
        asked = {"resource": "pack", "reason": "its host is gone"}
        assert (await blue.post("/resource-locks/break", json=asked)).status_code == 403
        assert (await admin.post("/resource-locks/break", json=asked)).json() == {"broken": []}, "of another tenant"
        (broken,) = (await admin.post("/resource-locks/break", json={**asked, "tenant": "blue"})).json()["broken"]
        assert (broken["owner"], broken["fence"]) == ("stuck", stuck["fence"])
        assert (broken["actor"], broken["reason"]) == ("admin", "its host is gone")
        assert (await with_token(blue, "renew", stuck["token"])).status_code == 409
        assert (await acquire(blue, owner="next")).json()["fence"] > stuck["fence"]
        for who in (admin, blue):
            assert (await who.get("/resource-locks/broken")).json() == {"items": [broken], "next": None}
        assert (await red.get("/resource-locks/broken")).json()["items"] == []


@pytest.mark.asyncio
@pytest.mark.parametrize("wrong", [{}, {"reason": " "}, {"reason": "x" * 501}, {"reason": "ok", "fence": 0}])
async def test_nothing_is_taken_away_without_a_reason(web: Stage, wrong: dict[str, Any]) -> None:
    async with web.client("admin") as client:
        assert (await client.post("/resource-locks/break", json={"resource": "pack", **wrong})).status_code == 422
        said = {"resource": "pack", "reason": "x" * 500}
        assert (await client.post("/resource-locks/break", json=said)).status_code == 200


@pytest.mark.asyncio
async def test_a_lost_answer_can_be_asked_for_again(web: Stage) -> None:
    async with web.client("operator") as client:
        token = "made-up-by-the-caller-0123456789abcdef"
        first, again = (await acquire(client, token=token)).json(), (await acquire(client, token=token)).json()
        assert (first["fence"], first["token"]) == (again["fence"], again["token"]) == (first["fence"], token)
        other = await acquire(client, token=token, owner="another owner")
        assert (other.status_code, other.json()["errors"][0]["field"]) == (422, "owner")


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("how", "field"),
    [
        ({"ttl": 3600.1}, "ttl"),
        ({"ttl": 0}, "ttl"),
        ({"ttl": "30"}, "ttl"),
        ({"mode": "both"}, "mode"),
        ({"timeout": 31}, "timeout"),
        ({"owner": ""}, "owner"),
        ({"owner": " "}, "owner"),
        ({"owner": 5}, "owner"),
        ({"resource": ""}, "resource"),
        ({"resource": " "}, "resource"),
        ({"resource": "a{b}"}, "resource"),
        ({"token": "short"}, "token"),
        ({"now": 1}, "now"),
    ],
)
async def test_what_cannot_be_right_is_refused_by_name(web: Stage, how: dict[str, Any], field: str) -> None:
    async with web.client("operator") as client:
        answer = await acquire(client, **how)
    assert answer.status_code == 422
    assert [each["field"] for each in answer.json()["errors"]] == [field]
