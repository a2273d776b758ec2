"""The settings of sending metrics with OpenTelemetry.

Little is said here: where to, how often, with which headers, certificates and limits is what the `OTEL_*` variables of
OpenTelemetry say, and they are read by its own SDK.
"""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.plane.setting_keys import key
from holdfast.plane.setting_kinds import Flag, Seconds, Url


@dataclass(frozen=True, slots=True)
class OtelSettings:
    """Metrics sent with OpenTelemetry. See docs/metrics.md."""

    enabled: bool = key(False, Flag(), "whether metrics are sent, as the OTEL_* variables say", "--otel")
    endpoint: str | None = key(
        None,
        Url(("http", "https"), "http://collector:4318"),
        "where to; not given: $OTEL_EXPORTER_OTLP_ENDPOINT, else http://localhost:4318",
    )
    interval: float | None = key(
        None, Seconds(0.1, 3600.0), "between two exports; not given: $OTEL_METRIC_EXPORT_INTERVAL, else 60"
    )
