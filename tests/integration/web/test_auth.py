"""Who gets in: tokens, roles, tenants, and the open mode of a server on the loopback interface."""

from __future__ import annotations

import logging
import re
from pathlib import Path

import httpx
import pytest

from holdfast.errors import BadInput
from holdfast.web.middleware.auth import Access, Role, TokenEntry, digest_of, is_loopback
from support.harness.web import TOKENS, Stage, stage_at

VIEW, OPERATE, APPROVE, RULE = Role.VIEWER, Role.OPERATOR, Role.APPROVER, Role.ADMIN

# Every route of the API, which role it takes, and whether it is for those alone who are not bound to a tenant. A route
# that is not here fails a test; so does one that is here and admits another role.
ROUTES: dict[tuple[str, str], tuple[Role, bool]] = {
    ("POST", "/api/v1/jobs"): (OPERATE, False),
    ("GET", "/api/v1/jobs"): (VIEW, False),
    ("GET", "/api/v1/jobs/{job_id}"): (VIEW, False),
    ("GET", "/api/v1/jobs/{job_id}/events"): (VIEW, False),
    ("GET", "/api/v1/jobs/{job_id}/updates"): (VIEW, False),
    ("POST", "/api/v1/jobs/{job_id}/cancel"): (OPERATE, False),
    ("POST", "/api/v1/jobs/{job_id}/retry"): (OPERATE, False),
    ("POST", "/api/v1/watch/jobs"): (VIEW, False),
    ("POST", "/api/v1/watch/runs"): (VIEW, False),
    ("GET", "/api/v1/schedules"): (VIEW, False),
    ("GET", "/api/v1/schedules/{name}"): (VIEW, False),
    ("PUT", "/api/v1/schedules/{name}"): (OPERATE, False),
    ("DELETE", "/api/v1/schedules/{name}"): (OPERATE, False),
    ("POST", "/api/v1/schedules/{name}/pause"): (OPERATE, False),
    ("POST", "/api/v1/schedules/{name}/resume"): (OPERATE, False),
    ("POST", "/api/v1/schedules/{name}/run"): (OPERATE, False),
    ("GET", "/api/v1/dead-letters"): (VIEW, False),
    ("GET", "/api/v1/dead-letters/{letter_id}"): (VIEW, False),
    ("POST", "/api/v1/dead-letters/{letter_id}/retry"): (OPERATE, False),
    ("DELETE", "/api/v1/dead-letters/{letter_id}"): (OPERATE, False),
    ("GET", "/api/v1/workers"): (VIEW, False),
    ("GET", "/api/v1/snapshot"): (VIEW, False),
    ("GET", "/api/v1/status"): (VIEW, False),
    ("GET", "/api/v1/findings"): (VIEW, True),
    ("GET", "/api/v1/locks"): (VIEW, True),
    ("GET", "/api/v1/inventory"): (VIEW, False),
    ("GET", "/api/v1/tenants/{tenant}/limits"): (VIEW, False),
    ("PUT", "/api/v1/tenants/{tenant}/limits"): (RULE, True),
    ("GET", "/api/v1/policy"): (VIEW, True),
    ("PUT", "/api/v1/policy"): (OPERATE, True),
    ("PUT", "/api/v1/policy/busy_jitter"): (OPERATE, True),
    ("GET", "/api/v1/policy/history"): (VIEW, True),
    ("POST", "/api/v1/workflows"): (OPERATE, False),
    ("GET", "/api/v1/workflows"): (VIEW, False),
    ("GET", "/api/v1/workflows/{name}"): (VIEW, False),
    ("POST", "/api/v1/runs"): (OPERATE, False),
    ("GET", "/api/v1/runs"): (VIEW, False),
    ("GET", "/api/v1/runs/{run_id}"): (VIEW, False),
    ("GET", "/api/v1/runs/{run_id}/timeline"): (VIEW, False),
    ("POST", "/api/v1/runs/{run_id}/cancel"): (OPERATE, False),
    ("POST", "/api/v1/runs/{run_id}/rerun"): (OPERATE, False),
    ("GET", "/api/v1/approvals"): (VIEW, False),
    ("GET", "/api/v1/approvals/{job_id}"): (VIEW, False),
    ("POST", "/api/v1/approvals/{job_id}/approve"): (APPROVE, False),
    ("POST", "/api/v1/approvals/{job_id}/reject"): (APPROVE, False),
    ("POST", "/api/v1/resource-locks/acquire"): (OPERATE, False),
    ("POST", "/api/v1/resource-locks/renew"): (OPERATE, False),
    ("POST", "/api/v1/resource-locks/release"): (OPERATE, False),
    ("POST", "/api/v1/resource-locks/break"): (RULE, False),
    ("GET", "/api/v1/resource-locks/broken"): (VIEW, False),
    ("GET", "/api/v1/resource-locks"): (VIEW, False),
    ("GET", "/metrics"): (VIEW, True),
}
WITHOUT_A_TOKEN = {("GET", "/healthz"), ("GET", "/readyz")}

