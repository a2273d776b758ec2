"""Evidence from metrics and ledgers: what was measured comes out again, and what cannot be trusted is refused."""

from __future__ import annotations

import http.server
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import holdfast
from holdfast.core.histogram import LADDER_NS, NOTHING, Histogram
from holdfast.core.history.events import EventKind, Record
from holdfast.core.lease.timing import settle
from holdfast.core.metric_reading import Reading
from holdfast.core.tuning.percentiles import SourcedDuration, of_durations
from holdfast.errors import BadInput, HoldfastError, Misconfigured, Timeout, Unavailable
from holdfast.observe.ledger.writer import Ledger
from holdfast.observe.prometheus import rendered
from holdfast.ops import http_client
from holdfast.ops.http_client import ask, check_url
from holdfast.ops.tuning.evidence import TuningData, evidence, lateness
from holdfast.ops.tuning.history import read_history
from holdfast.ops.tuning.metrics import CLASSES, counts_of, gather, parse, scrape
from holdfast.ops.tuning.prometheus import ask_prometheus, queries
from holdfast.runtime.statistics import of_locks
from holdfast.types import MS, NS

PAGE = "http://there/metrics"


def page(*readings: Reading) -> bytes:
    return rendered(readings)[0]


def histogram(*ms: int) -> Histogram:
    return Histogram.of([each * MS for each in ms])


def lock(family: str, **values: Any) -> Reading:
    return Reading("lock", values, {"family": family})


@contextmanager
def served(body: bytes, status: int = 200, headers: dict[str, str] | None = None) -> Iterator[tuple[str, list[str]]]:
    """A server that answers everything with the same; its address, and the `Authorization` headers that it got."""
    got: list[str] = []

    class Answer(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            got.append(self.headers.get("Authorization", ""))
            self.send_response(status)
            for name, value in (headers or {}).items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Answer) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", got
        finally:
            server.shutdown()
            thread.join()


# Metrics.


def test_what_a_process_says_comes_out_again_by_family_and_job_class() -> None:
    held = {"released": histogram(*[10] * 300), "lost": histogram(*[40] * 5)}
    told = page(
        lock(
            "worker.job",
            hold_ns=held,
            left_ns=histogram(*[7000] * 50),
            lost={"expired": 2, "unconfirmed": 1, "stolen": 9},
        ),
        Reading("worker", {"held_ns": {"mail": histogram(*[20] * 200), "bill": histogram(*[900] * 150)}}),
        Reading("leases", {"renewals": {"answered": histogram(*[3] * 400), "unanswered": histogram(2000)}}),
        Reading("leases", {"renew_tail_ns": 70 * MS, "keeper_lag_ns": 250 * MS, "loop_lag_ns": None}),
        Reading("loop", {"longest_ns": 3 * NS}, {"loop": "reconciler"}),
    )
    found = gather(parse(told, PAGE), "here")
    assert found.holds["worker.job", ""].number == 305
    assert {name: each.number for name, each in found.classes("worker.job").items()} == {
        "": 305,
        "mail": 200,
        "bill": 150,
    }
    assert found.lost == {"worker.job": 3}
    assert found.requests is not None
    assert (found.requests.number, found.unanswered) == (400, 1)
    assert found.tail == SourcedDuration(70 * MS, "the slowest renewals lately (here)")
    assert found.pauses == [SourcedDuration(250 * MS, "the renewer was late (here)")]
    assert found.ticks["reconciler"].ns == 3 * NS
    known = evidence(found, "worker.job", renewed=False, present=None, loop=None)
    assert known.hold is not None
    assert known.hold.source.endswith("job class bill"), "the class with the longest decides"
    assert known.tail == found.tail


@pytest.mark.requires("R137")
def test_every_family_with_job_classes_has_a_metric_of_them() -> None:
    assert {family for family, _ in CLASSES.values()} == {"worker.job", "scheduler.job", "workflow.run"}


def test_real_locks_are_read_through_the_real_text_format(tmp_path: Path) -> None:
    with holdfast.connect(f"sqlite:///{tmp_path}/leases.db") as locks:
        for number in range(120):
            with locks.lock(f"k{number}", family="billing"):
                pass
        told, _ = rendered(of_locks(locks.manager))
    found = gather(parse(told, PAGE), "here")
    assert found.families == ["billing"]
    assert found.holds["billing", ""].number == 120
    few = evidence(found, "billing", renewed=True, present=None, loop=None)
    assert few.no_tail == "not enough data: 0 requests to the store, at least 100 are needed for a p99"


