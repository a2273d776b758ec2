"""Sends the metrics of one process with OpenTelemetry; the configuration of its SDK decides the target.

    with opened(settings) as sending:
        ...
        sending.send(vitals.readings())

Promises: `send` returns immediately, whatever the collector does: each exporter has a thread of its own, at most two
moments wait for it, and others are left out (everything is cumulative, so the next one contains it all). When a
collector does not accept them, this is logged once, now and then while it lasts, and once when it accepts them again.
Closing sends what waits, and takes at most `CLOSE_S` for each exporter. The resource is the process: the service's name
and version, and an instance made of host, process and a random part; no key, tenant or token is in it.

Does not promise that the collector has got anything.

Clock: the wall clock of the process.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final, NamedTuple

from opentelemetry.sdk.metrics.export import MetricExporter, MetricExportResult
from opentelemetry.sdk.resources import Resource

from holdfast.core.metric_reading import Reading
from holdfast.core.name_prefixes import DEFAULT
from holdfast.core.ports import Clock
from holdfast.flows.log import OutageLog
from holdfast.observe.metrics.samples import MetricSample, samples, together
from holdfast.observe.otel.exporters import INTERVAL_S, exporters_of, interval_of, this_resource
from holdfast.observe.otel.points import data_of
from holdfast.plane.settings.sections import OtelSettings
from holdfast.runtime.background_writer import BackgroundWriter
from holdfast.runtime.system import SystemClock

CLOSE_S: Final = 3.0

_log: Final = logging.getLogger("holdfast.observe")


class _Moment(NamedTuple):
    found: Sequence[MetricSample]
    now_ns: int


class MetricPush:
    """Sends what a process counts, every `interval` seconds, from the caller's loop."""

    def __init__(
        self,
        exporters: Mapping[str, MetricExporter],
        interval: float = INTERVAL_S,
        *,
        clock: Clock | None = None,
        prefix: str = DEFAULT,
    ) -> None:
        self.interval = interval
        self._clock = clock or SystemClock()
        since_ns, resource = self._clock.now().wall, this_resource()
        self._senders = [_Sender(name, each, resource, since_ns, prefix) for name, each in exporters.items()]

    def send(self, readings: Iterable[Reading]) -> None:
        """Send them soon. Several readings of one source are added up, as for a program with several `Locks`."""
        moment = _Moment(together(samples(readings)), self._clock.now().wall)
        for each in self._senders:
            each.background_writer.put(moment)

    def reading(self) -> Reading:
        """How sending went, of all exporters together."""
        outcomes = ("sent", "failed", "left_out")
        return Reading(
            "otel", {"exports": {name: sum(each.count(name) for each in self._senders) for name in outcomes}}
        )

    def close(self) -> None:
        """Send what waits, and end. Idempotent."""
        for each in self._senders:
            each.close()


@contextmanager
def opened(settings: OtelSettings, prefix: str = DEFAULT) -> Iterator[MetricPush | None]:
    """Make it as the settings and the `OTEL_*` variables want it, for as long as the block runs. None: not wanted."""
    exporters = exporters_of(settings)
    if not exporters:
        yield None
        return
    sending = MetricPush(exporters, interval_of(settings), prefix=prefix)
    try:
        yield sending
    finally:
        sending.close()


class _Sender:
    """One exporter and its thread."""

    def __init__(self, name: str, exporter: MetricExporter, resource: Resource, since_ns: int, prefix: str) -> None:
        self._exporter = exporter
        self._resource = resource
        self._since_ns = since_ns
        self._prefix = prefix
        self._counts = {"sent": 0, "failed": 0, "left_out": 0}
        self._closed = False
        self._trouble = OutageLog(_log, "metrics could not be sent", "metrics are sent again", exporter=name)
        self.background_writer: BackgroundWriter[_Moment] = BackgroundWriter(
            f"holdfast-otel-{name}", self._write, lambda: None, room=2, tick_s=INTERVAL_S
        )

    def count(self, outcome: str) -> int:
        return self._counts[outcome] + (self.background_writer.dropped if outcome == "left_out" else 0)

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if not self.background_writer.flush(CLOSE_S):
            self._trouble.met(reason=f"not taken within {CLOSE_S:g} s at the end")
        with contextlib.suppress(Exception):
            self._exporter.shutdown()
        self.background_writer.close(0.0)

    def _write(self, moments: Sequence[_Moment], _dropped: int) -> None:
        self._counts["left_out"] += len(moments[:-1])
        for moment in moments[-1:]:  # the last one contains it all
            data = data_of(moment.found, self._resource, self._since_ns, moment.now_ns, self._prefix)
            with _reasons() as reasons:
                try:
                    taken = self._exporter.export(data) is MetricExportResult.SUCCESS
                except Exception as error:  # noqa: BLE001 - exporters are third-party code; none may end the thread
                    taken = False
                    reasons.append(f"{type(error).__name__}: {error}")
            self._counts["sent" if taken else "failed"] += 1
            if taken:
                self._trouble.ended()
            else:
                self._trouble.met(reason=reasons[-1] if reasons else None)


class _Reasons(logging.Handler):
    """Reads from the exporter's own log why an export failed: its result does not tell, and it logs every try."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """See `logging.Handler`."""
        del self.said[:-1]
        self.said.append(record.getMessage())


@contextmanager
def _reasons() -> Iterator[list[str]]:
    log, heard = logging.getLogger("opentelemetry"), _Reasons()
    propagate, log.propagate = log.propagate, False
    log.addHandler(heard)
    try:
        yield heard.said
    finally:
        log.removeHandler(heard)
        log.propagate = propagate
