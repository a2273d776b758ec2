"""The row about processes: whether they run as they should."""

from __future__ import annotations

from typing import Final

from holdfast.ops.dashboard.panels import Kind, Panel, Row, Steps, Unit
from holdfast.ops.dashboard.promql import Query, most, rate, series, total
from holdfast.ops.dashboard.thresholds import Limits

_PARTS: Final = (
    Panel(
        "Lease store, seen by each process",
        "1: this process takes the store to be down and does not ask it for a while. One process alone: its own "
        "network. All: the store.",
        (Query(most("store_breaker_open", "instance"), "{{instance}}"),),
        steps=Steps.none_allowed(),
        kind=Kind.TIMELINE,
        words={0: "up", 1: "down"},
    ),
    Panel(
        "Parts running",
        "Whether each part does what it is there for: the worst of all processes.",
        (Query(f"min by (part) ({series('part_running')})", "{{part}}"),),
        steps=Steps.falling(0.5, 1),
        kind=Kind.TIMELINE,
        words={0: "not running", 1: "running"},
    ),
    Panel(
        "Requests",
        "Requests of the API by status, those turned away because a caller made too many, and closed connections.",
        (
            Query(rate("http_requests_total", "status"), "{{status}}"),
            Query(rate("http_limited_total"), "turned away"),
            Query(rate("http_closed_connections_total", "reason"), "closed: {{reason}}"),
        ),
        Unit.REQUESTS,
    ),
    Panel(
        "Processes",
        "Processes that were scraped, and those of them that have begun to end. Fewer than you run: see the first row.",
        (
            Query(f"count({series('draining')})", "scraped"),
            Query(total("draining"), "ending"),
        ),
    ),
)


def _pauses(limits: Limits) -> tuple[Panel, ...]:
    """What keeps renewals from being made in time."""
    return (
        Panel(
            "Event loop lag",
            "How late each process is with what is due, and its longest garbage collection lately. Spikes are pauses: "
            "a busy host, garbage collection, a function that blocks. A third of a TTL is a missed renewal.",
            (
                Query(most("event_loop_lag_seconds", "instance"), "{{instance}}"),
                Query(most("gc_pause_seconds", "instance"), "garbage collection, {{instance}}"),
            ),
            Unit.SECONDS,
            Steps.rising(limits.renew_every / 4, limits.renew_every / 2),
        ),
        Panel(
            "Keeper behind by, each process",
            f"How late renewals are. At {limits.renew_every:.3g} s a process counts as stalled, and `/healthz` fails.",
            (Query(most("keeper_heartbeat_age_seconds", "instance"), "{{instance}}"),),
            Unit.SECONDS,
            Steps.rising(limits.renew_every / 2, limits.renew_every),
        ),
    )


def process(limits: Limits) -> Row:
    """The whole row."""
    question = "Whether processes run as they should: pauses, lateness, parts and requests."
    return Row("Process", question, (*_pauses(limits), *_PARTS))
