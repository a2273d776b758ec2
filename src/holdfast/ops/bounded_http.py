"""One question over HTTP, with a limit on everything: how long it takes, how much is read, and where it leads.

Promises: what cannot be had raises one of this package's errors, in words that name the address and never a token. An
answer is read up to a limit and not beyond. A redirect is not followed: it would carry the token to another host.
"""

from __future__ import annotations

import http.client
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from typing import Final

from holdfast.errors import BadInput, Misconfigured, Timeout, Unavailable

TIMEOUT_S: Final = 10.0
BYTES_MAX: Final = 64 * 1024 * 1024
_SAID_MAX: Final = 200


class _Stay(urllib.request.HTTPRedirectHandler):
    """Does not go where it is sent."""

    def redirect_request(self, *_: object) -> None:
        """Nowhere."""
        return


_OPENER: Final = urllib.request.build_opener(_Stay)


def check_url(field: str, url: str) -> str:
    """An address that can be asked, or `BadInput`."""
    problem = None
    try:
        parts = urllib.parse.urlsplit(url)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            problem = "is not an address of a server"
        elif parts.username or parts.password:
            problem = "has a password in it"
        elif not url.isprintable() or " " in url or not 0 <= (parts.port or 0) <= 65_535:
            problem = "is not an address"
    except ValueError as error:
        problem = f"is not an address ({error})"
    if problem is not None:
        fix = "give one such as http://127.0.0.1:8420/metrics; a token goes into a file or $HOLDFAST_METRICS_TOKEN"
        raise BadInput(field, problem, fix)
    return url


def ask(
    url: str, *, token: str | None = None, headers: Mapping[str, str] | None = None, timeout: float = TIMEOUT_S
) -> bytes:
    """The answer to one GET. `Unavailable`, `Timeout` or `Misconfigured` when there is none that could be used."""
    request = urllib.request.Request(check_url("url", url), headers=dict(headers or {}))  # noqa: S310 - it is http, as was checked
    if token:
        request.add_unredirected_header("Authorization", f"Bearer {token}")
    where = url.partition("?")[0]
    try:
        with _OPENER.open(request, timeout=timeout) as answer:
            read: bytes = answer.read(BYTES_MAX + 1)
    except urllib.error.HTTPError as error:
        with error:
            said = error.read(_SAID_MAX).decode(errors="replace").strip()
        raise Misconfigured(f"{where} answered {error.code} {error.reason}: {said}") from None
    except TimeoutError:
        raise Timeout(f"{where} did not answer within {timeout:g} s") from None
    except urllib.error.URLError as error:
        if isinstance(error.reason, TimeoutError):
            raise Timeout(f"{where} did not answer within {timeout:g} s") from None
        raise Unavailable(f"{where} could not be reached: {error.reason}") from None
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise Unavailable(f"{where} could not be read: {type(error).__name__} {error}") from None
    if len(read) > BYTES_MAX:
        raise Misconfigured(f"{where} answered with more than {BYTES_MAX // 2**20} MiB; that is no page of metrics")
    return read
