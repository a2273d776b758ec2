"""One situation for the test of alert rules: a simulated fleet over time, and the alerts that must fire when."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from holdfast.ops.alerts.model import AlertSeverity, lasting
from holdfast.ops.alerts.scenarios.fleet import Fleet


@dataclass(frozen=True)
class Scenario:
    """One situation."""

    name: str  # the sentence that must hold
    fleet: Fleet
    lasts_s: float
    firing: Mapping[float, Sequence[str]] = field(default_factory=dict)  # at a moment: exactly these alerts
    quiet: AlertSeverity | None = None  # no alert of this severity or above fires at any time

    def as_test(self) -> dict[str, Any]:
        """The test in the format of promtool."""
        return {
            "name": self.name,
            "interval": lasting(self.fleet.plan.scrape_s),
            "input_series": list(self.fleet.input_series(self.lasts_s)),
            "promql_expr_test": [*self._moments(), *self._never()],
        }

    def _moments(self) -> Iterator[dict[str, Any]]:
        for at, names in sorted(self.firing.items()):
            yield {
                "expr": 'group by (alertname) (ALERTS{alertstate="firing"})',
                "eval_time": lasting(at),
                "exp_samples": [{"labels": f'{{alertname="{name}"}}', "value": 1} for name in sorted(names)],
            }

    def _never(self) -> Iterator[dict[str, Any]]:
        if self.quiet is not None:
            only = ', severity="page"' if self.quiet is AlertSeverity.PAGE else ""
            window = lasting(self.lasts_s)
            yield {
                "expr": f'group by (alertname) (max_over_time(ALERTS{{alertstate="firing"{only}}}[{window}]))',
                "eval_time": window,
                "exp_samples": [],
            }
