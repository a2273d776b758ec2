"""A collector on loopback: takes OTLP over HTTP and keeps what it got. It can also refuse, or not answer at all."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, NamedTuple, Self

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from support.cli.sessions import until

Labels = tuple[tuple[str, str], ...]


class Point(NamedTuple):
    """One data point as it came."""

    kind: str  # sum, updown, gauge, histogram
    unit: str
    point: Any

    @property
    def value(self) -> float:
        """Of a number."""
        return float(self.point.as_int if self.point.WhichOneof("value") == "as_int" else self.point.as_double)


class Export:
    """One request."""

    def __init__(self, body: bytes) -> None:
        self.body = body
        request = ExportMetricsServiceRequest.FromString(body)
        (only,) = request.resource_metrics
        (scope,) = only.scope_metrics
        self.scope = scope.scope.name
        self.resource: Mapping[str, str] = {each.key: each.value.string_value for each in only.resource.attributes}
        self.points: dict[tuple[str, Labels], Point] = {}
        for metric in scope.metrics:
            kind = str(metric.WhichOneof("data"))
            data = getattr(metric, kind)
            shown = "updown" if kind == "sum" and not data.is_monotonic else kind
            if kind != "gauge":
                assert data.aggregation_temporality == 2, "cumulative"
            for point in data.data_points:
                labels = tuple(sorted((each.key, each.value.string_value) for each in point.attributes))
                assert (metric.name, labels) not in self.points, "each metric and its attributes are there once"
                self.points[metric.name, labels] = Point(shown, metric.unit, point)

    def value(self, name: str, **labels: str) -> float | None:
        """One number; None: it is not there."""
        found = self.points.get((name, tuple(sorted(labels.items()))))
        return None if found is None else found.value


class Collector:
    """Listens while it is entered."""

    def __init__(self) -> None:
        self.exports: list[Export] = []
        self.headers: list[Mapping[str, str]] = []
        self.status = 200
        self.asked = 0
        self.answers = threading.Event()  # cleared: requests are taken and not answered
        self.answers.set()
        collector = self

        class Taking(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                assert self.path == "/v1/metrics"
                body = self.rfile.read(int(self.headers["Content-Length"]))
                collector.asked += 1
                collector.answers.wait()
                if collector.status == 200:
                    collector.headers.append(dict(self.headers))
                    collector.exports.append(Export(body))
                self.send_response(collector.status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None: ...

        class Quiet(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, request: object, client_address: object) -> None: ...  # who left before the answer

        self._server = Quiet(("127.0.0.1", 0), Taking)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def next(self) -> Export:
        """One that was made after now: the next but one, for the next may be under way."""
        before = len(self.exports)
        until(lambda: len(self.exports) > before + 1, "two exports")
        return self.exports[-1]

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.answers.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
