"""`tune` leaves outages of the lease store out of a window, and says so."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from holdfast.ops.tuning.metrics import HOLD
from holdfast.ops.tuning.outages import SPANS_MAX, WindowSpan, clean_spans, outages_of, told
from holdfast.ops.tuning.prometheus import ask_prometheus, outage_query, seconds_of

HOUR_S = 3600.0


def test_neighbors_are_one_outage_which_ends_a_step_later() -> None:
    points = [(60.0, 0.0), (120.0, 1.0), (180.0, 1.0), (240.0, 0.0), (600.0, 2.0)]
    assert outages_of(points, 60.0) == [WindowSpan(60.0, 240.0), WindowSpan(540.0, 660.0)]
    assert outages_of([], 60.0) == []


def test_many_outages_are_joined_across_their_shortest_gaps() -> None:
    points = [(each * 1000.0 + (each % 2) * 500.0, 1.0) for each in range(40)]
    found = outages_of(points, 60.0)
    assert len(found) < SPANS_MAX
    assert all(any(span.start < at <= span.end for span in found) for at, _ in points)


def test_the_rest_of_a_window_has_no_part_of_an_outage() -> None:
    outages = [WindowSpan(-30.0, 50.0), WindowSpan(300.0, 420.0), WindowSpan(430.0, 500.0), WindowSpan(900.0, 1100.0)]
    assert clean_spans(WindowSpan(0.0, 1000.0), outages, 60.0) == [WindowSpan(50.0, 300.0), WindowSpan(500.0, 900.0)]
    assert clean_spans(WindowSpan(0.0, 1000.0), [], 60.0) == [WindowSpan(0.0, 1000.0)]
    assert clean_spans(WindowSpan(0.0, 100.0), [WindowSpan(0.0, 200.0)], 60.0) == []


def test_the_report_names_the_outages_within_the_window() -> None:
    text = told([WindowSpan(-60.0, 60.0), WindowSpan(3600.0, 3720.0)], WindowSpan(0.0, 7200.0))
    assert text == (
        "left out 2 outages of the lease store, 180 s in all (UTC): 01 Jan 00:00:00 to 01 Jan 00:01:00, "
        "01 Jan 01:00:00 to 01 Jan 01:02:00"
    )


def test_a_window_of_prometheus_is_a_number_of_seconds() -> None:
    assert [seconds_of(each) for each in ("7d", "1h30m", "500ms", "90s")] == [604_800, 5400, 0.5, 90]


def test_the_outage_query_uses_the_labels_and_the_prefix_of_the_plane() -> None:
    query = outage_query(60.0, {"plane": "blue"}, "mine")
    assert query.count('plane="blue"') == 2
    assert 'mine_dependency_up{plane="blue", dependency="leases"}[60s]' in query
    assert "holdfast_" not in query


def test_only_the_parts_between_outages_are_queried_and_added() -> None:
    with prometheus(down=(0.4, 0.6)) as (url, asked):
        found = ask_prometheus(url, "1h")
    ends = sorted({float(each["time"]) for each in asked})
    assert len(ends) == 2, "one span before the outage, and one after it"
    assert ends[1] - ends[0] > 0.5 * HOUR_S
    lengths = {each["query"].rpartition("[")[2].partition("s]")[0] for each in asked}
    assert all(1200 <= int(each) <= 1440 for each in lengths), lengths
    assert found.holds["worker.job", ""].number == 2 * 100, "the counts of both spans"
    (remark,) = found.remarks
    assert remark.startswith("left out an outage of the lease store, ")


def test_without_an_outage_the_window_is_asked_once_and_nothing_is_said() -> None:
    with prometheus(down=(2.0, 3.0)) as (url, asked):
        found = ask_prometheus(url, "1h")
    assert found.remarks == []
    assert found.holds["worker.job", ""].number == 100
    assert {each["query"].rpartition("[")[2].partition("]")[0] for each in asked} == {"3600s"}


def test_a_window_that_is_one_outage_is_used_and_the_report_warns() -> None:
    with prometheus(down=(-1.0, 2.0)) as (url, _):
        found = ask_prometheus(url, "1h")
    assert found.remarks == ["the lease store was down in the whole window: these numbers are those of an outage"]


@contextmanager
def prometheus(down: tuple[float, float]) -> Iterator[tuple[str, list[dict[str, str]]]]:
    """A server that answers as a Prometheus does: the store was down in that part of every window."""
    asked: list[dict[str, str]] = []

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            said = {name: values[0] for name, values in parse_qs(parts.query).items()}
            if parts.path.endswith("query_range"):
                start, end, step = (float(said[name]) for name in ("start", "end", "step"))
                times = [start + number * step for number in range(int((end - start) / step) + 1)]
                values = [[at, str(int(down[0] <= (at - start) / (end - start) <= down[1]))] for at in times]
                result: list[dict[str, Any]] = [{"metric": {}, "values": values}]
            else:
                asked.append({"time": str(time.time()), **said})
                buckets = [("0.5", "90"), ("+Inf", "100")] if f"{HOLD}_bucket" in said["query"] else []
                result = [
                    {"metric": {"family": "worker.job", "le": bound}, "value": [0, count]} for bound, count in buckets
                ]
            body = json.dumps({"status": "success", "data": {"result": result}}).encode()
            self.send_response(200)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}", asked
        finally:
            server.shutdown()
            thread.join()
