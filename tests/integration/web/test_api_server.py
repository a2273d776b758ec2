"""The API on a real socket, and as several replicas on one database."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from holdfast.web.middleware.intake import BODY_BYTES_MAX
from support.harness.web import TOKENS, Served, stage_at


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with Served(tmp_path) as running:
        yield running


def client(served: Served, name: str = "operator") -> httpx.Client:
    headers = {"authorization": f"Bearer {TOKENS[name]}"}
    return httpx.Client(base_url=f"{served.url}/api/v1", headers=headers, trust_env=False)


def test_a_job_goes_in_and_comes_out_over_a_socket(served: Served) -> None:
    with client(served) as asking:
        made = asking.post("/jobs", json={"topic": "sum", "id": "run/1", "payload": {"n": 1}})
        assert made.status_code == 201
        assert made.headers["location"] == "/api/v1/jobs/run%2F1"
        assert asking.get(f"{served.url}{made.headers['location']}").json() == made.json()
        assert asking.get("/jobs/run%2F1/events").json()["items"][0]["after"] == "PENDING"
        assert asking.get("/jobs/run/1").status_code == 404
        assert asking.get(f"{served.url}/readyz").json()["status"] == "ready"


def test_a_body_that_is_too_long_is_refused_over_a_socket(served: Served) -> None:
    def chunks() -> Iterator[bytes]:
        for _ in range(BODY_BYTES_MAX // 65_536 + 2):
            yield b" " * 65_536

    with client(served) as asking:
        answer = asking.post("/jobs", content=chunks(), headers={"content-type": "application/json"})
        assert (answer.status_code, answer.json()["code"]) == (413, "too-large")
        assert asking.get("/jobs").status_code == 200


def test_who_has_no_token_is_answered_before_a_body_is_sent(served: Served) -> None:
    """The head alone is sent, with the promise of a body that never comes."""
    host, port = served.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=30) as line:
        line.sendall(
            b"POST /api/v1/jobs HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 1000\r\n\r\n"
        )
        assert line.recv(65_536).startswith(b"HTTP/1.1 401 ")


@pytest.mark.asyncio
async def test_one_key_makes_one_job_on_several_replicas(tmp_path: Path) -> None:
    async with (
        stage_at(tmp_path) as one,
        stage_at(tmp_path) as two,
        one.client("operator") as first,
        two.client("operator") as second,
    ):
        asked = [
            each.post("/jobs", json={"topic": "sum"}, headers={"idempotency-key": "once"})
            for _ in range(10)
            for each in (first, second)
        ]
        answers = await asyncio.gather(*asked)
        assert sorted(answer.status_code for answer in answers) == [200] * 19 + [201]
        assert len({answer.json()["id"] for answer in answers}) == 1


@pytest.mark.asyncio
async def test_a_resource_is_handed_over_from_one_replica_to_another(tmp_path: Path) -> None:
    async with (
        stage_at(tmp_path) as one,
        stage_at(tmp_path) as two,
        one.client("operator") as first,
        two.client("operator") as second,
    ):
        pack = {"resource": "pack", "owner": "me"}
        held = (await first.post("/resource-locks/acquire", json=pack)).json()
        waiting = asyncio.create_task(second.post("/resource-locks/acquire", json={**pack, "timeout": 30}))
        async with asyncio.timeout(30):
            await first.post("/resource-locks/release", json={"resource": "pack", "token": held["token"]})
            assert (await waiting).json()["fence"] > held["fence"]
