"""Clients that present a lease over HTTP: what is sent, what is never sent, and what an answer means."""

from __future__ import annotations

import logging
import pickle
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest
import requests

import holdfast
from holdfast.core import failpoints
from holdfast.core.lease.fencing import FENCE_MAX
from holdfast.errors import BadInput, FencedOut, LeaseLost, Unfenced
from holdfast.guards import CarriedFence
from holdfast.guards.http import FenceMiddleware
from holdfast.guards.http.client import ClientStatistics, origin_of
from holdfast.guards.httpx import FencedTransport
from holdfast.guards.records import SqliteRecord
from holdfast.guards.requests import FencedAdapter, fenced_session
from support.fixtures.guards import carried
from support.fixtures.http import MakeSender, Server, listening

KEY = "invoice:42"


def test_every_request_carries_the_lock_and_the_fence(
    fenced: MakeSender, guarded_server: Server, lease: holdfast.Lease
) -> None:
    sender = fenced(lease)
    for method in ("GET", "PUT", "DELETE"):
        assert sender(method, f"{guarded_server.url}/42")[0] == 200
    for _, _, headers in guarded_server.reached:
        assert (headers["holdfast-key"], headers["holdfast-fence"]) == (KEY, str(lease.fence))
    assert sender.statistics() == ClientStatistics(entered=1, accepted=2)


@pytest.mark.parametrize("fence", [0, 2**53 + 1, FENCE_MAX])
def test_names_and_fences_arrive_as_they_are(fenced: MakeSender, tmp_path: Path, fence: int) -> None:
    seen: list[object] = []

    async def app(scope: Any, receive: Any, send_: Any) -> None:
        seen.append(scope["holdfast.fence"])
        await send_({"type": "http.response.start", "status": 204, "headers": []})
        await send_({"type": "http.response.body", "body": b""})

    guard = FenceMiddleware(app, SqliteRecord(tmp_path / "fences.db"))
    bearer = CarriedFence('zürich, "漢字" 100% 🙂', fence)
    with listening(guard) as url:
        assert fenced(bearer)("PUT", url)[0] == 204
    assert seen == [bearer]
    guard._record.close()  # type: ignore[attr-defined]  # made by the guard for the blocking record


@pytest.mark.requires("R34", "R73")
def test_a_stale_holder_gets_fenced_out_with_both_fences(fenced: MakeSender, guarded_server: Server) -> None:
    fenced(carried(7))("PUT", f"{guarded_server.url}/42")
    stale = fenced(carried(6))
    for method in ("GET", "HEAD", "PUT"):
        with pytest.raises(FencedOut) as refused:
            stale(method, f"{guarded_server.url}/42")
        assert (refused.value.fence, refused.value.seen, refused.value.key) == (6, 7, KEY)
    assert len(guarded_server.reached) == 1
    assert stale.statistics() == ClientStatistics(refused=3)


def test_a_refusal_can_be_had_as_the_answer_it_is(fenced: MakeSender, guarded_server: Server) -> None:
    fenced(carried(7))("PUT", f"{guarded_server.url}/42")
    stale = fenced(carried(6), raise_for_fence=False)
    assert stale("PUT", f"{guarded_server.url}/42")[0] == 412
    assert stale.statistics().refused == 1


def test_an_answer_412_of_other_software_is_passed_on(fenced: MakeSender, bare_server: Server) -> None:
    for extra in ({}, {"holdfast-seen": "six"}, {"holdfast-seen": "6"}):
        bare_server.act = lambda path, extra=extra: (412, extra)  # type: ignore[misc]  # the second argument is not passed
        assert fenced(carried(7))("PUT", bare_server.url)[0] == 412


@pytest.mark.requires("R73")
def test_nothing_is_sent_under_a_lease_that_is_no_longer_held(
    fenced: MakeSender, guarded_server: Server, lease: holdfast.Lease
) -> None:
    sender = fenced(lease)
    sender("GET", guarded_server.url)
    lease.release()
    with pytest.raises(LeaseLost):
        sender("PUT", guarded_server.url)
    assert [method for method, _, _ in guarded_server.reached] == ["GET"]
    assert sender.statistics() == ClientStatistics(entered=1, lost=1)