HAS = {
    "viewer": {VIEW},
    "operator": {VIEW, OPERATE},
    "approver": {VIEW, APPROVE},
    "admin": {VIEW, OPERATE, APPROVE, RULE},
    "blue-viewer": {VIEW},
    "blue": {VIEW, OPERATE},
}
BOUND = {"blue-viewer", "blue"}


async def ask(client: httpx.AsyncClient, method: str, template: str) -> httpx.Response:
    path = re.sub(r"\{\w+\}", "none", template.replace("{tenant}", "blue"))
    return await client.request(method, f"http://localhost{path}")


@pytest.mark.threat("X9")
@pytest.mark.asyncio
async def test_every_route_is_listed_with_its_role(web: Stage) -> None:
    async with web.client() as anonymous:
        paths = (await anonymous.get("http://localhost/openapi.json")).json()["paths"]
    found = {(method.upper(), path) for path, methods in paths.items() for method in methods}
    assert found == set(ROUTES) | WITHOUT_A_TOKEN


@pytest.mark.threat("X9")
@pytest.mark.asyncio
async def test_no_route_lets_in_who_has_no_token_or_a_wrong_one(web: Stage) -> None:
    async with web.client() as anonymous:
        for method, path in ROUTES:
            for header in (None, "Bearer", "Bearer ", "Bearer wrong", "Basic dTpw", TOKENS["admin"], "Bearer é"):
                headers = {} if header is None else {b"authorization": header.encode()}
                anonymous.headers = httpx.Headers(headers)
                answer = await ask(anonymous, method, path)
                assert answer.status_code == 401, (method, path, header)
                assert answer.headers["www-authenticate"].startswith('Bearer realm="holdfast"')
                assert answer.headers["content-type"] == "application/problem+json"
        for method, path in WITHOUT_A_TOKEN:
            assert (await ask(anonymous, method, path)).status_code == 200


@pytest.mark.threat("X9")
@pytest.mark.asyncio
@pytest.mark.parametrize("who", HAS)
async def test_each_role_gets_what_it_may_have_and_nothing_else(web: Stage, who: str) -> None:
    async with web.client(who) as client:
        for (method, path), (role, everywhere) in ROUTES.items():
            allowed = role in HAS[who] and not (everywhere and who in BOUND)
            answer = await ask(client, method, path)
            assert answer.status_code != 401
            assert (answer.status_code != 403) == allowed, (who, method, path, answer.text)


@pytest.mark.asyncio
async def test_a_role_is_asked_for_before_what_was_sent_is_looked_at(web: Stage) -> None:
    async with web.client("viewer") as viewer:
        assert (await viewer.post("/jobs", json={"nonsense": 1})).status_code == 403


