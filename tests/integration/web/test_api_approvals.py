"""Approvals over HTTP: who may decide, what is answered, and which refusals a program can tell apart."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio
from fastapi import FastAPI

from holdfast.plane.approvals.rules import ApprovalRules, parse_rules
from holdfast.plane.approvals.service import NOTE_CHARS_MAX, Approvals
from holdfast.plane.locks.job_lock import job_lock
from holdfast.plane.locks.registry import APPROVAL
from holdfast.plane.model.caller import Caller
from holdfast.plane.process.components import Components, open_components
from holdfast.plane.service.service import Service
from holdfast.plane.service.workflows import RunService
from holdfast.plane.settings.settings import Settings
from holdfast.plane.workflows.core.definition_codec import from_document
from holdfast.plane.workflows.core.run import CancelRequested, CheckRun
from holdfast.plane.workflows.engine import WorkflowEngine
from holdfast.web.app import create_app
from holdfast.web.middleware.auth import EVERY_TENANT, Access, Role, TokenEntry, digest_of
from holdfast.web.schemas.approvals import ApprovalShown
from support.harness.api_description import check

pytestmark = pytest.mark.asyncio

PEOPLE = {
    "viewer": (Role.VIEWER, EVERY_TENANT),
    "operator": (Role.OPERATOR, EVERY_TENANT),
    "approver": (Role.APPROVER, EVERY_TENANT),
    "admin": (Role.ADMIN, EVERY_TENANT),
    "blue-approver": (Role.APPROVER, "blue"),
    "red-approver": (Role.APPROVER, "red"),
}
RULES = parse_rules([{"name": "payments", "topics": "bank.*", "message": "Check the amount."}])


@dataclass
class Desk:
    """A plane behind its API where payments need approval."""

    components: Components
    app: FastAPI
    approvals: Approvals

    async def ask(self, method: str, path: str, who: str | None = "approver", **body: Any) -> httpx.Response:
        headers = {} if who is None else {"authorization": f"Bearer {token_of(who)}"}
        transport = httpx.ASGITransport(self.app, raise_app_exceptions=True)
        async with httpx.AsyncClient(
            transport=transport, base_url="http://localhost", headers=headers, event_hooks={"response": [check]}
        ) as client:
            return await client.request(method, path, **body)

    async def submit(self, who: str = "operator", **more: Any) -> str:
        """A job that waits for a person; its id."""
        asked = {"topic": "bank.pay", "payload": {"amount": 12}, **more}
        answer = await self.ask("POST", "/api/v1/jobs", who, json=asked)
        assert (answer.status_code, answer.json()["state"]) == (201, "APPROVAL_REQUIRED")
        return str(answer.json()["id"])

    async def decide(
        self, job: str, verdict: str = "approve", who: str | None = "approver", **said: Any
    ) -> tuple[int, dict[str, Any]]:
        answer = await self.ask("POST", f"/api/v1/approvals/{job}/{verdict}", who, json=said or None)
        return answer.status_code, answer.json()

    async def list(self, who: str = "viewer", query: str = "") -> list[str]:
        answer = await self.ask("GET", f"/api/v1/approvals{query}", who)
        assert answer.status_code == 200, answer.text
        return [each["job"] for each in answer.json()["items"]]


def token_of(who: str) -> str:
    return f"token-of-a-caller-named-{who}"


@asynccontextmanager
async def desk_at(folder: Path, *, access: Access | None = None, leases: str | None = None) -> AsyncIterator[Desk]:
    entries = [TokenEntry(name, digest_of(token_of(name)), (role,), tenant) for name, (role, tenant) in PEOPLE.items()]
    settings = Settings(database=f"sqlite:///{folder / 'plane.db'}?synchronous=normal", leases=leases)
    async with open_components(settings) as components:
        family = replace(APPROVAL, acquire_timeout=0.05)  # not two seconds, to save time
        approvals = Approvals(components.database, components.store, components.locks, RULES, family=family)
        flows = RunService(components.runs, approvals, components.bus)
        service = Service(replace(components.service.parts, approvals=approvals, flows=flows))
        yield Desk(components, create_app(service, access or Access(entries)), approvals)


@pytest_asyncio.fixture
async def desk(tmp_path: Path) -> AsyncIterator[Desk]:
    async with desk_at(tmp_path) as made:
        yield made


async def test_what_waits_is_listed_shown_approved_once_and_counted(desk: Desk) -> None:
    job = await desk.submit()
    assert await desk.list() == [job]
    shown = (await desk.ask("GET", f"/api/v1/approvals/{job}", "viewer")).json()
    assert (shown["status"], shown["rule"], shown["message"]) == ("waiting", "payments", "Check the amount.")
    (outline,) = (await desk.ask("GET", "/api/v1/approvals", "viewer")).json()["items"]
    assert outline == {name: value for name, value in shown.items() if name != "message"}
    assert outline["about"] == "Check the amount."
    assert (shown["requested_by"], shown["revision"], shown["decided_by"]) == ("operator", 0, None)
    status, taken = await desk.decide(job, note="checked", revision=0)
    assert (status, taken["taken"], taken["state"], taken["status"]) == (200, True, "PENDING", "approved")
    assert (taken["decided_by"], taken["note"], taken["revision"]) == ("approver", "checked", 1)
    assert taken["fence"] > 0
    status, again = await desk.decide(job, who="admin", note="me too")
    assert (status, again) == (200, {**taken, "taken": False})
    status, other = await desk.decide(job, "reject", who="admin")
    assert (status, other["code"], other["reason"]) == (409, "approval-conflict", "approval_already_resolved")
    assert other["retryable"] is False
    assert "retry_after" not in other
    assert (await desk.list(), await desk.list(query="?status=approved")) == ([], [job])
    counted = (await desk.ask("GET", "/metrics", "viewer")).text.splitlines()
    assert 'holdfast_approvals_decided_total{verdict="approve"} 1.0' in counted
    assert 'holdfast_approvals_repeated_total{verdict="approve"} 1.0' in counted
    assert 'holdfast_approvals_refused_total{code="approval_already_resolved"} 1.0' in counted
    assert 'holdfast_approvals_refused_total{code="approval_retryable_lock"} 0.0' in counted


@pytest.mark.threat("X15")
async def test_a_page_of_long_messages_is_small(desk: Desk) -> None:
    """Else one page could be half a gigabyte, and whatever shares the process with the API would wait for it."""
    large = "Look at this: " + "x" * 900_000
    flow = from_document({"name": "ask", "steps": {name: {"message": "${ input }"} for name in ("a", "b", "c")}})
    flows = desk.components.flows
    await flows.define(Caller("ada"), flow)
    stored, _ = await flows.start(Caller("ada"), "ask", large, run_id="r")
    await WorkflowEngine(desk.components.runs, desk.components.locks, desk.components.bus).move(
        stored.run.id, CheckRun()
    )
    for query in ("", "?status=all", "?status=all&tenant=default"):
        answer = await desk.ask("GET", f"/api/v1/approvals{query}", "viewer")
        assert len(answer.content) < 3_000
        assert sorted(each["job"] for each in answer.json()["items"]) == ["r:a@1", "r:b@1", "r:c@1"]
        assert {each["about"] for each in answer.json()["items"]} == {f"{large[:199]}…"}
    assert (await desk.ask("GET", "/api/v1/approvals/r:a@1", "viewer")).json()["message"] == large


async def test_a_rejected_job_is_denied_and_its_retry_waits_again(desk: Desk) -> None:
    job = await desk.submit()
    status, taken = await desk.decide(job, "reject", note="too much")
    assert (status, taken["taken"], taken["state"]) == (200, True, "DENIED")
    assert (await desk.decide(job, "reject"))[1]["taken"] is False
    letter = (await desk.ask("GET", f"/api/v1/dead-letters/{job}", "viewer")).json()
    assert letter["reason"] == "rejected by approver: too much"
    again = await desk.ask("POST", f"/api/v1/jobs/{job}/retry", "operator")
    assert (again.status_code, again.json()["state"]) == (201, "APPROVAL_REQUIRED")
    assert await desk.list() == [again.json()["id"]]


@pytest.mark.parametrize("verdict", ["approve", "reject"])
async def test_only_approvers_decide_and_nobody_about_their_own(desk: Desk, verdict: str) -> None:
    job, own = await desk.submit(), await desk.submit("admin")
    for who, expected in ((None, 401), ("viewer", 403), ("operator", 403)):
        assert (await desk.decide(job, verdict, who))[0] == expected
    status, refused = await desk.decide(own, verdict, "admin")
    assert (status, refused["code"], refused["reason"]) == (403, "self-approval-denied", "self_approval_denied")
    assert await desk.list() == [job, own]
    assert (await desk.decide(own, verdict))[0] == 200
    assert (await desk.decide(job, verdict, "admin"))[0] == 200


@pytest.mark.requires("R12")
async def test_a_busy_lock_is_409_with_the_time_to_come_back(desk: Desk) -> None:
    """W45: it was sent with status 200, and was known by its text alone."""
    job = await desk.submit()
    async with job_lock(desk.components.locks, job):
        answer = await desk.ask("POST", f"/api/v1/approvals/{job}/approve")
    problem = answer.json()
    assert (answer.status_code, problem["code"], problem["detail"]) == (409, "lock-busy", "approval lock busy")
    assert (problem["reason"], problem["retryable"]) == ("approval_retryable_lock", True)
    assert answer.headers["retry-after"] == "1"
    assert 0 < problem["retry_after"] <= 0.5
    assert problem["holder"] is None  # not public
    assert (await desk.decide(job))[1]["taken"] is True


@pytest.mark.requires("R11")
async def test_a_store_of_leases_that_is_down_is_503_and_nothing_is_decided(
    tmp_path: Path, unused_tcp_port: int
) -> None:
    async with desk_at(tmp_path, leases=f"redis://127.0.0.1:{unused_tcp_port}") as desk:
        job = await desk.submit()
        answer = await desk.ask("POST", f"/api/v1/approvals/{job}/approve")
        assert (answer.status_code, answer.json()["code"]) == (503, "unavailable")
        assert answer.headers["retry-after"] == "1"
        assert await desk.list() == [job]


async def test_every_other_conflict_has_its_reason(desk: Desk) -> None:
    async def reason(job: str, **said: Any) -> str:
        status, problem = await desk.decide(job, **said)
        assert (status, problem["retryable"]) == (409, False)
        return str(problem["reason"])

    job = await desk.submit()
    assert await reason(job, revision=1) == "approval_stale_request"
    desk.approvals.rules = parse_rules([{"name": "frozen", "effect": "deny"}])
    assert await reason(job) == "approval_stale_snapshot"
    refused = await desk.ask("POST", "/api/v1/jobs", "operator", json={"topic": "bank.pay"})
    assert (refused.status_code, refused.json()["code"]) == (403, "not-allowed")
    assert refused.json()["detail"] == "the rule frozen refuses this job"
    desk.approvals.rules = ApprovalRules()
    flows, engine = (
        desk.components.flows,
        WorkflowEngine(desk.components.runs, desk.components.locks, desk.components.bus),
    )
    await flows.define(Caller("ada"), from_document({"name": "ask", "steps": {"ok": {"kind": "approval"}}}))
    await flows.start(Caller("ada"), "ask", run_id="r1")
    await engine.move("r1", CheckRun())
    assert await desk.list() == [job, "r1:ok@1"]
    await engine.move("r1", CancelRequested("ada", "not needed"))
    assert await reason("r1:ok@1") == "approval_terminal_run"
    ended = "UPDATE plane_job SET state = 'CANCELLED' WHERE id = :id"
    await desk.components.database.write(lambda tx: tx.query(ended, {"id": job}))
    assert await reason(job) == "approval_not_actionable"
    assert await desk.list(query="?status=lapsed") == [job]


async def test_approvals_of_other_tenants_do_not_exist(desk: Desk) -> None:
    job = await desk.submit(tenant="blue")
    for path in (f"/api/v1/approvals/{job}", "/api/v1/approvals/unknown"):
        assert (await desk.ask("GET", path, "red-approver")).status_code == 404
        assert (await desk.ask("POST", f"{path}/approve", "red-approver")).status_code == 404
    assert (await desk.list("red-approver"), await desk.list("red-approver", "?status=all")) == ([], [])
    assert (await desk.ask("GET", "/api/v1/approvals?tenant=blue", "red-approver")).status_code == 403
    assert await desk.list("blue-approver") == [job]
    assert (await desk.decide(job, who="blue-approver"))[1]["taken"] is True


async def test_pages_follow_each_other(desk: Desk) -> None:
    jobs = [await desk.submit() for _ in range(5)]
    for query, expected in (("", jobs), ("status=all&", jobs[::-1])):
        found: list[str] = []
        page: dict[str, Any] = {"next": ""}
        while page["next"] is not None:
            cursor = f"&cursor={page['next']}" if page["next"] else ""
            page = (await desk.ask("GET", f"/api/v1/approvals?{query}limit=2{cursor}", "viewer")).json()
            found += [each["job"] for each in page["items"]]
        assert found == expected


@pytest.mark.parametrize("wrong", [{"note": "two\nlines"}, {"revision": -1}, {"revision": "one"}, {"reason": "no"}])
async def test_what_cannot_be_right_is_refused_by_field(desk: Desk, wrong: dict[str, Any]) -> None:
    job = await desk.submit()
    status, problem = await desk.decide(job, **wrong)
    assert (status, problem["code"]) == (422, "invalid")
    assert {each["field"] for each in problem["errors"]} == set(wrong)
    assert await desk.list() == [job]


async def test_on_an_open_server_all_are_one_and_nobody_approves(tmp_path: Path) -> None:
    async with desk_at(tmp_path, access=Access(open_to_all=True)) as desk:
        job = await desk.submit()
        status, refused = await desk.decide(job)
        assert (status, refused["detail"]) == (403, "local requested it; another person must decide")


FORGED: tuple[Any, ...] = (
    *(None, True, 1, 2**64, 0.5, "0", "", "admin", [0], {"revision": 0}, "x\0y", "\ud800", "9" * 5_000),
)
FIELDS = (*ApprovalShown.model_fields, "actor", "verdict", "Revision", "revision ", "__class__", "")


def as_described(body: Any) -> bool:
    """Whether the API takes such a body, for what stands at revision 0."""
    if body is None or body == {}:
        return True
    if not isinstance(body, dict) or not set(body) <= {"note", "revision"}:
        return False
    note, revision = body.get("note", ""), body.get("revision")
    plain = isinstance(note, str) and note.isprintable() and len(note) <= NOTE_CHARS_MAX
    return plain and (revision is None or (type(revision) is int and revision == 0))


@pytest.mark.threat("X12")
async def test_no_body_makes_a_decision_somebody_elses_or_about_something_else(desk: Desk) -> None:
    """A body with one field too many, or one that is a little different from what was shown: nothing is done."""
    job = await desk.submit()
    bodies = [*FORGED, *({name: value} for name in FIELDS for value in FORGED)]
    taken = 0
    for number, body in enumerate(bodies):
        verdict = ("approve", "reject")[number % 2]
        about: dict[str, Any] = {"content": json.dumps(body), "headers": {"content-type": "application/json"}}
        answer = await desk.ask("POST", f"/api/v1/approvals/{job}/{verdict}", **about)
        if answer.status_code == 200:
            assert as_described(body), body
            assert (answer.json()["decided_by"], answer.json()["job"]) == ("approver", job)
            taken, job = taken + 1, await desk.submit()
            continue
        assert answer.status_code in {400, 409, 422}, (body, answer.text)
        assert not as_described(body), (body, answer.text)
        found = await desk.approvals.get(job)
        assert found is not None
        assert (found.status, found.revision, found.decided_by) == ("waiting", 0, None)
    assert 0 < taken < len(bodies) / 20
    assert len(bodies) > 300
