"""Parameters that a route does not know, and Host headers that are almost a loopback name."""

from __future__ import annotations

import logging

import pytest

import holdfast
from holdfast.errors import BadInput
from holdfast.web.middleware.auth import Access
from support.harness.web import Stage


@pytest.mark.asyncio
async def test_no_route_ignores_a_parameter_that_it_does_not_know(web: Stage) -> None:
    async with web.client("admin") as client:
        paths = (await client.get("http://localhost/openapi.json")).json()["paths"]
        asked = [(path, method) for path, methods in paths.items() for method in methods]
        assert len(asked) > 30
        for path, method in asked:
            body: dict[str, str] | None = {} if method in ("post", "put") else None
            answer = await client.request(method, f"http://localhost{path}?nonsense=1", json=body)
            assert answer.status_code == 422, (method, path)
            wrong = {each["field"]: each["fix"] for each in answer.json()["errors"]}
            assert wrong["nonsense"].startswith("leave it out; known are "), (method, path)


@pytest.mark.threat("X10")
@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:8420", "127.0.0.1", "127.0.0.1:1", "[::1]", "[::1]:65535"])
def test_a_loopback_name_or_address_with_a_port_is_served(host: str) -> None:
    access = Access.bound_to("127.0.0.1")
    assert access.stranger(host, None) is None
    assert access.stranger(host, f"http://{host}") is None
    assert access.stranger(host, f"ftp://{host}") is not None


@pytest.mark.threat("X10")
@pytest.mark.parametrize(
    "host",
    [
        *(None, "", "evil.example", "localhost.evil.example", "localhost@evil.example", "evil.example@localhost"),
        *(
            "localhost/evil",
            "localhost?x",
            "localhost#x",
            "localhost:",
            "localhost:x",
            "localhost:65536",
            "localhost:8:8",
        ),
        *(" localhost", "localhost ", "localhost\t", "[127.0.0.1", "::1", "127.1", "0177.0.0.1", "localhost."),
        *("[::1]evil", "[::1", "user:pw@127.0.0.1"),
    ],
)
def test_a_host_that_is_not_exactly_a_loopback_name_is_refused(host: str | None) -> None:
    assert Access.bound_to("127.0.0.1").stranger(host, None) is not None


def test_a_reserved_name_of_a_lock_is_refused_without_a_word_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The store refuses it before it connects, so no server is needed."""
    caplog.set_level(logging.INFO)
    with holdfast.connect("redis://127.0.0.1:1/0") as locks:
        for fair in (False, True):
            lock = locks.lock("holdfast:fence", fair=fair)
            with pytest.raises(BadInput, match="its own records"):
                lock.acquire(timeout=1)
    assert not [each for each in caplog.records if each.levelno >= logging.WARNING]
