"""Commands fetch what the person at the shell names, over HTTP, and nothing that an answer names."""

from __future__ import annotations

import http.server
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType

import pytest

from holdfast.errors import BadInput, Misconfigured
from holdfast.ops.http_client import ask, check_url

pytestmark = pytest.mark.threat("X13")


@contextmanager
def answering(status: int, headers: Mapping[str, str] = MappingProxyType({})) -> Iterator[tuple[str, list[str]]]:
    """A server that answers everything alike; its address, and the requests that it got."""
    asked: list[str] = []

    class Answer(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Answer) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", asked
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_no_answer_sends_a_command_elsewhere(status: int) -> None:
    with answering(200) as (inside, visited):
        for place in (f"{inside}/x", f"//{inside.partition('//')[2]}/x", "file:///etc/passwd", "ftp://127.0.0.1/x"):
            headers = {"Location": place, "Refresh": f"0; url={place}", "Alt-Svc": place}
            with answering(status, headers) as (url, _), pytest.raises(Misconfigured, match=f"answered {status}"):
                ask(f"{url}/metrics")
        assert visited == []


@pytest.mark.parametrize(
    "url",
    [
        *("file:///etc/passwd", "ftp://127.0.0.1/x", "gopher://127.0.0.1/", "data:text/plain,x", "unix:///run/x.sock"),
        *("jar:http://127.0.0.1!/", "http:///x", "http://user:password@127.0.0.1/", "http://127.0.0.1:99999/"),
        *("http://a b/", "http://127.0.0.1/\r\nHost: inside", "HTTP+UNIX://x", "", "127.0.0.1:9090", "http://[x"),
    ],
)
def test_nothing_but_http_is_asked_and_that_is_known_before_a_name_is_looked_up(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_up: list[object] = []
    monkeypatch.setattr(socket, "getaddrinfo", lambda *about, **_: looked_up.append(about))
    with pytest.raises(BadInput):
        check_url("--metrics", url)
    with pytest.raises(BadInput):
        ask(url)
    assert looked_up == []