@given(st.lists(st.integers(1, 10_000_000), max_size=60))
def test_counts_survive_the_way_through_cumulative_buckets(ms: list[int]) -> None:
    counts = histogram(*ms)
    found = gather(parse(page(lock("f", hold_ns={"released": counts})), PAGE), "here")
    assert found.holds["f", ""].counts.counts == counts.counts if ms else not found.holds


def test_several_processes_are_added_up_and_each_worst_counts() -> None:
    one = parse(
        page(lock("f", hold_ns={"released": histogram(*[10] * 60)}), Reading("leases", {"keeper_lag_ns": MS})), PAGE
    )
    two = parse(
        page(lock("f", hold_ns={"released": histogram(*[90] * 60)}), Reading("leases", {"keeper_lag_ns": NS})), PAGE
    )
    found = gather([*one, *two], "both")
    assert found.holds["f", ""].number == 120
    assert max(each.ns for each in found.pauses) == NS


def test_numbers_that_cannot_be_are_left_out_and_said() -> None:
    text = b"".join(
        b'holdfast_lock_hold_seconds_bucket{family="f",outcome="released",le="%s"} %s\n' % each
        for each in ((b"1", b"1e300"), (b"2", b"-5"), (b"nonsense", b"7"), (b"NaN", b"+Inf"), (b"3", b"NaN"))
    )
    found = gather(parse(text, PAGE), "here")
    assert found.holds["f", ""].number == 7
    assert found.remarks == ["3 numbers of here were impossible and skipped"]


def test_bounds_that_are_not_ours_count_as_the_next_above() -> None:
    found = counts_of({0.0015: 5, 4.0: 9, 7200.0: 11, float("inf"): 12})
    assert found.number == 12
    assert (found.counts[LADDER_NS.index(2 * MS)], found.counts[LADDER_NS.index(5 * NS)], found.counts[-1]) == (5, 4, 3)
    assert counts_of({1.0: 10, 2.0: 4}).number == 10, "a counter that fell between two reads is no negative count"
    thin = {bound / NS: 0.4 * place for place, bound in enumerate(LADDER_NS, 1)}
    assert counts_of(thin).number == round(0.4 * len(LADDER_NS)), "fractions that are spread thinly are not lost"


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (b"<!doctype html><html><body>Sign in</body></html>", "no page of metrics: '<!doctype html>"),
        (b'{"status":"ok"}', "no page of metrics"),
        (b"\x80\x81\xff", "no page of metrics"),
        (b"", "has no metrics of Holdfast"),
        (b"# TYPE up gauge\nup 1\n", "has no metrics of Holdfast"),
    ],
)
def test_what_is_no_page_of_ours_is_refused_with_what_it_was(body: bytes, problem: str) -> None:
    with served(body) as (url, _), pytest.raises(Misconfigured, match="http") as refused:
        scrape([f"{url}/metrics"])
    assert problem in str(refused.value)


@given(st.binary(max_size=300))
def test_no_page_whatever_it_is_raises_anything_else(body: bytes) -> None:
    try:
        found = parse(b"holdfast_x 1\n" + body, PAGE)
    except Misconfigured:
        return
    assert gather(found, "here").source == "here"


# The wire.


def test_a_token_is_sent_and_never_follows_a_redirect() -> None:
    with served(b"holdfast_draining 0\n") as (url, got):
        assert ask(f"{url}/metrics", token="s3cret") == b"holdfast_draining 0\n"
        assert got == ["Bearer s3cret"]
        with (
            served(b"", 302, {"Location": f"{url}/elsewhere"}) as (first, seen),
            pytest.raises(Misconfigured, match="answered 302") as refused,
        ):
            ask(f"{first}/metrics", token="s3cret")
        assert seen == ["Bearer s3cret"]
    assert len(got) == 1, "the redirect target received nothing"
    assert "s3cret" not in str(refused.value)


def test_an_answer_without_an_end_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_client, "BYTES_MAX", 1000)
    with served(b"x" * 5000) as (url, _), pytest.raises(Misconfigured, match="more than 0 MiB"):
        ask(url)