def test_nothing_is_sent_under_a_lease_with_too_little_time_left(
    fenced: MakeSender, guarded_server: Server, lease: holdfast.Lease
) -> None:
    sender = fenced(lease, min_remaining=3600)
    with pytest.raises(LeaseLost, match="about to be lost"):
        sender("PUT", guarded_server.url)
    assert guarded_server.reached == []
    assert sender.statistics() == ClientStatistics(lost=1)


@pytest.mark.requires("R73")
def test_a_lease_that_is_lost_between_the_check_and_the_sending_is_refused_by_the_server(
    fenced: MakeSender, guarded_server: Server
) -> None:
    with holdfast.connect("memory://") as locks:
        lock = locks.lock(KEY, ttl=60)
        paused = lock.acquire()
        sender = fenced(paused)

        def pause() -> None:
            paused.release()
            with lock as newer, FencedTransport(newer, httpx.HTTPTransport(verify=False)) as transport:
                transport.handle_request(httpx.Request("PUT", guarded_server.url)).read()

        with pytest.raises(FencedOut) as refused, failpoints.armed("guard.admitted", _once(pause)):
            sender("PUT", guarded_server.url)
    assert refused.value.fence < refused.value.seen
    assert len(guarded_server.reached) == 1


def _once(act: Callable[[], object]) -> Callable[[], None]:
    left = [act]

    def run() -> None:
        if left:
            left.pop()()

    return run


@pytest.mark.parametrize("name", ["Holdfast-Fence", "holdfast-key"])
def test_a_header_that_was_set_by_hand_must_agree(fenced: MakeSender, guarded_server: Server, name: str) -> None:
    with pytest.raises(BadInput) as refused:
        fenced(carried(7))("PUT", guarded_server.url, headers={name: "8"})
    assert refused.value.field.lower() == name.lower()
    assert guarded_server.reached == []
    agreeing = {"holdfast-fence": "7", "Holdfast-Key": KEY}
    assert fenced(carried(7))("PUT", guarded_server.url, headers=agreeing)[0] == 200


def test_a_redirect_within_the_origin_carries_the_fence_on(fenced: MakeSender, guarded_server: Server) -> None:
    guarded_server.act = lambda path: (307, {"location": "/there"}) if path == "/here" else (200, {})
    assert fenced(carried(7))("PUT", f"{guarded_server.url}/here") == (200, f"{guarded_server.url}/there")
    assert [(path, headers["holdfast-fence"]) for _, path, headers in guarded_server.reached] == [
        ("/here", "7"),
        ("/there", "7"),
    ]


def test_a_redirect_under_a_lease_that_was_lost_meanwhile_is_not_followed(
    fenced: MakeSender, guarded_server: Server, lease: holdfast.Lease
) -> None:
    def answer(path: str) -> tuple[int, Mapping[str, str]]:
        lease.release()
        return 307, {"location": "/there"}

    guarded_server.act = answer
    with pytest.raises(LeaseLost):
        fenced(lease)("PUT", f"{guarded_server.url}/here")
    assert [path for _, path, _ in guarded_server.reached] == ["/here"]


def test_a_redirect_to_another_origin_is_refused_and_gets_nothing(
    fenced: MakeSender, guarded_server: Server, bare_server: Server
) -> None:
    guarded_server.act = lambda path: (307, {"location": f"{bare_server.url}/there"})
    with pytest.raises(BadInput, match="origins"):
        fenced(carried(7))("PUT", f"{guarded_server.url}/here")
    assert bare_server.reached == []


def test_origins_that_were_named_are_all_served_and_others_are_not(
    fenced: MakeSender, guarded_server: Server, bare_server: Server
) -> None:
    sender = fenced(carried(7), origins=[guarded_server.url, f"{bare_server.url}/any/path"])
    assert sender("PUT", guarded_server.url)[0] == sender("PUT", bare_server.url)[0] == 200
    elsewhere = fenced(carried(7), origins=["https://api.example.com"])
    with pytest.raises(BadInput):
        elsewhere("PUT", guarded_server.url)
    assert len(guarded_server.reached) == 1


