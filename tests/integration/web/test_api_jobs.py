"""Jobs, dead letters and the plane itself over HTTP, on the real stack."""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack
from typing import Any

import httpx
import pytest

from holdfast.core.strict_parsers import DEPTH_MAX
from holdfast.plane.locks.registry import FAMILIES, SCHEDULER_JOB
from holdfast.plane.model.job_states import JobState
from holdfast.plane.model.records import Heartbeat, Submission
from support.harness.web import UNBOUND, Stage


async def body(answer: httpx.Response, status: int) -> Any:
    assert answer.status_code == status, answer.text
    return answer.json()


@pytest.mark.asyncio
async def test_a_job_is_submitted_shown_and_listed(web: Stage) -> None:
    async with web.client("operator") as client:
        asked = {
            "topic": "sum",
            "payload": {"n": [1, 2.5, None, "é"]},
            "priority": 5,
            "max_attempts": 2,
            "timeout": 1.5,
            "deadline_in": 3600,
            "delay": 60,
            "labels": {"team": "blue", "empty": ""},
            "trace": "abc",
        }
        answer = await client.post("/jobs", json=asked)
        made = await body(answer, 201)
        assert {name: made[name] for name in asked if name in made} == {
            name: value for name, value in asked.items() if name in made
        }
        assert made["state"] == "PENDING"
        assert made["submitted_by"] == "operator"
        assert made["created_at"] < made["not_before"] < made["deadline_at"]
        shown = await body(await client.get(f"http://localhost{answer.headers['location']}"), 200)
        assert (made["waiting"], shown["waiting"]["code"]) == (None, "not_due"), "that it waits for its time is no news"
        assert shown | {"waiting": None} == made
        of_one = ("payload", "result", "progress", "waiting", "parent", "children")
        outline = {name: value for name, value in made.items() if name not in of_one}
        assert (await body(await client.get("/jobs"), 200)) == {"items": [outline], "next": None}
        (event,) = (await body(await client.get(f"/jobs/{made['id']}/events"), 200))["items"]
        assert (event["before"], event["after"], event["actor"]) == (None, "PENDING", "operator")


@pytest.mark.asyncio
async def test_a_job_that_no_worker_takes_says_so_when_it_is_submitted_and_later(web: Stage) -> None:
    async with web.client("operator") as client:
        made = await body(await client.post("/jobs", json={"topic": "unserved"}), 201)
        assert made["waiting"]["code"] == "no_worker"
        assert "no worker serves topic unserved" in made["waiting"]["text"]
        assert (await body(await client.get(f"/jobs/{made['id']}"), 200))["waiting"] == made["waiting"]
        ended = await body(await client.post(f"/jobs/{made['id']}/cancel"), 202)
        assert ended["waiting"] is None


@pytest.mark.asyncio
@pytest.mark.threat("X15")
async def test_a_payload_so_deep_that_it_could_not_be_shown_is_not_taken(web: Stage) -> None:
    """Else one job would make every list that it stands in an error, for all callers."""

    def nested(levels: int) -> dict[str, Any]:
        return {"topic": "sum", "payload": json.loads("[" * levels + "]" * levels)}

    async with web.client("operator") as client:
        made = await body(await client.post("/jobs", json=nested(DEPTH_MAX)), 201)
        for levels in (DEPTH_MAX + 1, 250, 300, 900):
            refused = await body(await client.post("/jobs", json=nested(levels)), 422)
            assert [each["field"] for each in refused["errors"]] == ["payload"]
        assert [each["id"] for each in (await body(await client.get("/jobs"), 200))["items"]] == [made["id"]]
        assert (await body(await client.get(f"/jobs/{made['id']}"), 200))["payload"] == nested(DEPTH_MAX)["payload"]


@pytest.mark.asyncio
async def test_an_idempotency_key_in_header_or_field_makes_one_job(web: Stage) -> None:
    async with web.client("operator") as client:
        asked = {"topic": "sum", "payload": 1}
        answers = await asyncio.gather(
            *(client.post("/jobs", json=asked, headers={"idempotency-key": "once"}) for _ in range(10)),
            *(client.post("/jobs", json={**asked, "idempotency_key": "once"}) for _ in range(10)),
        )
        assert sorted(answer.status_code for answer in answers) == [200] * 19 + [201]
        assert len({answer.json()["id"] for answer in answers}) == 1
        other = await client.post("/jobs", json={"topic": "other"}, headers={"idempotency-key": "once"})
        assert (await body(other, 409))["code"] == "exists"
        both = await client.post("/jobs", json={**asked, "idempotency_key": "a"}, headers={"idempotency-key": "b"})
        assert (await body(both, 422))["errors"][0]["field"] == "idempotency_key"


@pytest.mark.asyncio
async def test_every_id_can_be_asked_for(web: Stage) -> None:
    async with web.client("operator") as client:
        for name in ("a/b", "run:1/step@two", "a/events", "a.b-c_d"):
            await body(await client.post("/jobs", json={"topic": "sum", "id": name}), 201)
            path = name.replace("/", "%2F")
            assert (await body(await client.get(f"/jobs/{path}"), 200))["id"] == name
            assert (await body(await client.get(f"/jobs/{path}/events"), 200))["items"][0]["after"] == "PENDING"
        assert (await client.get("/jobs/a")).status_code == 404


