"""An adapter for requests that presents the fence of a lease with every request.

    with lock as lease, fenced_session(lease) as session:
        document = session.get("https://api.example.com/documents/42").json()        # registers the fence, and reads
        session.put("https://api.example.com/documents/42", json=changed)            # FencedOut for a stale holder

Promises: what `http_client` says. The lease is checked for each request, each hop of a redirect, and each attempt of
urllib3's `Retry`. It is an adapter, and not an `auth` object, because that is asked once for all the attempts.

`fenced_session` mounts it for every URL, so that no redirect gets past it. With `mount` for one prefix the other URLs,
and redirects to them, are sent by the session's other adapters, without a fence.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, NoReturn, Unpack, overload

from holdfast.errors import Misconfigured
from holdfast.guards.bearer import Bearer, Fenced
from holdfast.guards.http.client import ClientSettings, ClientStatistics, Presenter

try:
    import requests
    from requests.adapters import HTTPAdapter
    from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool
    from urllib3.response import BaseHTTPResponse
    from urllib3.util.retry import Retry
except ModuleNotFoundError as error:
    raise Misconfigured(
        f'a fenced session needs a library that is not installed ({error.name}): pip install "holdfast[http]"'
    ) from error

__all__ = ["ClientSettings", "ClientStatistics", "FencedAdapter", "fenced_session"]


class FencedAdapter(HTTPAdapter):
    """Sends under a lease. Belongs to the process that holds it, and cannot be pickled."""

    @overload
    def __init__(
        self,
        lease: Fenced,
        *,
        allow_degraded: Literal[False] = False,
        max_retries: Retry | int = 0,
        **settings: Unpack[ClientSettings],
    ) -> None: ...
    @overload
    def __init__(
        self,
        lease: Bearer,
        *,
        allow_degraded: Literal[True],
        max_retries: Retry | int = 0,
        **settings: Unpack[ClientSettings],
    ) -> None: ...
    def __init__(
        self,
        lease: Bearer,
        *,
        allow_degraded: bool = False,
        max_retries: Retry | int = 0,
        **settings: Unpack[ClientSettings],
    ) -> None:
        """`max_retries` is that of `HTTPAdapter`; `ClientSettings` lists the settings.

        With `allow_degraded` a lease without a fence sends neither header: its requests are not protected.
        """
        self._presenter = Presenter("requests", lease, allow_degraded, settings)
        self._pools = _checked_pools(self._presenter.recheck)
        super().__init__(max_retries=max_retries)

    def send(
        self,
        request: requests.PreparedRequest,
        stream: bool = False,
        timeout: Any = None,
        verify: bool | str = True,
        cert: Any = None,
        proxies: Mapping[str, str] | None = None,
    ) -> requests.Response:
        """Send a request under the lease. `LeaseLost` if it is lost, `FencedOut` if the server has met a newer one."""
        fenced = request.copy()  # the next hop of a redirect is made from the original
        given = [(_text(name), _text(value)) for name, value in request.headers.items()]
        attempt = self._presenter.attempt(str(request.method), str(request.url), given)
        fenced.headers.update(attempt.headers)
        response = super().send(fenced, stream, timeout, verify, cert, proxies)
        refusal = attempt.answered(response.status_code, response.headers)
        if refusal is not None:
            response.close()
            raise refusal
        return response

    def statistics(self) -> ClientStatistics:
        """The outcome of the requests so far."""
        return self._presenter.statistics()

    def init_poolmanager(self, *arguments: Any, **options: Any) -> None:
        """Make the pools such that each attempt passes the lease."""
        super().init_poolmanager(*arguments, **options)
        self.poolmanager.pool_classes_by_scheme = self._pools

    def proxy_manager_for(self, proxy: str, **options: Any) -> Any:
        """The same for requests that go through a proxy."""
        manager = super().proxy_manager_for(proxy, **options)
        manager.pool_classes_by_scheme = self._pools
        return manager

    def __reduce__(self) -> NoReturn:
        raise TypeError("a fenced adapter belongs to the process that holds the lease")


@overload
def fenced_session(
    lease: Fenced, *, allow_degraded: Literal[False] = False, max_retries: Retry | int = 0, **s: Unpack[ClientSettings]
) -> requests.Session: ...
@overload
def fenced_session(
    lease: Bearer, *, allow_degraded: Literal[True], max_retries: Retry | int = 0, **s: Unpack[ClientSettings]
) -> requests.Session: ...
def fenced_session(
    lease: Any, *, allow_degraded: Any = False, max_retries: Retry | int = 0, **s: Unpack[ClientSettings]
) -> requests.Session:
    """A session that sends everything under the lease. The arguments are those of `FencedAdapter`."""
    session = requests.Session()
    adapter = FencedAdapter(lease, allow_degraded=allow_degraded, max_retries=max_retries, **s)
    session.mount("http://", adapter)
    session.mount("https://", adapter)
    return session


def _checked_pools(recheck: Callable[[], None]) -> dict[str, type[HTTPConnectionPool]]:
    """Pools whose every attempt but the first, which was checked just now, checks the lease again."""

    class Plain(HTTPConnectionPool):
        def urlopen(  # type: ignore[override]  # the further arguments are passed on unchanged
            self,
            method: str,
            url: str,
            body: Any = None,
            headers: Any = None,
            retries: Any = None,
            *more: Any,
            **named: Any,
        ) -> BaseHTTPResponse:
            if isinstance(retries, Retry) and retries.history:
                recheck()
            return super().urlopen(method, url, body, headers, retries, *more, **named)

    class Encrypted(Plain, HTTPSConnectionPool):
        pass

    return {"http": Plain, "https": Encrypted}


def _text(value: str | bytes) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else value