def test_errors_of_the_wire_are_ours_and_say_where() -> None:
    with served(b"who are you?", 401) as (url, _), pytest.raises(Misconfigured, match=r"answered 401 .*who are you\?"):
        ask(f"{url}/metrics?x=1")
    with pytest.raises(Unavailable, match=r"http://127\.0\.0\.1:1/metrics could not be reached"):
        ask("http://127.0.0.1:1/metrics")
    silence = pytest.raises(Timeout, match=r"did not answer within 0\.05 s")
    with socket.create_server(("127.0.0.1", 0)) as silent, silence:
        ask(f"http://127.0.0.1:{silent.getsockname()[1]}/metrics", timeout=0.05)


@contextmanager
def dripping(head: bytes, body: bytes) -> Iterator[str]:
    """A server that sends the first part immediately and the second a byte at a time; its address."""
    gone = threading.Event()

    def drip(server: socket.socket) -> None:
        said, _ = server.accept()
        with said, suppress(OSError):
            said.recv(4096)
            said.sendall(head)
            for each in range(len(body)):
                if gone.wait(0.01):
                    return
                said.sendall(body[each : each + 1])

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=drip, args=(server,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.getsockname()[1]}/metrics"
        finally:
            gone.set()
            thread.join()


@pytest.mark.parametrize(
    ("head", "body"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 1500\r\n\r\n", b"x" * 1500),
        (b"HTTP/1.1 200 OK\r\n\r\n", b"x" * 1500),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n" * 250 + b"0\r\n\r\n"),
        (b"", b"HTTP/1.1 200 OK\r\nX-Slow: " + b"x" * 1500 + b"\r\n\r\n"),
    ],
    ids=["body", "body without a length", "chunks", "head"],
)
def test_an_answer_that_comes_drop_by_drop_has_no_more_time_than_one_that_does_not_come(
    head: bytes, body: bytes
) -> None:
    """Each byte comes well within the limit, and the last of them, 15 s later, would make it a good answer."""
    with dripping(head, body) as url, pytest.raises(Timeout, match=r"did not answer within 0\.1 s"):
        ask(url, timeout=0.1)


def test_a_refusal_that_comes_drop_by_drop_is_a_refusal() -> None:
    head = b"HTTP/1.1 403 Forbidden\r\nContent-Length: 1500\r\n\r\n"
    with dripping(head, b"x" * 1500) as url, pytest.raises(Misconfigured, match="answered 403 Forbidden"):
        ask(url, timeout=0.1)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "metrics",
        "file:///etc/passwd",
        "ftp://x/y",
        "http://",
        "http://u:p@host/",
        "http://h:99999/",
        "http://h/ \n",
        "http://[x",
    ],
)
def test_what_is_no_address_is_refused_before_anything_is_sent(url: str) -> None:
    with pytest.raises(BadInput, match="--metrics"):
        check_url("--metrics", url)


@pytest.mark.parametrize(
    "body",
    [b"<html>", b"[]", b"{}", b'{"status":"success","data":{"result":[{"metric":1,"value":[0,"1"]}]}}',
     b'{"status":"success","data":{"result":[{"metric":{},"value":[0,"x"]}]}}', b"[" * 5000],
)  # fmt: skip
def test_what_does_not_answer_as_a_prometheus_is_refused(body: bytes) -> None:
    with served(body) as (url, _), pytest.raises(Misconfigured, match="does not answer as a Prometheus does"):
        ask_prometheus(url)


def test_a_prometheus_without_our_metrics_or_with_a_refusal_is_said() -> None:
    empty = served(b'{"status":"success","data":{"result":[]}}')
    with empty as (url, _), pytest.raises(Misconfigured, match="has no metrics of Holdfast in the last 2h"):
        ask_prometheus(f"{url}/", "2h")
    unwilling = served(b'{"status":"error","error":"query timed out"}')
    with unwilling as (url, _), pytest.raises(Misconfigured, match="query timed out"):
        ask_prometheus(url)