@pytest.mark.asyncio
@pytest.mark.parametrize("limit", [1, 4])
async def test_pages_are_complete_and_without_repeats_while_jobs_are_posted(web: Stage, limit: int) -> None:
    async with web.client("operator") as client:
        before = {(await web.submit()).id for _ in range(9)}
        seen: list[str] = []
        cursor: dict[str, str] = {}
        while True:
            posting = asyncio.gather(*(client.post("/jobs", json={"topic": "new"}) for _ in range(3)))
            page = await body(await client.get("/jobs", params={"limit": limit, "topic": "sum", **cursor}), 200)
            await posting
            seen += [job["id"] for job in page["items"]]
            if page["next"] is None:
                break
            cursor = {"cursor": page["next"]}
        assert len(seen) == len(set(seen))
        assert set(seen) == before


@pytest.mark.asyncio
@pytest.mark.threat("X15")
async def test_a_page_of_large_jobs_is_small_and_no_job_is_left_out(web: Stage) -> None:
    """Else one page could be a gigabyte, and whatever shares the process with the API would wait for it."""
    large = "x" * 900_000
    submissions = [Submission("sum", large, f"t{number % 2}", f"large-{number}") for number in range(12)]
    jobs = [(await web.service.submit(UNBOUND, each))[0] for each in submissions]
    for job in jobs[:6]:
        await web.end(job)
    async with web.client("viewer") as client:
        for path, listed in (("/jobs", jobs), ("/dead-letters", jobs[:6])):
            for tenant in (None, "t0"):
                seen: list[str] = []
                which: dict[str, Any] = {"limit": 4} | ({} if tenant is None else {"tenant": tenant})
                while True:
                    answer = await client.get(path, params=which)
                    assert len(answer.content) < 10_000
                    seen += [each["id"] for each in answer.json()["items"]]
                    if answer.json()["next"] is None:
                        break
                    which["cursor"] = answer.json()["next"]
                assert sorted(seen) == sorted(job.id for job in listed if tenant in (None, job.tenant))
        assert (await client.get(f"/jobs/{jobs[0].id}")).json()["payload"] == large


@pytest.mark.asyncio
async def test_lists_are_filtered_by_state_topic_and_tenant(web: Stage) -> None:
    jobs = [await web.submit(tenant=tenant, topic=topic) for tenant in ("blue", "red") for topic in ("a", "b")]
    await web.end(jobs[0])
    async with web.client("viewer") as client:

        async def found(**which: str) -> set[str]:
            return {job["id"] for job in (await body(await client.get("/jobs", params=which), 200))["items"]}

        assert await found(tenant="red") == {jobs[2].id, jobs[3].id}
        assert await found(topic="a") == {jobs[0].id, jobs[2].id}
        assert await found(state="FAILED") == {jobs[0].id}
        assert await found(state="PENDING", tenant="blue") == {jobs[1].id}


@pytest.mark.asyncio
async def test_another_tenants_job_is_not_there(web: Stage) -> None:
    job = await web.submit(tenant="red", job="the-reds")
    await web.end(job)
    async with web.client("blue") as client:
        routes = [
            ("GET", "/jobs/{}"),
            ("GET", "/jobs/{}/events"),
            ("POST", "/jobs/{}/cancel"),
            ("POST", "/jobs/{}/retry"),
            ("GET", "/dead-letters/{}"),
            ("POST", "/dead-letters/{}/retry"),
            ("DELETE", "/dead-letters/{}"),
        ]
        for method, path in routes:
            theirs = await body(await client.request(method, path.format("the-reds")), 404)
            nobodys = await body(await client.request(method, path.format("no-ones")), 404)
            for each in (theirs, nobodys):
                each.pop("request_id")
            # The same text as for a job that does not exist.
            assert json.dumps(theirs).replace("the-reds", "no-ones") == json.dumps(nobodys)
        assert (await body(await client.get("/jobs"), 200))["items"] == []
        assert (await body(await client.get("/dead-letters"), 200))["items"] == []
        assert (await client.get("/jobs", params={"tenant": "red"})).status_code == 403
        assert (await client.get("/tenants/red/limits")).status_code == 404
        assert (await client.post("/jobs", json={"topic": "sum", "tenant": "red"})).status_code == 403
        assert (await body(await client.post("/jobs", json={"topic": "sum"}), 201))["tenant"] == "blue"


@pytest.mark.asyncio
async def test_a_cancel_is_accepted_and_can_be_repeated(web: Stage) -> None:
    job = await web.submit()
    async with web.client("operator") as client:
        for reason in (None, {"reason": "enough"}, {}):
            assert (await body(await client.post(f"/jobs/{job.id}/cancel", json=reason), 202))["id"] == job.id
        await web.end(job, JobState.CANCELLED, dead=False)
        assert (await body(await client.post(f"/jobs/{job.id}/cancel"), 200))["state"] == "CANCELLED"
        assert (await client.post(f"/jobs/{job.id}/cancel", json={"reason": ""})).status_code == 422


