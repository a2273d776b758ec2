"""What those who watch a plane are told: the right things, to the right people, at the price of one reading for all."""

from __future__ import annotations

import asyncio
import re
from datetime import datetime
from typing import Any

import httpx
import pytest

from holdfast.plane.locks.registry import RECONCILER, WORKER_JOB
from holdfast.plane.model.records import Heartbeat
from holdfast.web import static_files
from holdfast.web import status_cache as boards
from holdfast.web.status_cache import LOCKS, StatusCache
from support.harness.web import Stage

pytestmark = pytest.mark.asyncio

READINGS = 3  # of one status: the stores, the jobs of the caller, and the count of all
STATIC = static_files._FOLDER


async def watched(client: httpx.AsyncClient, after: str | None = None) -> dict[str, Any]:
    """One status."""
    answer = await client.get("/status", params={} if after is None else {"after": after})
    assert answer.status_code == 200, answer.text
    assert answer.headers["cache-control"] == "no-store"
    found: dict[str, Any] = answer.json()
    return found


@pytest.fixture(autouse=True)
def _quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Status after status, with less waiting."""
    monkeypatch.setattr(boards, "INTERVAL_S", 0.2)


def board(web: Stage) -> StatusCache:
    found = web.app.state.board
    assert isinstance(found, StatusCache)
    return found


async def test_a_status_has_jobs_locks_workers_and_health_as_the_api_tells_them(web: Stage) -> None:
    service = web.service
    job, dead = await web.submit(tenant="blue"), await web.end(await web.submit())
    now_ns = service.parts.store.clock.now().wall
    await service.parts.workers.record(Heartbeat("w1", "default", ("sum",), 4, 1, now_ns))
    locks = service.parts.locks
    async with (
        web.client("viewer") as viewer,
        RECONCILER.lock(locks),
        WORKER_JOB.lock(locks, job=job.id) as lease,
    ):
        shown = await watched(viewer)
        told = (await viewer.get("/locks")).json()["items"]
        assert shown["parts"] == {"database": "ok", "bus": "ok", "leases": "ok"}
        assert (shown["whole"], "tenant" in shown) == (True, False)
        assert (shown["counts"]["PENDING"], shown["counts"]["FAILED"], shown["dead"]) == (1, 1, 1)
        assert (shown["ended"]["succeeded"][-1], sum(shown["ended"]["otherwise"])) == (0, 1)
        lines = {line["id"]: line for line in shown["jobs"]["items"]}
        assert lines.keys() == {job.id, dead.id}
        assert not {"payload", "result", "labels"} & lines[dead.id].keys()
        assert [letter["job"] for letter in shown["letters"]["items"]] == [dead.id]
        assert [each["worker"] for each in shown["workers"]["items"]] == ["w1"]
        for name in ("holder", "fence", "waiters", "since"):
            assert [each.get(name) for each in shown["locks"]["items"]] == [each[name] for each in told], name
        (run,) = (each for each in shown["locks"]["items"] if not each["loop"])
        assert (run["job"], run["fence"], run["holder"]) == (job.id, lease.fence, lease.owner)
        led = [each["key"] for each in shown["locks"]["items"] if each["loop"]]
        assert led == [RECONCILER.key()]
        assert RECONCILER.key() in [each["key"] for each in shown["loops"]]
        assert "token" not in str(shown)


async def test_whoever_is_bound_to_a_tenant_sees_its_jobs_alone_and_no_locks(web: Stage) -> None:
    blue = await web.submit(tenant="blue")
    await web.end(await web.submit(tenant="red"))
    async with (
        web.client("blue-viewer") as viewer,
        web.client("red") as other,
        WORKER_JOB.lock(web.service.parts.locks, job=blue.id),
    ):
        shown = await watched(viewer)
        assert shown["tenant"] == "blue"
        assert [line["id"] for line in shown["jobs"]["items"]] == [blue.id]
        assert (shown["counts"]["PENDING"], sum(shown["counts"].values()), shown["dead"]) == (1, 1, 0)
        assert shown["letters"]["items"] == []
        assert sum(shown["ended"]["otherwise"]) == 0
        assert not {"locks", "loops", "locks_left_out"} & shown.keys()
        mark = shown["mark"]
        await web.submit(tenant="red")
        assert "jobs" not in await watched(viewer, mark)
        assert blue.id not in str(await watched(other))
        assert (await watched(other, mark))["whole"] is True  # a mark of another status is unknown


async def test_many_who_watch_cost_as_much_as_one(web: Stage) -> None:
    await web.submit()
    async with web.client("viewer") as viewer, web.client("admin") as admin:
        shown = await watched(viewer)
        assert board(web).readings == READINGS
        answers = await asyncio.gather(*(watched(each, shown["mark"]) for each in (viewer, admin) for _ in range(20)))
        assert READINGS < board(web).readings <= 2 * READINGS  # a slow count is not repeated
        assert len({answer["mark"] for answer in answers}) == 1
        assert {answer["whole"] for answer in answers} == {False}


async def test_what_has_changed_is_told_and_what_has_not_is_left_out(web: Stage) -> None:
    kept, ends = await web.submit(), await web.submit()
    locks = web.service.parts.locks
    async with web.client("viewer") as viewer, WORKER_JOB.lock(locks, job=kept.id):
        mark = (await watched(viewer))["mark"]
        nothing = await watched(viewer, mark)
        assert not {"jobs", "letters", "workers", "locks", "counts"} & nothing.keys()
        await web.end(ends)
        new = await web.submit()
        async with WORKER_JOB.lock(locks, job=new.id):
            changed = await watched(viewer, nothing["mark"])
            states = {line["id"]: line["state"] for line in changed["jobs"]["items"]}
            assert states == {new.id: "PENDING", ends.id: "FAILED"}
            assert changed["jobs"]["gone"] == []
            assert [line["job"] for line in changed["locks"]["items"]] == [new.id]
        gone = await watched(viewer, changed["mark"])
        assert gone["locks"] == {"items": [], "gone": [WORKER_JOB.key(job=new.id)]}
        last, counts = gone, changed.get("counts") or gone.get("counts")
        async with asyncio.timeout(30):  # what is over is counted when its turn comes
            while not counts or counts["FAILED"] == 0:
                last = await watched(viewer, last["mark"])
                counts = last.get("counts") or counts
        assert (counts["PENDING"], counts["FAILED"]) == (2, 1)
        whole = await watched(viewer, mark)  # too long ago to say what has changed since
        assert (whole["whole"], len(whole["jobs"]["items"])) == (True, 3)
        assert (await viewer.get("/status", params={"after": "<b>"})).status_code == 422


async def test_when_who_reads_for_all_goes_away_another_one_reads(web: Stage) -> None:
    async with web.client("viewer") as viewer:
        mark = (await watched(viewer))["mark"]
        first, second = (asyncio.create_task(watched(viewer, mark)) for _ in range(2))
        while not board(web)._views[None]._lock.locked():  # noqa: ASYNC110 - there is no event for it
            await asyncio.sleep(0)
        first.cancel()
        async with asyncio.timeout(30):
            assert (await second)["mark"] != mark
        with pytest.raises(asyncio.CancelledError):
            await first


async def test_a_store_that_does_not_answer_is_named_and_the_rest_is_shown(web: Stage) -> None:
    job = await web.submit()
    async with web.client("viewer") as viewer, web.service.parts.locks.lock("deploy", ttl=300):
        before = await watched(viewer)
        await web.service.parts.database.close()
        after = await watched(viewer, before["mark"])
        assert (after["parts"]["database"] == "ok", after["parts"]["leases"]) == (False, "ok")
        assert not {"jobs", "workers", "letters", "locks"} & after.keys()  # unknown, or unchanged
        async with web.service.parts.locks.lock("build", ttl=300):
            last = await watched(viewer, after["mark"])
        assert [line["key"] for line in last["locks"]["items"]] == ["build"]
        assert job.id not in str(last)


async def test_loops_are_shown_however_many_other_locks_are_held(web: Stage) -> None:
    locks = web.service.parts.locks
    for number in range(LOCKS + 5):  # taken as another library would: nothing renews them
        await locks.acquire_token(f"aaa:{number:04}", 60)
    async with web.client("viewer") as viewer, RECONCILER.lock(locks):
        shown = await watched(viewer)
        assert RECONCILER.key() in {line["key"] for line in shown["locks"]["items"]}
        assert shown["locks_left_out"] is True


async def test_a_lock_ends_when_its_store_says(web: Stage) -> None:
    async with web.client("viewer") as viewer, web.service.parts.locks.lock("deploy", ttl=300):
        shown = await watched(viewer)
        (line,) = shown["locks"]["items"]
        left = datetime.fromisoformat(line["expires_at"]) - datetime.fromisoformat(shown["at"])
        assert 200 < left.total_seconds() <= 300  # 300 s, less what it took to look
        assert (line["loop"], "job" in line) == (False, False)


# The page itself, without a browser.


async def test_the_page_is_served_to_everybody_with_headers_that_let_it_do_little(web: Stage) -> None:
    async with web.client() as anonymous:
        for path in sorted(static_files.PATHS):
            answer = await anonymous.get(f"http://localhost{path}")
            assert answer.status_code == 200, path
            suffix = "html" if path == "/" else path.rpartition(".")[2]
            assert answer.headers["content-type"] == static_files.TYPES[suffix]
            assert answer.headers["cache-control"] == "no-cache"
            assert answer.headers["x-content-type-options"] == "nosniff"
            assert answer.headers["x-frame-options"] == "DENY"
            assert answer.headers["referrer-policy"] == "no-referrer"
            policy = answer.headers["content-security-policy"]
            assert "default-src 'none'" in policy
            assert "unsafe" not in policy
            assert "*" not in policy
            again = await anonymous.get(f"http://localhost{path}", headers={"if-none-match": answer.headers["etag"]})
            assert (again.status_code, again.content) == (304, b"")
            head = await anonymous.head(f"http://localhost{path}")
            assert (head.status_code, head.content) == (200, b"")
        for path in ("/static/", "/static/none.js", "/static/../api.py", "/static/%2e%2e/api.py", "/api/v1/status"):
            assert (await anonymous.get(f"http://localhost{path}")).status_code == 401, path
        assert (await anonymous.post("http://localhost/")).status_code == 405


async def test_the_page_needs_nothing_from_elsewhere_and_writes_no_markup() -> None:
    texts = {each.name: each.read_text(encoding="utf-8") for each in STATIC.iterdir()}
    page = texts["index.html"]
    assert not re.search(r"<script(?![^>]* src=)|<style|\sstyle=|\son\w+=", page)
    named = set(re.findall(r'(?:src|href)="(/[^"]+)"', page))
    named |= {f"/static/{each}" for text in texts.values() for each in re.findall(r"from '\./([^']+)'", text)}
    assert named <= static_files.PATHS
    assert {f"/static/{name}" for name in texts if name != "index.html"} == named
    for name, text in texts.items():
        assert set(re.findall(r"https?://[^'\"\s)]+", text)) <= {"http://www.w3.org/2000/svg"}, name
        for risky in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "localStorage"):
            assert risky not in text, (name, risky)