@pytest.mark.parametrize("window", ["", "d", "7d]) or vector(1", "-1h", "7 d"])
def test_a_window_that_is_none_is_refused(window: str) -> None:
    with pytest.raises(BadInput, match="window"):
        ask_prometheus("http://127.0.0.1:1", window)
    for match in ({"a": 'b"} or x{c="d'}, {"a-b": "c"}, {"": "c"}):
        with pytest.raises(BadInput, match=r"match: .* is no label with a value"):
            ask_prometheus("http://127.0.0.1:1", match=match)
    asked = queries("7d", {"plane": "blue"}).values()
    assert all('{plane="blue"}[7d]' in query for query in asked)


# Ledgers.


def test_a_real_ledger_gives_exact_holds_and_round_trips(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/leases.db"
    with Ledger(tmp_path / "audit") as ledger, holdfast.connect(url, observers=[ledger]) as locks:
        for number in range(110):
            with locks.lock(f"k{number}", family="billing"):
                pass
    found, findings = read_history(tmp_path / "audit")
    assert findings.damaged == 0
    assert found.holds["billing", ""].number == 110
    assert found.holds["billing", ""].exact
    assert found.requests is not None
    assert found.requests.number == 110
    known = evidence(found, "billing", renewed=True, present=None, loop=None)
    assert known.tail is not None
    assert known.tail.source.startswith("the slowest of 110 grants, from request to answer")


def test_pauses_come_from_autopsies_and_absurd_times_are_left_out(tmp_path: Path) -> None:
    facts = {"keeper_lag_ns": 2 * NS, "starved_ns": 5 * NS, "suspended_ns": 9000 * NS, "collection_ns": "long"}
    with Ledger(tmp_path / "audit") as ledger:
        ledger.note(Record(EventKind.GRANTED, 100 * NS, "k", "f", "o", 1, began_ns=99 * NS))
        ledger.note(Record(EventKind.LOST, 130 * NS, "k", "f", "o", 1, reason="expired", facts=facts))
        ledger.note(Record(EventKind.GRANTED, 200 * NS, "k", "f", "o", 2, began_ns=2**62))
        ledger.note(Record(EventKind.RELEASED, 2**62, "k", "f", "o", 2))
        ledger.note(Record(EventKind.LOST, 300 * NS, "j", "f", "o", 3, reason="revoked", facts={"starved_ns": 50 * NS}))
        ledger.note(Record(EventKind.UNCONFIRMED, 300 * NS, "j", "f", "o", 3))
    found, _ = read_history(tmp_path / "audit")
    assert {each.ns for each in found.pauses} == {2 * NS, 5 * NS}, "a host that was asleep should lose its lease"
    assert (found.lost, found.unanswered) == ({"f": 1}, 1)
    assert found.remarks == ["2 durations in audit were impossible and skipped"]
    assert found.holds["f", ""].longest_ns == 30 * NS


# What they say together.


def test_a_late_renewal_shows_in_what_was_left_of_the_lease() -> None:
    ttl = settle(ttl=60).ttl_ns
    in_time = histogram(*[39_000] * 50)
    assert lateness(NOTHING, ttl, ttl // 3) is None
    assert lateness(in_time, ttl, ttl // 3) is None, "as far as buckets can tell"
    late = lateness(in_time.plus(histogram(9_000)), ttl, ttl // 3)
    assert late is not None
    assert 30 * NS < late.ns < 32 * NS
    assert "between 8 s and 10 s were left of 60 s, one of 51" in late.source
    sooner = lateness(in_time.plus(histogram(9_000)), ttl, ttl // 6)
    assert sooner is not None
    assert sooner.ns - late.ns == 10 * NS, "it was due after 10 s, not after 20"


def test_too_little_is_said_with_how_much_there_was() -> None:
    twelve = TuningData("here", {("f", ""): of_durations([MS] * 12, "holds")})
    known = evidence(twelve, "f", renewed=False, present=None, loop=None)
    assert known.no_hold == "not enough data: 12 holds of f, at least 100 are needed for a p99"
    beyond = TuningData("here")
    beyond.holds = gather(parse(page(lock("f", hold_ns={"released": histogram(*[10**7] * 200)})), PAGE), "x").holds
    assert "lies beyond 3600 s" in evidence(beyond, "f", renewed=False, present=None, loop=None).no_hold
    assert "no tick" in evidence(twelve, "f", renewed=False, present=None, loop="reconciler").no_hold


def test_a_missing_ledger_is_a_plain_refusal(tmp_path: Path) -> None:
    with pytest.raises(HoldfastError, match="does not exist"):
        read_history(tmp_path / "none")