@pytest.mark.asyncio
async def test_a_dead_job_is_listed_retried_once_and_forgotten(web: Stage) -> None:
    job, live = await web.submit(), await web.submit()
    await web.end(job)
    async with web.client("operator") as client:
        (letter,) = (await body(await client.get("/dead-letters"), 200))["items"]
        assert (letter["job"], letter["reason"], letter["last_state"]) == (job.id, "it was broken", "PENDING")
        whole = await body(await client.get(f"/dead-letters/{letter['id']}"), 200)
        assert whole.pop("body")["payload"] == {"n": 1}
        assert whole == letter
        first = await body(await client.post(f"/jobs/{job.id}/retry"), 201)
        again = await body(await client.post(f"/dead-letters/{letter['id']}/retry"), 200)
        assert first["id"] == again["id"] != job.id
        assert (await body(await client.post(f"/jobs/{live.id}/retry"), 409))["code"] == "invalid-transition"
        assert (await client.delete(f"/dead-letters/{letter['id']}")).status_code == 204
        assert (await client.delete(f"/dead-letters/{letter['id']}")).status_code == 404


@pytest.mark.asyncio
async def test_dead_letters_are_read_page_by_page(web: Stage) -> None:
    ended = {(await web.end(await web.submit())).id for _ in range(5)}
    seen: list[str] = []
    cursor: dict[str, str] = {}
    async with web.client("viewer") as client:
        while True:
            page = await body(await client.get("/dead-letters", params={"limit": 2, **cursor}), 200)
            seen += [letter["id"] for letter in page["items"]]
            if page["next"] is None:
                break
            cursor = {"cursor": page["next"]}
    assert (set(seen), len(seen)) == (ended, 5)


@pytest.mark.asyncio
async def test_the_plane_shows_its_workers_locks_families_and_limits(web: Stage) -> None:
    now_ns = web.service.parts.store.clock.now().wall
    await web.service.parts.workers.record(Heartbeat("w1", "money", ("charge",), 4, 1, now_ns, host="h", pid=7))
    async with web.client("admin") as client:
        (worker,) = (await body(await client.get("/workers"), 200))["items"]
        assert (worker["worker"], worker["alive"], worker["topics"]) == ("w1", True, ["charge"])
        assert (await client.get("/snapshot")).status_code == 404
        families = (await body(await client.get("/inventory"), 200))["items"]
        assert [family["family"] for family in families] == list(FAMILIES)
        assert (await body(await client.get("/tenants/blue/limits"), 200))["slots"] is None
        assert (await body(await client.put("/tenants/blue/limits", json={"slots": 2}), 200))["own"]
        assert (await body(await client.get("/tenants/blue/limits"), 200))["slots"] == 2
        assert not (await body(await client.put("/tenants/blue/limits", json={"slots": None}), 200))["own"]


@pytest.mark.asyncio
async def test_locks_are_read_page_by_page_and_none_is_left_out(web: Stage) -> None:
    keys = sorted(f"page:{number}" for number in range(12))
    async with AsyncExitStack() as held, web.client("viewer") as client:
        for key in keys:
            await held.enter_async_context(web.service.parts.locks.lock(key))
        for limit in (1, 5, 12, 500):
            seen: list[str] = []
            which: dict[str, Any] = {"prefix": "page:", "limit": limit}
            while True:
                page = await body(await client.get("/locks", params=which), 200)
                seen += [each["key"] for each in page["items"]]
                if page["next"] is None:
                    break
                which["cursor"] = page["next"]
            assert seen == keys
        assert (await body(await client.get("/locks?cursor=zz"), 422))["errors"][0]["field"] == "cursor"


@pytest.mark.asyncio
async def test_locks_are_shown_without_their_tokens(web: Stage) -> None:
    async with SCHEDULER_JOB.lock(web.service.parts.locks, job="42") as lease, web.client("viewer") as client:
        answer = await client.get("/locks", params={"prefix": "holdfast:scheduler:"})
        (lock,) = (await body(answer, 200))["items"]
        assert set(lock) == {"key", "family", "holder", "fence", "since", "remaining", "waiters"}
        assert (lock["key"], lock["fence"], lock["family"]) == (lease.key, lease.fence, "scheduler.job")
        assert 0 < lock["remaining"] <= 60
        secret = lease._lease_record.renewal.token
        assert secret
        assert secret not in answer.text


@pytest.mark.asyncio
async def test_metrics_are_prometheus_text(web: Stage) -> None:
    await web.submit()
    async with web.client("viewer") as client:
        await client.get("/nothing")
        answer = await client.get("http://localhost/metrics")
        assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
        lines = answer.text.splitlines()
        assert 'holdfast_plane_jobs{state="PENDING"} 1.0' in lines
        assert "holdfast_plane_duplicate_ends_total 0.0" in lines
        assert 'holdfast_http_requests_total{method="GET",status="404"} 1.0' in lines
        names = [line.split()[2] for line in lines if line.startswith("# TYPE ")]
        assert len(names) == len(set(names))
