"""Errors over HTTP: each has the shape of RFC 9457, says what may be concluded, and shows nothing of the inside."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

import holdfast.aio
from holdfast import errors
from holdfast.plane.approvals.rules import ApprovalConflict, ConflictCode, SelfApproval
from holdfast.plane.approvals.service import ApprovalBusy
from holdfast.plane.model.job_states import InvalidTransition, JobState
from holdfast.plane.policy.model import PolicyConflict
from holdfast.plane.schedules.model import ScheduleConflict
from holdfast.plane.service.service import NotAllowed, Service, ServiceParts
from holdfast.plane.service.workflows import RunNotFinished
from holdfast.plane.workflows.core.problems import BadWorkflow, DefinitionProblem
from holdfast.plane.workflows.run_quotas import TooManyRuns
from holdfast.web.app import create_app
from holdfast.web.middleware.intake import BODY_BYTES_MAX
from holdfast.web.problem_codes import CODES
from holdfast.web.problems import TABLE, Problem, problem_of
from support.harness.api_description import check
from support.harness.web import TOKENS, Stage, service_at, tokens

E = errors

SAID: list[tuple[errors.HoldfastError, int, str | None]] = [
    (E.BadInput("f", "p", "x"), 422, None),
    (E.LockBusy("busy", retry_after=0.2), 409, "1"),
    (E.AcquireTimeout("busy", retry_after=2.5), 409, "3"),
    (E.AlreadyHeld("secret-host"), 500, None),
    (E.LeaseLost("lost"), 503, "1"),
    (E.NotOwner(), 409, None),
    (E.FencedOut("out", fence=1, seen=2), 412, None),
    (E.NotEntered("gone", fence=1, seen=None), 412, None),
    (E.Unfenced("degraded"), 500, None),
    (E.RowMissing("none"), 404, None),
    (E.RowExists("there"), 409, None),
    (E.BackendError("secret-host"), 503, "1"),
    (E.Unavailable("secret-host"), 503, "1"),
    (E.Timeout("secret-host"), 503, "1"),
    (E.Misconfigured("secret-host"), 500, None),
    (E.FenceUnusable("secret-host"), 500, None),
    (E.Closed("secret-host"), 503, "1"),
    (E.PolicyDenied("secret-host", key="k", risk="r"), 503, "1"),
    (E.RetryLater(4.2, "secret-host"), 503, "5"),
    (E.HoldfastError("secret-host"), 500, None),
    (InvalidTransition(JobState.FAILED, JobState.PENDING), 409, None),
    (NotAllowed("no"), 403, None),
    (E.BadExpression("a +", "ends too early"), 422, None),
    (E.ExpressionFailed("a.b", "has no b"), 422, None),
    (BadWorkflow("w", [DefinitionProblem(("steps",), "are missing", "give some")]), 422, None),
    (RunNotFinished("not over"), 409, None),
    (ApprovalConflict(ConflictCode.STALE_REQUEST, "changed"), 409, None),
    (ApprovalBusy("busy", retry_after=0.3), 409, "1"),
    (SelfApproval("not you"), 403, None),
    (PolicyConflict("moved", risk="high", found=2), 409, None),
    (TooManyRuns("too many"), 429, "10"),
    (ScheduleConflict("is declared by an app"), 409, None),
]


@pytest.mark.parametrize(("error", "status", "retry_after"), SAID, ids=[type(each[0]).__name__ for each in SAID])
def test_each_error_has_its_status(error: errors.HoldfastError, status: int, retry_after: str | None) -> None:
    problem = problem_of(error)
    assert (problem.status, problem.headers.get("retry-after")) == (status, retry_after)
    document = problem.document("id-1")
    assert document["type"] == f"urn:holdfast:problem:{problem.code}"
    assert "secret-host" not in str(document)


def test_no_error_is_forgotten() -> None:
    def below(kind: type[Any]) -> Iterator[type[Any]]:
        yield kind
        for each in kind.__subclasses__():
            yield from below(each)

    # What a caller can be answered with: the package's own errors, and those that the table names.
    declared = {
        "holdfast.errors",
        "holdfast.plane.model.job_states",
        "holdfast.plane.approvals.rules",
        "holdfast.plane.workflows.core.problems",
    }
    public = {kind for kind in below(errors.HoldfastError) if kind.__module__ in declared} | set(TABLE)
    assert public <= {type(error) for error, _, _ in SAID}
    fences = {"fenced-out", "not-entered"}  # which no operation answers: they are the plane's own business
    assert {rule.code for rule in TABLE.values()} - set(CODES) == fences
    assert all(CODES[rule.code][0] == rule.status for rule in TABLE.values() if rule.code in CODES)
    assert len(TABLE) >= 15


def check_problem(answer: httpx.Response, status: int, code: str) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.headers["cache-control"] == "no-store"
    told: dict[str, Any] = answer.json()
    assert (told["status"], told["code"], told["type"]) == (status, code, f"urn:holdfast:problem:{code}")
    assert told["request_id"] == answer.headers["x-request-id"]
    assert told["title"]
    assert told["detail"]
    assert "Traceback" not in answer.text
    return told


@pytest.mark.asyncio
async def test_what_is_not_there_or_not_known_is_a_problem(web: Stage) -> None:
    async with web.client("operator") as client:
        check_problem(await client.get("/nothing"), 404, "not-found")
        check_problem(await client.get("/jobs/none"), 404, "not-found")
        check_problem(await client.get("/jobs/%00"), 404, "not-found")
        check_problem(await client.get("/jobs/"), 404, "not-found")
        refused = await client.delete("/jobs")
        check_problem(refused, 405, "method-not-allowed")
        assert refused.headers["allow"] == "GET, HEAD, POST"


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "content", [b"{", b"", b"\xff", b'{"topic": "a"', b"[" * 100_000, b'{"priority": ' + b"9" * 5000 + b"}"]
)
async def test_a_body_that_cannot_be_read_is_refused(web: Stage, content: bytes) -> None:
    async with web.client("operator") as client:
        answer = await client.post("/jobs", content=content, headers={"content-type": "application/json"})
        if content:
            check_problem(answer, 400, "unreadable")
        else:
            check_problem(answer, 422, "invalid")


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("asked", "fields"),
    [
        ({}, ["topic"]),
        ({"topic": "a b"}, ["topic"]),
        ({"topic": "a", "nonsense": 1}, ["nonsense"]),
        ({"topic": "a", "priority": "5"}, ["priority"]),
        ({"topic": "a", "priority": 101, "max_attempts": 0}, ["priority", "max_attempts"]),
        ({"topic": "a", "labels": {"x": 1}}, ["labels.x"]),
        ({"topic": "a", "payload": "\0"}, ["payload"]),
        ({"topic": "a", "payload": "x" * 1_000_001}, ["payload"]),
        ({"topic": "a", "id": "-"}, ["id"]),
        ({"topic": "a", "deadline_in": -1}, ["deadline_in"]),
        ([], ["body"]),
    ],
)
async def test_a_field_that_cannot_be_right_is_named(web: Stage, asked: Any, fields: list[str]) -> None:
    async with web.client("operator") as client:
        told = check_problem(await client.post("/jobs", json=asked), 422, "invalid")
    assert [each["field"] for each in told["errors"]] == fields
    assert all(each["problem"] and each["fix"] for each in told["errors"])


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("limit=0", "limit"),
        ("limit=501", "limit"),
        ("limit=x", "limit"),
        ("state=ASLEEP", "state"),
        ("nonsense=1", "nonsense"),
        ("limit=1&limit=2", "limit"),  # neither the first nor the last: the intended one is unknown
        ("limit=1&limit=", "limit"),
        ("cursor=%21", "cursor"),
        ("cursor=W10", "cursor"),
        ("cursor=WyJsZXR0ZXJzIiwiYSIsMV0", "cursor"),  # a place in the list of dead letters
    ],
)
async def test_a_query_that_cannot_be_right_is_named(web: Stage, query: str, field: str) -> None:
    async with web.client("viewer") as client:
        told = check_problem(await client.get(f"/jobs?{query}"), 422, "invalid")
    assert [each["field"] for each in told["errors"]] == [field]


@pytest.mark.threat("X10")
@pytest.mark.asyncio
@pytest.mark.parametrize("kind", [None, "text/plain", "application/x-www-form-urlencoded", "application/jsonp"])
async def test_only_json_is_read(web: Stage, kind: str | None) -> None:
    async with web.client("operator") as client:
        headers = {} if kind is None else {"content-type": kind}
        answer = await client.post("/jobs", content=b'{"topic": "a"}', headers=headers)
        check_problem(answer, 415, "unsupported-media-type")
        named = {"content-type": "application/json; charset=utf-8"}
        assert (await client.post("/jobs", content=b'{"topic": "a"}', headers=named)).status_code == 201


@pytest.mark.threat("X16")
@pytest.mark.asyncio
async def test_a_body_is_not_read_beyond_the_limit_whatever_it_says_of_itself(web: Stage) -> None:
    sent = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal sent
        for _ in range(100 * BODY_BYTES_MAX // 65_536):
            sent += 65_536
            yield b" " * 65_536

    async with web.client("operator") as client:
        headers = {"content-type": "application/json"}
        check_problem(await client.post("/jobs", content=endless(), headers=headers), 413, "too-large")
        assert sent <= BODY_BYTES_MAX + 65_536
        said = {**headers, "content-length": str(BODY_BYTES_MAX + 1)}
        check_problem(await client.post("/jobs", content=b"{}", headers=said), 413, "too-large")
        check_problem(
            await client.post("/jobs", content=b"{}", headers={**headers, "content-length": "x"}), 400, "unreadable"
        )


@pytest.mark.asyncio
async def test_a_request_id_is_passed_on_if_it_is_one_and_made_up_otherwise(web: Stage) -> None:
    async with web.client("viewer") as client:
        assert (await client.get("/jobs", headers={"x-request-id": "abc-1"})).headers["x-request-id"] == "abc-1"
        for strange in (b"a b", b"x" * 65, "é".encode(), b""):
            made = (await client.get("/jobs", headers={b"x-request-id": strange})).headers["x-request-id"]
            assert made.isalnum()
            assert len(made) == 16


def asking(app: FastAPI) -> httpx.AsyncClient:
    return httpx.AsyncClient(
        transport=httpx.ASGITransport(app),
        base_url="http://localhost/api/v1",
        headers={"authorization": f"Bearer {TOKENS['admin']}"},
        event_hooks={"response": [check]},
    )


@pytest.mark.asyncio
async def test_an_error_that_nobody_foresaw_is_500_logged_and_says_nothing(
    web: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    @web.app.get("/api/v1/broken")
    async def broken() -> None:
        raise RuntimeError("the password is 1234")

    async with web.client("viewer") as client:
        answer = await client.get("/broken")
    told = check_problem(answer, 500, "internal")
    assert "1234" not in answer.text
    assert told["request_id"] in caplog.text
    assert "the password" in caplog.text


@pytest.mark.asyncio
async def test_a_database_that_is_locked_is_503_with_retry_after_and_reads_go_on(tmp_path: Path) -> None:
    async with (
        service_at(tmp_path, options="&busy_timeout=0.05") as service,
        asking(create_app(service, tokens())) as client,
    ):
        assert (await client.get("/jobs")).status_code == 200
        other = sqlite3.connect(tmp_path / "plane.db", isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        try:
            answer = await client.post("/jobs", json={"topic": "a"})
            told = check_problem(answer, 503, "unavailable")
            assert answer.headers["retry-after"] == "1"
            assert "plane.db" not in str(told)
            assert (await client.get("/jobs")).json()["items"] == []
        finally:
            other.execute("ROLLBACK")
            other.close()
        assert (await client.post("/jobs", json={"topic": "a"})).status_code == 201


@pytest.mark.asyncio
async def test_a_plane_that_is_closed_is_503(tmp_path: Path) -> None:
    async with service_at(tmp_path) as service, asking(create_app(service, tokens())) as client:
        await service.parts.database.close()
        check_problem(await client.get("/jobs"), 503, "closing")
        told = check_problem(await client.get("http://localhost/readyz"), 503, "not-ready")
        unchecked = "not checked: it needs the database"
        assert told["parts"] == {"database": "closed", "bus": unchecked, "leases": "ok"}
        assert (await client.get("http://localhost/healthz")).json() == {"status": "alive"}


@pytest.mark.asyncio
async def test_leases_that_cannot_be_reached_are_named_by_readiness(tmp_path: Path) -> None:
    async with service_at(tmp_path) as service, holdfast.aio.connect("redis://127.0.0.1:1/0") as unreachable:
        parts = service.parts
        broken = Service(ServiceParts(parts.database, parts.bus, unreachable, parts.store, parts.workers))
        async with asking(create_app(broken, tokens())) as client:
            answer = await client.get("http://localhost/readyz")
            told = check_problem(answer, 503, "not-ready")
            assert told["parts"] == {"database": "ok", "bus": "ok", "leases": "unavailable"}
            assert answer.headers["retry-after"] == "1"
            assert "127.0.0.1" not in answer.text
            check_problem(await client.get("/locks"), 503, "unavailable")


@pytest.mark.parametrize(
    ("status", "title"), [(422, "Unprocessable Content"), (413, "Content Too Large"), (409, "Conflict")]
)
def test_a_status_has_one_name_under_every_version_of_python(status: int, title: str) -> None:
    assert Problem(status, "code", "why").document("r")["title"] == title
