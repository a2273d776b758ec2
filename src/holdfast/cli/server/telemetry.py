"""OpenTelemetry in a process of the plane: set up before anything is opened, fed while it runs, flushed at its end.

OpenTelemetry is imported only if it is enabled.

Clock: the event loop's, between two exports.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Final

from holdfast.core.metric_reading import Reading
from holdfast.errors import Misconfigured
from holdfast.flows.log import log_event
from holdfast.plane.process.health import ProcessHealth
from holdfast.plane.settings.settings import Settings

if TYPE_CHECKING:
    from holdfast.observe.otel.push import MetricPush

_log: Final = logging.getLogger("holdfast.observe")


@contextmanager
def opened(settings: Settings) -> Iterator[MetricPush | None]:
    """The exporter, if enabled. Leaving the block sends the last metrics after everything else is closed."""
    if not settings.otel.enabled:
        yield None
        return
    try:
        from holdfast.observe.otel.push import opened as sending
    except ModuleNotFoundError as error:
        raise Misconfigured("sending metrics needs OpenTelemetry's SDK: pip install 'holdfast[otlp]'") from error

    with sending(settings.otel, settings.names.metrics) as made:
        yield made


@asynccontextmanager
async def exporting(sending: MetricPush | None, process_health: ProcessHealth) -> AsyncIterator[None]:
    """Export metrics while the block runs: immediately, every interval, and at the end."""
    if sending is None:
        yield
        return
    feeding = asyncio.create_task(_feed(sending, process_health), name="otel")
    process_health.also(lambda: [sending.reading()])
    try:
        yield
    finally:
        feeding.cancel()
        await asyncio.wait((feeding,))
        _send(sending, process_health)  # not the plane's jobs: its stores may be closed by now


async def _feed(sending: MetricPush, process_health: ProcessHealth) -> None:
    """Export immediately first: counters seen at zero can be seen to rise."""
    while True:
        _send(sending, process_health, await process_health.asked(jobs=process_health.counts_jobs))
        await asyncio.sleep(sending.interval)


def _send(sending: MetricPush, process_health: ProcessHealth, live: Iterable[Reading] = ()) -> None:
    try:
        sending.send([*process_health.readings(), *process_health.served(), *live])
    except Exception as error:  # noqa: BLE001 - whatever it is, it must neither end the process nor what follows
        log_event(_log, logging.ERROR, "the metrics to send could not be read", error)
