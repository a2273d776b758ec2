"""Callers that ask too often: counted by token, or by address where there are none, in bounded memory."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from holdfast.errors import BadInput
from holdfast.web.app import create_app
from holdfast.web.middleware.auth import Access
from holdfast.web.middleware.rate_limit import Rates
from support.fixtures.buses import ScriptedClock
from support.harness.api_description import check
from support.harness.web import TOKENS, service_at, tokens


def test_each_caller_has_a_ration_of_their_own() -> None:
    clock = ScriptedClock()
    rates = Rates(10, clock)
    assert [rates.wait_ns("ada") for _ in range(20)] == [0] * 20
    assert rates.wait_ns("ada") == 100_000_000
    assert rates.wait_ns("bob") == 0
    clock.at_ns += 100_000_000
    assert [rates.wait_ns("ada"), rates.wait_ns("ada")] == [0, 100_000_000]
    assert (rates.limited, len(rates)) == (2, 2)


@pytest.mark.threat("X15")
def test_memory_is_bounded_and_the_forgotten_have_a_full_ration() -> None:
    clock = ScriptedClock()
    rates = Rates(1, clock, callers_max=3)
    assert [rates.wait_ns("ada") for _ in range(3)][-1] > 0
    for number in range(100):
        rates.wait_ns(number)
        assert len(rates) <= 3
    assert rates.wait_ns("ada") == 0


@pytest.mark.parametrize("rate", [0, -1, 1_000_001, 1.5])
def test_a_rate_that_is_none_is_refused(rate: int) -> None:
    with pytest.raises(BadInput, match="rate"):
        Rates(rate, ScriptedClock())


def client(app: object, address: str, name: str | None = None) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(app, client=(address, 1))  # type: ignore[arg-type]  # an ASGI application
    headers = {} if name is None else {"authorization": f"Bearer {TOKENS[name]}"}
    return httpx.AsyncClient(
        transport=transport, base_url="http://localhost", headers=headers, event_hooks={"response": [check]}
    )


@pytest.mark.asyncio
async def test_who_asks_too_often_is_told_when_to_come_back(tmp_path: Path) -> None:
    async with service_at(tmp_path) as service:
        app = create_app(service, tokens(), rates=Rates(1, ScriptedClock()))
        async with client(app, "10.0.0.1", "viewer") as eager, client(app, "10.0.0.2", "viewer") as elsewhere:
            assert [(await eager.get("/api/v1/jobs")).status_code for _ in range(2)] == [200, 200]
            refused = await elsewhere.get("/api/v1/jobs")  # the token counts, and not where it comes from
            assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
            assert refused.headers["content-type"] == "application/problem+json"
            said = refused.json()
            assert (said["code"], said["retry_after"], said["status"]) == ("too-many-requests", 1.0, 429)
            assert (await eager.get("/healthz")).status_code == (await eager.get("/readyz")).status_code == 200
        async with client(app, "10.0.0.1", "operator") as other:
            assert (await other.get("/api/v1/jobs")).status_code == 200
        async with client(app, "10.0.0.9", None) as stranger:
            assert [(await stranger.get("/api/v1/jobs")).status_code for _ in range(3)] == [401, 401, 429]
        async with client(app, "10.0.0.1", "admin") as admin:
            assert "holdfast_http_limited_total 2.0" in (await admin.get("/metrics")).text.splitlines()


@pytest.mark.asyncio
async def test_without_tokens_addresses_are_told_apart(tmp_path: Path) -> None:
    async with service_at(tmp_path) as service:
        app = create_app(service, Access(open_to_all=True), rates=Rates(1, ScriptedClock()))
        async with client(app, "127.0.0.1") as here, client(app, "::1") as there:
            assert [(await here.get("/api/v1/jobs")).status_code for _ in range(3)] == [200, 200, 429]
            assert (await there.get("/api/v1/jobs")).status_code == 200