def test_a_server_that_checks_nothing_is_counted_and_logged_once(
    fenced: MakeSender, bare_server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    sender = fenced(carried(7))
    with caplog.at_level(logging.WARNING, "holdfast.guards"):
        for _ in range(3):
            sender("PUT", bare_server.url)
    assert sender.statistics() == ClientStatistics(unguarded=3)
    assert len(caplog.messages) == 1


def test_a_degraded_lease_is_refused_unless_allowed_and_then_sends_no_header(
    fenced: MakeSender, guarded_server: Server, degraded: holdfast.DegradedLease
) -> None:
    with pytest.raises(Unfenced):
        fenced(degraded)("PUT", guarded_server.url)
    assert guarded_server.reached == []
    sender = fenced(degraded, allow_degraded=True)
    assert sender("PUT", guarded_server.url)[0] == 200
    [(_, _, headers)] = guarded_server.reached
    assert not [name for name in headers if name.startswith("holdfast")]
    assert sender.statistics() == ClientStatistics(unfenced=1)
    with pytest.raises(BadInput):
        sender("PUT", guarded_server.url, headers={"Holdfast-Fence": "7"})


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"origins": "https://a.example"}, "origins"),
        ({"origins": []}, "origins"),
        ({"origins": ["api.example.com"]}, "origins"),
        ({"origins": [7]}, "origins"),
        ({"min_remaining": -1}, "min_remaining"),
        ({"min_remianing": 1}, "min_remianing"),
    ],
)
def test_settings_that_cannot_be_right_are_refused(fenced: MakeSender, settings: dict[str, Any], name: str) -> None:
    with pytest.raises(BadInput) as refused:
        fenced(carried(7), **settings)
    assert refused.value.field == name


@pytest.mark.parametrize("thing", [None, 7, "invoice:42", object()])
def test_what_is_not_a_lease_is_refused(fenced: MakeSender, thing: object) -> None:
    with pytest.raises(BadInput):
        fenced(thing)


def test_the_request_that_the_caller_made_is_left_as_it_was(guarded_server: Server) -> None:
    request = httpx.Request("PUT", guarded_server.url)
    with FencedTransport(carried(7), httpx.HTTPTransport(verify=False)) as transport:
        transport.handle_request(request).read()
    assert "holdfast-fence" not in request.headers
    prepared = requests.Request("PUT", guarded_server.url).prepare()
    with fenced_session(carried(7)) as session:
        session.send(prepared, timeout=30)
    assert "Holdfast-Fence" not in prepared.headers


def test_a_refusal_arrives_also_when_the_body_is_far_from_sent(guarded_server: Server) -> None:
    """The server answers before it has read the body, and closes the connection."""
    with fenced_session(carried(7)) as session:
        session.put(guarded_server.url, timeout=30)
    large = b"x" * 8_000_000
    transport = FencedTransport(carried(6), httpx.HTTPTransport(verify=False))
    with httpx.Client(transport=transport) as client, pytest.raises(FencedOut):
        client.put(guarded_server.url, content=large)
    with fenced_session(carried(6)) as session, pytest.raises(FencedOut):
        session.put(guarded_server.url, data=large, timeout=30)


def test_an_adapter_does_not_leave_the_process_of_its_lease(lease: holdfast.Lease) -> None:
    with pytest.raises(TypeError, match="process"):
        pickle.dumps(FencedAdapter(lease))


@pytest.mark.parametrize(
    ("url", "origin"),
    [
        ("https://API.example.com:443/a?b", "https://api.example.com"),
        ("http://api.example.com:80", "http://api.example.com"),
        ("http://api.example.com:8080", "http://api.example.com:8080"),
        ("https://user:secret@api.example.com", "https://api.example.com"),
        ("https://zürich.example", "https://xn--zrich-kva.example"),
        ("http://[::1]:80/", "http://[::1]"),
    ],
)
def test_an_origin_is_scheme_host_and_port(url: str, origin: str) -> None:
    assert origin_of("url", url) == origin


@pytest.mark.parametrize(("module", "missing"), [("httpx", "httpx"), ("requests", "requests")])
def test_a_library_that_is_not_installed_is_named_with_the_extra_that_brings_it(module: str, missing: str) -> None:
    code = f"import sys; sys.modules[{missing!r}] = None; import holdfast.guards.{module}"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert "Misconfigured" in answer.stderr
    assert 'pip install "holdfast[http]"' in answer.stderr


def test_the_guard_itself_needs_only_the_standard_library() -> None:
    code = "import holdfast.guards.http, holdfast.guards.records"
    # -S: without site-packages.
    answer = subprocess.run([sys.executable, "-S", "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert (answer.returncode, answer.stderr) == (0, "")
