"""Transports for httpx that present the fence of a lease with every request.

    with lock as lease, httpx.Client(transport=FencedTransport(lease), base_url="https://api.example.com") as client:
        document = client.get("/documents/42").json()      # registers the fence, and reads
        client.put("/documents/42", json=changed)          # FencedOut if a newer holder has been there

Promises: what `http_client` says. The lease is checked for each request, each hop of a redirect, and each attempt of
httpx's own `retries` or of a retrying transport below this one (through httpcore's `trace`), before anything is sent. A
transport that retries *above* this one passes here each time.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any, Final, Literal, Self, Unpack, overload

from holdfast.errors import BadInput, Misconfigured
from holdfast.guards.bearer import Bearer, Fenced
from holdfast.guards.http.client import ClientSettings, ClientStatistics, FencedRequest, Presenter

try:
    import httpx
except ModuleNotFoundError as error:
    raise Misconfigured(
        f'a fenced client needs a library that is not installed ({error.name}): pip install "holdfast[http]"'
    ) from error

__all__ = ["AsyncFencedTransport", "ClientSettings", "ClientStatistics", "FencedTransport"]

_SENDING: Final = ".send_request_headers.started"  # of HTTP/1.1 and HTTP/2
_TRYING_AGAIN: Final = "connection.retry.complete"  # after the pause between two attempts to connect


class FencedTransport(httpx.BaseTransport):
    """Adds the fence of a lease to what another transport sends. Closing it closes that transport."""

    @overload
    def __init__(
        self,
        lease: Fenced,
        transport: httpx.BaseTransport | None = None,
        *,
        allow_degraded: Literal[False] = False,
        **settings: Unpack[ClientSettings],
    ) -> None: ...
    @overload
    def __init__(
        self,
        lease: Bearer,
        transport: httpx.BaseTransport | None = None,
        *,
        allow_degraded: Literal[True],
        **settings: Unpack[ClientSettings],
    ) -> None: ...
    def __init__(
        self,
        lease: Bearer,
        transport: httpx.BaseTransport | None = None,
        *,
        allow_degraded: bool = False,
        **settings: Unpack[ClientSettings],
    ) -> None:
        """`transport` sends (an `HTTPTransport` of its own if None); `ClientSettings` lists the settings.

        With `allow_degraded` a lease without a fence sends neither header: its requests are not protected.
        """
        self._presenter = Presenter("httpx", lease, allow_degraded, settings)
        self._transport = httpx.HTTPTransport() if transport is None else _check(transport, httpx.BaseTransport)

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request under the lease. `LeaseLost` if it is lost, `FencedOut` if the server has met a newer one."""
        attempt = self._presenter.attempt(request.method, str(request.url), request.headers.multi_items())
        trace = _traced(attempt, request.extensions.get("trace"))
        response = self._transport.handle_request(_fenced(request, attempt, trace))
        refusal = attempt.answered(response.status_code, response.headers)
        if refusal is not None:
            response.close()
            raise refusal
        return response

    def statistics(self) -> ClientStatistics:
        """The outcome of the requests so far."""
        return self._presenter.statistics()

    def close(self) -> None:
        """Close the transport below."""
        self._transport.close()

    def __enter__(self) -> Self:
        self._transport.__enter__()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None = None,
        exc_value: BaseException | None = None,
        traceback: TracebackType | None = None,
    ) -> None:
        self._transport.__exit__(exc_type, exc_value, traceback)


class AsyncFencedTransport(httpx.AsyncBaseTransport):
    """`FencedTransport`, awaited."""

    @overload
    def __init__(
        self,
        lease: Fenced,
        transport: httpx.AsyncBaseTransport | None = None,
        *,
        allow_degraded: Literal[False] = False,
        **settings: Unpack[ClientSettings],
    ) -> None: ...
    @overload
    def __init__(
        self,
        lease: Bearer,
        transport: httpx.AsyncBaseTransport | None = None,
        *,
        allow_degraded: Literal[True],
        **settings: Unpack[ClientSettings],
    ) -> None: ...
    def __init__(
        self,
        lease: Bearer,
        transport: httpx.AsyncBaseTransport | None = None,
        *,
        allow_degraded: bool = False,
        **settings: Unpack[ClientSettings],
    ) -> None:
        """`transport` sends (an `AsyncHTTPTransport` of its own if None); `ClientSettings` lists the settings.

        With `allow_degraded` a lease without a fence sends neither header: its requests are not protected.
        """
        self._presenter = Presenter("httpx", lease, allow_degraded, settings)
        self._transport = (
            httpx.AsyncHTTPTransport() if transport is None else _check(transport, httpx.AsyncBaseTransport)
        )

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request under the lease. `LeaseLost` if it is lost, `FencedOut` if the server has met a newer one."""
        attempt = self._presenter.attempt(request.method, str(request.url), request.headers.multi_items())
        trace = _traced_async(attempt, request.extensions.get("trace"))
        response = await self._transport.handle_async_request(_fenced(request, attempt, trace))
        refusal = attempt.answered(response.status_code, response.headers)
        if refusal is not None:
            await response.aclose()
            raise refusal
        return response

    def statistics(self) -> ClientStatistics:
        """The outcome of the requests so far."""
        return self._presenter.statistics()

    async def aclose(self) -> None:
        """Close the transport below."""
        await self._transport.aclose()

    async def __aenter__(self) -> Self:
        await self._transport.__aenter__()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None = None,
        exc_value: BaseException | None = None,
        traceback: TracebackType | None = None,
    ) -> None:
        await self._transport.__aexit__(exc_type, exc_value, traceback)


def _fenced(request: httpx.Request, attempt: FencedRequest, trace: Callable[[str, Any], object]) -> httpx.Request:
    """The request with the headers. A copy: the next hop of a redirect is made from the original."""
    headers = request.headers.copy()
    headers.update(attempt.headers)
    extensions = {**request.extensions, "trace": trace}
    return httpx.Request(request.method, request.url, headers=headers, stream=request.stream, extensions=extensions)


def _look(attempt: FencedRequest, event: str) -> None:
    if event == _TRYING_AGAIN:
        attempt.trying_again()
    elif event.endswith(_SENDING):
        attempt.sending()


def _traced(attempt: FencedRequest, others: Callable[[str, Any], None] | None) -> Callable[[str, Any], None]:
    def trace(event: str, info: Any) -> None:
        _look(attempt, event)
        if others is not None:
            others(event, info)

    return trace


def _traced_async(
    attempt: FencedRequest, others: Callable[[str, Any], Awaitable[None]] | None
) -> Callable[[str, Any], Awaitable[None]]:
    async def trace(event: str, info: Any) -> None:
        _look(attempt, event)
        if others is not None:
            await others(event, info)

    return trace


def _check(transport: Any, kind: type[Any]) -> Any:
    if not isinstance(transport, kind):
        raise BadInput("transport", f"{type(transport).__name__} is not one", f"give an httpx.{kind.__name__}")
    return transport