@pytest.mark.threat("X2")
@pytest.mark.asyncio
async def test_tokens_appear_in_no_log_no_answer_and_no_text(web: Stage, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    shown = []
    for name in TOKENS:
        async with web.client(name) as client:
            answers = [await client.get("/jobs"), await client.post("/jobs", content=b"{"), await client.get("/locks")]
            shown += [answer.text + str(answer.headers) for answer in answers]
    entry = TokenEntry("ann", digest_of(TOKENS["admin"]), (RULE,))
    everything = "\n".join([*shown, caplog.text, repr(entry), repr(Access([entry]))])
    for token in TOKENS.values():
        assert token not in everything
        assert digest_of(token) not in everything


@pytest.mark.threat("X10")
@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("headers", "allowed"),
    [
        ({}, True),
        ({"host": "127.0.0.1:8000"}, True),
        ({"host": "[::1]:8000"}, True),
        ({"host": "LOCALHOST"}, True),
        ({"origin": "http://localhost"}, True),
        ({"host": "127.0.0.2"}, False),  # this machine, and yet not an address of this server
        ({"host": "[::ffff:127.0.0.1]"}, False),
        ({"host": "localhost."}, False),
        ({"host": "evil.example"}, False),  # a name that was made to point here
        ({"host": "localhost.evil.example"}, False),
        ({"host": "127.0.0.1.evil.example"}, False),
        ({"host": ""}, False),
        ({"host": "[::1"}, False),
        ({"origin": "https://evil.example"}, False),  # a page of another site
        ({"origin": "null"}, False),
        ({"origin": "http://localhost:9999"}, False),
    ],
)
async def test_an_open_server_serves_this_machine_and_no_page_from_elsewhere(
    tmp_path: Path, headers: dict[str, str], allowed: bool
) -> None:
    async with stage_at(tmp_path, Access.bound_to("127.0.0.1")) as web, web.client() as client:
        answer = await client.get("/jobs", headers=headers)
        cancel = await client.post("/jobs/none/cancel", headers=headers)
    assert (answer.status_code, cancel.status_code) == ((200, 404) if allowed else (403, 403))


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost", "127.8.8.8", "[::1]"])
def test_without_tokens_a_server_is_open_on_the_loopback_interface(host: str) -> None:
    assert is_loopback(host)
    assert Access.bound_to(host).open_to_all


@pytest.mark.threat("X10")
@pytest.mark.parametrize("host", ["127.8.8.8", "::1", "ip6-localhost", "Localhost"])
def test_an_open_server_is_asked_by_the_address_that_it_listens_at(host: str) -> None:
    access = Access.bound_to(host)
    name = f"[{host}]" if ":" in host else host
    assert access.stranger(f"{name}:8420", None) is None
    assert access.stranger("localhost", None) is None
    assert access.stranger("127.8.8.9", None) is not None


@pytest.mark.threat("X9")
@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "example.com", "", "localhost.example.com"])
def test_without_tokens_a_server_that_others_can_reach_is_refused(host: str) -> None:
    with pytest.raises(BadInput, match="host"):
        Access.bound_to(host)


def test_with_tokens_a_server_is_never_open() -> None:
    access = Access.bound_to("127.0.0.1", [TokenEntry("ann", digest_of(TOKENS["admin"]), (RULE,))])
    assert not access.open_to_all
    assert access.principal(None) is None
    assert access.principal(f"bearer {TOKENS['admin']}") is not None


def test_without_tokens_and_without_being_open_nobody_gets_in() -> None:
    assert Access().principal(f"Bearer {TOKENS['admin']}") is None


@pytest.mark.parametrize(
    ("entry", "field"),
    [
        (TokenEntry("", digest_of(TOKENS["admin"])), "tokens.name"),
        (TokenEntry("ann", TOKENS["admin"]), "tokens.digest"),
        (TokenEntry("ann", digest_of(TOKENS["admin"]), ()), "tokens.roles"),
        (TokenEntry("ann", digest_of(TOKENS["admin"]), ("king",)), "tokens.roles"),  # type: ignore[arg-type]
        (TokenEntry("ann", digest_of(TOKENS["admin"]), tenant="a b"), "tokens.tenant"),
        (TokenEntry("ann", digest_of(TOKENS["admin"]), (RULE,), "blue"), "tokens.tenant"),
    ],
)
def test_a_token_that_cannot_be_right_is_refused(entry: TokenEntry, field: str) -> None:
    with pytest.raises(BadInput) as refused:
        Access([entry])
    assert refused.value.field == field
    assert TOKENS["admin"] not in str(refused.value)


def test_two_people_cannot_have_one_token() -> None:
    entry = TokenEntry("ann", digest_of(TOKENS["admin"]))
    with pytest.raises(BadInput, match="twice"):
        Access([entry, entry])


def test_a_token_that_can_be_guessed_is_refused() -> None:
    with pytest.raises(BadInput, match="token"):
        digest_of("secret")
