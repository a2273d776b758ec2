"""Retries of the HTTP clients: each attempt looks at the lease again, wherever the attempts are made."""

from __future__ import annotations

import socket
from collections.abc import Mapping

import httpx
import pytest
from urllib3.util.retry import Retry

import holdfast
from holdfast.errors import LeaseLost
from holdfast.guards.httpx import AsyncFencedTransport, FencedTransport
from holdfast.guards.requests import fenced_session
from support.fixtures.http import Server


def _closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
    return port


def test_the_attempts_of_httpx_to_connect_look_at_the_lease_again(lease: holdfast.Lease) -> None:
    attempts: list[str] = []

    def watch(event: str, info: object) -> None:
        if event == "connection.connect_tcp.failed":
            attempts.append(event)
            lease.release()

    transport = FencedTransport(lease, httpx.HTTPTransport(verify=False, retries=3))
    with httpx.Client(transport=transport) as client, pytest.raises(LeaseLost):
        client.put(f"http://127.0.0.1:{_closed_port()}", extensions={"trace": watch})
    assert len(attempts) == 1
    assert transport.statistics().lost == 1


@pytest.mark.asyncio
async def test_the_awaited_attempts_of_httpx_to_connect_look_at_the_lease_again(lease: holdfast.Lease) -> None:
    attempts: list[str] = []

    async def watch(event: str, info: object) -> None:
        if event == "connection.connect_tcp.failed":
            attempts.append(event)
            lease.release()

    transport = AsyncFencedTransport(lease, httpx.AsyncHTTPTransport(verify=False, retries=3))
    async with httpx.AsyncClient(transport=transport) as client:
        with pytest.raises(LeaseLost):
            await client.put(f"http://127.0.0.1:{_closed_port()}", extensions={"trace": watch})
    assert len(attempts) == 1


@pytest.mark.parametrize("below", [True, False], ids=["below", "above"])
def test_a_retrying_transport_below_or_above_looks_at_the_lease_each_time(
    guarded_server: Server, lease: holdfast.Lease, below: bool
) -> None:
    class Retrying(httpx.BaseTransport):
        def __init__(self, inner: httpx.BaseTransport) -> None:
            self.inner, self.close = inner, inner.close  # type: ignore[method-assign]  # closes what it wraps

        def handle_request(self, request: httpx.Request) -> httpx.Response:
            self.inner.handle_request(request).read()
            lease.release()
            return self.inner.handle_request(request)

    plain = httpx.HTTPTransport(verify=False)
    transport = FencedTransport(lease, Retrying(plain)) if below else Retrying(FencedTransport(lease, plain))
    with httpx.Client(transport=transport) as client, pytest.raises(LeaseLost):
        client.put(guarded_server.url)
    assert len(guarded_server.reached) == 1


def test_the_retries_of_urllib3_look_at_the_lease_again(guarded_server: Server, lease: holdfast.Lease) -> None:
    def answer(path: str) -> tuple[int, Mapping[str, str]]:
        lease.release()
        return 503, {"retry-after": "0"}

    guarded_server.act = answer
    with fenced_session(lease, max_retries=Retry(3, backoff_factor=0)) as session, pytest.raises(LeaseLost):
        session.put(guarded_server.url, timeout=30)
    assert len(guarded_server.reached) == 1


def test_the_retries_of_urllib3_go_on_while_the_lease_is_held(guarded_server: Server, lease: holdfast.Lease) -> None:
    guarded_server.act = lambda path: (503, {"retry-after": "0"}) if len(guarded_server.reached) < 3 else (200, {})
    with fenced_session(lease, max_retries=Retry(3, backoff_factor=0)) as session:
        assert session.put(guarded_server.url, timeout=30).status_code == 200
    assert [headers["holdfast-fence"] for _, _, headers in guarded_server.reached] == [str(lease.fence)] * 3


def test_the_retries_of_urllib3_through_a_proxy_look_at_the_lease_again(
    guarded_server: Server, lease: holdfast.Lease
) -> None:
    def answer(path: str) -> tuple[int, Mapping[str, str]]:
        lease.release()
        return 503, {"retry-after": "0"}

    guarded_server.act = answer
    with fenced_session(lease, max_retries=Retry(3, backoff_factor=0)) as session, pytest.raises(LeaseLost):
        session.put("http://elsewhere.test/42", timeout=30, proxies={"http": guarded_server.url})
    assert len(guarded_server.reached) == 1
