"""The row about processes: health of processes and their components."""

from __future__ import annotations

from typing import Final

from holdfast.ops.dashboard.panels import Panel, PanelKind, PanelSteps, Row, Unit
from holdfast.ops.dashboard.promql import PanelQuery, most, rate, series, total
from holdfast.ops.dashboard.thresholds import PanelLimits

_PARTS: Final = (
    Panel(
        "Lease store, seen by each process",
        "1: this process considers the store down and does not use it for a while. One process alone: its own "
        "network. All: the store.",
        (PanelQuery(most("store_breaker_open", "instance"), "{{instance}}"),),
        steps=PanelSteps.none_allowed(),
        kind=PanelKind.TIMELINE,
        words={0: "up", 1: "down"},
    ),
    Panel(
        "Components running",
        "Whether each component works: the worst of all processes.",
        (PanelQuery(f"min by (part) ({series('part_running')})", "{{part}}"),),
        steps=PanelSteps.falling(0.5, 1),
        kind=PanelKind.TIMELINE,
        words={0: "not running", 1: "running"},
    ),
    Panel(
        "Requests",
        "API requests by status, rate-limited requests, and closed connections.",
        (
            PanelQuery(rate("http_requests_total", "status"), "{{status}}"),
            PanelQuery(rate("http_limited_total"), "rate-limited"),
            PanelQuery(rate("http_closed_connections_total", "reason"), "closed: {{reason}}"),
        ),
        Unit.REQUESTS,
    ),
    Panel(
        "Processes",
        "Scraped processes, and those of them that are shutting down. Fewer than you run: see the first row.",
        (
            PanelQuery(f"count({series('draining')})", "scraped"),
            PanelQuery(total("draining"), "ending"),
        ),
    ),
)


def _pauses(limits: PanelLimits) -> tuple[Panel, ...]:
    """Delays of renewals."""
    return (
        Panel(
            "Event loop lag",
            "How late each process handles timers, and its longest recent garbage collection. Spikes are pauses: "
            "a busy host, garbage collection, a blocking function. A third of a TTL is a missed renewal.",
            (
                PanelQuery(most("event_loop_lag_seconds", "instance"), "{{instance}}"),
                PanelQuery(most("gc_pause_seconds", "instance"), "garbage collection, {{instance}}"),
            ),
            Unit.SECONDS,
            PanelSteps.rising(limits.renew_every / 4, limits.renew_every / 2),
        ),
        Panel(
            "Renewal delay by process",
            f"How late renewals are. At {limits.renew_every:.3g} s a process counts as stalled, and `/healthz` fails.",
            (PanelQuery(most("keeper_heartbeat_age_seconds", "instance"), "{{instance}}"),),
            Unit.SECONDS,
            PanelSteps.rising(limits.renew_every / 2, limits.renew_every),
        ),
    )


def process(limits: PanelLimits) -> Row:
    """The row."""
    question = "Whether processes are healthy: pauses, delays, components and requests."
    return Row("Process", question, (*_pauses(limits), *_PARTS))
