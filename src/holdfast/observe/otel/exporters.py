"""Which exporters send the metrics of a process, how often, and as whom: as OpenTelemetry's own variables say.

The SDK and the exporters read most of them themselves (addresses, headers, certificates, time limits); here are those
that choose among exporters, which the SDK reads only in programs that it configures from outside. What cannot work is
refused at the start of the process, with the name of the variable.
"""

from __future__ import annotations

import os
from importlib.metadata import entry_points
from typing import Final
from urllib.parse import urlsplit

from opentelemetry.sdk.metrics.export import MetricExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource

from holdfast import __version__
from holdfast.errors import BadInput, Misconfigured
from holdfast.plane.settings.sections import OtelSettings
from holdfast.runtime.system import this_owner

INTERVAL_S: Final = 60.0
ENTRY_POINTS: Final = "opentelemetry_metrics_exporter"
METRICS_PATH: Final = "/v1/metrics"

_PROTOCOLS: Final = {"http/protobuf": "otlp_proto_http", "grpc": "otlp_proto_grpc"}
_PACKAGES: Final = {name: f"opentelemetry-exporter-{name.replace('_', '-')}" for name in _PROTOCOLS.values()}
_TEMPORALITY: Final = "OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE"


def exporters_of(settings: OtelSettings) -> dict[str, MetricExporter]:
    """Those that `$OTEL_METRICS_EXPORTER` names; OTLP over HTTP when it names none."""
    if not settings.enabled or os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return {}
    named = [each.strip() for each in os.environ.get("OTEL_METRICS_EXPORTER", "").split(",") if each.strip()]
    wanted = dict.fromkeys(_entry_name(each) for each in named or ["otlp"] if each != "none")
    _check_temporality()
    return {name: _made(name, settings.endpoint) for name in wanted}


def _entry_name(exporter: str) -> str:
    if exporter != "otlp":
        return exporter
    for variable in ("OTEL_EXPORTER_OTLP_METRICS_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"):
        protocol = os.environ.get(variable, "").strip()
        if protocol in _PROTOCOLS:
            return _PROTOCOLS[protocol]
        if protocol:
            raise BadInput(variable, f"{protocol!r:.60} is not known", f"use {' or '.join(_PROTOCOLS)}")
    return _PROTOCOLS["http/protobuf"]


def _made(name: str, endpoint: str | None) -> MetricExporter:
    found = next(iter(entry_points(group=ENTRY_POINTS, name=name)), None)
    if found is None:
        package = "'holdfast[otlp]'" if name == _PROTOCOLS["http/protobuf"] else _PACKAGES.get(name)
        install = f"pip install {package}" if package else "set OTEL_METRICS_EXPORTER=otlp"
        raise Misconfigured(f"metrics cannot be sent: the exporter {name!r:.60} is not installed; {install}")
    chosen = {"endpoint": _complete(endpoint, name)} if endpoint is not None and name in _PACKAGES else {}
    try:
        made = found.load()(**chosen)
    except Exception as error:
        raise BadInput("otel", f"the exporter {name} cannot be made: {error}", "check the OTEL_* variables") from error
    if not isinstance(made, MetricExporter):
        problem = f"{name!r:.60} waits to be asked and sends nothing"
        raise BadInput("OTEL_METRICS_EXPORTER", problem, "use otlp; Prometheus is answered at /metrics anyway")
    return made


def _complete(endpoint: str, name: str) -> str:
    """Where metrics go below an address, unless it has a path itself; over gRPC there are no paths."""
    if name != _PROTOCOLS["http/protobuf"] or urlsplit(endpoint).path.rstrip("/").endswith(METRICS_PATH):
        return endpoint
    return endpoint.rstrip("/") + METRICS_PATH


def _check_temporality() -> None:
    """Delta temporality would need a sender that remembers lost points. The collector can compute deltas."""
    asked = os.environ.get(_TEMPORALITY, "").strip().lower()
    if asked not in ("", "cumulative"):
        fix = "use cumulative, and the processor cumulativetodelta in the collector"
        raise BadInput(_TEMPORALITY, f"{asked!r:.60} is not what a process of the plane sends", fix)


def interval_of(settings: OtelSettings) -> float:
    """Seconds between two exports."""
    told = os.environ.get("OTEL_METRIC_EXPORT_INTERVAL", "").strip()
    if settings.interval is not None or not told:
        return INTERVAL_S if settings.interval is None else settings.interval
    if not (told.isascii() and told.isdecimal() and 1 <= int(told) <= 86_400_000):
        raise BadInput(
            "OTEL_METRIC_EXPORT_INTERVAL", f"{told!r:.60} is no interval", "give milliseconds, such as 60000"
        )
    return int(told) / 1000


def this_resource() -> Resource:
    """OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES come first; the rest is ours."""
    owner = this_owner()
    ours = {
        "service.name": "holdfast",
        "service.version": __version__,
        "service.instance.id": f"{owner.host}-{owner.pid}-{owner.instance}",
    }
    return Resource.create({**ours, **OTELResourceDetector().detect().attributes})
